"""Two shards that were one become one again: what a merge writes, and that nothing is made or lost by it."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.quotas import instant
from zae_limiter.engine.account import WRITES, Account, Meter, Terms
from zae_limiter.engine.bucket_view import shard_count
from zae_limiter.engine.law import Rate, balance
from zae_limiter.engine.merge import TTL_FILLS, merge
from zae_limiter.engine.shares import SHARDS_MAX, birth_count, parent_of
from zae_limiter.engine.split import doubled, split, splitting, spread_of
from zae_limiter.models import Limit
from zae_limiter.repository_protocol import AtMost, Delete, Equal, Exists, Item, Key, Update, Write, apply_all
from zae_limiter.schema import bucket_key, limit_attributes, number, stored_rate

NOW = 1_700_000_000_000
KEYS = [bucket_key("ns", "e", "r", shard_id) for shard_id in range(SHARDS_MAX)]
A, B = Limit("a", 10, 1, 1), Limit("b", 1000, 7, 1)
ACCOUNT = Account(KEYS[0], "ns", "e", "r", Terms.of([A, B], 1, 7), meter=Meter.COUNT)
GAUGE = dict(zip(limit_attributes("wcu"), (WRITES.capacity_milli, *WRITES[:3], 0), strict=True))

Store = dict[Key, Item]


def bucket(*limits: Limit, **more: Any) -> dict[str, Any]:
    image: dict[str, Any] = {"rf": NOW, "cv": 1, "born": NOW, "shard_count": 1, **GAUGE}
    for limit in limits:
        rate = Rate.of(limit)
        image |= zip(limit_attributes(limit.name), (rate.capacity_milli, *rate[:3], 0), strict=True)
    return {**image, **more}


def perform(store: Store, writes: list[Write]) -> bool:
    outcomes = apply_all(writes, [store.get(write.key) for write in writes])
    for write, outcome in zip(writes, outcomes, strict=True):
        if not outcome.applied:
            return False
        store.pop(write.key, None)
        if outcome.item is not None:
            store[write.key] = outcome.item
    return True


def images(store: Store) -> list[Item | None]:
    return [store.get(key) for key in KEYS[: shard_count(store[KEYS[0]])]]


def held(store: Store, name: str, now_ms: int) -> int:
    """What all shards hold of a limit."""
    total = 0
    for image in store.values():
        if (rate := stored_rate(image, name)) is not None:
            total += balance(rate, number(image, limit_attributes(name).tk), number(image, "rf"), now_ms)
    return total


def halved(store: Store, now_ms: int) -> int:
    """Merge what can be merged, shard 0 last."""
    return sum(
        bool(writes) and perform(store, writes)
        for shard_id in reversed(range(shard_count(store[KEYS[0]]) // 2))
        for writes in [merge(ACCOUNT, shard_id, images(store), now_ms)]
    )


def test_a_merge_is_a_split_undone() -> None:
    """Five seconds after it was split, a bucket is what it would have been."""
    store: Store = {KEYS[0]: bucket(A, b_a_tk=3_001, b_a_tc=7_000, ttl=99)}
    assert perform(store, [*split(ACCOUNT, 0, store[KEYS[0]], {"a": 2}, NOW + 2_000)])
    assert "ttl" not in store[KEYS[0]]
    store[KEYS[1]] = {**store[KEYS[1]], "b_a_tk": 1_500, "b_a_tc": 1_000, "b_a_mx": 2_000}
    update, delete = merge(ACCOUNT, 0, images(store), NOW + 5_000)
    assert isinstance(update, Update)
    assert update.key == KEYS[0]
    assert update.when == (
        *(Exists(), Equal("rf", NOW + 2_000), Equal("cv", 1), Equal("shard_count", 2)),
        Equal("booked_since", None),
        AtMost("b_a_tk", 3_500),
    )
    # The one has 2,501 and gained 1,500, the other has 1,500 and gained as much.
    assert update.add == {"b_a_tk": 1_500 + 3_000, "b_a_tc": 1_000}
    full_in_ms = 10_000 - (2_501 + 1_500 + 3_000)
    assert update.set == {
        "rf": NOW + 5_000,
        "shard_count": 1,
        "b_a_cp": 10_000,
        "b_a_ra": 1_000,
        "b_a_sc": None,
        "b_a_mx": 2_000,
        "b_wcu_tk": WRITES.capacity_milli,
        "buried": NOW + 2_000,
        "lapses": None,
        "ttl": -(-(NOW + 5_000 + max(TTL_FILLS * 10_000, full_in_ms + 30_000)) // 1000),
    }
    assert delete == Delete(
        KEYS[1],
        (
            *(Exists(), Equal("rf", NOW + 2_000), Equal("cv", 1), Equal("shard_count", 2)),
            Equal("booked_since", None),
            Equal("b_a_tk", 1_500),
        ),
    )


@pytest.mark.parametrize("merged_after_ms", [-1, 0, 1, 86_400_000])
def test_the_halves_of_a_quota_are_one_quota_again(merged_after_ms: int) -> None:
    """On whichever side of its boundary they meet, and however unlike they were used, nothing is made."""
    quota = Limit.per_month("a", 101, tz="Europe/Berlin")
    april_ms, may_ms = instant("2026-03-31T22:00Z"), instant("2026-04-30T22:00Z")
    store: Store = {KEYS[0]: bucket(quota, b_a_ac=quota.accrual, rf=april_ms - 86_400_000)}
    assert perform(store, [*split(ACCOUNT, 0, store[KEYS[0]], {"a": 2}, april_ms - 3_600_000)])
    store[KEYS[1]] = {**store[KEYS[1]], "b_a_tk": -20_000, "b_a_tc": 70_500}
    at_ms = april_ms + merged_after_ms
    before = held(store, "a", at_ms)
    assert halved(store, at_ms) == 1
    (image,) = store.values()
    assert stored_rate(image, "a") == Rate.of(quota)
    assert (held(store, "a", at_ms), image["b_a_tc"]) == (before, 70_500)
    assert before == (50_500 - 20_000 if merged_after_ms < 0 else 50_500 + 30_500)
    assert held(store, "a", may_ms - 1) == (101_000 if merged_after_ms < 0 else before)
    assert held(store, "a", may_ms) == 101_000


@pytest.mark.parametrize(
    "change",
    [{"b_a_tk": 4}, {"rf": NOW + 1}, {"cv": 2}, {"shard_count": 4}],
    ids=str,
)
def test_a_shard_that_changed_is_not_deleted(change: dict[str, Any]) -> None:
    """Whatever somebody did to it since it was seen: the merge is refused as a whole."""
    store: Store = {KEYS[0]: bucket(A)}
    assert perform(store, [*split(ACCOUNT, 0, store[KEYS[0]], {"a": 2}, NOW)])
    writes = merge(ACCOUNT, 0, images(store), NOW)
    store[KEYS[1]] = {**store[KEYS[1]], **change}
    before = dict(store)
    assert not perform(store, writes)
    assert store == before


@pytest.mark.parametrize(
    ("tokens_milli", "elapsed_ms", "owed"),
    [
        (2_000, 0, {"a": 3_001}),
        (10_000, 0, {"a": 3_001}),
        (10_000, 2_000, {"a": 1_001}),
        (10_000, 4_000, None),
    ],
)
def test_what_cuts_have_spared_comes_back_with_the_shards(
    tokens_milli: int, elapsed_ms: int, owed: dict[str, int] | None
) -> None:
    """All of it but what has flown over since, be the shards full or not."""
    store: Store = {KEYS[0]: bucket(A, b_a_tk=tokens_milli, forgiven={"a": 3_001})}
    assert perform(store, [*split(ACCOUNT, 0, store[KEYS[0]], {"a": 2}, NOW)])
    assert all("forgiven" in image for image in store.values())
    assert halved(store, NOW + elapsed_ms) == 1
    assert store[KEYS[0]].get("forgiven") == owed


def test_spends_from_the_elder_do_not_disturb() -> None:
    """They commute with a merge as with one another, unless they fill or empty what was believed."""
    store: Store = {KEYS[0]: bucket(A, b_a_tk=0)}
    assert perform(store, [*split(ACCOUNT, 0, store[KEYS[0]], {"a": 2}, NOW + 3_000)])
    writes = merge(ACCOUNT, 0, images(store), NOW + 4_000)
    store[KEYS[0]] = {**store[KEYS[0]], "b_a_tk": number(store[KEYS[0]], "b_a_tk") - 1_000}
    total = held(store, "a", NOW + 4_000)
    assert perform(store, writes)
    assert held(store, "a", NOW + 4_000) == total


@pytest.mark.parametrize(
    ("elder", "younger"),
    [
        ({}, {"cv": 2}),
        ({"b_a_cp": 4_000}, {}),
        ({"b_a_ra": 400}, {}),
        ({}, {"b_a_rp": 500}),
        ({}, {"b_a_tk": None}),
        ({"shard_count": 1}, {}),
        ({}, {"shard_count": 4}),
        ({"b_a_sc": 1}, {}),
    ],
    ids=str,
)
def test_what_does_not_fit_together_is_left(elder: dict[str, Any], younger: dict[str, Any]) -> None:
    """Other limits, another version, other splits: their own next writes put that right first."""
    store: Store = {KEYS[0]: bucket(A)}
    assert perform(store, [*split(ACCOUNT, 0, store[KEYS[0]], {"a": 2}, NOW)])
    first, second = {**store[KEYS[0]], **elder}, {**store[KEYS[1]], **younger}
    assert merge(ACCOUNT, 0, [first, second], NOW) == []


def test_shard_0_comes_last() -> None:
    """It cannot say that there are fewer while another is split further, or is being split meanwhile."""
    store: Store = {KEYS[0]: bucket(B)}
    for count in (2, 4):
        for shard_id in range(count // 2):
            target = {"b": count}
            shard = [store[KEYS[0]], store[KEYS[shard_id]]]
            assert perform(store, splitting(ACCOUNT, shard_id, shard, target, NOW))
    assert len(store) == 4
    assert merge(ACCOUNT, 0, images(store), NOW) == []
    assert perform(store, merge(ACCOUNT, 1, images(store), NOW))
    last = merge(ACCOUNT, 0, images(store), NOW)
    undone = dict(store)
    assert perform(undone, splitting(ACCOUNT, 1, [store[KEYS[0]], store[KEYS[1]]], {"b": 4}, NOW))
    assert not perform(undone, last), "shard 1 was split again meanwhile"
    late = splitting(ACCOUNT, 1, [store[KEYS[0]], store[KEYS[1]]], {"b": 4}, NOW)
    assert perform(store, last)
    assert not perform(store, late), "shard 0 knows of two shards only"
    assert splitting(ACCOUNT, 1, [store[KEYS[0]], store[KEYS[1]]], {"b": 4}, NOW) == []


def test_a_shard_is_born_later_than_the_one_that_came_back() -> None:
    """So that its versions are told from those of the other, also by a clock that stands still."""
    store: Store = {KEYS[0]: bucket(A)}
    lives = []
    for _ in range(4):
        assert perform(store, [*split(ACCOUNT, 0, store[KEYS[0]], {"a": 2}, NOW)])
        lives.append(number(store[KEYS[1]], "born"))
        assert perform(store, merge(ACCOUNT, 0, images(store), NOW))
    assert lives == sorted(set(lives))


@given(st.integers(0, 10**6), st.integers(10, 60))
def test_any_splits_and_merges_conserve(seed: int, steps: int) -> None:
    """Shares add up at every instant, tokens only change by what is taken, and all ends in one item."""
    rng = random.Random(seed)
    limits = [A, Limit("b", rng.randrange(1, 3_000), rng.randrange(1, 50), rng.choice([1, 60, 3600]))]
    store: Store = {KEYS[0]: bucket(*limits, ttl=99)}
    now_ms = NOW
    for _ in range(steps):
        now_ms += rng.choice([0, 1, 17, 999, 60_000])
        key = rng.choice(list(store))
        kind, before = rng.random(), {limit.name: held(store, limit.name, now_ms) for limit in limits}
        first = store[KEYS[0]]
        if kind < 0.3 and (target := doubled(first)):
            assert perform(store, splitting(ACCOUNT, 0, [first], target, now_ms))
        elif kind < 0.5:
            target = {name: spread_of(first, name) for name in ("a", "b")}
            shard_id = KEYS.index(key)
            if shard_id:
                perform(store, splitting(ACCOUNT, shard_id, [first, store[key]], target, now_ms))
        elif kind < 0.8:
            halved(store, now_ms)
        else:
            name = rng.choice([name for name in "ab" if f"b_{name}_tk" in store[key]])
            taken, image = rng.randrange(-500, 3_000), store[key]
            store[key] = {**image, f"b_{name}_tk": number(image, f"b_{name}_tk") - taken}
            continue
        for limit in limits:
            assert held(store, limit.name, now_ms) == before[limit.name]
            rates = [rate for image in store.values() if (rate := stored_rate(image, limit.name))]
            assert sum(rate.capacity_milli for rate in rates) == Rate.of(limit).capacity_milli
            assert sum(rate.refill_amount_milli for rate in rates) == Rate.of(limit).refill_amount_milli
        check_tree(store)
    for _ in range(6):
        halved(store, now_ms)
    assert list(store) == [KEYS[0]]
    whole = store[KEYS[0]]
    assert (whole["shard_count"], "ttl" in whole, "lapses" in whole) == (1, True, False)
    assert [whole.get(f"b_{limit.name}_sc") for limit in limits] == [None, None]


def check_tree(store: Store) -> None:
    """Shard 0 knows of every shard, each is there whose elder was split for it, and no other."""
    count = shard_count(store[KEYS[0]])
    for shard_id in range(1, SHARDS_MAX):
        elder = store.get(KEYS[parent_of(shard_id)])
        is_split_off = elder is not None and shard_count(elder) > birth_count(shard_id)
        assert (KEYS[shard_id] in store) == is_split_off
        assert shard_id < count or not is_split_off
