"""Refill, proactive sharding and propagation: conditional, conserving, and rare."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aggregator.images import NOW, Step, bucket, history
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.law import Rate, balance
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.models import BackendCapabilities
from zae_limiter.repository_protocol import (
    AtLeast,
    AtMost,
    Equal,
    Exists,
    Item,
    Outcome,
    Put,
    Update,
    Write,
    apply,
)
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import FORGIVEN, bucket_key, limit_attributes, number, parse_bucket_pk, stored_rate
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Fault, FaultyBackend, RecordingBackend, Wrapper
from zae_limiter_aggregator import AggregatorSettings, Change, process_changes
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


def limit(tk: int, cp: int = 100_000, ra: int = 1000, name: str = "a") -> dict[str, int]:
    """A limit that gains ``ra`` a second, which is a minute's worth until ``LATER``."""
    return {f"b_{name}_{part}": n for part, n in {"tk": tk, "cp": cp, "ra": ra, "rp": 1000, "tc": 0}.items()}


def refilled(consumed: Mapping[str, int], *limits: Mapping[str, int]) -> Update | None:
    """The refill of a bucket with some limits, after a batch that consumed something."""
    image: Item = {"rf": NOW, "cv": 7, "born": NOW, **{a: n for one in limits for a, n in one.items()}}
    seen = BucketActivity(KEY, parse_bucket_pk(KEY.partition), image)
    seen.consumed.update(consumed)
    return refill(seen, LATER)


def changed(write: Update) -> dict[str, Any]:
    """What a refill sets besides the numbers that the bucket has anyway."""
    return {a: n for a, n in write.set.items() if not a.endswith(("_cp", "_ra", "_rp"))}


def test_what_a_refill_cuts_off_makes_up_for_what_cuts_spared() -> None:
    """As it does when a client takes from a full bucket; the rest is still to be made up for."""
    spared: Any = {FORGIVEN: {"a": 3, "full": 500}}
    write = refilled({"a": 5_000}, limit(0), limit(40_200, name="full"), spared)
    assert write is not None
    assert write.set[FORGIVEN] == {"a": 3, "full": 300}


def test_a_refill_keeps_a_bucket_that_would_go_before_it_is_full() -> None:
    """One that is kept for ever stays so, and one that lives long enough is left alone."""
    soon, late = (limit(0) | {"ttl": LATER // 1000 + seconds} for seconds in (10, 100_000))
    kept = [refilled({"a": 5_000}, one) for one in (soon, late, limit(0))]
    assert [write and write.set.get("ttl") for write in kept] == [LATER // 1000 + 700, None, None]


@pytest.mark.parametrize(
    ("stored", "consumed", "needed"),
    [
        (4_999, 5_000, True),
        (5_000, 5_000, False),
        (0, 0, False),
        (-1, 0, True),
        (-1, -5_000, True),
        (0, -5_000, False),
    ],
)
def test_when_a_refill_is_needed(stored: int, consumed: int, needed: bool) -> None:
    """Less is stored than was consumed, or there is debt; another limit that is well does not matter."""
    well = limit(50_000, name="b")
    assert (refilled({"a": consumed}, limit(stored), well) is not None) is needed
    assert (refilled({"a": consumed}, well, limit(stored)) is not None) is needed


@pytest.mark.parametrize(("period_ms", "needed"), [(60_000_000, True), (10**10, False)])
def test_a_refill_has_something_to_bring(period_ms: int, needed: bool) -> None:
    """One millitoken in that minute, or none."""
    assert (refilled({"a": 5_000}, {**limit(0), "b_a_rp": period_ms}) is not None) is needed


def test_a_refill_is_one_exact_write() -> None:
    """Limits with room get their gain, those that are full are cut off, each on that condition."""
    limits = limit(0), limit(40_000, name="brim"), limit(40_001, name="full")
    write = refilled({"a": 5_000}, *limits, limit(1, 1, name="wcu"))
    numbers = {a: n for one in limits for a, n in one.items() if not a.endswith(("_tk", "_tc"))}
    assert write == Update(
        KEY,
        {"b_a_tk": 60_000, "b_brim_tk": 60_000},
        {"rf": LATER, **numbers, "b_full_tk": 100_000, "b_wcu_tk": 1},
        (
            Exists(),
            Equal("rf", NOW),
            Equal("booked_since", None),
            Equal("cv", 7),
            AtMost("b_a_tk", 40_000),
            AtMost("b_brim_tk", 40_000),
            AtLeast("b_full_tk", 40_001),
        ),
    )


@pytest.mark.parametrize(
    ("stored", "add", "set_"), [(40_000, {"b_wcu_tk": 60_000}, {}), (40_001, {}, {"b_wcu_tk": 100_000})]
)
def test_a_refill_takes_the_gauge_along(stored: int, add: dict[str, int], set_: dict[str, int]) -> None:
    """Up to its capacity, and without a condition."""
    write = refilled({"a": 5_000}, limit(0), limit(stored, name="wcu"))
    assert write is not None
    assert (write.add, changed(write)) == ({"b_a_tk": 60_000, **add}, {"rf": LATER, **set_})
    same = Equal("rf", NOW), Equal("booked_since", None), Equal("cv", 7)
    assert write.when == (Exists(), *same, AtMost("b_a_tk", 40_000))


def test_a_bucket_without_a_gauge_is_refilled_as_well() -> None:
    """An older client's bucket has none."""
    write = refilled({"a": 5_000}, limit(0))
    assert write is not None
    assert (write.add, changed(write)) == ({"b_a_tk": 60_000}, {"rf": LATER})


def test_a_refill_that_got_no_answer_is_trouble() -> None:
    """And one that is not needed is none, nor a write."""
    image, clock = bucket({"tpm": 95}, 10), ManualClock(LATER)
    backend = FaultyBackend(store_with({0: image}), [Fault.UNREACHABLE])
    with pytest.raises(RateLimiterUnavailable):
        run_sync(try_refill_bucket(backend, clock.world, activity(image)))
    recorded = RecordingBackend(backend)
    assert run_sync(try_refill_bucket(recorded, clock.world, activity(bucket({"tpm": 10}, 10)))) is False
    assert recorded.calls == []


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
    assert not activity(calm, times=799).is_hot(NOW + 500)
    assert activity(calm, times=800).is_hot(NOW + 500)
    assert not activity({**calm, "b_wcu_tk": -299_000}).is_hot(NOW + 500)  # half a second brings 500,000
    assert activity({**calm, "b_wcu_tk": -300_000}).is_hot(NOW + 500)


def test_a_stream_whose_time_is_coarse_splits_nobody() -> None:
    """DynamoDB tells to the second when a change was made, DynamoDB Local to the minute."""
    quiet = {**bucket({"tpm": 5}, 0), "rf": NOW - 60_000, "b_wcu_tk": -59_010_000}  # ten writes short of full
    change = Change(KEY, quiet, {**quiet, "b_wcu_tc": 2_000}, NOW - 59_000, Span(NOW, 1, 2), "1")
    (seen,) = aggregate_bucket_states([change]).values()
    assert not seen.is_hot(NOW)


def test_the_busiest_second_decides() -> None:
    """Not the quietest, nor all of them together; and a bucket without a gauge is never hot."""
    calm = bucket({"tpm": 5}, 0)

    def seen(image: Item, *busy: tuple[int, int]) -> BucketActivity:
        it = BucketActivity(KEY, parse_bucket_pk(KEY.partition), image)
        it.writes.update(dict(busy))
        return it

    assert seen(calm, (1, 1), (2, 800)).is_hot(NOW)
    assert not seen(calm, (1, 799), (2, 799)).is_hot(NOW)
    assert not seen({a: n for a, n in calm.items() if not a.startswith("b_wcu")}, (1, 900)).is_hot(NOW)
    assert not seen({**calm, "b_wcu_cp": 1000, "b_wcu_tk": 1000}).is_hot(NOW), "nobody wrote"


def test_a_bucket_grew_when_it_got_more_shards() -> None:
    """Since the first image of the batch that there is."""
    images = [bucket({"tpm": 1}, n, shard_count=n) for n in (1, 2, 4)]
    steps = [Change(KEY, a, b, NOW, numbered(n)) for n, (a, b) in enumerate(pairwise([None, *images]))]
    (seen,) = aggregate_bucket_states(steps).values()
    assert (seen.shards_before, seen.grew) == (1, True)
    (made,) = aggregate_bucket_states(steps[:1]).values()
    assert (made.shards_before, made.grew) == (None, False)
    assert not activity(images[1], images[1]).grew


def test_the_account_of_a_shard_is_that_of_the_whole_bucket() -> None:
    """Its key is that of shard 0; nobody knows its terms here."""
    key = bucket_key("ns", "user-1", "gpt-4", 3)
    seen = BucketActivity(key, parse_bucket_pk(key.partition), bucket({"tpm": 5}, 1))
    assert seen.account == Account(KEY, "ns", "user-1", "gpt-4", Terms({}))


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


def test_shard_0_alone_is_split_ahead() -> None:
    """Nobody reads for another shard, however hot, and a bucket that is gone is left alone."""
    image, clock = bucket({"tpm": 5}, 900, shard_count=2), ManualClock(NOW + 1000)
    backend = RecordingBackend(store_with({1: image}))
    key = bucket_key("ns", "user-1", "gpt-4", 1)
    changes = [Change(key, None, image, NOW, Span(NOW, n, n + 1)) for n in range(900)]
    hot = aggregate_bucket_states(changes)[key]
    assert hot.is_hot(NOW)
    assert not run_sync(try_proactive_shard(backend, clock.world, hot))
    assert backend.calls == []
    assert not run_sync(try_proactive_shard(backend, clock.world, activity(image, times=900)))
    assert backend.calls == [("batch_get", (KEY,))]


def test_shards_follow_when_shard_0_grew() -> None:
    """In no other case is anything read, though a shard may lag; with nobody lagging there is one read."""
    clock = ManualClock(NOW + 1000)
    one, two = bucket({"tpm": 5}, 1), bucket({"tpm": 5}, 1, shard_count=2)
    backend = RecordingBackend(store_with({0: two, 1: one}))
    key = bucket_key("ns", "user-1", "gpt-4", 1)
    other = aggregate_bucket_states([Change(key, one, two, NOW, numbered(1))])[key]
    assert other.grew
    for seen in (other, activity(two, two)):
        assert run_sync(propagate_shard_count(backend, clock.world, seen)) == 0
    assert backend.calls == []
    settled = RecordingBackend(store_with({0: two, 1: two}))
    assert run_sync(propagate_shard_count(settled, clock.world, activity(two, one))) == 0
    assert settled.calls == [("batch_get", (KEY, key))]


@pytest.mark.parametrize("images", [{}, {0: 1}, {0: 1, 1: 4}, {0: 8, 1: 4}], ids=str)
def test_a_bucket_that_is_another_by_now_is_left_alone(images: dict[int, int]) -> None:
    """It is gone, was made anew, or has grown on: whoever sees that will look after it."""
    seen = activity(bucket({"tpm": 5}, 1, shard_count=4), bucket({"tpm": 5}, 1))
    backend = RecordingBackend(
        store_with({n: bucket({"tpm": 5}, 1, shard_count=k) for n, k in images.items()})
    )
    assert run_sync(propagate_shard_count(backend, ManualClock(NOW + 1000).world, seen)) == 0
    assert backend.verbs == {"batch_get": 1}


def split_ahead(whole: Item, clock: ManualClock) -> MemoryBackend:
    """A bucket whose shard 0 alone was split: 8 shards are promised, 0, 1, 2 and 4 exist."""
    backend = store_with({0: whole})
    for _ in range(3):
        image = shards_of(backend)[0]
        assert run_sync(try_proactive_shard(backend, clock.world, activity(image, times=900)))
        clock.advance(0.001)
    assert sorted(shards_of(backend)) == [0, 1, 2, 4]
    return backend


def test_a_split_that_fails_does_not_end_the_others() -> None:
    """Somebody was faster with one of them: the next round looks again at all that lag."""

    class Slow(Wrapper):
        transactions = 0

        async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
            self.transactions += 1
            if self.transactions == 2:
                return [Outcome(False, None, held=False) for _ in writes]
            return await super().transact_write(writes)

    clock, whole = ManualClock(NOW + 1000), bucket({"tpm": 40}, 900)
    backend = split_ahead(whole, clock)
    seen = activity(shards_of(backend)[0], whole)
    assert run_sync(propagate_shard_count(Slow(backend), clock.world, seen)) == 4
    assert sorted(shards_of(backend)) == list(range(8))


def test_other_shards_follow_shard_0() -> None:
    """Shards that lag behind are split until there are as many as shard 0 says, and conserve."""
    clock = ManualClock(NOW + 1000)
    whole = bucket({"tpm": 40}, 900)
    backend = split_ahead(whole, clock)
    seen = activity(shards_of(backend)[0], whole)
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
    tally = run_sync(process_changes(changes, backend, clock.world, AggregatorSettings()))
    assert (tally.splits, tally.refills_written, tally.troubles, tally.failed) == (1, 0, 0, {})
    assert sorted(shards_of(backend)) == [0, 1]


def test_trouble_with_a_bucket_is_told_but_fails_no_record() -> None:
    """The next batch looks again."""
    clock, image = ManualClock(LATER), bucket({"tpm": 95}, 1)
    change = Change(KEY, None, image, NOW, numbered(1), "1")
    broken = FaultyBackend(store_with({0: image}))
    broken.always = Fault.UNREACHABLE
    tally = run_sync(process_changes([change], broken, clock.world, AggregatorSettings()))
    assert (tally.troubles, list(tally.failed)) == (1, ["1"])


def test_the_last_image_is_the_newest_whatever_the_order() -> None:
    """By the count of writes, not by the place in the batch."""
    changes = history([Step(1, NOW), Step(1, NOW), Step(1, NOW)])
    (seen,) = aggregate_bucket_states([changes[2], changes[0], changes[1]]).values()
    assert seen.image == changes[2].new
    assert seen.consumed == {"tpm": 3000}


def test_a_batch_tells_of_each_bucket_what_happened_to_it() -> None:
    """Net of what was given back, and how many writes there were in which second."""
    second = NOW // 1000
    changes = history([Step(5, NOW), Step(-2, NOW + 999), Step(4, NOW + 1000)])
    quiet = Change(KEY, changes[2].new, {**(changes[2].new or {}), "ttl": 5}, NOW + 2000, numbered(9))
    removed = Change(bucket_key("ns", "user-2", "gpt-4"), changes[0].new, None, NOW, numbered(10))
    found = aggregate_bucket_states([*changes, quiet, removed])
    assert list(found) == [KEY]
    assert found[KEY].consumed == {"tpm": 7000}
    assert found[KEY].writes == {second: 2, second + 1: 1}
    assert found[KEY].image == quiet.new, "of equals the last one counts"
    (seen,) = aggregate_bucket_states([changes[0], changes[2], changes[1]]).values()
    assert seen.image == changes[2].new


def test_a_damaged_bucket_is_left_alone() -> None:
    """One that lost its numbers is put right by its clients."""
    image: Item = {"rf": NOW, "b_a_tk": 1, "b_a_cp": 1, "b_a_ra": 0, "b_a_rp": 1, "b_a_tc": 0}
    assert refill(activity(image), LATER) is None
