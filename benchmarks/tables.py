"""The two limiters that keep their buckets on DynamoDB, driven by the same code.

Both offer the same names, so all that differs is how a table is made and a limiter opened. Only what is
public and documented is used. This module runs in either environment and imports ``zae_limiter`` from
whichever it is in.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import count, cycle
from typing import Any
from urllib.parse import quote

from .cases import (
    CEILING,
    DRAINED_PER_ROUND,
    FULL,
    LIMIT,
    OURS,
    PAUSE_S,
    PLENTY,
    REFERENCE,
    RESOURCE,
    SECOND_LIMIT,
    Case,
)
from .loops import Exhausted, Tally, async_loop, paced_loop, sync_loop, threads_loop

REGION = "eu-west-1"
PARENT = "parent"
MEMORY_OF_REFUSALS_S = 1.1
"""Both limiters remember a refusal for a second."""
PREPARING_TASKS = 25
TIMEOUT_MS = 20_000
"""Ours gives up after a second unless told otherwise, theirs after a minute; here nobody gives up."""


WHOSE = {OURS: "this", CEILING: "bare", REFERENCE: "reference"}


def our_url(endpoint: str, table: str) -> str:
    return f"dynamodb://{table}?region={REGION}&endpoint_url={quote(endpoint)}"


def table_name(contestant: str, purpose: str) -> str:
    return f"bench-{purpose}-{WHOSE[contestant]}"


async def make_table(contestant: str, endpoint: str, table: str) -> None:
    """A table without a stack around it, as each documents it for engines without CloudFormation."""
    if contestant != REFERENCE:
        from zae_limiter.backends.dynamodb import open_backend

        backend = open_backend(our_url(endpoint, table), timeout_ms=TIMEOUT_MS)
        await backend.create_table()
        await backend.close()
    else:
        import zae_limiter

        repository_class: Any = zae_limiter.Repository
        with warnings.catch_warnings():
            # Only a repository that is not open yet can make its table without CloudFormation.
            warnings.simplefilter("ignore", DeprecationWarning)
            repository = repository_class(name=table, region=REGION, endpoint_url=endpoint)
        await repository.create_table()
        await repository.close()


def address(contestant: str, endpoint: str, table: str) -> dict[str, Any]:
    """What ``open`` is told; the engine has no Lambda that could be updated."""
    where = {"stack": table, "region": REGION, "endpoint_url": endpoint}
    return where | ({"timeout_ms": TIMEOUT_MS} if contestant == OURS else {"auto_update": False})


async def open_async(contestant: str, endpoint: str, table: str, **settings: Any) -> tuple[Any, Any]:
    """A limiter and its repository."""
    from zae_limiter import RateLimiter, Repository

    repository = await Repository.open(**address(contestant, endpoint, table), **settings)
    return RateLimiter(repository=repository), repository


def open_sync(contestant: str, endpoint: str, table: str) -> tuple[Any, Any]:
    from zae_limiter import SyncRateLimiter, SyncRepository

    repository = SyncRepository.open(**address(contestant, endpoint, table))
    return SyncRateLimiter(repository=repository), repository


def limits_of(case: Case) -> list[Any]:
    from zae_limiter import Limit

    if case.refused:
        return [Limit.custom(LIMIT, capacity=1, refill_amount=1, refill_period_seconds=86_400)]
    if case.refill:
        # Full again after a tenth of a millisecond, which is less than any acquire takes.
        return [Limit.custom(LIMIT, capacity=FULL, refill_amount=FULL * 10_000, refill_period_seconds=1)]
    names = (LIMIT, SECOND_LIMIT)[: case.limits]
    return [Limit.per_hour(name, PLENTY) for name in names]


def amounts_of(case: Case) -> dict[str, int]:
    amount = FULL if case.refill else 1
    return dict.fromkeys((LIMIT, SECOND_LIMIT)[: case.limits], amount)


class AsyncBench:
    """One contestant in one async case: founded and prepared once, then asked for rounds."""

    def __init__(self, contestant: str, endpoint: str, case: Case) -> None:
        self._contestant, self._endpoint, self._case = contestant, endpoint, case
        self._runner = asyncio.Runner()
        self._fresh = (f"entity-{number:07}" for number in count())
        self._drained: deque[str] = deque()
        self._step: Callable[[], Any] = self._acquire_next
        self._amounts = amounts_of(case)

    def found(self) -> None:
        """Make the table, open it and store the limits."""
        self._runner.run(self._found())

    def prepare(self) -> None:
        """Make the buckets that the case starts with."""
        self._runner.run(self._prepare())

    def round(self, seconds: float) -> dict[str, Any]:
        return self._runner.run(self._round(seconds))

    def arrange(self) -> None:
        """What a round needs beforehand and nobody measures."""
        if self._case.refused == "first":
            self._runner.run(self._drain_many())

    def close(self) -> None:
        self._runner.run(self._limiter.close())
        self._runner.close()

    async def _found(self) -> None:
        from zae_limiter import RateLimitExceeded

        self._refusal = RateLimitExceeded
        table = table_name(self._contestant, self._case.name)
        await make_table(self._contestant, self._endpoint, table)
        self._limiter, self._repository = await open_async(self._contestant, self._endpoint, table)
        await self._repository.set_resource_defaults(RESOURCE, limits_of(self._case))

    async def _prepare(self) -> None:
        case, repository = self._case, self._repository
        entities = [f"key-{number:04}" for number in range(case.entities)]
        if case.cascade:
            await repository.create_entity(PARENT)
            await self._each(entities, lambda e: repository.create_entity(e, parent_id=PARENT, cascade=True))
        self._entities: Iterator[str] = cycle(entities) if entities else self._fresh
        if case.refused == "first":
            self._step = self._acquire_drained
            return
        # Every bucket is there before anybody looks at the clock; the refused one is empty from here on.
        await self._acquire_each(entities)

    async def _acquire(self, entity: str) -> None:
        async with self._limiter.acquire(entity, RESOURCE, self._amounts) as lease:
            if self._case.adjust:
                await lease.adjust(**{LIMIT: 1})

    async def _acquire_each(self, entities: Iterable[str]) -> None:
        await self._each(entities, self._acquire)

    async def _each(self, entities: Iterable[str], step: Callable[[str], Awaitable[object]]) -> None:
        waiting = iter(entities)

        async def work() -> None:
            for entity in waiting:
                await step(entity)

        await asyncio.gather(*(work() for _ in range(PREPARING_TASKS)))

    async def _acquire_next(self) -> None:
        await self._acquire(next(self._entities))

    async def _acquire_drained(self) -> None:
        if not self._drained:
            raise Exhausted
        await self._acquire(self._drained.popleft())

    async def _drain_many(self) -> None:
        self._drained = deque(next(self._fresh) for _ in range(DRAINED_PER_ROUND))
        await self._acquire_each(self._drained)
        await asyncio.sleep(MEMORY_OF_REFUSALS_S)

    async def _round(self, seconds: float) -> dict[str, Any]:
        tally = Tally(self._refusal, is_refusal_wanted=bool(self._case.refused))
        if self._case.refill:
            return await paced_loop(self._step, PAUSE_S, seconds, tally)
        return await async_loop(self._step, self._case.tasks, seconds, tally)


class SyncBench:
    """One contestant in one sync case."""

    def __init__(self, contestant: str, endpoint: str, case: Case) -> None:
        self._contestant, self._endpoint, self._case = contestant, endpoint, case
        self._amounts = amounts_of(case)

    def found(self) -> None:
        from zae_limiter import RateLimitExceeded

        self._refusal = RateLimitExceeded
        table = table_name(self._contestant, self._case.name)
        asyncio.run(make_table(self._contestant, self._endpoint, table))
        self._limiter, repository = open_sync(self._contestant, self._endpoint, table)
        repository.set_resource_defaults(RESOURCE, limits_of(self._case))

    def prepare(self) -> None:
        self._acquire()

    def arrange(self) -> None:
        """Nothing."""

    def round(self, seconds: float) -> dict[str, Any]:
        tally = Tally(self._refusal)
        if self._case.tasks == 1:
            return sync_loop(self._acquire, seconds, tally)
        return threads_loop(self._acquire, self._case.tasks, seconds, tally)

    def close(self) -> None:
        self._limiter.close()

    def _acquire(self) -> None:
        with self._limiter.acquire("key-0000", RESOURCE, self._amounts):
            pass
