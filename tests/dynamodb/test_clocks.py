"""Clients whose clocks differ by a day share a table as if there were one clock."""

import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.dynamodb.tables import make_table, session
from tests.engines import dynamodb_local
from tests.stores import drive
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.runtime.world import World

RESOURCE = "gpt-4"
CAPACITY = 20
RPM = Limit("rpm", CAPACITY, 60, 3_600)
DAY_MS = 86_400_000
COARSE_S = 1


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def wrong_by(ms: int) -> World:
    """The world of a machine whose clock was set wrong."""
    return World(lambda: wall_ms() + ms)


class Crew:
    """Clients of one table whose clocks differ, and what they were given."""

    def __init__(self, limiters: list[RateLimiter]) -> None:
        self.limiters, self.admitted = limiters, 0
        self.longest_wait_s = 0.0

    async def ask(self, limiter: RateLimiter, times: int) -> int:
        """How many of so many acquires pass."""
        passed = 0
        for _ in range(times):
            try:
                async with limiter.acquire("key", RESOURCE, {"rpm": 1}):
                    passed += 1
            except RateLimitExceeded as refusal:
                self.longest_wait_s = max(self.longest_wait_s, refusal.retry_after_seconds)
        self.admitted += passed
        return passed


@asynccontextmanager
async def crew(sync: bool, *wrong_ms: int) -> AsyncIterator[Crew]:
    table = make_table()
    settings: dict[str, Any] = {
        "store": dynamodb_local.url(table, timeout_ms=60_000),
        "session": session(sync),
    }
    opened: list[Repository] = []
    try:
        for ms in wrong_ms:
            opened.append(
                await Repository._open({**settings, "world": wrong_by(ms)}, None, sync=sync)  # type: ignore[typeddict-item]
            )
        await opened[0].set_resource_defaults(RESOURCE, [RPM])
        yield Crew([RateLimiter(repository) for repository in opened])
    finally:
        for repository in opened:
            await repository.close()


@pytest.mark.parametrize("order", [(0, DAY_MS, -DAY_MS), (DAY_MS, 0, -DAY_MS), (-DAY_MS, 0, DAY_MS)], ids=str)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_clocks_a_day_apart_admit_what_one_clock_would(sync: bool, order: tuple[int, ...]) -> None:
    """The capacity and what accrued, within what a second and a round trip accrue; nobody is locked out."""

    async def run() -> None:
        started = time.monotonic()
        async with crew(sync, *order) as it:
            first = it.limiters[0]
            assert await it.ask(first, 1) == 1, "the bucket is made by the clock of the first"
            for limiter in it.limiters[1:]:
                assert await it.ask(limiter, 5) == 5
            for limiter in it.limiters:
                await it.ask(limiter, 2 * CAPACITY)
            took_s = time.monotonic() - started
            per_token_s = RPM.refill_period_seconds / RPM.refill_amount
            most = CAPACITY + math.floor((took_s + COARSE_S + took_s) / per_token_s)
            assert CAPACITY <= it.admitted <= most
            assert it.longest_wait_s <= per_token_s + COARSE_S + took_s

    drive(sync, run())
