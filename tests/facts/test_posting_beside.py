"""What a write says beside its amounts: how long a bucket lives, what a split must know, who comes first."""

from typing import Any

import pytest

from zae_limiter.bucket import Rate
from zae_limiter.models import Limit
from zae_limiter.posting import Posting, fitting, merged, write_for
from zae_limiter.repository_protocol import Equal, Put, Update
from zae_limiter.schema import bucket_key, limit_attributes, shard_attributes
from zae_limiter.terms import Account, Meter, Terms

NOW = 1_700_000_000_000

# One token a second: a bucket of ten is full after ten seconds.
A = Limit("a", 10, 1, 1)
B = Limit("b", 100, 1, 1)


def account(limit: Limit, ttl_fills: int = 0, meter: Meter = Meter.NONE) -> Account:
    terms = Terms.of([limit], 1, ttl_fills)
    return Account(bucket_key("ns", "e", "r"), "ns", "e", "r", terms, meter=meter)


def bucket(tokens_milli: int) -> dict[str, Any]:
    numbers = (tokens_milli, *Rate.of(A), 0)
    return {"rf": NOW, "cv": 1, **dict(zip(limit_attributes("a"), numbers, strict=True))}


@pytest.mark.parametrize(
    ("tokens_milli", "full_in_seconds"),
    [(4_000, 30), (50_000, 24)],
    ids=["a bucket with some tokens", "a bucket that overflows"],
)
def test_a_debt_prolongs_the_life_of_a_bucket(tokens_milli: int, full_in_seconds: int) -> None:
    """It is kept until the debt is paid, the bucket is full, and two fills more."""
    image: dict[str, Any] = {**bucket(tokens_milli), "ttl": NOW // 1000 + 1}
    write = write_for(account(A, ttl_fills=1), Posting(debit={"a": 25_000}, credit={"a": 1000}), image, NOW)
    assert isinstance(write, Update)
    assert write.set["ttl"] == NOW // 1000 + full_in_seconds + 20
    assert Equal("ttl", NOW // 1000 + 1) in write.when


def test_a_bucket_that_is_born_in_debt_outlives_the_debt() -> None:
    """A debit may find no bucket, and the one it makes is not full before the debt is paid."""
    write = write_for(account(A, ttl_fills=1), Posting(debit={"a": 25_000}), None, NOW)
    assert isinstance(write, Put)
    assert write.item["ttl"] == NOW // 1000 + 25 + 20


@pytest.mark.parametrize(("need", "largest"), [(3_125, None), (3_126, 3_126)])
def test_a_counted_bucket_knows_its_birth_and_what_its_shares_must_allow(
    need: int, largest: int | None
) -> None:
    """A need that the smallest share would cover is not worth keeping."""
    write = write_for(account(B, meter=Meter.COUNT), Posting(need={"b": need}), None, NOW)
    assert isinstance(write, Put)
    assert write.item.get(shard_attributes("b").mx) == largest
    assert write.item["born"] == NOW


def test_a_counted_bucket_keeps_the_largest_need_of_a_group_and_counts_refunds() -> None:
    """A group of small needs does not keep a limit from being split; every write is a write."""
    metered = account(B, meter=Meter.COUNT)
    made = write_for(metered, Posting(need={"b": 1000}), None, NOW)
    assert isinstance(made, Put)
    group = Posting(need={"b": 20_000}, largest={"b": 8_000})
    write = write_for(metered, group, made.item, NOW)
    assert isinstance(write, Update)
    assert write.set[shard_attributes("b").mx] == 8_000
    refund = write_for(metered, Posting(credit={"b": 1000}), made.item, NOW)
    assert isinstance(refund, Update)
    assert refund.add == {"b_b_tk": 1000, "b_b_tc": -1000, "b_wcu_tk": -1000, "b_wcu_tc": 1000}


def test_a_group_remembers_its_largest_need() -> None:
    """A split has to know what was once asked for at once, and a group is not one request."""
    group = [Posting(need={"a": 2}), Posting(need={"a": 5, "b": 1}), Posting(need={"a": 3})]
    assert merged(group).largest == {"a": 5, "b": 1}


def test_a_queue_is_served_in_its_order() -> None:
    """Each finds what those before it left; who does not fit leaves everything to the next."""
    queue = [Posting(need={"a": need}) for need in (3000, 3000, 2000, 1)]
    assert fitting(queue, account(A).terms, bucket(5000), NOW) == [True, False, True, False]
