"""Refill, proactive sharding and propagation: conditional, conserving, and rare."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aggregator.images import NOW, Step, bucket, history
from zae_limiter._colour import run_sync
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.bucket import Rate, balance
from zae_limiter.models import BackendCapabilities
from zae_limiter.repository_protocol import Item, Put, apply
from zae_limiter.schema import bucket_key, limit_attributes, number, stored_rate
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Fault, FaultyBackend
from zae_limiter_aggregator import Change, Settings, process_changes
from zae_limiter_aggregator.buckets import (
    REFILL_AFTER_MS,
    BucketActivity,
    aggregate_bucket_states,
    propagate_shard_count,
    refill,
    try_proactive_shard,
    try_refill_bucket,
)
from zae_limiter_aggregator.changes import Span, numbered

KEY = bucket_key("ns", "user-1", "gpt-4")
LATER = NOW + REFILL_AFTER_MS


def activity(image: Item, old: Item | None = None, times: int = 1) -> BucketActivity:
    changes = [Change(KEY, old, image, NOW + 500, Span(NOW, n, n + 1), str(n)) for n in range(times)]
    return aggregate_bucket_states(changes)[KEY]


def store_with(images: Mapping[int, Item]) -> MemoryBackend:
    backend = MemoryBackend()
    backend.capabilities = BackendCapabilities("memory", hot_partitions=True)
    puts = [Put(bucket_key("ns", "user-1", "gpt-4", n), image) for n, image in images.items()]
    run_sync(backend.write_each(puts))
    return backend


def shards_of(backend: MemoryBackend) -> dict[int, Item]:
    images = run_sync(backend.batch_get([bucket_key("ns", "user-1", "gpt-4", n) for n in range(32)]))
    return {n: image for n, image in enumerate(images) if image is not None}


def held(image: Item, name: str, now_ms: int) -> int:
    rate = stored_rate(image, name)
    return balance(rate, number(image, limit_attributes(name).tk), number(image, "rf"), now_ms) if rate else 0


rates = st.builds(Rate, st.integers(1_000, 10**7), st.integers(1, 10**6), st.integers(1, 10**8))


@given(st.tuples(rates, rates), st.tuples(*[st.integers(-(10**7), 10**7)] * 4), st.integers(0, 10**8))
def test_a_refill_costs_nothing_and_makes_nothing(
    rates: tuple[Rate, Rate], amounts: tuple[int, int, int, int], waited_ms: int
) -> None:
    """Then and ever after every limit holds what it would have held, whatever was spent meanwhile."""
    image: dict[str, Any] = {"rf": NOW, "cv": 1, "born": NOW}
    for name, rate, tokens in zip(("a", "b"), rates, amounts, strict=False):
        names = limit_attributes(name)
        image |= {names.tk: tokens, names.tc: 5, names.cp: rate[0], names.ra: rate[1], names.rp: rate[2]}
    bucket = activity(image)
    bucket.consumed.update({"a": 10**9})
    now_ms = LATER + waited_ms
    write = refill(bucket, now_ms)
    if write is None:
        return
    spent = {**image, "b_a_tk": image["b_a_tk"] + amounts[2], "b_b_tk": image["b_b_tk"] + amounts[3]}
    outcome = apply(write, spent)
    if not outcome.applied:
        return
    assert outcome.item is not None
    for name in ("a", "b"):
        for wait_ms in (0, 1, 997, 10**6):
            assert held(outcome.item, name, now_ms + wait_ms) == held(spent, name, now_ms + wait_ms)
    assert number(outcome.item, "b_a_tc") == 5


def test_a_refill_is_for_a_bucket_that_looks_empty() -> None:
    """The stored number is below what the batch consumed, though the balance is not."""
    low = bucket({"tpm": 95}, 10)
    write = refill(activity(low), LATER)
    assert write is not None
    assert write.add["b_tpm_tk"] == 60_000
    assert write.set["rf"] == LATER
    assert refill(activity(bucket({"tpm": 10}, 10)), LATER) is None, "there is enough"
    assert refill(activity(low), LATER - 1) is None, "it was refilled a moment ago"


def test_a_refill_counts_no_write() -> None:
    """Versions are clients' writes, and a refill must not leave a gap between them."""
    write = refill(activity(bucket({"tpm": 95}, 10)), LATER)
    assert write is not None
    assert "b_wcu_tc" not in {**write.add, **write.set}


def test_whoever_moved_the_origin_first_wins() -> None:
    """The loser leaves it; limits that changed meanwhile are another origin as well."""
    image, clock = bucket({"tpm": 95}, 10), ManualClock(LATER)
    backend = store_with({0: image})
    assert run_sync(try_refill_bucket(backend, clock.world, activity(image)))
    assert not run_sync(try_refill_bucket(backend, clock.world, activity(image)))
    assert held(shards_of(backend)[0], "tpm", LATER) == 65_000


def test_a_bucket_is_hot_in_a_busy_second_or_by_its_gauge() -> None:
    """At 80 % of what a partition takes."""
    calm = bucket({"tpm": 5}, 0)
    assert not activity(calm, times=799).is_hot
    assert activity(calm, times=800).is_hot
    assert not activity({**calm, "b_wcu_tk": -299_000}).is_hot  # half a second brings 500,000
    assert activity({**calm, "b_wcu_tk": -300_000}).is_hot


def test_a_hot_bucket_is_split_and_conserves() -> None:
    """Before its first client is refused; what one shard loses the other gets."""
    image, clock = bucket({"tpm": 5}, 900), ManualClock(NOW + 1000)
    backend = store_with({0: image})
    assert run_sync(try_proactive_shard(backend, clock.world, activity(image, times=900)))
    shards = shards_of(backend)
    assert sorted(shards) == [0, 1]
    assert sum(held(shard, "tpm", clock.now_ms) for shard in shards.values()) == held(
        image, "tpm", clock.now_ms
    )
    assert sum(number(shard, "b_tpm_cp") for shard in shards.values()) == 100_000
    assert all(shard["shard_count"] == 2 for shard in shards.values())
    assert not run_sync(try_proactive_shard(backend, clock.world, activity(image, times=900))), "it was done"


@pytest.mark.parametrize(
    "busy",
    [
        {"times": 10},
        {"image": {"shard_count": 32}, "times": 900},
    ],
)
def test_a_bucket_is_left_alone(busy: dict[str, Any]) -> None:
    """When it is calm, or spread as far as it can be."""
    image = {**bucket({"tpm": 5}, 10), **busy.get("image", {})}
    backend = store_with({0: image})
    bucket_seen = activity(image, times=busy["times"])
    assert not run_sync(try_proactive_shard(backend, ManualClock(NOW + 1).world, bucket_seen))
    assert len(shards_of(backend)) == 1


def test_other_shards_follow_shard_0() -> None:
    """Shards that lag behind are split until there are as many as shard 0 says, and conserve."""
    clock = ManualClock(NOW + 1000)
    whole = bucket({"tpm": 40}, 900)
    backend = store_with({0: whole})
    before = whole
    for _ in range(3):  # shard 0 alone is split: 8 shards are promised, 0, 1, 2 and 4 exist
        image = shards_of(backend)[0]
        assert run_sync(try_proactive_shard(backend, clock.world, activity(image, times=900)))
        clock.advance(0.001)
    first = shards_of(backend)[0]
    assert sorted(shards_of(backend)) == [0, 1, 2, 4]
    seen = activity(first, before)
    assert seen.grew
    assert run_sync(propagate_shard_count(backend, clock.world, seen)) == 4
    shards = shards_of(backend)
    assert sorted(shards) == list(range(8))
    assert {shard["shard_count"] for shard in shards.values()} == {8}
    assert sum(number(shard, "b_tpm_cp") for shard in shards.values()) == 100_000
    now_ms = clock.now_ms + 10
    kept, right = sum(held(s, "tpm", now_ms) for s in shards.values()), held(whole, "tpm", now_ms)
    assert right - 32 <= kept <= right + len(shards), "splits round down, and shares accrue by themselves"
    assert run_sync(propagate_shard_count(backend, clock.world, seen)) == 0, "nobody lags any more"


def test_a_batch_tends_its_buckets() -> None:
    """The whole way: a busy second splits the bucket, an empty one is refilled, and both are counted."""
    clock = ManualClock(LATER)
    changes = history([Step(0, LATER)] * 850)
    last = {**changes[-1].new, "b_tpm_tk": 0} if changes[-1].new else {}
    changes.append(Change(KEY, changes[-1].new, {**last, "b_tpm_tc": 7000}, LATER, Span(NOW, 850, 851), "9"))
    backend = store_with({0: {**last, "b_tpm_tc": 7000}})
    tally = run_sync(process_changes(changes, backend, clock.world, Settings()))
    assert (tally.splits, tally.refills_written, tally.troubles, tally.failed) == (1, 0, 0, {})
    assert sorted(shards_of(backend)) == [0, 1]


def test_trouble_with_a_bucket_is_told_but_fails_no_record() -> None:
    """The next batch looks again."""
    clock, image = ManualClock(LATER), bucket({"tpm": 95}, 1)
    change = Change(KEY, None, image, NOW, numbered(1), "1")
    broken = FaultyBackend(store_with({0: image}))
    broken.always = Fault.UNREACHABLE
    tally = run_sync(process_changes([change], broken, clock.world, Settings()))
    assert (tally.troubles, list(tally.failed)) == (1, ["1"])


def test_the_last_image_is_the_newest_whatever_the_order() -> None:
    """By the count of writes, not by the place in the batch."""
    changes = history([Step(1, NOW), Step(1, NOW), Step(1, NOW)])
    (seen,) = aggregate_bucket_states([changes[2], changes[0], changes[1]]).values()
    assert seen.image == changes[2].new
    assert seen.consumed == {"tpm": 3000}


def test_a_damaged_bucket_is_left_alone() -> None:
    """One that lost its numbers is put right by its clients."""
    image: Item = {"rf": NOW, "b_a_tk": 1, "b_a_cp": 1, "b_a_ra": 0, "b_a_rp": 1, "b_a_tc": 0}
    assert refill(activity(image), LATER) is None
