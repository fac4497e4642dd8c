"""What a lease settles with whom, to the millitoken, and which amounts it takes at all."""

from collections import Counter
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from tests.engine.fake_buckets import FakeBuckets
from tests.engine.fake_store import KEY, OTHER, RATE, Store, account_of, image_of, writer_of
from zae_limiter import ValidationError
from zae_limiter.acquisition import DegradedLease
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.demand import BucketDemand, Take
from zae_limiter.engine.posting import Order, Posting
from zae_limiter.engine.settle import settlement
from zae_limiter.exceptions import LeaseExpiredError
from zae_limiter.lease import Lease
from zae_limiter.models import TOKENS_MAX
from zae_limiter.models.checks import named_amounts, needs_milli
from zae_limiter.repository_protocol import Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key

SHARD = bucket_key("ns", "e", "r", 1)
WHOLE = account_of()._replace(terms=Terms({"a": RATE, "b": RATE}, 1))
PARENT = account_of(OTHER)._replace(entity_id="p")
STEPPARENT = PARENT._replace(key=bucket_key("ns", "s", "r"), entity_id="s")
ON_SHARD = account_of(SHARD, shard_id=1, shard_count=2)


def settled(
    accounts: list[Account], taken: list[BucketDemand], **adjusted: int
) -> list[tuple[Key, dict[str, int], dict[str, int]]]:
    """The debits and credits of a settlement, by item."""
    amounts: Counter[str] = Counter()
    for demand in taken:
        if demand.account.entity_id == WHOLE.entity_id:
            amounts.update(demand.amounts)
    takes = [Take(tuple(accounts), amounts, tuple(taken))] if taken else []
    return posted(settlement(accounts, takes, adjusted))


def posted(orders: list[Order]) -> list[tuple[Key, dict[str, int], dict[str, int]]]:
    assert not any(order.posting.need for order in orders)
    return [(order.account.key, dict(order.posting.debit), dict(order.posting.credit)) for order in orders]


def test_what_was_not_needed_goes_back_where_it_came_from_the_last_first() -> None:
    taken = [BucketDemand(WHOLE, {"a": 2_000}), BucketDemand(ON_SHARD, {"a": 3_000})]
    assert settled([WHOLE], taken, a=-2) == [(SHARD, {}, {"a": 2_000})]
    assert settled([WHOLE], taken, a=-3) == [(SHARD, {}, {"a": 3_000})]
    assert settled([WHOLE], taken, a=-4) == [(SHARD, {}, {"a": 3_000}), (KEY, {}, {"a": 1_000})]
    assert settled([WHOLE], taken[::-1], a=-4) == [(KEY, {}, {"a": 2_000}), (SHARD, {}, {"a": 2_000})]


def test_shards_get_back_the_very_millitokens_that_they_gave() -> None:
    taken = [BucketDemand(WHOLE, {"a": 999}), BucketDemand(ON_SHARD, {"a": 1})]
    assert settled([WHOLE], taken, a=-1) == [(SHARD, {}, {"a": 1}), (KEY, {}, {"a": 999})]


def test_limits_are_returned_to_those_who_gave_them() -> None:
    """What was taken of one limit says nothing of another; both of one item are one order."""
    taken = [BucketDemand(WHOLE, {"a": 1_000, "b": 1_000}), BucketDemand(ON_SHARD, {"a": 1_000})]
    assert settled([WHOLE], taken, b=-1) == [(KEY, {}, {"b": 1_000})]
    assert settled([WHOLE], taken, b=-1, a=-2) == [
        (KEY, {}, {"b": 1_000, "a": 1_000}),
        (SHARD, {}, {"a": 1_000}),
    ]
    assert settled([WHOLE], taken[:1], a=5, b=-1) == [(KEY, {"a": 5_000}, {"b": 1_000})]


def test_what_was_needed_besides_is_paid_where_the_first_tokens_came_from() -> None:
    """A shard that does not hold the limit cannot pay; then the whole bucket does."""
    on_shard, on_whole = BucketDemand(ON_SHARD, {"a": 1_000}), BucketDemand(WHOLE, {"a": 1_000, "b": 1_000})
    assert settled([WHOLE], [on_shard, on_whole], a=1) == [(SHARD, {"a": 1_000}, {})]
    assert settled([WHOLE], [on_whole, on_shard], a=1) == [(KEY, {"a": 1_000}, {})]
    assert settled([WHOLE], [on_shard], b=7) == [(KEY, {"b": 7_000}, {})]
    assert settled([WHOLE], [], b=7) == [(KEY, {"b": 7_000}, {})]


def test_a_parent_settles_what_it_has() -> None:
    taken = [BucketDemand(WHOLE, {"a": 2_000, "b": 2_000}), BucketDemand(PARENT, {"a": 2_000})]
    assert settled([WHOLE, PARENT], taken, a=-1, b=3) == [
        (KEY, {"b": 3_000}, {"a": 1_000}),
        (OTHER, {}, {"a": 1_000}),
    ]


def test_each_family_gets_back_what_it_gave_and_the_first_pays() -> None:
    """A lease that took from two families, one after the other."""
    first = Take(
        (WHOLE, PARENT), {"a": 2_000}, (BucketDemand(WHOLE, {"a": 2_000}), BucketDemand(PARENT, {"a": 2_000}))
    )
    later = Take(
        (WHOLE, STEPPARENT),
        {"a": 3_000},
        (BucketDemand(STEPPARENT, {"a": 3_000}), BucketDemand(WHOLE, {"a": 3_000})),
    )
    alone = Take((WHOLE,), {"b": 1_000}, (BucketDemand(WHOLE, {"b": 1_000}),))
    taken, step = [first, later, alone], STEPPARENT.key
    assert posted(settlement((WHOLE, PARENT), taken, {"a": -4})) == [
        (KEY, {}, {"a": 4_000}),
        (step, {}, {"a": 3_000}),
        (OTHER, {}, {"a": 1_000}),
    ]
    assert posted(settlement((WHOLE, PARENT), taken, {"a": -3})) == [
        (KEY, {}, {"a": 3_000}),
        (step, {}, {"a": 3_000}),
    ]
    assert posted(settlement((WHOLE, PARENT), taken, {"a": 1})) == [
        (KEY, {"a": 1_000}, {}),
        (OTHER, {"a": 1_000}, {}),
    ]
    assert posted(settlement((PARENT,), taken, {"b": 1})) == [(KEY, {"b": 1_000}, {})]


def test_what_an_item_owed_in_another_life_is_an_order_of_its_own() -> None:
    """An entity was deleted and made again while the lease went on."""
    again = WHOLE._replace(life="L")
    taken = [
        Take((account,), {"a": 2_000}, (BucketDemand(account, {"a": 2_000}),))
        for account in (WHOLE, again, WHOLE)
    ]
    orders = settlement((WHOLE,), taken, {"a": -5})
    assert [(o.account.life, dict(o.posting.credit)) for o in orders] == [
        (None, {"a": 3_000}),
        ("L", {"a": 2_000}),
    ]


def test_an_adjustment_of_nothing_is_no_order() -> None:
    assert settled([WHOLE], [BucketDemand(WHOLE, {"a": 1_000})], a=0) == []
    assert settled([WHOLE], [BucketDemand(WHOLE, {"a": 1_000})]) == []


def test_an_order_of_one_limit_is_as_plain_as_can_be() -> None:
    (order,) = settlement([WHOLE], [], {"a": 1})
    assert (order.account, order.posting) == (WHOLE, Posting(debit={"a": 1_000}))


def test_needs_are_whole_tokens_in_millitokens() -> None:
    assert needs_milli({"a": 1, "b": TOKENS_MAX}) == {"a": 1_000, "b": TOKENS_MAX * 1_000}
    assert needs_milli(MappingProxyType({"a": 2})) == {"a": 2_000}


@pytest.mark.parametrize(
    "amounts", [{"a": -1}, {"a": TOKENS_MAX + 1}, {"a": True}, {"a": 1.5}, ["a"], None, "a"]
)
def test_needs_that_are_none_are_not_taken(amounts: Any) -> None:
    with pytest.raises(ValidationError):
        needs_milli(amounts)


@pytest.mark.parametrize("amounts", [{}, {"a": 0}, {"a": 0, "b": 0}])
def test_nothing_is_no_demand(amounts: dict[str, int]) -> None:
    assert needs_milli(amounts) == {}
    assert needs_milli({**amounts, "c": 1}) == {"c": 1_000}


def test_amounts_have_one_source_each() -> None:
    assert named_amounts(None, {"a": 1}) == {"a": 1}
    assert named_amounts({"a b": 2}, {"a": 1}) == {"a b": 2, "a": 1}
    with pytest.raises(ValidationError, match="a given twice"):
        named_amounts({"a": 2}, {"a": 1})


def lease_of() -> Lease:
    """A lease of two tokens, of a store that nobody asks."""
    buckets: Any = SimpleNamespace(writer=writer_of(Store(e=image_of())))
    lease = Lease(buckets, "e", "r")
    lease._accounts, lease._taken_alone = (WHOLE,), {"a": 2_000}
    return lease


def degraded_lease() -> Lease:
    return DegradedLease(lease_of(), {"a": 2})


LEASES = pytest.mark.parametrize("make", [lease_of, degraded_lease])


@LEASES
@pytest.mark.parametrize("change", [True, 1.5, "1", None, TOKENS_MAX + 1, -TOKENS_MAX - 1])
def test_an_adjustment_is_a_whole_number_within_bounds(make: Callable[[], Lease], change: Any) -> None:
    """One that is not changes nothing, nor do those beside it."""
    lease = make()
    with pytest.raises(ValidationError):
        run_sync(lease.adjust({"b": 1, "a": change}))
    assert lease.consumed == {"a": 2}


@LEASES
def test_adjustments_add_up(make: Callable[[], Lease]) -> None:
    lease = make()
    run_sync(lease.adjust(a=TOKENS_MAX))
    run_sync(lease.adjust({"a": -TOKENS_MAX}, b=3))
    run_sync(lease.release(a=1))
    assert lease.consumed == {"a": 1, "b": 3}


@LEASES
def test_a_total_replaces_what_was_noted_before(make: Callable[[], Lease]) -> None:
    """Of the limits that are named; what others have cost stays as it is."""
    lease = make()
    run_sync(lease.adjust(a=7, b=3))
    run_sync(lease.settle(a=5))
    assert lease.consumed == {"a": 5, "b": 3}
    run_sync(lease.settle({"a": 0}, b=TOKENS_MAX))
    assert lease.consumed == {"a": 0, "b": TOKENS_MAX}


@LEASES
def test_a_total_of_what_was_not_taken(make: Callable[[], Lease]) -> None:
    lease = make()
    run_sync(lease.settle(b=3))
    assert lease.consumed == {"a": 2, "b": 3}


@LEASES
@pytest.mark.parametrize("total", [True, 1.5, "1", None, TOKENS_MAX + 1, -1])
def test_a_total_is_a_whole_number_within_bounds(make: Callable[[], Lease], total: Any) -> None:
    lease = make()
    with pytest.raises(ValidationError, match="total of 'a'"):
        run_sync(lease.settle({"b": 1, "a": total}))
    assert lease.consumed == {"a": 2}


def test_a_total_of_an_unknown_limit_is_bad_input() -> None:
    lease = lease_of()
    with pytest.raises(ValidationError, match="has no such limit"):
        run_sync(lease.settle(a=1, c=1))
    with pytest.raises(ValidationError, match="a given twice"):
        run_sync(lease.settle({"a": 1}, a=1))
    assert lease.consumed == {"a": 2}


@LEASES
def test_what_is_released_is_not_negative(make: Callable[[], Lease]) -> None:
    for amount in (-1, True):
        with pytest.raises(ValidationError):
            run_sync(make().release(a=amount))


@LEASES
def test_what_is_consumed_is_not_negative(make: Callable[[], Lease]) -> None:
    for amount in (-1, True):
        with pytest.raises(ValidationError):
            run_sync(make().consume(a=amount))


def test_a_lease_returns_at_most_what_it_holds(caplog: pytest.LogCaptureFixture) -> None:
    """What is given back beyond that is cut off, and said; a limit that nobody has is bad input."""
    lease = lease_of()
    run_sync(lease.release(a=3))
    assert lease.consumed == {"a": 0}
    assert "gives back 2 of a" in caplog.text
    with pytest.raises(ValidationError):
        run_sync(lease.adjust(b=1, c=1))
    assert lease.consumed == {"a": 0}


@LEASES
def test_nothing_to_release_is_no_mistake(make: Callable[[], Lease]) -> None:
    """Who gives back what was not needed may have needed all of it."""
    lease = make()
    run_sync(lease.release(a=0))
    assert lease.consumed == make().consumed


def test_a_degraded_lease_returns_at_most_what_it_holds() -> None:
    lease = degraded_lease()
    run_sync(lease.release(a=5))
    run_sync(lease.adjust(b=1))
    assert lease.consumed == {"a": 0, "b": 1}


@pytest.mark.parametrize("verb", ["consume", "adjust", "release"])
def test_a_degraded_lease_ends_like_any_other(verb: str) -> None:
    lease = degraded_lease()
    run_sync(lease.consume(a=3))
    assert (lease.consumed, lease.degraded) == ({"a": 5}, True)
    run_sync(lease._finish())
    with pytest.raises(LeaseExpiredError):
        run_sync(getattr(lease, verb)(a=1))


def test_what_is_taken_for_work_that_failed_meanwhile_is_given_back() -> None:
    """A task of its own was still asking for more; it is told that the lease has ended."""
    buckets = FakeBuckets()
    lease = buckets.enter({})
    run_sync(lease.consume(a=1))

    def fail() -> None:
        lease._ended = lease._abandoned = True

    buckets.meanwhile = fail
    with pytest.raises(LeaseExpiredError):
        run_sync(lease.consume(a=2))
    assert buckets.sent == [-1_000, -2_000, 2_000]
