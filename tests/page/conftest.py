"""One server, one store and one browser for each module of tests; and tests that are coroutines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page.browser import PICTURES, Browser, chromium
from tests.page.served import Served, furnish, furnish_hostile, serving
from tests.stores import clock, pytest_pyfunc_call, runner
from zae_limiter import SyncRateLimiter
from zae_limiter_aggregator.runner import aggregate

__all__ = ["clock", "pytest_pyfunc_call", "runner"]


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the pictures are that were taken."""
    if PICTURES.is_dir():
        terminalreporter.write_line(f"pictures of the page: {PICTURES}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that lets changes through, with some of everything in its store."""
    folder: Path = tmp_path_factory.mktemp("page")
    store = f"sqlite:///{folder}/limits.db"
    with SyncRateLimiter.open(store) as limiter:
        furnish(limiter)
        furnish_hostile(limiter)
    aggregate(store, until_idle=True)
    with serving(folder, store, "--changes") as found:
        yield found
