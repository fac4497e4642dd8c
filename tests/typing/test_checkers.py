"""Programs of users are clean in every type checker, with the wheel installed and no sources of ours."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.documents import wheel
from tests.typing.checkers import CHECKERS, ROOT, completeness

PROGRAMS = sorted((ROOT / "tests" / "typing" / "programs").glob("*.py"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
BESIDE = frozenset({"httpx", "httpx2", "requests", "tiktoken", "types-requests"})

WRONG = """
from zae_limiter import Limit, RateLimiter, SyncRateLimiter


def sync_program(limiter: SyncRateLimiter) -> int:
    {sync}
    return 0


async def async_program(limiter: RateLimiter) -> int:
    {asynchronous}
    return 0
"""
MISTAKES = {
    "an amount that is a text": ('limiter.acquire("e", "r", {"rpm": "1"})', "pass"),
    "no resource": ('limiter.available("e")', "pass"),
    "a result of another type": ('found: str = limiter.available("e", "r")', "pass"),
    "a coroutine that is not awaited": ("pass", 'found: dict[str, int] = limiter.available("e", "r")'),
    "a limit of a text": ('Limit.per_minute("rpm", "60")', "pass"),
    "a verb of the repository": ('limiter.set_limits("e", "rpm")', "pass"),
    "an option that is not there": ("pass", 'limiter.acquire("e", "r", {"rpm": 1}, patience=1)'),
    "an unknown verb": ("pass", "await limiter.aquire()"),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a user who has the wheel and all that it may be used with."""
    place = tmp_path_factory.mktemp("typed")
    return wheel.environment(place / "venv", wheel.build(place), frozenset(EXTRAS), BESIDE) / "python"


@pytest.mark.parametrize("checker", CHECKERS)
def test_programs_are_clean(checker: str, python: Path, tmp_path: Path) -> None:
    """Each checker at its strictest, with its own reading of what a wheel says."""
    code, printed = CHECKERS[checker](PROGRAMS, python, tmp_path)
    assert code == 0, printed


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_mistake_is_seen(checker: str, mistake: str, python: Path, tmp_path: Path) -> None:
    """A checker that saw nothing, because all types were unknown to it, would let these through."""
    sync, asynchronous = MISTAKES[mistake]
    program = tmp_path / "wrong.py"
    program.write_text(
        WRONG.replace("{sync}", sync).replace("{asynchronous}", asynchronous), encoding="utf-8"
    )
    code, printed = CHECKERS[checker]([program], python, tmp_path)
    line = 6 if sync != "pass" else 11
    assert code == 1, printed
    assert f"wrong.py:{line}:" in printed, printed


@pytest.mark.parametrize("package", ["zae_limiter", "zae_limiter_aggregator"])
def test_every_public_type_is_said(package: str, python: Path, tmp_path: Path) -> None:
    """All of them, by pyright's verifier: no type is unknown, and none is left for a checker to guess."""
    report = completeness(package, python, tmp_path)
    counts = report["exportedSymbolCounts"]
    assert isinstance(counts, dict)
    assert report["completenessScore"] == 1, counts
    assert counts["withKnownType"] > 200


def test_a_type_that_is_not_said_is_seen(python: Path, tmp_path: Path) -> None:
    """The verifier finds an attribute without a type in a package of two lines."""
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    planted = packages / "planted_package"
    planted.mkdir()
    try:
        (planted / "py.typed").touch()
        (planted / "__init__.py").write_text("def unsaid(value): return value\n", encoding="utf-8")
        counts = completeness("planted_package", python, tmp_path)["exportedSymbolCounts"]
        assert counts == {"withKnownType": 0, "withAmbiguousType": 0, "withUnknownType": 1}
    finally:
        shutil.rmtree(planted)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_runs(program: Path, python: Path, tmp_path: Path) -> None:
    """What the checkers look at is what users run, and its own asserts hold."""
    ran = subprocess.run(
        [python, "-W", "error", program], cwd=tmp_path, env={}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
