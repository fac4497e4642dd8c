"""A bucket that is written too often spreads over shards that together are the one bucket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.flow.hot import RESOURCE, all_bucket_writes, key_of, on_server
from tests.odd_stores import HotMemory
from zae_limiter import Demand, InvalidNameError, Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine import bucket_writes, posting, split
from zae_limiter.engine.law import Rate
from zae_limiter.engine.shares import SHARDS_MAX
from zae_limiter.repository_protocol import Backend, Item
from zae_limiter.schema import limit_attributes, number, stored_rate
from zae_limiter.testing import ManualClock, RecordingBackend

FEW_WRITES = Rate(3_000, 3_000, 1_000)
"""Three writes a second, so that a bucket is hot after three."""


@pytest.fixture(autouse=True)
def few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_writes, "WRITES", FEW_WRITES)
    monkeypatch.setattr(posting, "WRITES", FEW_WRITES)
    monkeypatch.setattr(split, "WRITES", FEW_WRITES)


@asynccontextmanager
async def limiter_on(
    store: type[MemoryBackend], *limits: Limit
) -> AsyncIterator[tuple[RateLimiter, Backend, ManualClock]]:
    clock = ManualClock()
    backend = store(clock.world)
    limiter = RateLimiter(await Repository.over(backend, world=clock.world))
    await limiter.repository.set_resource_defaults(RESOURCE, list(limits))
    yield limiter, backend, clock


async def take(limiter: RateLimiter, **amounts: int) -> bool:
    try:
        async with limiter.acquire("key", RESOURCE, amounts):
            return True
    except RateLimitExceeded:
        return False


async def images(limiter: RateLimiter, backend: Backend, entity_id: str = "key") -> list[Item]:
    keys = [key_of(limiter, entity_id, shard_id) for shard_id in range(SHARDS_MAX)]
    return [image for image in await backend.batch_get(keys) if image is not None]


async def consumed(limiter: RateLimiter, backend: Backend, entity_id: str) -> int:
    """What all shards of a bucket have given, in millitokens."""
    held_by = await images(limiter, backend, entity_id)
    return sum(number(image, limit_attributes("rpm").tc) for image in held_by)


def held(image: Item, name: str) -> Rate:
    return stored_rate(image, name) or Rate(0, 0, 1)


async def heat(limiter: RateLimiter, backend: Backend, count: int, **amounts: int) -> int:
    """Write until the bucket has so many shards; returns how often it was admitted."""
    admitted = 0
    for _ in range(2_000):
        if len(await images(limiter, backend)) >= count:
            return admitted
        admitted += await take(limiter, **amounts)
    raise AssertionError(f"there are only {len(await images(limiter, backend))} shards")


def test_a_hot_bucket_spreads_and_stays_one_bucket() -> None:
    """Shares sum to the whole, nothing is minted, and what users see is the whole."""

    async def run() -> None:
        limit = Limit.custom("rpm", 100_003, 60, 86_400)
        async with limiter_on(HotMemory, limit) as (limiter, backend, _):
            taken = await heat(limiter, backend, 8, rpm=1)
            items = await images(limiter, backend)
            assert sum(held(i, "rpm").capacity_milli for i in items) == limit.capacity_milli
            assert sum(held(i, "rpm").refill_amount_milli for i in items) == limit.refill_amount_milli
            stored = sum(number(i, limit_attributes("rpm").tk) for i in items)
            assert stored == limit.capacity_milli - taken * 1000
            assert await limiter.available("key", RESOURCE) == {"rpm": 100_003 - taken}
            with pytest.raises(RateLimitExceeded) as refused:
                async with limiter.acquire("key", RESOURCE, {"rpm": 100_003}):
                    pass
            (status,) = refused.value.statuses
            assert (status.limit, status.available) == (limit, 100_003 - taken)
            assert status.limit_name == "rpm"

    asyncio.run(run())


def test_a_lease_tells_what_all_shards_have_left() -> None:
    """Under the limit of the whole bucket, with the wait until the last shard is full."""

    async def run() -> None:
        limit = Limit.custom("rpm", 100_003, 60, 86_400)
        async with limiter_on(HotMemory, limit) as (limiter, backend, clock):
            taken = await heat(limiter, backend, 8, rpm=1) + 500
            async with limiter.acquire("key", RESOURCE, {"rpm": 500}) as lease:
                (status,) = lease.statuses
                assert (status.limit, status.remaining) == (limit, 100_003 - taken)
            clock.advance(status.full_after_seconds)
            assert await limiter.available("key", RESOURCE) == {"rpm": 100_003}

    asyncio.run(run())


def test_a_request_of_most_of_the_capacity_is_gathered_from_full_shards() -> None:
    """70 % of the capacity passes although no shard holds that much, and comes back to all of them."""

    async def run() -> None:
        async with limiter_on(HotMemory, Limit.per_second("rpm", 1_000)) as (limiter, backend, clock):
            await heat(limiter, backend, 4, rpm=1)
            clock.advance(60)
            async with limiter.acquire("key", RESOURCE, {"rpm": 700}) as lease:
                assert lease.consumed == {"rpm": 700}
                assert await limiter.available("key", RESOURCE) == {"rpm": 300}
            with pytest.raises(ZeroDivisionError):
                async with limiter.acquire("key", RESOURCE, {"rpm": 300}):
                    raise ZeroDivisionError
            assert await limiter.available("key", RESOURCE) == {"rpm": 300}

    asyncio.run(run())


def test_the_wait_of_a_spread_limit_is_tight() -> None:
    """At the stated millisecond the request passes, one earlier it does not."""

    async def run() -> None:
        async with limiter_on(HotMemory, Limit.per_minute("rpm", 997)) as (limiter, backend, clock):
            await heat(limiter, backend, 4, rpm=1)
            while await take(limiter, rpm=50):
                pass
            clock.advance(1.5)
            needed = {"rpm": 120}
            wait_ms = round(1000 * await limiter.time_until_available("key", RESOURCE, needed))
            assert wait_ms > 0
            clock.advance((wait_ms - 1) / 1000)
            assert not await take(limiter, rpm=120)
            clock.advance(0.001)
            assert await limiter.time_until_available("key", RESOURCE, needed) == 0

    asyncio.run(run())


def test_a_small_limit_is_not_split_beside_one_that_is() -> None:
    """A capacity of 10 beside a limit that is spread over 16 shards admits exactly 10."""

    async def run() -> None:
        small, large = Limit.custom("small", 10, 1, 86_400), Limit.per_second("large", 1_000_000)
        async with limiter_on(HotMemory, small, large) as (limiter, backend, clock):
            for _ in range(5):
                assert await take(limiter, small=1, large=1)
            await heat(limiter, backend, 16, large=1)
            clock.advance(1)
            assert len(await images(limiter, backend)) >= 16
            assert [await take(limiter, small=1, large=1) for _ in range(7)] == [True] * 5 + [False] * 2

    asyncio.run(run())


def test_no_share_becomes_smaller_than_a_request_that_was_admitted() -> None:
    """A limit of 1,000 that once gave 300 at once is spread over two shards at the most."""

    async def run() -> None:
        limits = Limit.per_second("rpm", 1_000), Limit.per_second("other", 100_000)
        async with limiter_on(HotMemory, *limits) as (limiter, backend, clock):
            assert await take(limiter, rpm=300)
            clock.advance(10)
            await heat(limiter, backend, 8, other=1)
            items = await images(limiter, backend)
            shares = [held(i, "rpm").capacity_milli for i in items if held(i, "rpm").capacity_milli]
            assert shares == [500_000, 500_000]

    asyncio.run(run())


def test_there_are_at_most_thirty_two_shards_and_writes_go_on() -> None:
    """When spreading further is not allowed, the count of writes refuses nobody."""

    async def run() -> None:
        async with limiter_on(HotMemory, Limit.per_second("rpm", 10**9)) as (limiter, backend, _):
            await heat(limiter, backend, SHARDS_MAX, rpm=1)
            for _ in range(200):
                assert await take(limiter, rpm=1)
            beyond = key_of(limiter, "key", SHARDS_MAX)
            assert await backend.batch_get([beyond]) == [None]

    asyncio.run(run())


def test_stores_without_hot_partitions_never_shard() -> None:
    """Nothing of it is in their items."""

    async def run() -> None:
        async with limiter_on(MemoryBackend, Limit.per_second("rpm", 10**9)) as (limiter, backend, _):
            for _ in range(50):
                assert await take(limiter, rpm=1)
            (image,) = await images(limiter, backend)
            assert image["shard_count"] == 1
            assert not [attribute for attribute in image if "wcu" in attribute]

    asyncio.run(run())


def test_the_count_of_writes_is_hidden_and_its_name_reserved() -> None:
    """Users neither see the limit nor may use its name."""

    async def run() -> None:
        async with limiter_on(HotMemory, Limit.per_second("rpm", 5)) as (limiter, backend, _):
            assert await take(limiter, rpm=1)
            (image,) = await images(limiter, backend)
            assert number(image, "b_wcu_tc") == 1_000
            assert [state.limit_name for state in await limiter.repository.get_bucket("key", RESOURCE)] == [
                "rpm"
            ]
            assert await limiter.available("key", RESOURCE) == {"rpm": 4}

    asyncio.run(run())
    with pytest.raises(InvalidNameError, match="reserved"):
        Limit.per_second("wcu", 1)


def test_changed_limits_reach_every_shard() -> None:
    """Each shard takes its share of the new numbers when it is next used, and consumption stays."""

    async def run() -> None:
        async with limiter_on(HotMemory, Limit.custom("rpm", 10_000, 1, 86_400)) as (limiter, backend, _):
            taken = await heat(limiter, backend, 4, rpm=1)
            await limiter.repository.set_resource_defaults(RESOURCE, [Limit.custom("rpm", 12_001, 1, 86_400)])
            for _ in range(200):
                taken += await take(limiter, rpm=1)
            items = await images(limiter, backend)
            assert sum(held(i, "rpm").capacity_milli for i in items) == 12_001_000
            assert await limiter.available("key", RESOURCE) == {"rpm": 12_001 - taken}

    asyncio.run(run())


class SilentMemory(HotMemory):
    """One that does not tell when somebody else changed a record."""

    changes = news = None


@pytest.mark.parametrize("cascade", [True, False], ids=["gets a parent", "loses its parent"])
def test_another_family_binds_whoever_takes_from_a_shard(cascade: bool) -> None:
    """The shard that was taken from says so, though this process last saw the first one before."""

    async def run() -> None:
        lots = Limit.custom("rpm", 10_000, 1, 86_400)
        async with limiter_on(SilentMemory, lots) as (limiter, backend, clock):
            await limiter.repository.create_entity("team")
            await limiter.repository.create_entity("key", parent_id="team", cascade=not cascade)
            await heat(limiter, backend, 4, rpm=1)
            admin = await Repository.over(SilentMemory(clock.world, backend._shelf), world=clock.world)
            before = await consumed(limiter, backend, "team")
            await admin.update_entity("key", cascade=cascade)
            for _ in range(20):
                assert await take(limiter, rpm=1)
            paid = await consumed(limiter, backend, "team") - before
            assert paid == (20_000 if cascade else 0)

    asyncio.run(run())


def test_a_bucket_splits_on_dynamodb_and_every_token_is_there() -> None:
    """The transaction of a split, the gathering and the refunds work on the real engine."""

    async def run() -> None:
        limit = Limit.custom("rpm", 10_000, 1, 86_400)
        async with on_server("dynamodb", [limit]) as (limiter, record):
            taken = await heat(limiter, record, 4, rpm=1)
            async with limiter.acquire("key", RESOURCE, {"rpm": 7_000}) as lease:
                await lease.adjust(rpm=-2_000)
            assert await limiter.available("key", RESOURCE) == {"rpm": 10_000 - taken - 5_000}
            items = await images(limiter, record)
            assert sum(held(i, "rpm").capacity_milli for i in items) == limit.capacity_milli

    asyncio.run(run())


def test_a_refused_caller_of_a_sharded_bucket_costs_one_write_a_second() -> None:
    """The refusal of the whole bucket is remembered, not only that of a shard."""

    async def run() -> None:
        clock = ManualClock()
        record = RecordingBackend(HotMemory(clock.world))
        limiter = RateLimiter(await Repository.over(record, world=clock.world))
        await limiter.repository.set_resource_defaults(RESOURCE, [Limit.custom("rpm", 1_000, 1, 86_400)])
        await heat(limiter, record, 4, rpm=1)
        while await take(limiter, rpm=100):
            pass
        clock.advance(1.001)
        record.forget()
        for _ in range(1_000):
            clock.advance(0.003)
            assert not await take(limiter, rpm=900)
        assert all_bucket_writes(record) <= 4

    asyncio.run(run())


async def test_one_demand_of_several_may_need_all_shards_of_a_bucket() -> None:
    """What it took of them is given back to them if another demand is refused, or the work fails."""
    async with limiter_on(HotMemory, Limit.custom("rpm", 100, 1, 86_400)) as (limiter, backend, _):
        await limiter.repository.set_resource_defaults("search", [Limit.custom("rpm", 5, 1, 86_400)])
        for _ in range(8):
            await take(limiter, rpm=1)
        assert len(await images(limiter, backend)) > 1
        large = Demand("key", RESOURCE, {"rpm": 90})
        with pytest.raises(RateLimitExceeded):
            async with limiter.acquire([large, Demand("key", "search", {"rpm": 6})]):
                pass
        assert await consumed(limiter, backend, "key") == 8_000
        with pytest.raises(ZeroDivisionError):
            async with limiter.acquire([large, Demand("key", "search", {"rpm": 5})]):
                raise ZeroDivisionError
        async with limiter.acquire([large, Demand("key", "search", {"rpm": 5})]) as lease:
            await lease.part(RESOURCE).adjust(rpm=-80)
        assert await consumed(limiter, backend, "key") == 18_000
        assert (await limiter.available("key", RESOURCE), limiter.refunds_lost) == ({"rpm": 82}, 0)


def test_operators_give_to_all_shards_at_once() -> None:
    """One transaction whose shares add up to the amount; what is full gets nothing."""

    async def run() -> None:
        limit = Limit.custom("rpm", 3_201, 1, 86_400)
        async with limiter_on(HotMemory, limit) as (limiter, backend, clock):
            recording = RecordingBackend(backend)
            other = RateLimiter(await Repository.over(recording, world=clock.world))
            await heat(limiter, backend, SHARDS_MAX, rpm=1)
            while await take(limiter, rpm=40):
                pass
            before = await limiter.available("key", RESOURCE)
            used = await consumed(limiter, backend, "key")
            recording.forget()
            done = await other.top_up("key", RESOURCE, {"rpm": 1_000})
            assert (done.before, done.given, done.over) == (before, {"rpm": 1_000}, {})
            assert await limiter.available("key", RESOURCE) == done.after
            (sent,) = [given for verb, given in recording.calls if verb == "transact_write"]
            assert len(sent) == SHARDS_MAX + 2
            filled = await other.reset("key", RESOURCE)
            assert filled.after == {"rpm": 3_201}
            items = await images(limiter, backend)
            assert all(number(i, limit_attributes("rpm").tk) == held(i, "rpm").capacity_milli for i in items)
            assert await consumed(limiter, backend, "key") == used
            over = await other.top_up("key", RESOURCE, {"rpm": 5})
            assert (over.given, over.over) == ({"rpm": 0}, {"rpm": 5})

    asyncio.run(run())
