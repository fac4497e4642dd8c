"""A bucket that has cooled down: fewer shards, one halving at a time, and its life begins to end again."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.aggregator.images import NOW
from tests.dynamodb.tables import make_table, open_table
from tests.flow.hot import RESOURCE
from tests.odd_stores import HotMemory
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.engine import bucket_writes, posting, split
from zae_limiter.engine.law import Rate
from zae_limiter.engine.shares import SHARDS_MAX
from zae_limiter.repository_protocol import Backend, Item, Key, Put
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key, limit_attributes, number, sk_state, stored_rate
from zae_limiter.testing import ManualClock, RecordingBackend
from zae_limiter.testing.stores import Fault, FaultyBackend
from zae_limiter_aggregator import AggregatorSettings, Change, process_changes
from zae_limiter_aggregator.buckets import (
    COOL_MS,
    COOL_PERCENT,
    HOT_PERCENT,
    BucketActivity,
    aggregate_bucket_states,
    try_cool_down,
)
from zae_limiter_aggregator.changes import span_of

FEW_WRITES = Rate(20_000, 20_000, 1_000)
LIMIT = Limit.custom("rpm", 1_000, 10, 60)


@pytest.fixture
def few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty writes a second, so that a bucket is hot after twenty."""
    monkeypatch.setattr(bucket_writes, "WRITES", FEW_WRITES)
    monkeypatch.setattr(posting, "WRITES", FEW_WRITES)
    monkeypatch.setattr(split, "WRITES", FEW_WRITES)


class World:
    """A limiter on a store with hot partitions, and an aggregator that sees every change."""

    def __init__(self, backend: Backend, clock: ManualClock) -> None:
        self.backend, self.clock = backend, clock
        self.limiter: Any = None
        self.last: dict[Key, Item] = {}
        self.stream: list[Change] = []
        self.sequence = 0
        if isinstance(backend, HotMemory):
            backend.watchers.append(self.watch)

    async def open(self) -> "World":
        self.limiter = RateLimiter(await Repository.over(self.backend, world=self.clock.world))
        await self.limiter.repository.set_resource_defaults(RESOURCE, [LIMIT])
        return self

    def key(self, shard_id: int = 0) -> Key:
        return bucket_key(self.limiter.repository.namespace_id, "key", RESOURCE, shard_id)

    async def take(self, amount: int = 1) -> bool:
        try:
            async with self.limiter.acquire("key", RESOURCE, {"rpm": amount}):
                return True
        except RateLimitExceeded:
            return False

    async def images(self) -> dict[Key, Item]:
        keys = [self.key(n) for n in range(SHARDS_MAX)]
        found = await self.backend.batch_get(keys)
        return {key: image for key, image in zip(keys, found, strict=True) if image is not None}

    async def heat(self, count: int) -> int:
        """Write until there are so many shards; how much was admitted."""
        admitted = 0
        while len(await self.images()) < count:
            admitted += await self.take()
        return admitted

    def watch(self, key: Key, old: Item | None, new: Item | None) -> None:
        """One record of the stream."""
        if key.sort == sk_state():
            self.sequence += 1
            span = span_of(old, new, str(self.sequence))
            self.stream.append(Change(key, old, new, self.clock.now_ms, span, str(self.sequence)))

    async def aggregate(self) -> Any:
        """What is new in the stream, as one batch; from a table it is what its items were and are."""
        images = await self.images()
        if not isinstance(self.backend, HotMemory):
            for key, new in images.items():
                if self.last.get(key) != new:
                    self.watch(key, self.last.get(key), new)
        batch, self.stream, self.last = self.stream, [], images
        return await process_changes(batch, self.backend, self.clock.world, AggregatorSettings())

    async def calm(self, times: int = 1) -> int:
        """Some use now and then, seen by the aggregator; how many merges there were."""
        merges = 0
        for _ in range(times):
            self.clock.advance(COOL_MS / 1000 + 1)
            await self.take()
            merges += (await self.aggregate()).merges
        return merges


async def in_memory() -> World:
    clock = ManualClock()
    return await World(HotMemory(clock.world), clock).open()


def total(images: Mapping[Key, Item], name: str, part: str) -> int:
    return sum(number(image, getattr(limit_attributes(name), part)) for image in images.values())


@pytest.mark.usefixtures("few_writes")
@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_bucket_comes_back_to_one_item_and_to_its_ttl(count: int) -> None:
    """With every token that it had, also in a store that would forget what is idle."""

    async def run() -> None:
        world = await in_memory()
        await world.take()
        assert "ttl" in (await world.images())[world.key()]
        admitted = 1 + await world.heat(count)
        await world.aggregate()
        merges = await world.calm(8)
        images = await world.images()
        assert list(images) == [world.key()]
        assert merges >= count - 1
        (whole,) = images.values()
        assert stored_rate(whole, "rpm") == Rate.of(LIMIT)
        assert number(whole, "b_rpm_tc") == 1000 * (admitted + 8)
        assert number(whole, "ttl") * 1000 > world.clock.now_ms + Rate.of(LIMIT).fill_ms
        # The minutes have given back more than was taken, so it is full but for the last request.
        assert (await world.limiter.available("key", RESOURCE))["rpm"] == 1_000 - 1

    asyncio.run(run())


@pytest.mark.usefixtures("few_writes")
def test_usage_does_not_notice() -> None:
    """What a shard consumed was counted where it was."""

    async def run() -> None:
        world = await in_memory()
        admitted = await world.heat(4)
        await world.aggregate()
        await world.calm(6)
        await world.aggregate()
        rows = await world.limiter.get_usage_snapshots("key", RESOURCE, window_type="daily")
        assert sum(row.counters["rpm"] for row in rows[0]) == admitted + 6

    asyncio.run(run())


@pytest.mark.usefixtures("few_writes")
def test_a_client_that_knows_of_more_shards_is_not_wrong() -> None:
    """It is refused, learns and goes on; what it holds from a shard that is gone goes back to its elder."""

    async def run() -> None:
        world = await in_memory()
        await world.heat(4)
        await world.aggregate()
        other = RateLimiter(await Repository.over(world.backend, world=world.clock.world))
        leases = []
        for _ in range(12):  # some from each shard
            lease = other.acquire("key", RESOURCE, {"rpm": 5})
            await lease.__aenter__()
            leases.append(lease)
        before = total(await world.images(), "rpm", "tc")
        await world.calm(6)
        assert len(await world.images()) == 1
        for lease in leases:
            await lease.__aexit__(LookupError, LookupError(), None)
        assert total(await world.images(), "rpm", "tc") == before - 12 * 5_000 + 6_000
        assert other.refunds_lost == 0
        for _ in range(5):
            async with other.acquire("key", RESOURCE, {"rpm": 1}):
                pass

    asyncio.run(run())


def warm(count: int, writes: int, **more: Any) -> dict[int, Item]:
    """Shards of a bucket with so many writes altogether."""
    rate = {"b_rpm_cp": 1_000_000 // count, "b_rpm_ra": 1_000_000 // count, "b_rpm_rp": 1000}
    gauge = {"b_wcu_tk": 1_000_000, "b_wcu_cp": 1_000_000, "b_wcu_ra": 1_000_000, "b_wcu_rp": 1000}
    limits = {**rate, "b_rpm_tk": 0, "b_rpm_tc": 0, "b_rpm_sc": count, **gauge, "b_wcu_tc": 0}
    shard: Item = {"rf": NOW, "born": NOW, "cv": 1, "shard_count": count, **limits}
    return {n: {**shard, **({"b_wcu_tc": writes * 1000, **more} if n == 0 else {})} for n in range(count)}


def cooled(images: dict[int, Item], now_ms: int, times: int = 1) -> tuple[int, Item, list[str]]:
    """How many merges a batch brings about, what shard 0 is then, and what that took."""
    world = ManualClock(now_ms).world
    store = HotMemory(world)
    key = bucket_key("ns", "user-1", "gpt-4")
    puts = [Put(bucket_key("ns", "user-1", "gpt-4", n), image) for n, image in images.items()]
    run_sync(store.write_each(puts))
    recorder = RecordingBackend(store)
    merges = run_sync(try_cool_down(recorder, world, activity(key, images[0], now_ms, times)))
    return merges, store.snapshot()[key], [verb for verb, _ in recorder.calls]


def activity(key: Key, image: Item, at_ms: int, times: int = 1) -> BucketActivity:
    old = {**image, "b_wcu_tc": number(image, "b_wcu_tc") - 1000}
    changes = [Change(key, old, image, at_ms, span_of(old, image, "1"), "1")] * times
    return aggregate_bucket_states(changes)[key]


LATER = NOW + COOL_MS
WHOLE = 1000 * COOL_MS // 1000
"""What one partition takes in that time."""


@pytest.mark.parametrize(
    ("sampled", "writes", "merges"),
    [
        (None, 0, 0),
        (f"{NOW}:0", 0, 2),
        (f"{NOW}:0", WHOLE * 2 // 5, 2),
        (f"{NOW}:0", WHOLE * 2 // 5 + 1, 0),
        (f"{NOW}:1000", WHOLE * 2 // 5 + 1000, 2),
        (f"{NOW}:1000", 0, 0),
        ("nonsense", 0, 0),
        (f"{NOW}:x", 0, 0),
        (f"{LATER + 1}:0", 0, 0),
    ],
)
def test_a_bucket_is_halved_when_half_of_its_shards_would_hardly_notice(
    sampled: str | None, writes: int, merges: int
) -> None:
    """A fifth of what they take since the sample, which is taken anew either way."""
    images = warm(4, writes, **({"sampled": sampled} if sampled else {}))
    done, first, calls = cooled(images, LATER)
    assert done == merges
    assert first["shard_count"] == (2 if merges else 4)
    assert first["sampled"] == f"{LATER}:{writes}"
    halving = ["transact_write", "batch_get"] * merges
    assert calls == ["batch_get", *halving, "write_each"]


def test_a_young_sample_costs_nothing() -> None:
    """Not even a look."""
    images = warm(4, 0, sampled=f"{NOW}:0")
    assert cooled(images, LATER - 1) == (0, images[0], [])


def test_a_whole_bucket_costs_nothing() -> None:
    """It cannot have fewer shards."""
    assert cooled(warm(1, 0), LATER)[2] == []


@pytest.mark.parametrize(("times", "merges"), [(199, 1), (200, 0)])
def test_a_bucket_in_use_is_left(times: int, merges: int) -> None:
    """A busy second is reason enough to wait for the next sample."""
    assert cooled(warm(2, 1, sampled=f"{NOW}:0"), LATER, times)[0] == merges


@pytest.mark.parametrize(("left", "merges"), [(800_000, 1), (799_999, 0)])
def test_a_busy_shard_keeps_the_others(left: int, merges: int) -> None:
    """By the gauge of its writes."""
    images = warm(2, 0, sampled=f"{NOW}:0")
    images[1] = {**images[1], "rf": LATER, "b_wcu_tk": left}
    assert cooled(images, LATER)[0] == merges


def test_it_does_not_go_back_and_forth() -> None:
    """What is halved is far from being split: it takes more than four times the writes."""
    assert HOT_PERCENT >= 4 * COOL_PERCENT


def test_a_store_that_fails_is_trouble_and_no_more() -> None:
    """The next batch looks again."""
    images = warm(2, 1, sampled=f"{NOW}:0")
    world = ManualClock(LATER).world
    store = HotMemory(world)
    for n, image in images.items():
        run_sync(store.write_each([Put(bucket_key("ns", "user-1", "gpt-4", n), image)]))
    key = bucket_key("ns", "user-1", "gpt-4")
    change = Change(key, None, images[0], LATER, span_of(None, images[0], "1"), "1")
    for faults in (
        [None] * 2 + [Fault.UNREACHABLE],
        [None] * 3 + [Fault.LOST_REPLY],
        [None] * 4 + [Fault.UNREACHABLE],
    ):
        tally = run_sync(process_changes([change], FaultyBackend(store, faults), world, AggregatorSettings()))
        assert tally.failed == {}
    shares = [image for k, image in store.snapshot().items() if k.sort == key.sort]
    assert sum(number(image, "b_rpm_cp") for image in shares) == 1_000_000


@pytest.mark.usefixtures("few_writes")
def test_on_dynamodb() -> None:
    """The same transactions on DynamoDB's own engine: four items become one, and nothing is lost."""

    async def run() -> None:
        clock = ManualClock()
        backend = open_table(False, make_table(), clock.world)
        world = await World(backend, clock).open()
        admitted = await world.heat(4)
        await world.aggregate()
        await world.calm(5)
        images = await world.images()
        assert list(images) == [world.key()]
        assert total(images, "rpm", "tc") == 1000 * (admitted + 5)
        assert "ttl" in images[world.key()]
        await backend.close()

    asyncio.run(run())
