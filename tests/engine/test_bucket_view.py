"""Which numbers a bucket is to have, whether it has them, and who is behind."""

from typing import Any

import pytest

from zae_limiter.engine.account import WRITES, Account, Meter, Terms
from zae_limiter.engine.bucket_view import (
    Level,
    has_family,
    has_same_terms,
    has_terms,
    is_outdated,
    is_overloaded,
    is_split,
    level,
    limit_of,
    put_back,
    shard_count,
    status,
    stored_terms,
)
from zae_limiter.engine.law import Rate
from zae_limiter.models import Limit
from zae_limiter.schema import bucket_key, limit_attributes

NOW = 1_700_000_000_000
A = Limit("a", 10, 1, 1)


def bucket(version: int = 1, tokens_milli: int = 4000, limit: Limit = A) -> dict[str, Any]:
    stored = dict(zip(limit_attributes(limit.name), (tokens_milli, *Rate.of(limit)[:3], 0), strict=True))
    return {"rf": NOW, "cv": version, **stored}


@pytest.mark.parametrize(
    ("terms_version", "stored_version", "outdated"),
    [(1, 1, False), (1, 2, True), (2, 1, False), (None, 9, False), (0, 1, True)],
)
def test_who_is_behind(terms_version: int | None, stored_version: int, outdated: bool) -> None:
    """Terms are outdated by a bucket of a newer version; limits brought along never are."""
    terms = Terms.of([A], terms_version)
    assert is_outdated(terms, bucket(stored_version)) is outdated
    assert is_outdated(terms, None) is False


@pytest.mark.parametrize(
    ("change", "version", "holds"),
    [
        ({}, 1, True),
        ({}, None, True),
        ({}, 2, False),
        ({"cv": 7}, None, True),
        ({"b_other_tk": 5}, 1, True),
        ({"b_a_cp": 10_001}, 1, False),
        ({"b_a_ra": 999}, 1, False),
        ({"b_a_rp": 999}, 1, False),
        ({"b_a_tk": None}, 1, False),
        ({"b_a_tk": 1.0}, 1, False),
        ({"b_a_tc": "0"}, 1, False),
        ({"rf": None}, 1, False),
        ({"rf": True}, 1, False),
    ],
)
def test_whether_a_bucket_has_its_terms(change: dict[str, Any], version: int | None, holds: bool) -> None:
    """All numbers are right and whole numbers, and so is the version unless the caller brought limits."""
    assert has_terms({**bucket(), **change}, Terms.of([A], version)) is holds


@pytest.mark.parametrize(
    ("image", "now_ms", "balance_milli"),
    [
        (None, NOW, 10_000),
        (bucket(), NOW, 4000),
        (bucket(), NOW + 500, 4500),
        (bucket(), NOW - 500, 4000),
        (bucket(), NOW + 10**6, 10_000),
        (bucket(limit=Limit("b", 5, 1, 1)), NOW, 10_000),
        (bucket(limit=Limit("a", 6, 2, 1)), NOW, 8000),
        (bucket(limit=Limit("a", 6, 2, 1)), NOW + 500, 9000),
        (bucket(limit=Limit("a", 6, 2, 1)), NOW + 10**6, 10_000),
        (bucket(limit=Limit("a", 30, 1, 1)), NOW, 0),
        (bucket(limit=Limit("a", 12, 1, 1)), NOW, 2000),
        (bucket(limit=Limit("a", 30, 1, 1)) | {"b_a_tk": -4000}, NOW, -4000),
        (bucket(limit=Limit("a", 30, 1, 1)) | {"b_a_tk": -40_000}, NOW, -9000),
        (bucket(limit=Limit("a", 10, 2, 1)) | {"b_a_tk": -40_000}, NOW, -9000),
        (bucket(limit=Limit("a", 6, 1, 1)) | {"forgiven": {"a": 1500}}, NOW, 6500),
        (bucket(limit=Limit("a", 6, 1, 1)) | {"forgiven": {"a": 9000}}, NOW, 4000),
    ],
)
def test_a_level_keeps_what_was_consumed(image: Any, now_ms: int, balance_milli: int) -> None:
    """A raise gives the difference, what a cut once spared aside; a cut takes it and makes no debt.

    A limit that the bucket does not have yet is full.
    """
    assert level(Terms.of([A]), "a", image, now_ms).balance(now_ms) == balance_milli


@pytest.mark.parametrize("before", [Limit("a", 6, 2, 1), Limit("a", 30, 1, 7), Limit("a", 10, 1, 60)])
@pytest.mark.parametrize("need_milli", [1, 9_500, 10_000])
def test_a_wait_under_other_numbers_is_exact(before: Limit, need_milli: int) -> None:
    """Until somebody writes the new numbers the bucket fills at the old rate, and that is when one comes."""
    image = bucket(limit=before) | {"b_a_tk": -20_000}

    def balance_after(ms: int) -> int:
        return level(Terms.of([A]), "a", image, NOW + ms).balance(NOW + ms)

    wait_ms = int(level(Terms.of([A]), "a", image, NOW).retry_after_ms(need_milli, NOW))
    assert balance_after(wait_ms - 1) < need_milli <= balance_after(wait_ms)


def test_the_terms_a_bucket_holds_itself() -> None:
    """They can be read back from it, and leftovers are none of them."""
    assert stored_terms({**bucket(3), "b_x_tk": 5}) == Terms.of([A], 3)
    assert stored_terms(bucket(3), 7).ttl_fills == 0
    assert stored_terms({**bucket(3), "ttl": 5}, 7).ttl_fills == 7


def test_a_rate_is_its_limit_again() -> None:
    """Units are converted back without loss."""
    limit = Limit("a", 7, 3, 90)
    assert limit_of("a", Rate.of(limit)) == limit


ACCOUNT = Account(bucket_key("ns", "e", "r"), "ns", "e", "r", Terms.of([A], 1))


def test_no_limits_take_no_time_to_fill() -> None:
    """Otherwise the slowest one tells."""
    assert Terms({}).fill_ms == 0
    assert Terms.of([A, Limit("b", 100, 1, 1)]).fill_ms == 100_000
    assert Terms.of([A]).lasting_ms == 20_000


def test_shard_0_stands_for_the_bucket() -> None:
    """Every shard knows its key."""
    third = ACCOUNT._replace(key=bucket_key("ns", "e", "r", 3), shard_id=3)
    assert third.whole_key == ACCOUNT.key
    assert ACCOUNT._replace(key=bucket_key("ns", "e", "r", 9)).whole_key == bucket_key("ns", "e", "r", 9)


@pytest.mark.parametrize(
    ("image", "parent_id", "cascade", "same"),
    [
        ({}, None, False, True),
        ({"parent_id": "p", "cascade": True}, "p", True, True),
        ({"parent_id": "p", "cascade": False}, "p", False, True),
        ({"parent_id": "p"}, "p", False, True),
        ({"parent_id": "p", "cascade": True}, "q", True, False),
        ({"parent_id": "p", "cascade": True}, "p", False, False),
        ({"parent_id": "p", "cascade": False}, "p", True, False),
        ({"parent_id": "p", "cascade": 1}, "p", True, False),
        ({}, "p", False, False),
    ],
)
def test_whether_a_bucket_knows_its_family(
    image: dict[str, Any], parent_id: str | None, cascade: bool, same: bool
) -> None:
    """Both the parent and whether it is asked."""
    assert has_family(image, ACCOUNT._replace(parent_id=parent_id, cascade=cascade)) is same


@pytest.mark.parametrize(
    "change",
    [{"meter": Meter.COUNT}, {"shard_count": 2}, {"terms": Terms.of([A], 2)}, {"terms": Terms.of([], 1)}],
)
def test_which_postings_can_share_a_write(change: dict[str, Any]) -> None:
    """Those under the same numbers, counted the same way."""
    assert has_same_terms(ACCOUNT, ACCOUNT._replace(terms=Terms.of([A], 1)))
    assert not has_same_terms(ACCOUNT, ACCOUNT._replace(**change))


@pytest.mark.parametrize(
    ("stored", "count"), [(1, 1), (2, 2), (32, 32), (33, 1), (0, 1), (-4, 1), ("2", 1), (None, 1)]
)
def test_how_many_shards_there_are(stored: Any, count: int) -> None:
    """What cannot be right counts as one."""
    assert shard_count({"shard_count": stored}) == count
    assert shard_count(None) == shard_count({}) == 1
    one = ACCOUNT._replace(meter=Meter.COUNT)
    assert is_split(one, {"shard_count": stored}) is (count != 1)
    assert is_split(one._replace(shard_count=count), {"shard_count": stored}) is False
    assert is_split(ACCOUNT, {"shard_count": stored}) is False, "where nothing is ever split"


@pytest.mark.parametrize(("left_milli", "overloaded"), [(1_000, False), (999, True), (-5_000, True)])
def test_who_is_written_too_often(left_milli: int, overloaded: bool) -> None:
    """Less than one write is left, and somebody minds."""
    image = dict(zip(limit_attributes("wcu"), (left_milli, *WRITES[:3], 0), strict=True)) | {"rf": NOW}
    minded = ACCOUNT._replace(meter=Meter.LIMIT)
    assert is_overloaded(minded, image, NOW) is overloaded
    assert is_overloaded(minded, image, NOW + 7) is False
    assert is_overloaded(ACCOUNT._replace(meter=Meter.COUNT), image, NOW) is False
    assert is_overloaded(minded, None, NOW) is is_overloaded(minded, {"rf": NOW}, NOW) is False


def test_people_are_told_whole_tokens() -> None:
    """What is there is rounded down, so that nobody is promised what he cannot have."""
    at = Level(Rate.of(A), 1_999, NOW)
    found = status(ACCOUNT, "a", 2_000, at, NOW)
    assert (found.available, found.requested, found.exceeded) == (1, 2, True)
    assert found.retry_after_seconds == 0.001
    assert status(ACCOUNT, "a", 1_500, at, NOW).requested == 1
    assert limit_of("a", Rate(1_999, 1_999, 1_999)) == Limit("a", 1, 1, 1)


def test_an_image_without_what_was_taken() -> None:
    """Of a bucket that is there."""
    assert put_back(None, {"a": 5}) is None
    assert put_back({"b_a_tk": 3, "rf": 1}, {"a": 5, "b": 2}) == {"b_a_tk": 8, "b_b_tk": 2, "rf": 1}
