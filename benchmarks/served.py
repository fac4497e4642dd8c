"""The limiters that keep their buckets on a Redis or PostgreSQL server, each used as its documentation shows.

All do the same: take one of a limit and five of another. Ours holds a lease meanwhile, which the others do
not have. Libraries are imported inside, because each is installed in only one environment.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from .cases import (
    BARE_CONNECTION,
    BARE_PSYCOPG,
    BARE_REDIS_PY,
    LIMIT,
    LIMITS_FIXED,
    OURS,
    PLENTY,
    POSTGRES,
    PYRATE_POSTGRES,
    REDIS,
    RESOURCE,
    SECOND_LIMIT,
    THROTTLED,
    WORKLOADS,
)
from .loops import Tally, async_loop

Take = Callable[[str], Awaitable[object]]
PREPARING_TASKS = 25
STRIDE = 7
"""Tasks that begin side by side and go on by this meet each other rarely."""


class TurnedAway(Exception):
    """A library said no by its return value, which no case here wants."""


def must(admitted: object) -> None:
    if not admitted:
        raise TurnedAway


async def ours(url: str) -> Take:
    from zae_limiter import Limit, RateLimiter

    limiter = await RateLimiter.open(url).__aenter__()
    await limiter.set_system_defaults(
        [Limit.per_hour(LIMIT, PLENTY), Limit.per_hour(SECOND_LIMIT, PLENTY)],
    )

    async def take(key: str) -> None:
        async with limiter.acquire(key, RESOURCE, {LIMIT: 1, SECOND_LIMIT: 5}):
            pass

    return take


async def throttled_py(url: str) -> Take:
    from throttled.asyncio import RedisStore, Throttled, rate_limiter

    store = RedisStore(server=url.partition("?")[0])
    quota = rate_limiter.per_hour(PLENTY, burst=PLENTY)
    first, second = (
        Throttled(using="token_bucket", quota=quota, store=store, key_prefix=name)
        for name in (LIMIT, SECOND_LIMIT)
    )

    async def take(key: str) -> None:
        must(not (await first.limit(key, 1)).limited)
        must(not (await second.limit(key, 5)).limited)

    return take


async def limits(url: str) -> Take:
    from limits import RateLimitItemPerHour
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import FixedWindowRateLimiter

    address = url.partition("?")[0]
    limiter = FixedWindowRateLimiter(RedisStorage(f"async+{address}", implementation="redispy"))
    first, second = (RateLimitItemPerHour(PLENTY, namespace=name) for name in (LIMIT, SECOND_LIMIT))

    async def take(key: str) -> None:
        must(await limiter.hit(first, key))
        must(await limiter.hit(second, key, cost=5))

    return take


async def bare_connection(url: str) -> Take:
    """A command that does nothing, over a connection of ours."""
    from zae_limiter.backends.redis import open_backend
    from zae_limiter.runtime.world import World

    backend: Any = open_backend(url, world=World())

    async def take(_: str) -> object:
        return await backend.carrier.say(b"", "PING")

    return take


async def bare_redis_py(url: str) -> Take:
    import redis.asyncio

    client: Any = redis.asyncio.from_url(url.partition("?")[0])

    async def take(_: str) -> object:
        return await client.ping()

    return take


async def pyrate_postgres(url: str) -> Take:
    """A bucket is a table there, and both limits count the same; windows are short, for it counts rows."""
    from psycopg_pool import ConnectionPool
    from pyrate_limiter import BucketFactory, Limiter, PostgresBucket, PostgresClock, Rate, RateItem

    pool: Any = ConnectionPool(url.partition("?")[0], open=True)
    rates, clock = [Rate(PLENTY, 1_000), Rate(2 * PLENTY, 2_000)], PostgresClock(pool)

    class Buckets(BucketFactory):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.buckets: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return RateItem(name, clock.now(), weight=weight)

        def get(self, item: Any) -> Any:
            if item.name not in self.buckets:
                table = item.name.replace("-", "_")
                self.buckets[item.name] = self.create(PostgresBucket, pool, table, rates)
            return self.buckets[item.name]

    limiter = Limiter(Buckets())

    async def take(key: str) -> None:
        must(await limiter.try_acquire_async(key))

    return take


async def bare_psycopg(url: str) -> Take:
    import psycopg

    connection = await psycopg.AsyncConnection.connect(url.partition("?")[0], autocommit=True)

    async def take(_: str) -> object:
        return await (await connection.execute("SELECT 1")).fetchone()

    return take


TAKES: dict[tuple[str, str], Callable[[str], Awaitable[Take]]] = {
    (REDIS, OURS): ours,
    (REDIS, THROTTLED): throttled_py,
    (REDIS, LIMITS_FIXED): limits,
    (REDIS, BARE_CONNECTION): bare_connection,
    (REDIS, BARE_REDIS_PY): bare_redis_py,
    (POSTGRES, OURS): ours,
    (POSTGRES, PYRATE_POSTGRES): pyrate_postgres,
    (POSTGRES, BARE_PSYCOPG): bare_psycopg,
}


class ServedBench:
    """One limiter on one server."""

    def __init__(self, group: str, contestant: str, url: str) -> None:
        self._runner = asyncio.Runner()
        self._make, self._url = TAKES[group, contestant], url

    def prepare(self, case: str) -> None:
        """Every key is taken once: nobody is to pay for making it."""

        async def make() -> None:
            if not hasattr(self, "_take"):
                self._take = await self._make(self._url)
            numbers = iter(range(WORKLOADS[case].keys))

            async def work() -> None:
                for number in numbers:
                    await self._take(f"key-{number}")

            await asyncio.gather(*(work() for _ in range(PREPARING_TASKS)))

        self._runner.run(make())

    def arrange(self, case: str) -> None:
        """Nothing."""

    def round(self, case: str, seconds: float) -> dict[str, Any]:
        work, numbers = WORKLOADS[case], itertools.count(0, STRIDE)

        async def step() -> None:
            await self._take(f"key-{next(numbers) % work.keys}")

        return self._runner.run(async_loop(step, work.tasks, seconds, Tally(TurnedAway)))

    def close(self) -> None:
        self._runner.close()
