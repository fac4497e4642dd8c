"""What looking up limits costs: five kinds of traffic, timed and billed, for either limiter on DynamoDB.

The traffic is that of a deployment with system limits, limits for each of ten resources, and limits of
their own for one user in twenty. Latencies are taken against the engine itself; for the bill the same
orders are given to a process that talks through the meter.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .cases import LIMIT, OURS, PLENTY
from .figures import percentile
from .tables import make_table, open_async, table_name

RESOURCES = [f"model-{number}" for number in range(10)]
PREMIUM_EVERY = 20
TASKS = 10
SEED = 4
CACHE_TTL_SECONDS = 60


def some_limits() -> list[Any]:
    from zae_limiter import Limit

    return [Limit.per_hour(LIMIT, PLENTY)]


def is_premium(user: int) -> bool:
    return user % PREMIUM_EVERY == 0


def user_id(user: int) -> str:
    return f"user-{user:06}"


class ConfigBench:
    """One contestant, asked for one kind of traffic after the other."""

    def __init__(self, contestant: str, endpoint: str, users: int) -> None:
        self._contestant, self._endpoint, self._users = contestant, endpoint, users
        self._table = table_name(contestant, "config")
        self._runner = asyncio.Runner()

    def found(self) -> None:
        """Make the table and store the first limits."""
        self._runner.run(self._found())

    async def _found(self) -> None:
        await make_table(self._contestant, self._endpoint, self._table)
        await self._open(CACHE_TTL_SECONDS)
        await self._repository.set_system_defaults(some_limits())

    def fill(self) -> None:
        """Store all other limits, and make the bucket that is asked for again and again."""
        self._runner.run(self._fill())

    def open(self, cache_ttl_seconds: int = CACHE_TTL_SECONDS) -> None:
        """Open the table that another process has filled."""
        self._runner.run(self._open(cache_ttl_seconds))

    async def _open(self, cache_ttl_seconds: int) -> None:
        self._limiter, self._repository = await open_async(
            self._contestant, self._endpoint, self._table, config_cache_ttl=cache_ttl_seconds
        )

    async def _fill(self) -> None:
        limits = some_limits()
        for resource in RESOURCES:
            await self._repository.set_resource_defaults(resource, limits)
        for user in filter(is_premium, range(self._users)):
            await self._repository.set_limits(user_id(user), limits)
        await self._acquire()

    def read(self, times: int, *, cold: bool) -> dict[str, Any]:
        """Look up the limits of one regular user, with nothing or everything in the cache."""
        return self._timed(self._resolve_one, times, cold)

    def acquire(self, times: int, *, cold: bool) -> dict[str, Any]:
        """A whole acquire on a bucket that is there."""
        return self._timed(self._acquire, times, cold)

    def sparse(self) -> dict[str, Any]:
        """As many requests as there are users, each of a random user for a random resource."""
        chance = random.Random(SEED)
        requests = [(chance.randrange(self._users), chance.choice(RESOURCES)) for _ in range(self._users)]
        before = self._repository.get_cache_stats()
        self._runner.run(self._resolve_each(requests))
        after = self._repository.get_cache_stats()
        return {
            "asked": len(requests),
            "cache_hits": after.hits - before.hits,
            "cache_misses": after.misses - before.misses,
        }

    def window(self, *, premium: bool, forget_absence: bool = False) -> dict[str, Any]:
        """One request of each user of one kind. Asked twice, the second time is later in the window.

        ``forget_absence`` switches negative caching off: what is known of the users themselves is
        forgotten first, what is known of resources and the system is not.
        """
        users = [user for user in range(self._users) if is_premium(user) == premium]
        users = users[: self._users // PREMIUM_EVERY]
        if forget_absence:
            for user in users:
                self._repository.invalidate_config_cache(entity_id=user_id(user))
        self._runner.run(self._resolve_each([(user, RESOURCES[user % 10]) for user in users]))
        return {"asked": len(users)}

    def forget(self) -> None:
        """Start again with an empty cache."""
        self._runner.run(self._forget())

    async def _forget(self) -> None:
        # Theirs is a coroutine, ours is not.
        forgetting = self._repository.invalidate_config_cache()
        if forgetting is not None:
            await forgetting

    def close(self) -> None:
        self._runner.run(self._limiter.close())
        self._runner.close()

    def _timed(self, step: Callable[[], Awaitable[object]], times: int, cold: bool) -> dict[str, Any]:
        async def repeat() -> list[int]:
            latencies_ns = []
            await step()
            for _ in range(times):
                if cold:
                    await self._forget()
                begun = time.perf_counter_ns()
                await step()
                latencies_ns.append(time.perf_counter_ns() - begun)
            return sorted(latencies_ns)

        ordered = self._runner.run(repeat())
        return {
            "operations": times,
            "p50_us": percentile(ordered, 0.50) / 1000,
            "p99_us": percentile(ordered, 0.99) / 1000,
        }

    async def _resolve_one(self) -> None:
        await self._repository.resolve_limits(user_id(1), RESOURCES[0])

    async def _acquire(self) -> None:
        async with self._limiter.acquire(user_id(1), RESOURCES[0], {LIMIT: 1}):
            pass

    async def _resolve_each(self, requests: Sequence[tuple[int, str]]) -> None:
        waiting = iter(requests)

        async def work() -> None:
            for user, resource in waiting:
                limits, _, source = await self._repository.resolve_limits(user_id(user), resource)
                assert limits, f"no limits for user {user}"
                assert (source == "entity_default") == is_premium(user), source

        await asyncio.gather(*(work() for _ in range(TASKS)))


def can_forget_absence(contestant: str) -> bool:
    """Whether a cache can be told to forget one entity and nothing else."""
    return contestant == OURS
