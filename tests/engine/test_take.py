"""What one acquire asks of the store, step by step."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.engine.fake_store import (
    KEY,
    OTHER,
    RATE,
    Store,
    account_of,
    calls,
    demand,
    image_of,
    take,
    throw_away,
    waits,
    writer_of,
)
from zae_limiter import RateLimiterUnavailable, RateLimitExceeded, ValidationError
from zae_limiter.engine.account import Account, Meter, Terms
from zae_limiter.engine.demand import BucketDemand, demands_on
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.law import Rate
from zae_limiter.engine.posting import Order
from zae_limiter.engine.take import ATTEMPTS_MAX, SOON_SECONDS
from zae_limiter.repository_protocol import Key, Outcome
from zae_limiter.schema import bucket_key

SHARD = bucket_key("ns", "e", "r", 1)
GONE = RateLimiterUnavailable("out of reach")
UNSURE = RateLimiterUnavailable("no reply", ambiguous=True)
REFUSED = Outcome(False, image_of(), held=False)
METERED = account_of(meter=Meter.COUNT)
BOTH = (account_of(), account_of(OTHER))


# What is asked of whom.


def test_a_demand_is_for_limits_that_are_there() -> None:
    """Everybody of a family is asked for the limits it has, and somebody must have each."""
    account, parent = account_of(), account_of(OTHER)._replace(terms=Terms({"b": RATE}))
    assert demands_on([account], {"a": 1}) == [BucketDemand(account, {"a": 1})]
    assert demands_on([account, parent], {"a": 1, "b": 2}) == [
        BucketDemand(account, {"a": 1}),
        BucketDemand(parent, {"b": 2}),
    ]
    assert demands_on([account, parent], {"b": 2}) == [BucketDemand(parent, {"b": 2})]
    assert demands_on([account, parent], {}) == []
    with pytest.raises(ValidationError, match=r"'c'.*it has a, b"):
        demands_on([account, parent], {"a": 1, "c": 2})


# All or nothing.


def test_all_that_is_asked_for_is_taken_at_once() -> None:
    store = Store(e=image_of(), f=image_of())
    demands = demand(1_000), demand(2_000, BOTH[1])
    assert take(writer_of(store), *demands) == demands
    assert (calls(store), store.sent) == ([("write_each", 2)], [[-1_000, -2_000]])


def test_without_speculation_it_is_a_read_and_a_transaction() -> None:
    store = Store(e=image_of(), f=image_of())
    take(writer_of(store), demand(1_000), demand(2_000, BOTH[1]), speculative=False)
    assert calls(store) == [("batch_get", 2), ("transact_write", 2)]


def test_what_was_taken_is_given_back_when_the_rest_is_refused() -> None:
    """The refusal tells of all, first of those that refused, and of the others as they were found."""
    store = Store(e=image_of(5_000), f=image_of(1_000))
    writer = writer_of(store)
    writer.remember({OTHER: image_of(5_000)})
    with pytest.raises(RateLimitExceeded) as caught:
        take(writer, demand(4_000), demand(2_500, BOTH[1]))
    assert waits(caught.value) == [(1, 2, 1.5), (5, 4, 0.0)]
    assert store.sent == [[-4_000, -2_500], [4_000]]
    assert [store.tokens(key) for key in (KEY, OTHER)] == [5_000, 1_000]


def test_what_was_taken_is_given_back_when_the_store_fails_for_the_rest() -> None:
    store = Store(e=image_of(), f=image_of())
    writer = writer_of(store)
    store.replies = [Outcome(True, image_of(9_000)), Outcome(False, None, failure=GONE)]
    store.meanwhile = lambda: store.replies.clear() if len(store.calls) == 2 else None
    with pytest.raises(RateLimiterUnavailable) as caught:
        take(writer, demand(1_000), demand(1_000, BOTH[1]))
    assert caught.value is GONE
    assert [[(w.key, w.add["b_a_tk"]) for w in given] for _, given in store.calls[1:]] == [[(KEY, 1_000)]]


def test_what_was_taken_is_given_back_to_who_is_interrupted() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    stop = KeyboardInterrupt()

    class Interrupted(BucketWriter):
        async def post(self, orders: Sequence[Order], *, binding: bool = False) -> Any:
            outcomes, _ = await writer.post(orders, binding=binding)
            return outcomes, None if binding else stop

    with pytest.raises(KeyboardInterrupt) as caught:
        take(Interrupted(store, store.clock.world), demand(1_000))
    assert caught.value is stop
    assert store.sent == [[-1_000], [1_000]]


def test_an_acquire_that_is_thrown_away_does_nothing_more() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)

    store.meanwhile = throw_away
    with pytest.raises(GeneratorExit):
        take(writer, demand(1_000))
    assert len(store.calls) == 1


# Trying again.


def test_who_fits_by_the_time_of_the_reply_tries_again() -> None:
    store = Store(e=image_of(0))
    writer = writer_of(store)
    store.meanwhile = lambda: store.clock.advance(1)
    take(writer, demand(1_000))
    assert store.sent == [[-1_000], [-1_000]]


def test_who_is_beaten_again_is_refused() -> None:
    """It did not fit when it asked for the second time. It would by now, so there is nothing to wait for."""
    store = Store(e=image_of(0))
    writer = writer_of(store)

    def others_are_faster() -> None:
        if len(store.calls) == 2:
            store.shelf.items[KEY] = image_of(-1_000)
        store.clock.advance(1)

    store.meanwhile = others_are_faster
    with pytest.raises(RateLimitExceeded) as caught:
        take(writer, demand(1_000))
    assert waits(caught.value) == [(0, 1, SOON_SECONDS)]
    assert len(store.calls) == 2


def test_a_bucket_that_never_holds_still_ends_in_an_error() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)

    def move() -> None:
        image = store.shelf.items[KEY]
        store.shelf.items[KEY] = {**image, "rf": image["rf"] - 1}  # type: ignore[operator]

    store.meanwhile = move
    with pytest.raises(RateLimiterUnavailable, match="changed under every attempt"):
        take(writer, demand(1_000), speculative=False)
    assert calls(store) == [("batch_get", 1), ("write_each", 1)] * ATTEMPTS_MAX


def test_limits_that_are_newer_are_asked_for_once() -> None:
    """A parent that has lost the limit is asked for nothing then."""
    store = Store(e=image_of(cv=2), f=image_of(cv=2))
    renewed: list[Key] = []

    async def renew(account: Account) -> Account:
        renewed.append(account.key)
        return account._replace(terms=Terms({"a": RATE} if account.key == KEY else {}, 2))

    demands = demand(1_000), demand(1_000, BOTH[1])
    (taken,) = take(writer_of(store), *demands, renew=renew)
    assert (taken.account.key, taken.account.terms.version, taken.amounts) == (KEY, 2, {"a": 1_000})
    assert renewed == [KEY, OTHER]
    assert store.sent == [[None, None], [-1_000]]


def test_a_bucket_that_refuses_everybody_still_gets_its_new_numbers() -> None:
    store = Store(e=image_of(0))
    account = account_of(version=2, rate=Rate(10_000, 2_000, 1_000))
    with pytest.raises(RateLimitExceeded) as caught:
        take(writer_of(store), demand(4_000, account))
    assert waits(caught.value) == [(0, 4, 2.0)]
    assert calls(store) == [("write_each", 1)] * 2
    assert (store.shelf.items[KEY]["b_a_ra"], store.shelf.items[KEY]["cv"]) == (2_000, 2)


# Refusals that are remembered.


def test_a_refusal_is_repeated_without_asking() -> None:
    store = Store(e=image_of(1_000), f=image_of(9_000))
    writer = writer_of(store)
    writer.note_refusal(KEY)
    with pytest.raises(RateLimitExceeded) as caught:
        take(writer, demand(2_000, BOTH[1]), demand(2_000))
    assert waits(caught.value) == [(9, 2, 0.0), (1, 2, 1.0)]
    assert store.calls == []


def test_what_fits_is_asked_for_although_somebody_was_refused() -> None:
    store = Store(e=image_of(1_000), f=image_of(1_000))
    writer = writer_of(store)
    writer.note_refusal(KEY)
    take(writer, demand(1_000))
    with pytest.raises(RateLimitExceeded):
        take(writer, demand(2_000, BOTH[1]))
    assert len(store.calls) == 2


# Shards.


def sharded(first: int, second: int) -> tuple[Store, BucketWriter]:
    """A bucket in two halves of five tokens."""
    half = {"b_a_cp": 5_000, "b_a_ra": 500, "shard_count": 2, "b_a_sc": 2}
    store = Store(e=image_of(first, **half))
    store.shelf.items[SHARD] = image_of(second, **half)
    return store, writer_of(store)


def test_a_demand_that_no_shard_can_serve_alone_is_gathered_in_one_transaction() -> None:
    store, writer = sharded(3_000, 2_000)
    taken = take(writer, demand(4_000, METERED))
    assert sum(part.amounts["a"] for part in taken) == 4_000
    assert sorted(part.account.key for part in taken) == sorted((KEY, SHARD))
    assert sum(store.tokens(key) for key in (KEY, SHARD)) == 1_000
    verbs = [verb for verb, _ in store.calls]
    assert verbs == ["write_each", "batch_get", "batch_get", "transact_write"]


def test_a_demand_that_all_shards_cannot_serve_is_a_refusal_of_the_bucket() -> None:
    store, writer = sharded(3_000, 2_000)
    with pytest.raises(RateLimitExceeded) as caught:
        take(writer, demand(6_000, METERED))
    assert waits(caught.value) == [(5, 6, 1.0)]
    assert writer.refused_lately(KEY)
    assert [verb for verb, _ in store.calls] == ["write_each", "batch_get", "batch_get"]
    with pytest.raises(RateLimitExceeded):
        take(writer, demand(6_000, METERED))
    assert len(store.calls) == 3


def test_a_bucket_in_one_item_is_not_gathered() -> None:
    store = Store(e=image_of(1_000, shard_count=1))
    with pytest.raises(RateLimitExceeded):
        take(writer_of(store), demand(2_000, METERED))
    assert calls(store) == [("write_each", 1)]


def test_a_bucket_that_was_split_is_placed_anew() -> None:
    """The process knew one item; the reply shows that there are two, and the demand goes to one of these."""
    store, writer = sharded(5_000, 5_000)
    writer.remember({KEY: image_of(shard_count=1)})
    (taken,) = take(writer, demand(3_000, METERED))
    assert taken.account.shard_count == 2
    assert calls(store) == [("write_each", 1)] * 2
    assert store.tokens(taken.account.key) == 2_000


def test_a_bucket_that_is_written_too_often_is_split() -> None:
    """The demand is then counted and no longer hindered."""
    writes = dict(zip(("b_wcu_tk", "b_wcu_cp", "b_wcu_ra", "b_wcu_rp"), (0, 10**6, 1, 10**6), strict=True))
    store = Store(e=image_of(shard_count=1, b_wcu_tc=0, **writes))
    (taken,) = take(writer_of(store), demand(1_000, account_of(meter=Meter.LIMIT)))
    assert taken.account.meter is Meter.COUNT
    assert calls(store)[:2] == [("write_each", 1), ("transact_write", 2)]
    assert sum(store.held(key) for key in (KEY, SHARD)) == 9_000
