"""Groups, step by step: who goes out with whom, and whom the reply answers.

Nothing runs at the same time here. A test changes the store while a write is on its way.
"""

import pytest

from tests.engine.fake_store import (
    KEY,
    NOW,
    OTHER,
    THIRD,
    Store,
    account_of,
    call_of,
    credit,
    group_of,
    image_of,
    is_busy,
    need,
    outcomes,
    writer_of,
)
from zae_limiter.engine.group_commit import MOOT, WRITE_ATTEMPTS_MAX, BucketWriter
from zae_limiter.engine.visit import Visit
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Outcome
from zae_limiter.runtime.colour import run_sync

GONE = RateLimiterUnavailable("out of reach")


def test_those_in_line_go_out_in_one_write() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    visits, group = group_of(writer, need(1_000), need(2_000), credit(500))
    run_sync(writer.serve([group]))
    assert [outcome is not None and outcome.applied for outcome in outcomes(visits)] == [True] * 3
    assert (store.sent, store.tokens()) == ([[-2_500]], 7_500)
    assert not is_busy(writer, KEY)


def test_those_believed_not_to_fit_stay_behind_and_are_refused_by_the_reply() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    visits, group = group_of(writer, need(6_000), need(6_000))
    run_sync(writer.serve([group]))
    assert (store.sent, store.tokens()) == ([[-6_000]], 4_000)
    left = store.shelf.items[KEY]
    assert outcomes(visits) == [Outcome(True, left), Outcome(False, left, held=False)]
    assert not writer.refused_lately(KEY), "the write was not refused"


def test_if_nobody_is_believed_to_fit_the_first_asks_for_the_truth() -> None:
    """By the reply to its write the second fits too, and leads the next."""
    store = Store(e=image_of(1_000))
    writer = writer_of(store)
    store.shelf.items[KEY] = image_of(9_000)
    visits, group = group_of(writer, need(4_000), need(5_000), need(6_000))
    run_sync(writer.serve([group]))
    assert (store.sent, store.tokens()) == ([[-4_000]], 5_000)
    assert [None if it is None else it.applied for it in outcomes(visits)] == [True, None, False]
    (group,) = call_of(writer, visits[1])[0]
    assert [ticket.visit for ticket in group] == [visits[1]]
    run_sync(writer.serve([group]))
    assert (store.sent[1:], store.tokens()) == ([[-5_000]], 0)


def test_who_fits_by_the_time_of_the_reply_has_still_been_refused() -> None:
    store = Store(e=image_of(5_000))
    writer = writer_of(store)
    store.meanwhile = lambda: store.clock.advance(10)
    visits, group = group_of(writer, need(5_000), need(1_000))
    run_sync(writer.serve([group]))
    assert [it is not None and it.applied for it in outcomes(visits)] == [True, False]


def test_groups_of_several_buckets_travel_together() -> None:
    """A group that needs no write has its answer without one."""
    store = Store(e=image_of(), f=image_of(), g=image_of())
    writer = writer_of(store)
    orders = need(1_000), credit(1_000, account_of(OTHER), "b"), need(3_000, account_of(THIRD))
    visit = Visit(writer, orders, binding=False)
    answers = run_sync(visit.run())
    assert [answer.applied for answer in answers] == [True, True, True]
    assert answers[1] is MOOT
    assert store.sent == [[-1_000, -3_000]]
    assert not any(is_busy(writer, key) for key in (KEY, OTHER, THIRD))


def test_only_the_groups_without_an_answer_are_sent_again() -> None:
    store = Store(e=image_of(), f=image_of())
    writer = writer_of(store)
    store.shelf.items[OTHER] = image_of(5_000, rf=NOW - 1)
    visit = Visit(writer, [need(1_000), need(2_000, account_of(OTHER))], binding=False)
    assert [answer.applied for answer in run_sync(visit.run())] == [True, True]
    assert store.sent == [[-1_000, -2_000], [-2_000]]


def test_a_group_without_writes_asks_nothing() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    visits, group = group_of(writer, credit(1_000, name="b"), credit(2_000, name="b"))
    run_sync(writer.serve([group]))
    assert outcomes(visits) == [MOOT, MOOT]
    assert (store.calls, is_busy(writer, KEY)) == ([], False)


def test_a_failure_answers_those_who_were_sent() -> None:
    """Who stayed behind is not refused by it, for nothing is known of the bucket."""
    store = Store(e=image_of())
    writer = writer_of(store)
    store.replies = [Outcome(False, None, failure=GONE)]
    visits, group = group_of(writer, need(6_000), need(4_000), need(11_000))
    run_sync(writer.serve([group]))
    assert outcomes(visits) == [store.replies[0], store.replies[0], None]
    assert not writer.refused_lately(KEY)
    assert [ticket.visit for ticket in call_of(writer, visits[2])[0][0]] == [visits[2]]


def test_an_interruption_answers_those_who_were_sent_and_is_passed_on() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)

    def interrupt() -> None:
        raise KeyboardInterrupt

    store.meanwhile = interrupt
    visits, group = group_of(writer, need(6_000), need(4_000), need(9_000))
    with pytest.raises(KeyboardInterrupt):
        run_sync(writer.serve([group]))
    for outcome in outcomes(visits[:2]):
        assert outcome is not None
        assert not outcome.applied
        assert outcome.failure is not None
        assert outcome.failure.ambiguous
    assert outcomes(visits[2:]) == [None]
    assert [ticket.visit for ticket in call_of(writer, visits[2])[0][0]] == [visits[2]]


def restless() -> tuple[Store, BucketWriter]:
    """A bucket whose origin moves under each write."""
    store = Store(e=image_of(9_000))
    writer = writer_of(store)

    def move() -> None:
        image = store.shelf.items[KEY]
        store.shelf.items[KEY] = {**image, "rf": image["rf"] - 1}  # type: ignore[operator]

    store.meanwhile = move
    return store, writer


def test_who_came_alone_has_one_attempt_more() -> None:
    store, writer = restless()
    (outcome,), _ = run_sync(writer.post([need(1_000)]))
    assert not outcome.applied
    assert len(store.calls) == 1 + WRITE_ATTEMPTS_MAX


@pytest.mark.parametrize("followers", [0, 1, 2])
def test_a_bucket_that_never_holds_still_answers_only_who_leads(followers: int) -> None:
    """The next in line leads then, with all who are left."""
    store, writer = restless()
    visits, group = group_of(writer, need(1_000), *(need(1_000) for _ in range(followers)))
    run_sync(writer.serve([group]))
    assert len(store.calls) == WRITE_ATTEMPTS_MAX
    seen = image_of(9_000, rf=NOW - WRITE_ATTEMPTS_MAX)
    assert outcomes(visits) == [Outcome(False, seen, held=False), *[None] * followers]
    assert is_busy(writer, KEY) is bool(followers)
    if followers:
        assert [ticket.visit for ticket in call_of(writer, visits[1])[0][0]] == visits[1:]
