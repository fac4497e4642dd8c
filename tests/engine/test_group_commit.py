"""What a writer sends for one caller, what it remembers, and what it learns from a reply.

Nothing runs at the same time here: a test changes the store while a write is on its way.
"""

import math
from typing import Any

import pytest

from tests.engine.fake_store import (
    KEY,
    NOW,
    OTHER,
    THIRD,
    Scripted,
    Store,
    account_of,
    claim,
    credit,
    debit,
    image_of,
    is_busy,
    need,
    release,
    writer_of,
)
from zae_limiter.engine import seen_buckets
from zae_limiter.engine.account import WRITES, Meter
from zae_limiter.engine.group_commit import MOOT, BucketWriter
from zae_limiter.engine.law import Rate
from zae_limiter.engine.posting import Order
from zae_limiter.engine.waiting_room import Courtesy
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Item, Outcome, Update
from zae_limiter.runtime.colour import Blocking, run_sync
from zae_limiter.schema import bucket_key, limit_attributes

GONE = RateLimiterUnavailable("out of reach")


# What is remembered.


def test_the_buckets_seen_last_are_remembered() -> None:
    store = Store()
    writer = BucketWriter(store, store.clock.world, images_max=2)
    writer.remember({KEY: {"rf": 1}, OTHER: None})
    assert (writer.knows(KEY), writer.knows(OTHER), writer.knows(THIRD)) == (True, True, False)
    writer.remember({KEY: {"rf": 2}})
    writer.remember({THIRD: {"rf": 3}})
    assert dict(writer.images) == {KEY: {"rf": 2}, THIRD: {"rf": 3}}
    writer.forget(KEY)
    assert (writer.knows(KEY), writer.image(KEY)) == (False, None)


def test_a_refusal_is_remembered_for_a_second() -> None:
    store = Store()
    writer = BucketWriter(store, store.clock.world)
    assert not writer.refused_lately(KEY)
    writer.note_refusal(KEY)
    writer.note_refusal(OTHER)
    store.clock.advance(1)
    assert writer.refused_lately(KEY)
    writer.reconsider(KEY)
    assert [writer.refused_lately(key) for key in (KEY, OTHER)] == [False, True]
    store.clock.advance(0.001)
    assert not writer.refused_lately(OTHER)
    writer.note_refusal(OTHER)
    writer.note_refusal(KEY)
    writer.reconsider()
    assert [writer.refused_lately(key) for key in (KEY, OTHER)] == [False, False]


def test_the_latest_refusals_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_buckets, "REFUSALS_MAX", 2)
    store = Store()
    writer = BucketWriter(store, store.clock.world)
    for key in (KEY, OTHER):
        writer.note_refusal(key)
    assert [writer.refused_lately(key) for key in (KEY, OTHER)] == [True, True]
    writer.note_refusal(THIRD)
    assert [writer.refused_lately(key) for key in (KEY, OTHER, THIRD)] == [False, True, True]


def test_a_refund_ends_a_refusal_and_nothing_else_does() -> None:
    """A refund to a shard counts for the whole bucket."""
    store = Store(e=image_of(5_000))
    writer = writer_of(store)
    shard = account_of(bucket_key("ns", "e", "r", 1), shard_id=1)
    for order in (need(1_000), debit(1_000)):
        writer.note_refusal(KEY)
        run_sync(writer.post([order]))
        assert writer.refused_lately(KEY)
    for order in (credit(1_000), credit(1_000, shard)):
        writer.note_refusal(KEY)
        run_sync(writer.post([order]))
        assert not writer.refused_lately(KEY)


def test_what_a_reply_teaches() -> None:
    """A transaction that another write spoilt says nothing of this bucket; neither does a failure."""
    store, write, image = Store(), Update(KEY), image_of()
    for outcome, learnt in (
        (Outcome(True, {"rf": 2}), {KEY: {"rf": 2}}),
        (Outcome(False, {"rf": 2}, held=False), {KEY: {"rf": 2}}),
        (Outcome(False, {"rf": 2}), {KEY: {"rf": 2}}),
        (Outcome(False, None, held=False), {KEY: None}),
        (Outcome(False, None), {KEY: image}),
        (Outcome(True, None), {}),
        (Outcome(False, None, failure=GONE), {KEY: image}),
        (Outcome(False, None, held=False, failure=GONE), {KEY: image}),
    ):
        writer = BucketWriter(store, store.clock.world)
        writer.remember({KEY: image})
        writer.learn(write, outcome)
        assert dict(writer.images) == learnt, outcome


# One order, nobody in line.


def test_an_order_that_fits_is_one_write() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    (outcome,), interruption = run_sync(writer.post([need(4_000)]))
    assert (outcome.applied, interruption) == (True, None)
    assert (store.sent, store.tokens()) == ([[-4_000]], 6_000)
    assert writer.image(KEY) == outcome.item == store.shelf.items[KEY]
    assert not is_busy(writer, KEY)


def test_an_order_that_does_not_fit_is_refused_by_the_image_in_the_reply() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    store.shelf.items[KEY] = image_of(3_000)
    (outcome,), _ = run_sync(writer.post([need(4_000)]))
    assert outcome == Outcome(False, image_of(3_000), held=False)
    assert len(store.calls) == 1
    assert writer.refused_lately(KEY)
    assert not is_busy(writer, KEY)


def test_a_wrong_belief_costs_one_write_more() -> None:
    """The bucket has other numbers by now, and the order still fits."""
    store = Store(e=image_of())
    writer = writer_of(store)
    store.shelf.items[KEY] = image_of(5_000, rf=NOW - 1)
    (outcome,), _ = run_sync(writer.post([need(4_000)]))
    assert outcome.applied
    assert (store.sent, store.tokens()) == ([[-4_000], [-4_000]], 1_000)
    assert not writer.refused_lately(KEY)
    assert not is_busy(writer, KEY)


def test_a_single_order_gives_way_to_a_bucket_that_has_changed() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    store.shelf.items[KEY] = image_of(5_000, rf=NOW - 1)
    assert run_sync(writer.post_one(need(4_000))) == (None, None)
    assert (len(store.calls), is_busy(writer, KEY)) == (1, False)
    outcome, _ = run_sync(writer.post_one(need(4_000)))
    assert outcome is not None
    assert outcome.applied
    assert (len(store.calls), is_busy(writer, KEY)) == (2, False)


def test_a_single_order_waits_for_a_bucket_that_is_busy() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    claim(writer, KEY)
    assert is_busy(writer, KEY)
    writer.colour = Scripted(lambda: release(writer, KEY))
    assert run_sync(writer.post_one(need(4_000))) == (Outcome(True, store.shelf.items[KEY]), None)
    assert (store.sent, is_busy(writer, KEY)) == ([[-4_000]], False)


def test_a_refund_to_a_limit_that_is_gone_is_no_write() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    assert run_sync(writer.post([credit(1_000, name="b")])) == ([MOOT], None)
    assert (store.calls, is_busy(writer, KEY)) == ([], False)


def test_a_store_that_does_not_answer_is_asked_once() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    store.replies = [Outcome(False, None, failure=GONE)]
    assert run_sync(writer.post([need(1_000)])) == (store.replies, None)
    assert (len(store.calls), is_busy(writer, KEY)) == (1, False)
    assert not writer.refused_lately(KEY)


def test_an_interruption_is_returned_beside_an_outcome_that_nobody_knows() -> None:
    """By whoever it was raised: the call to the store, or who waits for it."""
    store = Store(e=image_of())
    writer = writer_of(store)
    stop = KeyboardInterrupt()

    def interrupt() -> None:
        raise stop

    store.meanwhile = interrupt
    (outcome,), interruption = run_sync(writer.post([need(1_000)]))
    assert interruption is stop
    assert not outcome.applied
    assert outcome.failure is not None
    assert outcome.failure.ambiguous
    assert not is_busy(writer, KEY)

    class Interrupted(Blocking):
        async def finish(self, coroutine: Any, *_: Any) -> tuple[Any, BaseException]:
            return await coroutine, stop

    store.meanwhile = lambda: None
    writer.colour = Interrupted()
    (outcome,), interruption = run_sync(writer.post([need(1_000)]))
    assert (outcome.applied, interruption) == (True, stop)


# All or none.


def test_orders_together_are_a_read_and_a_transaction() -> None:
    store = Store(e=image_of(), f=image_of())
    writer = BucketWriter(store, store.clock.world)
    both, courtesy = [need(1_000), need(2_000, account_of(OTHER))], Courtesy(math.inf)
    (one, other), interruption = run_sync(writer.post_together(both, courtesy, read_first=True))
    assert (one.applied, other.applied, interruption) == (True, True, None)
    assert [(verb, len(given)) for verb, given in store.calls] == [("batch_get", 2), ("transact_write", 2)]
    assert [writer.image(key) for key in (KEY, OTHER)] == [store.shelf.items[key] for key in (KEY, OTHER)]
    assert [store.tokens(key) for key in (KEY, OTHER)] == [9_000, 8_000]
    store.calls.clear()
    run_sync(writer.post_together(both[:1], courtesy, read_first=True))
    assert [(verb, len(given)) for verb, given in store.calls] == [("batch_get", 1), ("write_each", 1)]
    store.calls.clear()
    run_sync(writer.post_together(both, courtesy))
    assert [(verb, len(given)) for verb, given in store.calls] == [("transact_write", 2)]


def test_a_bucket_is_brought_up_to_date_by_one_write_if_it_has_other_numbers() -> None:
    store = Store(e=image_of(4_000))
    writer = writer_of(store)
    run_sync(writer.bring_up_to_date(account_of()))
    run_sync(writer.bring_up_to_date(account_of(OTHER)))
    assert store.calls == []
    run_sync(writer.bring_up_to_date(account_of(version=2, rate=Rate(20_000, 1_000, 1_000))))
    assert [(verb, len(given)) for verb, given in store.calls] == [("write_each", 1)]
    assert (store.tokens(), store.shelf.items[KEY]["cv"]) == (14_000, 2)
    assert writer.image(KEY) == store.shelf.items[KEY]


# Whom an image leaves room for.


def fits(image: Item | None, *orders: Order, applied: bool = False) -> tuple[list[bool], bool]:
    """Who fits, and whether the refusal of somebody is remembered; the reply took an hour."""
    store = Store()
    store.clock.advance(3_600)
    writer = BucketWriter(store, store.clock.world)
    return writer._fitting(orders, Outcome(applied, image), NOW), writer.refused_lately(KEY)


def test_orders_fit_one_after_another() -> None:
    orders = need(6_000), need(6_000), need(4_000), credit(9_000), debit(99_000)
    assert fits(image_of(), *orders) == ([True, False, True, True, True], True)
    assert fits(image_of(), *orders, applied=True) == ([True, False, True, True, True], False)
    assert fits(image_of(), need(6_000)) == ([True], False)
    assert fits(image_of(), credit(1_000)) == ([True], False)


def test_an_image_under_other_terms_leaves_room_for_what_is_not_asked_for() -> None:
    """The limits are newer, the shares were cut anew, or the item is written too often."""
    metered = account_of(meter=Meter.COUNT)
    limited = account_of(meter=Meter.LIMIT)
    writes = dict(zip(limit_attributes("wcu"), (999, *WRITES[:3], 0), strict=True))
    for account, image in (
        (account_of(), image_of(cv=2)),
        (metered, image_of(shard_count=2)),
        (limited, image_of(**writes)),
    ):
        orders = need(1_000, account), credit(1_000, account), debit(1_000, account)
        assert fits(image, *orders) == ([False, True, True], True)
    assert fits(image_of(**writes), need(1_000, metered)) == ([True], False)
    assert fits(image_of(**writes | {"b_wcu_tk": 1_000}), need(1_000, limited)) == ([True], False)


def test_where_there_is_no_bucket_refunds_do_not_fit_unless_somebody_makes_one() -> None:
    assert fits(None, credit(1_000), credit(1_000)) == ([False, False], True)
    assert fits(None, credit(1_000), need(10_000)) == ([True, True], False)
    assert fits(None, credit(1_000), debit(1_000)) == ([True, True], False)
    assert fits(None, debit(1_000)) == ([True], False)
    assert fits(None, need(10_001)) == ([False], True)


def test_a_refusal_of_one_shard_is_no_refusal_of_the_bucket() -> None:
    assert fits(image_of(), need(11_000, account_of(shard_count=2))) == ([False], False)
