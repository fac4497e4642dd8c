"""Stored leases on buckets in shards: the books of all shards together are equal, however a lease ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.dynamodb.tables import opened
from tests.flow.hot import key_of
from tests.odd_stores import HotMemory
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository, ValidationError
from zae_limiter.engine import bucket_writes, posting, split
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.law import Rate
from zae_limiter.engine.merge import merge
from zae_limiter.engine.shares import SHARDS_MAX
from zae_limiter.models.demand import Demand
from zae_limiter.records.leases import PLACES, LeaseRow, LeaseState, OnExpiry
from zae_limiter.repository_protocol import Backend, Item
from zae_limiter.runtime.world import World
from zae_limiter.schema import limit_attributes, number
from zae_limiter.server.leases import AskedLease, StoredLeases
from zae_limiter.testing import ManualClock

FEW_WRITES = Rate(3_000, 3_000, 1_000)
"""Three writes a second, so that a bucket is hot after three."""

RESOURCE = "gpt-4"
ALL = 1_000
LIMIT = Limit.custom("rpm", ALL, 1, 86_400)
"""A thousand, and nothing more while a test runs."""

SHARDS = 4
SECONDS = 10.0
FAMILY = "child", "parent"


@pytest.fixture(autouse=True)
def few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bucket_writes, posting, split):
        monkeypatch.setattr(module, "WRITES", FEW_WRITES)


class Fleet:
    """Two workers on one store, who know only what they have seen themselves."""

    def __init__(self, backend: Backend, limiters: list[RateLimiter], clock: ManualClock) -> None:
        self.backend, self.limiters, self.clock = backend, limiters, clock
        self.one, self.other = map(StoredLeases, limiters)

    async def images(self, entity_id: str) -> list[Item]:
        keys = [key_of(self.limiters[0], entity_id, shard_id) for shard_id in range(SHARDS_MAX)]
        return [image for image in await self.backend.batch_get(keys) if image is not None]

    async def heat(self, entity_id: str, shards: int = SHARDS) -> None:
        """Write until a bucket has so many shards, and take nothing."""
        for _ in range(2_000):
            if len(await self.images(entity_id)) >= shards:
                return
            async with self.limiters[0].acquire(entity_id, RESOURCE, {"rpm": 1}) as lease:
                await lease.adjust(rpm=-1)
        raise AssertionError("it has not come apart")

    async def merge(self, entity_id: str) -> None:
        """Let a bucket be one item again."""
        limiter, terms = self.limiters[0], Terms.of([LIMIT], 1, 7)
        namespace_id = limiter.repository.namespace_id
        account = Account(key_of(limiter, entity_id), namespace_id, entity_id, RESOURCE, terms)
        keys = [key_of(limiter, entity_id, shard_id) for shard_id in range(SHARDS_MAX)]
        for shard_id in [*reversed(range(SHARDS_MAX))] * SHARDS_MAX:
            writes = merge(account, shard_id, await self.backend.batch_get(keys), self.clock.now_ms)
            if writes:
                assert all(outcome.applied for outcome in await self.backend.transact_write(writes))
            if len(await self.images(entity_id)) == 1:
                return
        raise AssertionError("it has not come together")

    async def counted(self, entity_id: str) -> int:
        """What a bucket has given, by what it has counted, and by what it has left."""
        images, names = await self.images(entity_id), limit_attributes("rpm")
        counted = sum(number(image, names.tc) for image in images)
        assert sum(number(image, names.tk) for image in images) == ALL * 1000 - counted, "the books are equal"
        return counted // 1000

    async def books(self) -> list[int]:
        return [await self.counted(entity_id) for entity_id in FAMILY]


def asked(amount: int, key: str | None = "k", **more: Any) -> AskedLease:
    demands = (Demand("child", RESOURCE, {"rpm": amount}),)
    asks = AskedLease(demands=demands, owner="somebody", key=key, lease_seconds=SECONDS)
    return replace(asks, **more)


async def family(on: Fleet, in_shards: Sequence[str]) -> None:
    """A child that cascades to its parent, of whom some are in shards."""
    limiter = on.limiters[0]
    await limiter.create_entity("parent")
    await limiter.create_entity("child", parent_id="parent")
    await limiter.set_resource_defaults(RESOURCE, [LIMIT])
    for entity_id in in_shards:
        await on.heat(entity_id)
    await limiter.repository.update_entity("child", cascade=True)


async def workers(backend: Backend, world: World) -> list[RateLimiter]:
    return [RateLimiter(await Repository.over(backend, world=world)) for _ in range(2)]


@asynccontextmanager
async def fleet(*in_shards: str) -> AsyncIterator[Fleet]:
    """In memory, under a clock that goes on while somebody waits."""
    clock = ManualClock()
    world = replace(clock.world, nap=clock.advance)
    backend = HotMemory(world)
    on = Fleet(backend, await workers(backend, world), clock)
    await family(on, in_shards)
    yield on


SHARDED = pytest.mark.parametrize(
    "in_shards", [("child",), ("parent",), FAMILY], ids=["child", "parent", "both"]
)
AMOUNTS = pytest.mark.parametrize("amount", [40, 400, 700], ids=["of one", "of some", "of all"])


async def taken(on: Fleet, amount: int, **more: Any) -> LeaseRow:
    granted = await on.one.acquire(asked(amount, **more))
    assert granted.row is not None
    assert not granted.is_again
    assert await on.books() == [amount, amount]
    return granted.row


@SHARDED
@AMOUNTS
@pytest.mark.parametrize("total", [0, 15, 900, None])
async def test_what_was_noted_counts_whoever_ends_it(
    in_shards: tuple[str, ...], amount: int, total: int | None
) -> None:
    """Less comes back to those shards that gave it, more is owed by one of them, for each of the family."""
    async with fleet(*in_shards) as on:
        row = await taken(on, amount)
        givers = [giver.entity_id for giver in row.parts[0].givers]
        for entity_id in FAMILY:
            assert (givers.count(entity_id) > 1) is (entity_id in in_shards and amount > ALL // SHARDS)
        held = await on.other.held(row.lease_id, "somebody")
        noted = replace(held, noted=({} if total is None else {"rpm": total},))
        ends = await asyncio.gather(
            *(who.finish(noted, LeaseState.COMMITTED, OnExpiry.SETTLE) for who in (on.other, on.one))
        )
        assert sum(end is not None for end in ends) == 1
        assert await on.books() == [amount if total is None else total] * 2


@SHARDED
@AMOUNTS
async def test_what_is_cancelled_counts_nothing(in_shards: tuple[str, ...], amount: int) -> None:
    """All of it comes back, for each of the family."""
    async with fleet(*in_shards) as on:
        row = await taken(on, amount)
        assert await on.other.finish(row, LeaseState.CANCELLED, OnExpiry.REFUND)
        assert await on.books() == [0, 0]


@SHARDED
@AMOUNTS
@pytest.mark.parametrize(
    ("on_expiry", "cost"),
    [(OnExpiry.SETTLE, 15), (OnExpiry.KEEP, None), (OnExpiry.REFUND, 0)],
)
async def test_another_worker_sweeps_what_has_expired(
    in_shards: tuple[str, ...], amount: int, on_expiry: OnExpiry, cost: int | None
) -> None:
    """It has never seen the buckets, and gives each shard what the record says."""
    async with fleet(*in_shards) as on:
        row = await taken(on, amount, on_expiry=on_expiry)
        assert await on.one.ends.note(row, row.changed(noted=({"rpm": 15},)))
        on.clock.advance(SECONDS)
        for place in range(PLACES):
            await on.other.sweep(place)
        assert (on.other.counts.expired, on.other.counts.failed) == (1, 0)
        assert await on.books() == [amount if cost is None else cost] * 2


@SHARDED
@AMOUNTS
async def test_the_same_request_again_takes_nothing(in_shards: tuple[str, ...], amount: int) -> None:
    """Afterwards, and of two at the same time one."""
    async with fleet(*in_shards) as on:
        both = await asyncio.gather(*(who.acquire(asked(amount)) for who in (on.one, on.other)))
        again = await on.other.acquire(asked(amount))
        assert sorted(granted.is_again for granted in both) == [False, True]
        assert again.is_again
        assert again.row in [granted.row for granted in both]
        assert await on.books() == [amount, amount]
        with pytest.raises(RateLimitExceeded):
            await on.other.acquire(asked(ALL - amount + 1, "another"))
        assert await on.books() == [amount, amount]
        assert (await on.other.acquire(asked(ALL - amount, "the rest"))).row is not None
        assert await on.books() == [ALL, ALL]


@AMOUNTS
@pytest.mark.parametrize("total", [0, 15, 900])
async def test_shards_that_came_together_meanwhile_are_settled_with(amount: int, total: int) -> None:
    """What a shard is owed that is gone goes to the one that it is part of again."""
    async with fleet(*FAMILY) as on:
        row = await taken(on, amount)
        for entity_id in FAMILY:
            await on.merge(entity_id)
        assert await on.books() == [amount, amount]
        noted = replace(row, noted=({"rpm": total},))
        assert await on.other.finish(noted, LeaseState.COMMITTED, OnExpiry.SETTLE)
        assert await on.books() == [total, total]


async def test_who_had_to_wait_for_shards_has_a_lease_as_well() -> None:
    """It takes when there is enough in all of them, and only then is written down."""
    async with fleet(*FAMILY) as on:
        async with on.limiters[0].acquire("child", RESOURCE, {"rpm": 400}):
            pass
        granted = await on.one.acquire(asked(601, wait=math.inf))
        assert granted.row is not None
        names = limit_attributes("rpm")
        for cost in (1_001_000, 400_000):
            for entity_id in FAMILY:
                assert sum(number(image, names.tc) for image in await on.images(entity_id)) == cost
            await on.other.finish(granted.row, LeaseState.CANCELLED, OnExpiry.REFUND)


async def test_a_lease_on_shards_of_dynamodb() -> None:
    """Its transactions take from several shards of both, and give back to them."""
    async with opened(sync=False) as backend:
        clock = ManualClock()
        clock.now_ms = World().now_ms()  # the table forgets what is over
        on = Fleet(backend, await workers(backend, clock.world), clock)
        await family(on, FAMILY)
        first = await taken(on, 700)
        assert (await on.other.acquire(asked(700))).is_again
        noted = replace(first, noted=({"rpm": 15},))
        assert await on.other.finish(noted, LeaseState.COMMITTED, OnExpiry.SETTLE)
        assert await on.books() == [15, 15]


@pytest.mark.parametrize("in_shards", [("child",), FAMILY], ids=["child", "both"])
async def test_who_is_refused_by_one_bucket_has_taken_of_none(in_shards: tuple[str, ...]) -> None:
    """The child's shards have enough together, its parent has not, in shards or as a whole: that is told."""
    async with fleet(*in_shards) as on:
        async with on.limiters[0].acquire("parent", RESOURCE, {"rpm": 400}):
            pass
        with pytest.raises(RateLimitExceeded) as refused:
            await on.other.acquire(asked(700))
        assert [(s.entity_id, s.available) for s in refused.value.statuses if s.exceeded] == [("parent", 600)]
        assert await on.books() == [0, 400]
        assert (await on.other.acquire(asked(600))).row is not None
        assert await on.books() == [600, 1000]


async def test_more_shards_than_change_at_once_are_asked_for_in_parts() -> None:
    """Who needs more of them than fit beside a record is told so, and nothing is taken."""
    async with fleet() as on:
        entities = [f"key-{n}" for n in range(4)]
        for entity_id in entities:
            await on.heat(entity_id, SHARDS_MAX)
        demands = tuple(Demand(entity_id, RESOURCE, {"rpm": 900}) for entity_id in entities)
        with pytest.raises(ValidationError, match="at most 99"):
            await on.other.acquire(asked(0, demands=demands))
        assert [await on.counted(entity_id) for entity_id in entities] == [0] * 4
        granted = await on.other.acquire(asked(0, demands=demands[:3]))
        assert granted.row is not None
        assert [await on.counted(entity_id) for entity_id in entities] == [900] * 3 + [0]
        assert await on.one.finish(granted.row, LeaseState.CANCELLED, OnExpiry.REFUND)
        assert [await on.counted(entity_id) for entity_id in entities] == [0] * 4
        for limiter, entity_id in zip(on.limiters * 2, entities, strict=True):
            async with limiter.acquire(entity_id, RESOURCE, {"rpm": 101}):
                pass
        before = [await on.counted(entity_id) for entity_id in entities]
        with pytest.raises(ValidationError, match="at most 99"):  # once it has waited for a day
            await on.other.acquire(asked(0, "later", demands=demands, wait=math.inf))
        names = limit_attributes("rpm")
        for entity_id, was in zip(entities, before, strict=True):
            assert sum(number(image, names.tc) for image in await on.images(entity_id)) == was * 1000
