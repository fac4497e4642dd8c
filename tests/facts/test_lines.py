"""The lines before a bucket, step by step: who goes out with whom, who leads, who waits and gives up.

Nothing runs at the same time here. A test moves visits through the lines itself, and changes the store
while a write is on its way.
"""

from collections.abc import Callable, Sequence

import pytest

from tests.facts.stage import (
    KEY,
    NOW,
    OTHER,
    THIRD,
    Scripted,
    Store,
    account_of,
    credit,
    image_of,
    is_busy,
    need,
    teller_of,
    throw_away,
)
from zae_limiter import teller as module
from zae_limiter._colour import Signal, run_sync
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Outcome
from zae_limiter.teller import MOOT, WITHDRAWN, WRITE_ATTEMPTS_MAX, Order, Teller, Ticket, Visit

GONE = RateLimiterUnavailable("out of reach")
PATIENCE_S = 4.0
"""Twice the deadline of a call."""


def in_line(teller: Teller, *orders: Order) -> list[Visit]:
    """Visits in line for a bucket that is busy."""
    assert is_busy(teller, orders[0].account.key)
    visits = [Visit(teller, [order], binding=False) for order in orders]
    for visit in visits:
        assert teller.line_up(visit.tickets) == []
    return visits


def group_of(teller: Teller, *orders: Order) -> tuple[list[Visit], list[Ticket]]:
    """Visits whose first has been asked to lead them all."""
    assert teller.claim(orders[0].account.key)
    visits = in_line(teller, *orders)
    teller._release(orders[0].account.key)
    (group,) = teller.call_of(visits[0])[0]
    return visits, group


def waiting(teller: Teller, visit: Visit) -> Signal:
    """What a visitor waits for who has nothing to do."""
    groups, signal = teller.call_of(visit)
    assert groups == []
    assert signal is not None
    assert not signal.given
    return signal


def outcomes(visits: Sequence[Visit]) -> list[Outcome | None]:
    return [visit.tickets[0].outcome for visit in visits]


# Groups.


def test_those_in_line_go_out_in_one_write() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    visits, group = group_of(teller, need(1_000), need(2_000), credit(500))
    run_sync(teller.serve([group]))
    assert [outcome is not None and outcome.applied for outcome in outcomes(visits)] == [True] * 3
    assert (store.sent, store.tokens()) == ([[-2_500]], 7_500)
    assert not is_busy(teller, KEY)


def test_those_believed_not_to_fit_stay_behind_and_are_refused_by_the_reply() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    visits, group = group_of(teller, need(6_000), need(6_000))
    run_sync(teller.serve([group]))
    assert (store.sent, store.tokens()) == ([[-6_000]], 4_000)
    left = store.shelf.items[KEY]
    assert outcomes(visits) == [Outcome(True, left), Outcome(False, left, held=False)]
    assert not teller.refused_lately(KEY), "the write was not refused"


def test_if_nobody_is_believed_to_fit_the_first_asks_for_the_truth() -> None:
    """By the reply to its write the second fits too, and leads the next."""
    store = Store(e=image_of(1_000))
    teller = teller_of(store)
    store.shelf.items[KEY] = image_of(9_000)
    visits, group = group_of(teller, need(4_000), need(5_000), need(6_000))
    run_sync(teller.serve([group]))
    assert (store.sent, store.tokens()) == ([[-4_000]], 5_000)
    assert [None if it is None else it.applied for it in outcomes(visits)] == [True, None, False]
    (group,) = teller.call_of(visits[1])[0]
    assert [ticket.visit for ticket in group] == [visits[1]]
    run_sync(teller.serve([group]))
    assert (store.sent[1:], store.tokens()) == ([[-5_000]], 0)


def test_who_fits_by_the_time_of_the_reply_has_still_been_refused() -> None:
    store = Store(e=image_of(5_000))
    teller = teller_of(store)
    store.meanwhile = lambda: store.clock.advance(10)
    visits, group = group_of(teller, need(5_000), need(1_000))
    run_sync(teller.serve([group]))
    assert [it is not None and it.applied for it in outcomes(visits)] == [True, False]


def test_groups_of_several_buckets_travel_together() -> None:
    """A group that needs no write has its answer without one."""
    store = Store(e=image_of(), f=image_of(), g=image_of())
    teller = teller_of(store)
    orders = need(1_000), credit(1_000, account_of(OTHER), "b"), need(3_000, account_of(THIRD))
    visit = Visit(teller, orders, binding=False)
    answers = run_sync(visit.run())
    assert [answer.applied for answer in answers] == [True, True, True]
    assert answers[1] is MOOT
    assert store.sent == [[-1_000, -3_000]]
    assert not any(is_busy(teller, key) for key in (KEY, OTHER, THIRD))


def test_only_the_groups_without_an_answer_are_sent_again() -> None:
    store = Store(e=image_of(), f=image_of())
    teller = teller_of(store)
    store.shelf.items[OTHER] = image_of(5_000, rf=NOW - 1)
    visit = Visit(teller, [need(1_000), need(2_000, account_of(OTHER))], binding=False)
    assert [answer.applied for answer in run_sync(visit.run())] == [True, True]
    assert store.sent == [[-1_000, -2_000], [-2_000]]


def test_a_group_without_writes_asks_nothing() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    visits, group = group_of(teller, credit(1_000, name="b"), credit(2_000, name="b"))
    run_sync(teller.serve([group]))
    assert outcomes(visits) == [MOOT, MOOT]
    assert (store.calls, is_busy(teller, KEY)) == ([], False)


def test_a_failure_answers_those_who_were_sent() -> None:
    """Who stayed behind is not refused by it, for nothing is known of the bucket."""
    store = Store(e=image_of())
    teller = teller_of(store)
    store.replies = [Outcome(False, None, failure=GONE)]
    visits, group = group_of(teller, need(6_000), need(4_000), need(11_000))
    run_sync(teller.serve([group]))
    assert outcomes(visits) == [store.replies[0], store.replies[0], None]
    assert not teller.refused_lately(KEY)
    assert [ticket.visit for ticket in teller.call_of(visits[2])[0][0]] == [visits[2]]


def test_an_interruption_answers_those_who_were_sent_and_is_passed_on() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)

    def interrupt() -> None:
        raise KeyboardInterrupt

    store.meanwhile = interrupt
    visits, group = group_of(teller, need(6_000), need(4_000), need(9_000))
    with pytest.raises(KeyboardInterrupt):
        run_sync(teller.serve([group]))
    for outcome in outcomes(visits[:2]):
        assert outcome is not None
        assert not outcome.applied
        assert outcome.failure is not None
        assert outcome.failure.ambiguous
    assert outcomes(visits[2:]) == [None]
    assert [ticket.visit for ticket in teller.call_of(visits[2])[0][0]] == [visits[2]]


def restless() -> tuple[Store, Teller]:
    """A bucket whose origin moves under each write."""
    store = Store(e=image_of(9_000))
    teller = teller_of(store)

    def move() -> None:
        image = store.shelf.items[KEY]
        store.shelf.items[KEY] = {**image, "rf": image["rf"] - 1}  # type: ignore[operator]

    store.meanwhile = move
    return store, teller


def test_who_came_alone_has_one_attempt_more() -> None:
    store, teller = restless()
    (outcome,), _ = run_sync(teller.post([need(1_000)]))
    assert not outcome.applied
    assert len(store.calls) == 1 + WRITE_ATTEMPTS_MAX


@pytest.mark.parametrize("followers", [0, 1, 2])
def test_a_bucket_that_never_holds_still_answers_only_who_leads(followers: int) -> None:
    """The next in line leads then, with all who are left."""
    store, teller = restless()
    visits, group = group_of(teller, need(1_000), *(need(1_000) for _ in range(followers)))
    run_sync(teller.serve([group]))
    assert len(store.calls) == WRITE_ATTEMPTS_MAX
    seen = image_of(9_000, rf=NOW - WRITE_ATTEMPTS_MAX)
    assert outcomes(visits) == [Outcome(False, seen, held=False), *[None] * followers]
    assert is_busy(teller, KEY) is bool(followers)
    if followers:
        assert [ticket.visit for ticket in teller.call_of(visits[1])[0][0]] == visits[1:]


# The line.


def test_a_line_moves_in_the_order_of_arrival() -> None:
    """Who has no answer yet stands before those who came later; who has one is passed over."""
    store = Store(e=image_of())
    teller = teller_of(store)
    visits, group = group_of(teller, need(1_000), need(1_000), need(1_000))
    late = in_line(teller, need(2_000), need(2_000))
    teller._tell(group[:1], MOOT)
    teller._tell(late[0].tickets, MOOT)
    leads, follows = (waiting(teller, visit) for visit in visits[1:])
    teller._hand_over(group)
    assert (leads.given, follows.given) == (True, False)
    (group,) = teller.call_of(visits[1])[0]
    assert [ticket.visit for ticket in group] == [visits[1], visits[2], *late]
    assert teller.call_of(visits[2])[0] == []


def test_those_at_the_head_of_a_line_who_have_an_answer_are_passed_over() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    assert teller.claim(KEY)
    visits = in_line(teller, need(1_000), need(1_000), need(1_000))
    for visit in visits[:2]:
        signal = waiting(teller, visit)
        teller.withdraw(visit, WITHDRAWN)
        assert signal.given
    teller._release(KEY)
    assert teller.call_of(visits[0]) == ([], None)
    assert [ticket.visit for ticket in teller.call_of(visits[2])[0][0]] == visits[2:]
    teller.withdraw(visits[2], WITHDRAWN)
    teller._hand_over(visits[2].tickets)
    assert not is_busy(teller, KEY)


def test_a_group_ends_where_it_is_large_enough_or_the_terms_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GROUP_MAX", 2)
    store = Store(e=image_of())
    teller = teller_of(store)
    newer = account_of(version=2)
    visits, group = group_of(teller, *(need(1_000) for _ in range(3)), need(1_000, newer))
    for expected in (visits[:2], visits[2:3], visits[3:]):
        assert [ticket.visit for ticket in group] == expected
        teller._tell(group, MOOT)
        teller._hand_over(group)
        if expected[-1] is not visits[-1]:
            (group,) = teller.call_of(visits[visits.index(expected[-1]) + 1])[0]
    assert not is_busy(teller, KEY)


def test_what_is_in_flight_cannot_be_taken_back() -> None:
    """Who stayed behind can be, and at once; what was in flight has the answer of the store."""
    store = Store(e=image_of())
    teller = teller_of(store)
    visits, group = group_of(teller, need(6_000), need(4_000), need(9_000))

    def withdraw() -> None:
        for visit in visits[1:]:
            teller.withdraw(visit, WITHDRAWN)
        assert outcomes(visits) == [None, None, WITHDRAWN]

    store.meanwhile = withdraw
    run_sync(teller.serve([group]))
    assert [it is not None and it.applied for it in outcomes(visits)] == [True, True, False]
    assert outcomes(visits)[2] is WITHDRAWN
    assert store.tokens() == 0


def test_what_was_in_flight_in_vain_is_taken_back_then() -> None:
    """Its write has no answer for it; the one who withdrew is told so, and not sent again."""
    store = Store(e=image_of())
    teller = teller_of(store)
    visits, group = group_of(teller, need(1_000), need(2_000))
    later = in_line(teller, need(500))
    sent = [ticket.order for ticket in teller._chosen(group, NOW)]
    assert sent == [need(1_000), need(2_000)]
    teller.withdraw(visits[0], WITHDRAWN)
    assert outcomes(visits) == [None, None]
    signal = waiting(teller, visits[0])
    teller._hand_over(group)
    assert signal.given
    assert outcomes(visits) == [WITHDRAWN, None]
    (group,) = teller.call_of(visits[1])[0]
    assert [ticket.visit for ticket in group] == [visits[1], *later]
    teller.withdraw(visits[1], WITHDRAWN)
    assert outcomes(visits) == [WITHDRAWN, WITHDRAWN], "it is not in flight any more"


def test_an_answer_is_not_taken_back() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    assert teller.claim(KEY)
    (visit,) = in_line(teller, need(1_000))
    teller._tell(visit.tickets, MOOT)
    teller.withdraw(visit, WITHDRAWN)
    assert visit.tickets[0].outcome is MOOT
    teller._hand_over(visit.tickets)
    assert visit.tickets[0].outcome is MOOT


def test_a_visitor_waits_until_all_its_orders_are_answered() -> None:
    """It is asked to lead once, and woken for each answer."""
    store = Store(e=image_of(), f=image_of())
    teller = teller_of(store)
    for key in (KEY, OTHER):
        assert teller.claim(key)
    visit = Visit(teller, [need(1_000), need(1_000, account_of(OTHER))], binding=False)
    assert teller.line_up(visit.tickets) == []
    signal = waiting(teller, visit)
    teller._tell(visit.tickets[:1], MOOT)
    assert signal.given
    signal = waiting(teller, visit)
    teller._release(OTHER)
    assert signal.given
    assert teller.call_of(visit) == ([visit.tickets[1:]], None)
    waiting(teller, visit)
    teller._tell(visit.tickets[1:], MOOT)
    assert teller.call_of(visit) == ([], None)


# Waiting.


def busy_with(*steps: Callable[[], None]) -> tuple[Store, Teller, Scripted]:
    """A bucket that is busy, and what happens while somebody waits."""
    store, colour = Store(e=image_of(), f=image_of()), Scripted(*steps)
    teller = teller_of(store)
    teller.colour = colour
    assert teller.claim(KEY)
    return store, teller, colour


def test_who_waits_in_line_gives_up_after_two_calls() -> None:
    store, teller, colour = busy_with()
    (outcome,), interruption = run_sync(teller.post([need(1_000)]))
    assert (outcome.applied, outcome.item, interruption) == (False, None, None)
    assert outcome.failure is not None
    assert not outcome.failure.ambiguous
    assert f"waited 4000 ms in line for {KEY.partition!r}" in str(outcome.failure)
    assert (colour.waits, store.calls) == ([PATIENCE_S], [])


def test_patience_is_counted_from_the_beginning() -> None:
    """An answer to one order does not prolong the wait for another; time that is over is not negative."""
    store, teller, colour = busy_with()
    assert teller.claim(OTHER)
    visit = Visit(teller, [need(1_000), need(1_000, account_of(OTHER))], binding=False)

    def answer(seconds: float) -> None:
        store.clock.advance(seconds)
        visit.wake()

    def tell() -> None:
        store.clock.advance(2.0)
        teller._tell(visit.tickets[:1], MOOT)

    colour.steps = [lambda: answer(1.5), tell, lambda: answer(1.0)]
    one, other = run_sync(visit.run())
    assert one is MOOT
    assert other.failure is not None
    assert colour.waits == [4.0, 2.5, 0.5, 0.0]


def test_who_is_called_leads() -> None:
    store, teller, colour = busy_with(lambda: teller._release(KEY))
    (outcome,), _ = run_sync(teller.post([need(1_000)]))
    assert outcome.applied
    assert (store.sent, colour.waits, is_busy(teller, KEY)) == ([[-1_000]], [PATIENCE_S], False)


def interrupted() -> None:
    raise KeyboardInterrupt


def test_who_is_interrupted_leaves_the_line() -> None:
    store, teller, _ = busy_with(interrupted)
    outcomes, interruption = run_sync(teller.post([need(1_000)]))
    assert outcomes == [WITHDRAWN]
    assert isinstance(interruption, KeyboardInterrupt)
    teller._release(KEY)
    assert (store.calls, is_busy(teller, KEY)) == ([], False)


def test_who_is_interrupted_in_line_with_a_binding_order_stays() -> None:
    store, teller, colour = busy_with(interrupted, lambda: teller._release(KEY))
    (outcome,), interruption = run_sync(teller.post([credit(1_000)], binding=True))
    assert outcome.applied
    assert isinstance(interruption, KeyboardInterrupt)
    assert (store.sent, colour.waits) == ([[1_000]], [PATIENCE_S, PATIENCE_S])


@pytest.mark.parametrize("answered", [True, False])
def test_who_is_interrupted_in_flight_waits_for_the_answer_however_long(answered: bool) -> None:
    """If there is none in the end, the order was taken back."""
    store, teller, colour = busy_with()
    visit = Visit(teller, [need(1_000)], binding=False)

    def interrupt() -> None:
        visit.tickets[0].sent = True
        raise KeyboardInterrupt

    def nothing() -> None:
        store.clock.advance(100)

    def answer() -> None:
        if answered:
            teller._tell(visit.tickets, MOOT)
        else:
            teller._hand_over(visit.tickets)

    colour.steps = [interrupt, nothing, answer]
    assert run_sync(visit.run()) == [MOOT if answered else WITHDRAWN]
    assert isinstance(visit.interruption, KeyboardInterrupt)
    assert colour.waits == [PATIENCE_S, None, None]


def test_a_visit_that_is_thrown_away_lets_the_next_lead() -> None:
    """It was asked to lead the others, and never will."""
    store, teller, _ = busy_with()
    visit = Visit(teller, [need(1_000)], binding=True)
    others: list[Visit] = []

    def called_and_thrown_away() -> None:
        others.extend(in_line(teller, need(2_000)))
        teller._release(KEY)
        throw_away()

    teller.colour = Scripted(called_and_thrown_away)
    with pytest.raises(GeneratorExit):
        run_sync(visit.run())
    assert visit.tickets[0].outcome is WITHDRAWN
    assert [ticket.visit for ticket in teller.call_of(others[0])[0][0]] == others
    assert store.calls == []


def test_a_write_that_is_thrown_away_frees_the_bucket() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)

    store.meanwhile = throw_away
    with pytest.raises(GeneratorExit):
        run_sync(Visit(teller, [need(1_000)], binding=True).run())
    assert not is_busy(teller, KEY)
