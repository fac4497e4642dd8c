"""Each test that asks for ``store`` runs once for every store; a test may be a coroutine."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flow.clients import Store
from tests.stores import STORES, clock, pytest_pyfunc_call, runner, url_of
from zae_limiter import SyncRateLimiter, SyncRepository
from zae_limiter.testing import ManualClock

__all__ = ["clock", "pytest_pyfunc_call", "runner", "store", "sync_limiter", "url"]


@pytest.fixture(params=list(STORES))
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock, runner: asyncio.Runner
) -> Iterator[Store]:
    it = Store(request.param, STORES[request.param](tmp_path, clock.world), clock, runner.run)
    yield it
    runner.run(it.close())


@pytest.fixture
def sync_limiter(store: Store) -> Iterator[SyncRateLimiter]:
    repository = SyncRepository.over(store.open_backend(sync=True), world=store.clock.world)
    with SyncRateLimiter(repository) as it:
        yield it


@pytest.fixture(params=list(STORES))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)
