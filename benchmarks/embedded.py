"""The limiters that keep their buckets in memory or in a SQLite file, each used as its documentation shows.

Each is one function that returns the step to repeat. Libraries are imported inside, because each is
installed in only one environment.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from .cases import (
    AIOLIMITER,
    BARE_APP,
    BARE_APP_PEERS,
    BARE_UPDATE,
    LIMIT,
    LIMITS_FIXED,
    LIMITS_MOVING,
    MEMORY_ASYNC,
    MEMORY_SYNC,
    OURS,
    PLENTY,
    PYRATE,
    PYRATE_SQLITE,
    RESOURCE,
    SLOWAPI,
    SLOWAPI_ASGI,
    SQLITE,
    THROTTLED,
    WEB,
)
from .floors import bare_update
from .loops import Tally, async_loop, sync_loop
from .web import bare_app, ours_app, slowapi_app

KEY = "key"
Step = Callable[[], Any]
AsyncStep = Callable[[], Awaitable[object]]


class Refused(Exception):
    """A library said no by its return value, which no case here wants."""


def must(admitted: object) -> None:
    if not admitted:
        raise Refused


def ours_sync(url: str) -> Step:
    from zae_limiter import Limit, SyncRateLimiter

    limiter = SyncRateLimiter.open(url)
    limiter.repository.set_resource_defaults(RESOURCE, [Limit.per_second(LIMIT, PLENTY)])

    def step() -> None:
        with limiter.acquire(KEY, RESOURCE, {LIMIT: 1}):
            pass

    return step


async def ours_async(url: str) -> AsyncStep:
    from zae_limiter import Limit, RateLimiter

    limiter = await RateLimiter.open(url)
    await limiter.repository.set_resource_defaults(RESOURCE, [Limit.per_second(LIMIT, PLENTY)])

    async def step() -> None:
        async with limiter.acquire(KEY, RESOURCE, {LIMIT: 1}):
            pass

    return step


def pyrate_sync() -> Step:
    from pyrate_limiter import Duration, limiter_factory

    limiter = limiter_factory.create_token_bucket_limiter(PLENTY, Duration.SECOND)
    return lambda: must(limiter.try_acquire(KEY))


async def pyrate_async() -> AsyncStep:
    from pyrate_limiter import Duration, limiter_factory

    limiter = limiter_factory.create_token_bucket_limiter(PLENTY, Duration.SECOND)

    async def step() -> None:
        must(await limiter.try_acquire_async(KEY))

    return step


def pyrate_sqlite(folder: Path) -> Step:
    from pyrate_limiter import Duration, limiter_factory

    limiter = limiter_factory.create_sqlite_limiter(PLENTY, Duration.SECOND, db_path=str(folder / "peer.db"))
    return lambda: must(limiter.try_acquire(KEY))


def throttled_sync() -> Step:
    from throttled import RateLimiterType, Throttled

    throttle = Throttled(using=RateLimiterType.TOKEN_BUCKET.value, quota=f"{PLENTY}/s burst {PLENTY}")
    return lambda: must(not throttle.limit(KEY, cost=1).limited)


async def throttled_async() -> AsyncStep:
    from throttled.asyncio import RateLimiterType, Throttled

    throttle = Throttled(using=RateLimiterType.TOKEN_BUCKET.value, quota=f"{PLENTY}/s burst {PLENTY}")

    async def step() -> None:
        must(not (await throttle.limit(KEY, cost=1)).limited)

    return step


def limits_sync(strategy: str) -> Step:
    from limits import RateLimitItemPerSecond, storage, strategies

    limiter = getattr(strategies, strategy)(storage.MemoryStorage())
    item = RateLimitItemPerSecond(PLENTY, 1)
    return lambda: must(limiter.hit(item, KEY))


async def limits_async(strategy: str) -> AsyncStep:
    from limits import RateLimitItemPerSecond
    from limits.aio import storage, strategies

    limiter = getattr(strategies, strategy)(storage.MemoryStorage())
    item = RateLimitItemPerSecond(PLENTY, 1)

    async def step() -> None:
        must(await limiter.hit(item, KEY))

    return step


async def aiolimiter_async() -> AsyncStep:
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(PLENTY, 1)

    async def step() -> None:
        async with limiter:
            pass

    return step


FIXED, MOVING = "FixedWindowRateLimiter", "MovingWindowRateLimiter"
SYNC_STEPS: dict[tuple[str, str], Callable[[Path], Step]] = {
    (MEMORY_SYNC, OURS): lambda _: ours_sync("memory://"),
    (MEMORY_SYNC, PYRATE): lambda _: pyrate_sync(),
    (MEMORY_SYNC, THROTTLED): lambda _: throttled_sync(),
    (MEMORY_SYNC, LIMITS_FIXED): lambda _: limits_sync(FIXED),
    (MEMORY_SYNC, LIMITS_MOVING): lambda _: limits_sync(MOVING),
    (SQLITE, OURS): lambda folder: ours_sync(f"sqlite:///{folder}/ours.db"),
    (SQLITE, PYRATE_SQLITE): pyrate_sqlite,
    (SQLITE, BARE_UPDATE): bare_update,
}
ASYNC_STEPS: dict[tuple[str, str], Callable[[], Awaitable[AsyncStep]]] = {
    (MEMORY_ASYNC, OURS): lambda: ours_async("memory://"),
    (MEMORY_ASYNC, PYRATE): pyrate_async,
    (MEMORY_ASYNC, THROTTLED): throttled_async,
    (MEMORY_ASYNC, LIMITS_FIXED): lambda: limits_async(FIXED),
    (MEMORY_ASYNC, LIMITS_MOVING): lambda: limits_async(MOVING),
    (MEMORY_ASYNC, AIOLIMITER): aiolimiter_async,
    (WEB, OURS): ours_app,
    (WEB, BARE_APP): bare_app,
    (WEB, BARE_APP_PEERS): bare_app,
    (WEB, SLOWAPI): lambda: slowapi_app("SlowAPIMiddleware"),
    (WEB, SLOWAPI_ASGI): lambda: slowapi_app("SlowAPIASGIMiddleware"),
}


class SyncEmbeddedBench:
    def __init__(self, group: str, contestant: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="zae-bench-")
        self._make = SYNC_STEPS[group, contestant]

    def prepare(self) -> None:
        self._step = self._make(Path(self._folder.name))

    def arrange(self) -> None:
        """Nothing."""

    def round(self, seconds: float) -> dict[str, Any]:
        return sync_loop(self._step, seconds, Tally(Refused))

    def close(self) -> None:
        self._folder.cleanup()


class AsyncEmbeddedBench:
    def __init__(self, group: str, contestant: str) -> None:
        self._runner = asyncio.Runner()
        self._make = ASYNC_STEPS[group, contestant]
        self._clock = time.thread_time_ns if group == WEB else time.perf_counter_ns

    def prepare(self) -> None:
        async def make() -> AsyncStep:
            return await self._make()

        self._step = self._runner.run(make())

    def arrange(self) -> None:
        """Nothing."""

    def round(self, seconds: float) -> dict[str, Any]:
        tally = Tally(Refused, clock=self._clock)
        return self._runner.run(async_loop(self._step, 1, seconds, tally))

    def close(self) -> None:
        self._runner.close()
