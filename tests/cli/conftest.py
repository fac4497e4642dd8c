"""Running commands in this process, on a store of the test's own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from zae_limiter import SyncRateLimiter
from zae_limiter.cli.app import program

STORE = "sqlite:///limits.db"
"""Relative to the directory of the test, so that messages are the same wherever it runs."""

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one command on the test's store, at a fixed width and without colour."""
    monkeypatch.chdir(tmp_path)
    for variable in ("ZAEL_STACK", "ZAEL_NAMESPACE", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ZAE_LIMITER_STORE", STORE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*words: str, answer: str = "") -> Result:
        result = CliRunner().invoke(program, list(words), input=answer)
        assert isinstance(result.exception, SystemExit | None), result.exception
        return result

    return run


@pytest.fixture
def limiter(run: Run) -> Iterator[SyncRateLimiter]:  # noqa: ARG001 - it prepares the directory
    """A limiter on the store that the commands use."""
    with SyncRateLimiter.open(STORE) as limiter:
        yield limiter
