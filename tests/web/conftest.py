"""A limiter on a memory store with a clock, for tests that are coroutines."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.stores import clock, pytest_pyfunc_call, runner
from zae_limiter import RateLimiter, Repository, SyncRateLimiter, SyncRepository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.shelf import Shelf
from zae_limiter.testing import FaultyBackend, ManualClock

__all__ = ["clock", "faulty", "limiter", "pytest_pyfunc_call", "runner", "shelf", "sync_limiter"]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def faulty(clock: ManualClock, shelf: Shelf) -> FaultyBackend:
    return FaultyBackend(MemoryBackend(clock.world, shelf))


@pytest.fixture
def limiter(clock: ManualClock, runner: asyncio.Runner, faulty: FaultyBackend) -> Iterator[RateLimiter]:
    it = RateLimiter(runner.run(Repository.over(faulty, world=clock.world)))
    yield it
    assert it.refunds_lost == 0
    runner.run(it.close())


@pytest.fixture
def sync_limiter(clock: ManualClock, shelf: Shelf) -> Iterator[SyncRateLimiter]:
    backend = MemoryBackend(clock.world, shelf)
    with SyncRateLimiter(SyncRepository.over(backend, world=clock.world)) as it:
        yield it
