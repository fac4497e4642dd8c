"""A bucket in several items: what a split writes, number by number, and which shard holds what."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.quotas import instant
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.account import WRITES, Account, Meter, Terms
from zae_limiter.engine.bucket_view import level, still_forgiven
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.law import Rate, balance
from zae_limiter.engine.phased import begun_ms
from zae_limiter.engine.phases import rate_at
from zae_limiter.engine.posting import Posting
from zae_limiter.engine.rebase import rebase
from zae_limiter.engine.shares import share_rate
from zae_limiter.engine.split import doubled, gather, place, relieve, shard_account, split
from zae_limiter.models import Limit
from zae_limiter.repository_protocol import Absent, AtLeast, AtMost, Equal, Exists, Item, Put, apply
from zae_limiter.schema import (
    PHASE,
    bucket_entries,
    bucket_key,
    limit_attributes,
    number,
    stored_rate,
)
from zae_limiter.testing import ManualClock

NOW = 1_700_000_000_000
KEYS = [bucket_key("ns", "e", "r", shard_id) for shard_id in range(8)]

# One token a second is one millitoken a millisecond: gains can be read off the clock.
A = Limit("a", 10, 1, 1)
B = Limit("b", 100, 1, 1)


def account(*limits: Limit) -> Account:
    return Account(KEYS[0], "ns", "e", "r", Terms.of(limits, 1, 7), meter=Meter.COUNT)


def shard(shard_count: int = 1, /, origin_ms: int = NOW, **limits: tuple[Rate, int]) -> dict[str, Any]:
    image: dict[str, Any] = {"rf": origin_ms, "cv": 1, "shard_count": shard_count}
    for name, (rate, tokens_milli) in limits.items():
        image |= zip(limit_attributes(name), (tokens_milli, *rate[:3], 0), strict=True)
    return image


def after(image: Item, target: dict[str, int], now_ms: int, shard_id: int = 0) -> tuple[Item, Item]:
    """The shard that was split and the one that was made."""
    update, put = split(account(A, B), shard_id, image, target, now_ms)
    kept, made = apply(update, image), apply(put, None)
    assert kept.applied
    assert made.applied
    assert kept.item is not None
    assert made.item is not None
    return kept.item, made.item


def held(image: Item | None, at_ms: int = NOW) -> int:
    """What a shard holds of its one limit."""
    assert image is not None
    rate = stored_rate(image, "a")
    assert rate is not None
    return balance(rate, number(image, "b_a_tk"), number(image, "rf"), at_ms)


def test_a_split_gives_half_of_everything_to_a_new_shard() -> None:
    """Two seconds after its origin a shard with 3,001 of 10,000 holds 5,001; 2,500 of them move."""
    image = shard(a=(Rate.of(A), 3_001)) | {"cascade": True, "parent_id": "p", "ttl": 99, "b_a_mx": 4_000}
    image["life"] = "01"
    update, put = split(account(A), 0, image, {"a": 2}, NOW + 2_000)
    assert update.key == KEYS[0]
    assert update.when == (
        *(Exists(), Equal("rf", NOW), Equal("cv", 1), Equal("shard_count", 1)),
        Equal("booked_since", None),
        *(AtMost("b_a_tk", 8_000), AtLeast("b_a_tk", 500)),
    )
    assert update.add == {"b_a_tk": -500}
    assert update.set == {
        "rf": NOW + 2_000,
        "shard_count": 2,
        "ttl": None,
        "lapses": True,
        "b_a_cp": 5_000,
        "b_a_ra": 500,
        "b_a_sc": 2,
    }
    writes = dict(zip(limit_attributes("wcu"), (WRITES.capacity_milli, *WRITES[:3], 0), strict=True))
    assert put == Put(
        KEYS[1],
        {
            "cv": 1,
            "cascade": True,
            "parent_id": "p",
            "life": "01",
            "entity_id": "e",
            "resource": "r",
            "rf": NOW + 2_000,
            "born": NOW + 2_000,
            "shard_count": 2,
            "b_a_tk": 2_500,
            "b_a_cp": 5_000,
            "b_a_ra": 500,
            "b_a_rp": 1_000,
            "b_a_tc": 0,
            "b_a_sc": 2,
            "b_a_mx": 4_000,
            **writes,
            **bucket_entries("ns", "e", "r", 1),
        },
        (Absent(),),
    )


def test_a_split_of_a_full_shard_fills_both() -> None:
    """A shard that stores more than it holds is cut to its brim, and said to be full."""
    update, _ = split(account(A), 0, shard(a=(Rate.of(A), 8_001)), {"a": 2}, NOW + 2_000)
    assert AtLeast("b_a_tk", 8_001) in update.when
    kept, made = after(shard(a=(Rate.of(A), 8_001)), {"a": 2}, NOW + 2_000)
    assert (kept["b_a_tk"], made["b_a_tk"]) == (5_000, 5_000)
    just_full, _ = split(account(A), 0, shard(a=(Rate.of(A), 8_000)), {"a": 2}, NOW + 2_000)
    assert (just_full.add, AtMost("b_a_tk", 8_000) in just_full.when) == ({"b_a_tk": -3_000}, True)


def test_a_limit_that_is_not_split_stays_whole() -> None:
    """Beside one that is split: it is credited its gain, for the origin moves, and the new shard has none."""
    image = shard(a=(Rate.of(A), 3_000), b=(Rate.of(B), 50_000))
    kept, made = after(image, {"a": 1, "b": 2}, NOW + 2_000)
    assert (kept["b_a_tk"], kept["b_a_cp"], kept.get("b_a_sc")) == (5_000, 10_000, None)
    assert (kept["b_b_tk"], made["b_b_tk"]) == (26_000, 26_000)
    assert "b_a_tk" not in made
    assert after(image, {}, NOW + 2_000)[0]["b_a_cp"] == 10_000, "a limit that no target names"
    behind = shard(2, a=(Rate.of(A), 3_000), b=(Rate.of(B), 50_000)) | {"b_b_sc": 2}
    assert "b_a_tk" not in after(behind, {"a": 4, "b": 4}, NOW)[1], "one that was left behind earlier"


@pytest.mark.parametrize(("tokens_milli", "asked"), [(-1, None), (0, None), (1, None), (2, 1), (3, 1)])
def test_a_split_asks_for_what_it_moves(tokens_milli: int, asked: int | None) -> None:
    """Half of what is there moves, rounded down, and nothing asks for nothing."""
    update, _ = split(account(A), 0, shard(a=(Rate.of(A), tokens_milli)), {"a": 2}, NOW)
    asking = [condition.amount for condition in update.when if isinstance(condition, AtLeast)]
    assert asking == ([] if asked is None else [asked])


def test_nothing_moves_from_a_shard_in_debt_but_debt() -> None:
    """And no condition asks for tokens that nobody takes."""
    image = shard(a=(Rate.of(A), -4_000))
    update, _ = split(account(A), 0, image, {"a": 2}, NOW + 1_000)
    assert not [condition for condition in update.when if isinstance(condition, AtLeast)]
    kept, made = after(image, {"a": 2}, NOW + 1_000)
    assert (kept["b_a_tk"], made["b_a_tk"]) == (-1_500, -1_500)


@pytest.mark.parametrize("now_ms", [NOW, NOW - 1, NOW - 9_999])
def test_the_origin_always_moves_with_a_split(now_ms: int) -> None:
    """So that writes which were shaped for the undivided shard are refused; but not ahead of the clock."""
    kept, made = after(shard(a=(Rate.of(A), 3_000)), {"a": 2}, now_ms)
    assert (kept["rf"], made["rf"]) == (NOW - 1, NOW)


@pytest.mark.parametrize("change", [{"rf": NOW + 1}, {"cv": 2}, {"shard_count": 2}, {"b_a_tk": 0}])
def test_a_split_is_refused_when_the_shard_has_changed(change: dict[str, int]) -> None:
    """Somebody else rebased it, changed the limits, split it or took what was to be moved."""
    image = shard(a=(Rate.of(A), 3_000))
    update, _ = split(account(A), 0, image, {"a": 2}, NOW)
    assert apply(update, image).applied
    assert not apply(update, image | change).applied
    assert not apply(update, None).applied


def test_the_count_of_writes_starts_anew_where_there_is_one() -> None:
    """Both halves may be written at full speed; a shard without a count gets none."""
    image = shard(a=(Rate.of(A), 3_000))
    assert "b_wcu_tk" not in after(image, {"a": 2}, NOW)[0]
    counted = image | shard(wcu=(WRITES, 7))
    assert after(counted, {"a": 2}, NOW)[0]["b_wcu_tk"] == WRITES.capacity_milli


@given(
    capacity=st.integers(2_000, 10**9),
    refill=st.integers(2, 10**9),
    part=st.fractions(-2, 2),
    elapsed_ms=st.integers(-10, 10**6),
    shard_id=st.integers(0, 3),
)
def test_a_split_neither_makes_nor_loses_a_millitoken(
    capacity: int, refill: int, part: Any, elapsed_ms: int, shard_id: int
) -> None:
    """At the moment of the split, exactly; and no half holds more than its capacity."""
    rate = Rate(capacity, refill, 60_000)
    image = shard(4, a=(rate, int(capacity * part))) | {"b_a_sc": 4}
    kept, made = after(image, {"a": 8}, NOW + elapsed_ms, shard_id)
    at_ms = number(made, "rf")
    halves = [stored_rate(one, "a") or rate for one in (kept, made)]
    assert sum(half.capacity_milli for half in halves) == capacity
    assert sum(half.refill_amount_milli for half in halves) == refill
    left = [
        balance(half, number(one, "b_a_tk"), number(one, "rf"), at_ms)
        for half, one in zip(halves, (kept, made), strict=True)
    ]
    assert sum(left) == balance(rate, number(image, "b_a_tk"), NOW, at_ms)
    assert all(tokens <= half.capacity_milli for tokens, half in zip(left, halves, strict=True))


@pytest.mark.parametrize("split_after_ms", [-1, 0, 1, 86_400_000])
def test_a_quota_that_is_split_is_one_quota(split_after_ms: int) -> None:
    """On whichever side of its boundary that is: its halves hold what the whole would, ever after."""
    rate = Rate.of(Limit.per_month("a", 101, tz="Europe/Berlin"))
    used_ms, april_ms = instant("2026-03-20T00:00Z"), instant("2026-03-31T22:00Z")
    image = shard(1, used_ms, a=(rate, 30_001)) | {"b_a_ac": rate.accrual}
    halved = after(image, {"a": 2}, april_ms + split_after_ms)
    assert [half["b_a_ac"] for half in halved] == ["month@Europe/Berlin"] * 2
    for at_ms in (april_ms + split_after_ms, april_ms + 2 * 86_400_000, instant("2026-05-01T00:00Z")):
        assert sum(held(half, at_ms) for half in halved) == balance(rate, 30_001, used_ms, at_ms)


def test_each_half_makes_up_for_half_of_what_cuts_have_spared() -> None:
    """Only a limit that is split shares it out, and what flows over has made up for some of it already."""
    image = shard(a=(Rate.of(A), 0), b=(Rate.of(B), 50_000)) | {"forgiven": {"a": 3_001, "b": 7, "c": 9}}
    kept, made = after(image, {"a": 2}, NOW)
    assert (kept["forgiven"], made["forgiven"]) == ({"a": 1_501, "b": 7}, {"a": 1_500})
    full = shard(a=(Rate.of(A), 9_000)) | {"forgiven": {"a": 3_001}}
    kept, made = after(full, {"a": 2}, NOW + 4_000)
    assert (kept.get("forgiven"), made.get("forgiven")) == ({"a": 1}, None)
    kept, made = after(full, {"a": 2}, NOW + 9_000)
    assert (kept.get("forgiven"), made.get("forgiven")) == (None, None)


@given(
    capacity=st.integers(2_000, 10**9),
    part=st.fractions(-2, 2),
    spared=st.integers(1, 2 * 10**9),
    raised=st.integers(0, 2 * 10**9),
)
def test_a_split_does_not_undo_what_a_raise_has_to_make_up_for(
    capacity: int, part: Any, spared: int, raised: int
) -> None:
    """The halves give a caller who disagrees what the whole would, but for a millitoken that stays owed."""
    rate, wider = Rate(capacity, 60_000, 60_000), Rate(capacity + raised, 60_000, 60_000)
    image = shard(a=(rate, int(capacity * part))) | {"forgiven": {"a": spared}}
    caller = account()._replace(terms=Terms({"a": wider}))
    whole = level(caller.terms, "a", image, NOW).balance(NOW)
    halves = after(image, {"a": 2}, NOW)
    accounts = [shard_account(caller, shard_id, half) for shard_id, half in enumerate(halves)]
    found = [
        level(one.terms, "a", half, NOW).balance(NOW) for one, half in zip(accounts, halves, strict=True)
    ]
    assert 0 <= sum(found) - whole <= 1
    rises = [
        apply(rebase(one, Posting(), half, NOW), half) for one, half in zip(accounts, halves, strict=True)
    ]
    (rise,) = [apply(rebase(caller, Posting(), image, NOW), image)]
    assert all(outcome.applied for outcome in (*rises, rise))
    owed, owed_whole = sum(still_owed(outcome.item) for outcome in rises), still_owed(rise.item)
    assert sum(found) - owed == whole - owed_whole


def still_owed(image: Item | None) -> int:
    assert image is not None
    return still_forgiven(image, "a", NOW)


def test_a_bucket_in_one_item_is_its_own_shard() -> None:
    """With all its terms, among them how long it is kept."""
    whole = account(A)
    assert shard_account(whole, 0, None) is whole
    assert shard_account(whole, 0, shard(a=(Rate.of(A), 0))) is whole
    assert shard_account(whole, 1, shard(a=(Rate.of(A), 0)))[:5] == (KEYS[1], "ns", "e", "r", Terms({}, 1))


def test_a_shard_has_its_shares_and_no_limit_that_stops_before_it() -> None:
    """A limit that is spread over two shards is on shards 0 and 1."""
    image = shard(4) | {"b_a_sc": 2, "b_b_sc": 4}
    rates = [shard_account(account(A, B), shard_id, image).terms.rates for shard_id in range(4)]
    assert [rate.get("a") for rate in rates] == [Rate(5_000, 500, 1_000)] * 2 + [None] * 2
    assert [rate["b"] for rate in rates] == [Rate(25_000, 250, 1_000)] * 4
    assert shard_account(account(A, B), 3, image).shard_count == 4


def test_doubling_takes_along_only_limits_that_are_spread_over_all_shards() -> None:
    """One that was left behind stays where it is, however large; if none goes along, nothing is doubled."""
    first = shard(4, a=(Rate.of(A), 0), b=(Rate.of(B), 0)) | {"b_a_sc": 2, "b_b_sc": 4}
    assert doubled(first) == {"a": 2, "b": 8}
    assert doubled(first | {"b_b_cp": 2_000}) == {"a": 2, "b": 8}
    assert doubled(first | {"b_b_cp": 1_999}) is None, "half of it would be less than a token"
    assert doubled(first | {"b_b_mx": 50_000}) == {"a": 2, "b": 8}
    assert doubled(first | {"b_b_mx": 50_001}) is None, "somebody has asked for more than half of it"
    assert doubled(first | {"shard_count": 16, "b_b_sc": 16}) == {"a": 2, "b": 32}
    assert doubled(first | {"shard_count": 32, "b_b_sc": 32}) is None


async def writer_with(images: list[Item | None]) -> BucketWriter:
    """A process that has seen only the first shard of a bucket in the store."""
    clock = ManualClock(NOW)
    store = MemoryBackend(clock.world)
    await store.transact_write(
        [Put(key, image) for key, image in zip(KEYS, images, strict=False) if image is not None]
    )
    writer = BucketWriter(store, clock.world)
    writer.remember({KEYS[0]: images[0]})
    return writer


def test_gathering_asks_all_shards_that_are_there() -> None:
    """A shard that nobody has split off yet is part of another, and a missing bucket is full."""

    async def run() -> None:
        quarter = Rate(2_500, 250, 1_000)
        images: list[Item | None] = [shard(4, a=(quarter, 2_500)) | {"b_a_sc": 4} for _ in range(3)]
        writer = await writer_with(images)
        parts = await gather(writer, account(A), {"a": 7_500})
        assert sorted((one.shard_id, part["a"]) for one, part in parts) == [
            (0, 2_500),
            (1, 2_500),
            (2, 2_500),
        ]
        assert await gather(writer, account(A), {"a": 7_501}) == []
        assert await gather(await writer_with([None]), account(A), {"a": 7_501}) == [
            (account(A), {"a": 7_501})
        ]

    asyncio.run(run())


def test_a_shard_that_is_behind_is_split_itself() -> None:
    """Shard 1 knows of two shards and the bucket has four: its other half becomes shard 3."""

    async def run() -> None:
        half = Rate(5_000, 500, 1_000)
        images: list[Item | None] = [shard(n, a=(half, 5_000)) | {"b_a_sc": n} for n in (4, 2)]
        writer = await writer_with(images)
        await writer.look(KEYS[:2])
        assert (await relieve(writer, account(A), account(A)._replace(key=KEYS[1], shard_id=1))).key == KEYS[
            0
        ]
        stored = await writer.backend.batch_get(KEYS)
        assert [image is not None for image in stored] == [True, True, False, True, *[False] * 4]
        assert [image["shard_count"] for image in stored if image] == [4, 4, 4]

    asyncio.run(run())


def test_a_shard_with_a_schedule_that_is_behind_stays_as_it_is() -> None:
    """Its halves would each go by the schedule of the whole from the next boundary on."""
    terms = Terms.of([A.during("* 12 * * *", 20)], 1, 7)
    images: list[Item | None] = []
    for shard_id, count in ((0, 4), (1, 2)):
        rate = rate_at(share_rate(terms.rates["a"], shard_id, count), NOW)
        image = shard(count, a=(rate, 1_000)) | {"b_a_sc": count, "b_a_sd": rate.schedule}
        images.append(image | {PHASE: begun_ms({"a": rate}, NOW)})

    async def run() -> None:
        writer = await writer_with(images)
        await writer.look(KEYS[:2])
        whole = account(A)._replace(terms=terms)
        await relieve(writer, whole, whole._replace(key=KEYS[1], shard_id=1))
        assert await writer.backend.batch_get(KEYS[:4]) == [*images, None, None]
        assert {(await place(writer, whole, {"a": 1_000})).shard_id for _ in range(50)} == {0, 1}

    asyncio.run(run())


def test_a_shard_of_others_is_looked_for_before_it_is_made() -> None:
    """Whoever knows of two shards and has seen one reads the chosen one, and splits nothing."""

    async def run() -> None:
        half = Rate(5_000, 500, 1_000)
        images: list[Item | None] = [shard(2, a=(half, 5_000)) | {"b_a_sc": 2} for _ in range(2)]
        writer, chosen = await writer_with(images), set()
        for _ in range(20):
            writer.forget(KEYS[1])
            placed = await place(writer, account(A), {"a": 1})
            chosen.add(placed.shard_id)
            assert placed.key == KEYS[placed.shard_id]
            assert placed.terms.rates == {"a": half}
            assert [image["rf"] for image in await writer.backend.batch_get(KEYS) if image] == [NOW, NOW]
        assert chosen == {0, 1}

    asyncio.run(run())


def test_a_shard_that_nobody_needed_yet_is_split_off_its_parent() -> None:
    """Shard 3 is still part of shard 1, which this process has never seen."""

    async def run() -> None:
        quarter, half = Rate(2_500, 250, 1_000), Rate(5_000, 500, 1_000)
        writer = await writer_with(
            [
                shard(4, a=(quarter, 2_500)) | {"b_a_sc": 4},
                shard(2, a=(half, 5_000)) | {"b_a_sc": 2},
                shard(4, a=(quarter, 2_500)) | {"b_a_sc": 4},
            ]
        )
        for _ in range(30):
            placed = await place(writer, account(A), {"a": 1})
            if placed.shard_id == 3:
                break
            for key in KEYS[1:]:
                writer.forget(key)
        assert placed.key == KEYS[3]
        first, *others = await writer.backend.batch_get(KEYS[:4])
        assert [image and image["shard_count"] for image in (first, *others)] == [4, 4, 4, 4]
        assert sum(held(image) for image in (first, *others)) == 10_000

    asyncio.run(run())
