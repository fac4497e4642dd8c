"""A limiter that threads share, on each embedded store, with a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores import memory, sqlite
from zae_limiter import SyncRateLimiter, SyncRepository
from zae_limiter.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[memory, sqlite], ids=["memory", "sqlite"])
def limiter(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[SyncRateLimiter]:
    backend = request.param(tmp_path, clock.world)(sync=True)
    with SyncRateLimiter(SyncRepository.over(backend, world=clock.world)) as found:
        yield found
