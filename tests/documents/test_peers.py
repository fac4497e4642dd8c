"""What pages show of other libraries is real: it runs where these are installed, beside our wheel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from benchmarks.process import PEERS
from tests.documents import wheel
from tests.documents.blocks import Step, steps_of
from tests.documents.peer_facts import table
from tests.documents.shell import disagreements, run
from tests.documents.test_documents import PAGES, ROOT, spared
from tests.documents.wheel import needed
from tests.house_rules import SRC_LINES_MAX
from zae_limiter import Limit, RateLimitExceeded, SyncLease, SyncRateLimiter
from zae_limiter.version import CLIENT_VERSION

PYTHON = ROOT / PEERS
VERSION = re.compile(r"`([\w-]+)` (\d+\.\d+\.\d+)")
SHOWN = {
    "docs/from-limits.md": {"limits"},
    "docs/from-pyrate.md": {"pyrate-limiter"},
    "docs/from-slowapi.md": {"slowapi"},
}
"""Which libraries a page shows; without this a block that lost its mark would pass unnoticed."""


OURS = {
    "version": CLIENT_VERSION,
    "lines of Python": f"{SRC_LINES_MAX:,} at most",
    "packages it brings": str(len(needed(frozenset()))),
    "algorithms": "token bucket, quotas, seats",
    "stores": "memory, SQLite, Redis, PostgreSQL, DynamoDB",
    "async, sync": "both",
    "several limits, each its own amount": "yes, all or none",
    "a refusal tells the wait": "yes, to the millisecond",
    "waits for its turn": "yes, in the order of asking, over processes",
    "gives back, settles": "`adjust`, `cancel`, `release`, `settle`",
}
COMPARISON = ROOT / "docs/comparison.md"
MADE = re.compile(r"(?<=<!-- made by tests/documents/peer_facts.py -->\n)(?:\|.*\n)+")


def test_the_facts_of_the_comparison_are_so() -> None:
    """Each cell about others is asked from their packages; ``UPDATE_SNAPSHOTS=1`` writes what they answer."""
    assert PYTHON.exists(), "the other limiters are not installed; run: make engines"
    made, page = table(PYTHON, OURS), COMPARISON.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        COMPARISON.write_text(MADE.sub(lambda _: made, page), encoding="utf-8")
    assert MADE.findall(COMPARISON.read_text(encoding="utf-8")) == [made]


def test_our_facts_are_so() -> None:
    """Ours are said here by hand, so what can be asked is asked."""
    assert all(hasattr(SyncLease, name) for name in re.findall(r"`(\w+)`", OURS["gives back, settles"]))
    limiter = SyncRateLimiter.open("memory://")
    limits = [Limit.per_day("requests", 5), Limit.per_day("tokens", 1_000)]
    with (
        pytest.raises(RateLimitExceeded),
        limiter.acquire("key", "api", {"requests": 1, "tokens": 1_500}, limits),
    ):
        raise AssertionError
    assert limiter.available("key", "api", limits) == {"requests": 5, "tokens": 1_000}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our packages as the wheel has them: first on the path, they hide an older one of the name."""
    place = tmp_path_factory.mktemp("ours")
    with zipfile.ZipFile(wheel.build(place)) as packed:
        packed.extractall(place / "packages")
    return place / "packages"


@pytest.fixture(scope="module")
def versions() -> dict[str, str]:
    """What is installed there."""
    assert PYTHON.exists(), "the other limiters are not installed; run: make engines"
    program = (
        "import json, importlib.metadata as m;"
        "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
    )
    ran = subprocess.run([PYTHON, "-c", program], env={}, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_their_side_does_what_the_page_says(
    name: str, ours: Path, versions: dict[str, str], tmp_path: Path
) -> None:
    """All blocks that need another library, in order, with the files that the page has."""
    page = (ROOT / name).read_text(encoding="utf-8")
    steps = [one for one in steps_of(page, spared(page)) if one.library or one.command.startswith("cat > ")]
    assert {one.library for one in steps} - {""} == SHOWN[name]
    assert SHOWN[name] <= versions.keys()
    ran, answers = run(steps, PYTHON.parent, tmp_path, PYTHONPATH=str(ours), PYTHONDONTWRITEBYTECODE="1")
    assert disagreements(name, steps, answers) == []
    assert len(answers) == 3 * len(steps) + 1, ran.stderr


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_the_page_names_the_versions_that_ran(name: str, versions: dict[str, str]) -> None:
    """So that a reader knows how old it is."""
    named = dict(VERSION.findall((ROOT / name).read_text(encoding="utf-8")))
    assert named.keys() >= SHOWN[name]
    assert {one: version for one, version in named.items() if versions.get(one) != version} == {}


def test_no_page_shows_them_elsewhere() -> None:
    """A block that needs another library is on a page that this test runs."""
    shown = [name for name in PAGES if any(one.library for one in pieces(name))]
    assert set(shown) == SHOWN.keys()


def pieces(name: str) -> list[Step]:
    page = (ROOT / name).read_text(encoding="utf-8")
    return steps_of(page, spared(page))
