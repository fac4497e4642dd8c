"""From a posting to a write: the shapes, number by number."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.bucket_view import has_terms, level
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.law import Rate
from zae_limiter.engine.posting import Posting, merged
from zae_limiter.models import Limit
from zae_limiter.repository_protocol import (
    Absent,
    AtLeast,
    AtMost,
    Equal,
    Exists,
    Item,
    Put,
    Update,
    Write,
    apply,
)
from zae_limiter.schema import (
    bucket_key,
    bucket_limit_names,
    limit_attributes,
    shard_attributes,
)

KEY = bucket_key("ns", "e", "r")
NOW = 1_700_000_000_000

# One token a second is one millitoken a millisecond: gains can be read off the clock.
A = Limit("a", 10, 1, 1)
B = Limit("b", 100, 1, 1)


def account(*limits: Limit, version: int | None = 1, ttl_fills: int = 0) -> Account:
    return Account(KEY, "ns", "e", "r", Terms.of(limits, version, ttl_fills))


def stored(name: str, limit: Limit, tokens_milli: int, consumed_milli: int = 0) -> dict[str, int]:
    rate = Rate.of(limit)
    return dict(zip(limit_attributes(name), (tokens_milli, *rate[:3], consumed_milli), strict=True))


def bucket(origin_ms: int = NOW, version: int = 1, /, **limits: tuple[Limit, int]) -> dict[str, Any]:
    image: dict[str, Any] = {"rf": origin_ms, "cv": version}
    for name, (limit, tokens_milli) in limits.items():
        image |= stored(name, limit, tokens_milli)
    return image


NOBODY_WAITS = Equal("booked_since", None)
PINNED = (Equal("rf", NOW), NOBODY_WAITS, Equal("cv", 1))
SHAPES: dict[str, tuple[Account, Posting, Item | None, int, Write | None]] = {
    "spend from what is stored": (
        account(A),
        Posting(need={"a": 3000}),
        bucket(a=(A, 4000)),
        NOW,
        Update(
            KEY,
            {"b_a_tk": -3000, "b_a_tc": 3000},
            {},
            (*PINNED, AtMost("b_a_tk", 10_000), AtLeast("b_a_tk", 3000)),
        ),
    ),
    "spend from what has been gained since": (
        account(A),
        Posting(need={"a": 3000}),
        bucket(a=(A, 1000)),
        NOW + 2000,
        Update(
            KEY,
            {"b_a_tk": -3000, "b_a_tc": 3000},
            {},
            (*PINNED, AtMost("b_a_tk", 8000), AtLeast("b_a_tk", 1000)),
        ),
    ),
    "a bucket that is just full is spent from": (
        account(A),
        Posting(need={"a": 3000}),
        bucket(a=(A, 8000)),
        NOW + 2000,
        Update(
            KEY,
            {"b_a_tk": -3000, "b_a_tc": 3000},
            {},
            (*PINNED, AtMost("b_a_tk", 8000), AtLeast("b_a_tk", 1000)),
        ),
    ),
    "top a bucket that is more than full": (
        account(A),
        Posting(need={"a": 3000}),
        bucket(a=(A, 8001)),
        NOW + 2000,
        Update(KEY, {"b_a_tc": 3000}, {"b_a_tk": 5000}, (*PINNED, AtLeast("b_a_tk", 8001))),
    ),
    "a clock behind the origin gains nothing": (
        account(A),
        Posting(need={"a": 3000}),
        bucket(a=(A, 4000)),
        NOW - 5000,
        Update(
            KEY,
            {"b_a_tk": -3000, "b_a_tc": 3000},
            {},
            (*PINNED, AtMost("b_a_tk", 10_000), AtLeast("b_a_tk", 3000)),
        ),
    ),
    "each limit has its own shape": (
        account(A, B),
        Posting(need={"a": 1000, "b": 2000}),
        bucket(a=(A, 10_000), b=(B, 50_000)),
        NOW + 1000,
        Update(
            KEY,
            {"b_a_tc": 1000, "b_b_tk": -2000, "b_b_tc": 2000},
            {"b_a_tk": 8000},
            (*PINNED, AtLeast("b_a_tk", 9001), AtMost("b_b_tk", 99_000), AtLeast("b_b_tk", 1000)),
        ),
    ),
    "limits that are not asked for are not touched": (
        account(A, B),
        Posting(need={"a": 1000}),
        bucket(a=(A, 4000), b=(B, -50_000)),
        NOW,
        Update(
            KEY,
            {"b_a_tk": -1000, "b_a_tc": 1000},
            {},
            (*PINNED, AtMost("b_a_tk", 10_000), AtLeast("b_a_tk", 1000)),
        ),
    ),
    "a debit has no floor": (
        account(A),
        Posting(debit={"a": 30_000}),
        bucket(a=(A, 4000)),
        NOW,
        Update(KEY, {"b_a_tk": -30_000, "b_a_tc": 30_000}, {}, (*PINNED, AtMost("b_a_tk", 10_000))),
    ),
    "a debit from a full bucket is not lost in the overfill": (
        account(A),
        Posting(debit={"a": 30_000}),
        bucket(a=(A, 15_000)),
        NOW,
        Update(KEY, {"b_a_tc": 30_000}, {"b_a_tk": -20_000}, (*PINNED, AtLeast("b_a_tk", 10_001))),
    ),
    "a debit leaves numbers and version as they are by now": (
        account(B, version=1),
        Posting(debit={"a": 1000, "b": 1000}),
        bucket(NOW, 2, a=(A, 4000)),
        NOW,
        Update(
            KEY,
            {"b_a_tk": -1000, "b_a_tc": 1000},
            {},
            (Equal("rf", NOW), NOBODY_WAITS, Equal("cv", 2), AtMost("b_a_tk", 10_000)),
        ),
    ),
    "a debit of a limit that is gone is moot": (
        account(B),
        Posting(debit={"b": 1000}),
        bucket(a=(A, 4000)),
        NOW,
        None,
    ),
    "a refund needs no more than its limit": (
        account(A),
        Posting(credit={"a": 3000}),
        bucket(a=(A, 4000)),
        NOW,
        Update(
            KEY,
            {"b_a_tk": 3000, "b_a_tc": -3000},
            {},
            (AtLeast("b_a_cp", 0), NOBODY_WAITS, Equal("life", None)),
        ),
    ),
    "a refund is right under any version": (
        account(A, version=9),
        Posting(credit={"a": 3000}),
        bucket(a=(B, 4000)),
        NOW,
        Update(
            KEY,
            {"b_a_tk": 3000, "b_a_tc": -3000},
            {},
            (AtLeast("b_a_cp", 0), NOBODY_WAITS, Equal("life", None)),
        ),
    ),
    "a refund to a limit that is gone is moot": (
        account(A, B),
        Posting(credit={"b": 3000}),
        bucket(a=(A, 4000)),
        NOW,
        None,
    ),
    "a refund keeps to the limits that are there": (
        account(A, B),
        Posting(credit={"a": 1000, "b": 3000}),
        bucket(a=(A, 4000)),
        NOW,
        Update(
            KEY,
            {"b_a_tk": 1000, "b_a_tc": -1000},
            {},
            (AtLeast("b_a_cp", 0), NOBODY_WAITS, Equal("life", None)),
        ),
    ),
    "a refund to a bucket that is believed missing is tried": (
        account(A),
        Posting(credit={"a": 3000}),
        None,
        NOW,
        Update(
            KEY,
            {"b_a_tk": 3000, "b_a_tc": -3000},
            {},
            (AtLeast("b_a_cp", 0), NOBODY_WAITS, Equal("life", None)),
        ),
    ),
    "a refund goes to the bucket that is there since a deletion, or was believed to be": (
        account(A)._replace(life="01"),
        Posting(credit={"a": 3000}),
        bucket(a=(A, 4000)) | {"life": "01"},
        NOW,
        Update(
            KEY,
            {"b_a_tk": 3000, "b_a_tc": -3000},
            {},
            (AtLeast("b_a_cp", 0), NOBODY_WAITS, Equal("life", "01")),
        ),
    ),
    "a refund of nobody knows when goes to whatever is there": (
        account(A)._replace(life=""),
        Posting(credit={"a": 3000}),
        None,
        NOW,
        Update(KEY, {"b_a_tk": 3000, "b_a_tc": -3000}, {}, (AtLeast("b_a_cp", 0), NOBODY_WAITS)),
    ),
    "nothing to do is nothing to write": (account(A), Posting(), bucket(a=(A, 4000)), NOW, None),
    "a rebase keeps what was consumed and moves the origin": (
        account(Limit("a", 15, 2, 1), version=2),
        Posting(need={"a": 3000}),
        bucket(a=(A, 4000)),
        NOW + 1000,
        Update(
            KEY,
            {"b_a_tk": 3000, "b_a_tc": 3000},  # 1,000 gained, 5,000 more capacity, 3,000 taken
            {"rf": NOW + 1000, "cv": 2, "b_a_cp": 15_000, "b_a_ra": 2000, "b_a_rp": 1000},
            (Exists(), *PINNED, AtMost("b_a_tk", 9000), AtLeast("b_a_tk", -3000)),
        ),
    ),
    "a rebase of a full bucket is full": (
        account(Limit("a", 5, 1, 1), version=2),
        Posting(need={"a": 3000}),
        bucket(a=(A, 12_000)),
        NOW + 1000,
        Update(
            KEY,
            {"b_a_tc": 3000},
            {"b_a_tk": 2000, "rf": NOW + 1000, "cv": 2, "b_a_cp": 5000, "b_a_ra": 1000, "b_a_rp": 1000},
            (Exists(), *PINNED, AtLeast("b_a_tk", 9001)),
        ),
    ),
    "a rebase to another version needs no time": (
        account(A, version=2),
        Posting(need={"a": 1000}),
        bucket(a=(A, 4000)),
        NOW,
        Update(
            KEY,
            {"b_a_tk": -1000, "b_a_tc": 1000},
            {"rf": NOW, "cv": 2, "b_a_cp": 10_000, "b_a_ra": 1000, "b_a_rp": 1000},
            (Exists(), *PINNED, AtMost("b_a_tk", 10_000), AtLeast("b_a_tk", 1000)),
        ),
    ),
    "a rebase within a version moves the origin even when the clock stands still": (
        account(Limit("a", 11, 1, 1), version=None),
        Posting(need={"a": 1000}),
        bucket(a=(A, 4000)),
        NOW,
        Update(
            KEY,
            {"b_a_tk": -1, "b_a_tc": 1000},  # 1,000 more capacity, 1,000 taken; the origin counts one more
            {"rf": NOW - 1, "b_a_cp": 11_000, "b_a_ra": 1000, "b_a_rp": 1000},
            (Exists(), *PINNED, AtMost("b_a_tk", 10_000), AtLeast("b_a_tk", 0)),
        ),
    ),
    "stored limits replace the others": (
        account(A, version=2),
        Posting(need={"a": 1000}),
        bucket(b=(B, 4000)),
        NOW + 1,
        Update(
            KEY,
            {},
            {
                "rf": NOW + 1,
                "cv": 2,
                **stored("a", A, 9000, 1000),
                **dict.fromkeys((*limit_attributes("b"), *shard_attributes("b"))),
            },
            (Exists(), *PINNED, Equal("b_a_tk", None)),
        ),
    ),
    "limits brought along leave the others and the version alone": (
        account(A, version=None),
        Posting(need={"a": 1000}),
        bucket(b=(B, 4000)),
        NOW + 1500,
        Update(
            KEY,
            {"b_b_tk": 1500},
            {
                "rf": NOW + 1500,
                **stored("a", A, 9000, 1000),
                "b_b_cp": 100_000,
                "b_b_ra": 1000,
                "b_b_rp": 1000,
            },
            (Exists(), *PINNED, Equal("b_a_tk", None), AtMost("b_b_tk", 98_500)),
        ),
    ),
    "a bucket that overflows gives all that it can hold": (
        account(A),
        Posting(need={"a": 10_000}),
        bucket(a=(A, 12_000)),
        NOW,
        Update(KEY, {"b_a_tc": 10_000}, {"b_a_tk": 0}, (*PINNED, AtLeast("b_a_tk", 10_001))),
    ),
    "a bucket that overflows gives all that it can hold under other limits too": (
        account(A, version=2),
        Posting(need={"a": 10_000}),
        bucket(a=(A, 12_000)),
        NOW,
        Update(
            KEY,
            {"b_a_tc": 10_000},
            {"rf": NOW, "cv": 2, "b_a_tk": 0, "b_a_cp": 10_000, "b_a_ra": 1000, "b_a_rp": 1000},
            (Exists(), *PINNED, AtLeast("b_a_tk", 10_001)),
        ),
    ),
    "a need of one limit together with a refund of another": (
        account(A, B),
        Posting(need={"a": 1000}, credit={"b": 2000}),
        bucket(a=(A, 4000), b=(B, 5000)),
        NOW,
        Update(
            KEY,
            {"b_a_tk": -1000, "b_a_tc": 1000, "b_b_tk": 2000, "b_b_tc": -2000},
            {},
            (*PINNED, AtMost("b_a_tk", 10_000), AtLeast("b_a_tk", 1000), AtMost("b_b_tk", 100_000)),
        ),
    ),
}


def test_a_cut_that_is_overtaken_by_a_refund_gives_nothing_away() -> None:
    """Believed too low for the need, the bucket has just been refunded: it is cut by all the difference."""
    cut, believed = account(Limit("a", 9, 1, 1), version=None), bucket(a=(A, 0))
    write = write_for(cut, Posting(need={"a": 1}), believed, NOW)
    assert write is not None
    outcome = apply(write, {**believed, "b_a_tk": 1_001})
    assert outcome.item is not None
    assert (outcome.applied, level(cut.terms, "a", outcome.item, NOW).balance(NOW)) == (True, 0)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shapes_of_writes(shape: str) -> None:
    """Conditions and effects of each kind of write, number by number."""
    payer, posting, image, now_ms, expected = SHAPES[shape]
    assert write_for(payer, posting, image, now_ms) == expected


def test_the_first_use_creates_the_bucket_full_minus_the_demand() -> None:
    """All limits of the terms are there from the beginning, and the indexes find the bucket."""
    payer = account(A, B, version=3, ttl_fills=7)._replace(parent_id="p", cascade=True)
    write = write_for(payer, Posting(need={"a": 3000}, debit={"b": 200_000}), None, NOW)
    expected = {
        "entity_id": "e",
        "resource": "r",
        "rf": NOW,
        "cv": 3,
        "shard_count": 1,
        "cascade": True,
        "parent_id": "p",
        **stored("a", A, 7000, 3000),
        **stored("b", B, -100_000, 200_000),
        "GSI2PK": "ns/RESOURCE#r",
        "GSI2SK": "BUCKET#e#0",
        "GSI3PK": "ns/ENTITY#e",
        "GSI3SK": "BUCKET#r#0",
        "GSI4PK": "ns",
        "GSI4SK": KEY.partition,
        "ttl": NOW // 1000 + 700,
    }
    assert isinstance(write, Put)
    assert {name: write.item.get(name) for name in expected} == expected
    assert sorted(bucket_limit_names(write.item)) == ["a", "b"]
    assert (write.key, write.when) == (KEY, (Absent(),))


@pytest.mark.parametrize(
    "image",
    [None, bucket(a=(A, 10_000)), bucket(a=(A, 99_000)), bucket(NOW, 7, a=(A, 99_000)), bucket(b=(B, 0))],
)
def test_more_than_the_capacity_is_refused_whatever_is_there(image: Item | None) -> None:
    """A need that can never be covered makes a write that no image satisfies."""
    write = write_for(account(A), Posting(need={"a": 10_001}), image, NOW + 5)
    assert write is not None
    images = (
        None,
        *(bucket(o, v, a=(A, n)) for o in (NOW, NOW + 5) for v in (1, 7) for n in range(0, 10**5, 999)),
    )
    assert not any(apply(write, other).applied for other in (image, *images))


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(0, 10_000), st.integers(0, 10_000))
def test_spends_commute(one: int, other: int, rest: int, gained: int) -> None:
    """Two processes with the same belief and a bucket that is not full both succeed, in either order."""
    there = one + other + rest
    limit = Limit("a", 31, 1, 1)
    image, now_ms = bucket(a=(limit, there - gained)), NOW + gained
    writes = [write_for(account(limit), Posting(need={"a": n}), image, now_ms) for n in (one, other)]
    ends = []
    for order in (writes, writes[::-1]):
        item: Item | None = image
        for write in order:
            assert write is not None
            outcome = apply(write, item)
            assert outcome.applied
            item = outcome.item
        ends.append(item)
    assert ends[0] == ends[1]
    assert ends[0] is not None
    assert ends[0]["b_a_tk"] == rest - gained


def test_a_lease_on_life_is_seldom_renewed() -> None:
    """A write that is within ``ttl`` does not move it, so a busy bucket does not conflict over it."""
    image: dict[str, Any] = {**bucket(a=(A, 4000)), "ttl": NOW // 1000 + 70}
    write = write_for(account(A, ttl_fills=7), Posting(need={"a": 1000}), image, NOW + 30_000)
    assert isinstance(write, Update)
    assert "ttl" not in write.set


@pytest.mark.parametrize(
    ("postings_", "total"),
    [
        ([], Posting({}, {}, {})),
        ([Posting(need={"a": 1}), Posting(need={"a": 2, "b": 3})], Posting({"a": 3, "b": 3}, {}, {})),
        (
            [
                Posting(need={"a": 1}),
                Posting(debit={"a": 2}),
                Posting(credit={"a": 4}),
                Posting(debit={"a": 1}),
            ],
            Posting({"a": 1}, {"a": 3}, {"a": 4}),
        ),
    ],
)
def test_postings_add_up(postings_: list[Posting], total: Posting) -> None:
    """Several postings are one that needs, takes and gives what they do together."""
    assert merged(postings_)[:3] == total[:3]


@pytest.mark.parametrize(
    "broken",
    [
        {"b_a_tk": None},
        {"b_a_tk": "4000"},
        {"b_a_tc": None},
        {"b_a_cp": 9_999},
        {"b_a_ra": 1},
        {"b_a_rp": None},
        {"rf": None},
        {"rf": "now"},
        {"cv": "two"},
        {"cv": None},
    ],
    ids=str,
)
def test_a_bucket_that_is_not_whole_is_made_whole(broken: dict[str, Any]) -> None:
    """Whatever a stranger left of a bucket, the next demand gets an answer and leaves a good bucket."""
    image = {name: value for name, value in {**bucket(a=(A, 4000)), **broken}.items() if value is not None}
    payer = account(A)
    assert not has_terms(image, payer.terms)
    write = write_for(payer, Posting(need={"a": 1000}), image, NOW + 10)
    assert write is not None
    outcome = apply(write, image)
    assert outcome.item is not None
    assert has_terms(outcome.item, payer.terms)
