"""The lines before a bucket, step by step: who leads, who waits and who gives up.

Nothing runs at the same time here. A test moves visits through the lines itself, and changes the store
while a write is on its way.
"""

from collections.abc import Callable

import pytest

from tests.facts.stage import (
    KEY,
    NOW,
    OTHER,
    Scripted,
    Store,
    account_of,
    call_of,
    claim,
    credit,
    group_of,
    image_of,
    in_line,
    is_busy,
    need,
    outcomes,
    release,
    teller_of,
    throw_away,
    waiting,
)
from zae_limiter import lines as module
from zae_limiter._colour import run_sync
from zae_limiter.lines import WITHDRAWN, Line, Order
from zae_limiter.teller import MOOT, Teller, Visit

CALL_S = 2.0
OVERDUE_S = 1.5 * CALL_S
"""How long somebody waits who sees nothing happen in its line."""


def test_a_line_moves_in_the_order_of_arrival() -> None:
    """Who has no answer yet stands before those who came later; who has one is passed over."""
    store = Store(e=image_of())
    teller = teller_of(store)
    visits, group = group_of(teller, need(1_000), need(1_000), need(1_000))
    late = in_line(teller, need(2_000), need(2_000))
    teller.lines.tell(group[:1], MOOT)
    teller.lines.tell(late[0].tickets, MOOT)
    leads, follows = (waiting(teller, visit) for visit in visits[1:])
    teller.lines.hand_over(group)
    assert (leads.given, follows.given) == (True, False)
    (group,) = call_of(teller, visits[1])[0]
    assert [ticket.visit for ticket in group] == [visits[1], visits[2], late[1]]
    assert call_of(teller, visits[2])[0] == []


def test_those_at_the_head_of_a_line_who_have_an_answer_are_passed_over() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    claim(teller, KEY)
    visits = in_line(teller, need(1_000), need(1_000), need(1_000))
    for visit in visits[:2]:
        signal = waiting(teller, visit)
        teller.lines.withdraw(visit, WITHDRAWN)
        assert signal.given
    release(teller, KEY)
    assert call_of(teller, visits[0]) == ([], None)
    assert [ticket.visit for ticket in call_of(teller, visits[2])[0][0]] == visits[2:]
    teller.lines.withdraw(visits[2], WITHDRAWN)
    teller.lines.hand_over(visits[2].tickets)
    assert not is_busy(teller, KEY)


def test_who_comes_before_the_leader_goes_out_with_it() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    claim(teller, KEY)
    visits = in_line(teller, need(1_000), need(1_000))
    release(teller, KEY)
    visits += in_line(teller, need(1_000))
    assert call_of(teller, visits[1])[0] == []
    (group,) = call_of(teller, visits[0])[0]
    assert [ticket.visit for ticket in group] == visits


def test_who_is_called_and_leaves_calls_the_next() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    claim(teller, KEY)
    visits = in_line(teller, need(1_000), need(1_000))
    release(teller, KEY)
    signal = waiting(teller, visits[1])
    teller.lines.withdraw(visits[0], WITHDRAWN)
    assert signal.given
    assert call_of(teller, visits[0]) == ([], None)
    assert [ticket.visit for ticket in call_of(teller, visits[1])[0][0]] == visits[1:]


class Polite(Scripted):
    """Notes who is let go first, and does it."""

    def __init__(self, *others: Callable[[], object]) -> None:
        super().__init__()
        self.others = list(others)

    async def sleep(self, seconds: float) -> None:
        assert seconds == 0
        self.others.pop(0)()


def test_the_leader_of_others_lets_them_line_up_again_before_it_calls() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    visits, group = group_of(teller, need(1_000), need(1_000))
    again: list[Visit] = []
    teller.colour = Polite(lambda: again.extend(in_line(teller, need(1_000), need(1_000))))
    run_sync(teller.serve([group]))
    assert [it is not None and it.applied for it in outcomes(visits)] == [True, True]
    assert [ticket.visit for ticket in call_of(teller, again[0])[0][0]] == again


def test_who_leads_others_at_one_of_two_buckets_waits_for_them_before_it_calls_at_both() -> None:
    store = Store(e=image_of(), f=image_of())
    teller = teller_of(store)
    _, group = group_of(teller, need(1_000), need(1_000))
    _, alone = group_of(teller, need(1_000, account_of(OTHER)))
    seen: list[bool] = []
    teller.colour = Polite(lambda: seen.extend(is_busy(teller, key) for key in (KEY, OTHER)))
    run_sync(teller.serve([alone, group]))
    assert seen == [True, True]
    assert not any(is_busy(teller, key) for key in (KEY, OTHER))


def test_who_leads_nobody_else_calls_at_once() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    _, group = group_of(teller, need(1_000))
    teller.colour = Polite()
    run_sync(teller.serve([group]))
    assert not is_busy(teller, KEY)


def test_who_is_interrupted_while_others_go_first_still_calls() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    visits, group = group_of(teller, need(1_000), need(1_000))
    teller.colour = Polite(throw_away)
    with pytest.raises(GeneratorExit):
        run_sync(teller.serve([group]))
    assert [it is not None and it.applied for it in outcomes(visits)] == [True, True]
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
        teller.lines.tell(group, MOOT)
        teller.lines.hand_over(group)
        if expected[-1] is not visits[-1]:
            (group,) = call_of(teller, visits[visits.index(expected[-1]) + 1])[0]
    assert not is_busy(teller, KEY)


def test_what_is_in_flight_cannot_be_taken_back() -> None:
    """Who stayed behind can be, and at once; what was in flight has the answer of the store."""
    store = Store(e=image_of())
    teller = teller_of(store)
    visits, group = group_of(teller, need(6_000), need(4_000), need(9_000))

    def withdraw() -> None:
        for visit in visits[1:]:
            teller.lines.withdraw(visit, WITHDRAWN)
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
    teller.lines.withdraw(visits[1], WITHDRAWN)
    assert outcomes(visits) == [None, None]
    signal = waiting(teller, visits[1])
    teller.lines.hand_over(group)
    assert signal.given
    assert outcomes(visits) == [None, WITHDRAWN]
    (group,) = call_of(teller, visits[0])[0]
    assert [ticket.visit for ticket in group] == [visits[0], *later]
    teller.lines.withdraw(visits[0], WITHDRAWN)
    assert outcomes(visits) == [WITHDRAWN, WITHDRAWN], "it is not in flight any more"


def test_an_answer_is_not_taken_back() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    claim(teller, KEY)
    (visit,) = in_line(teller, need(1_000))
    teller.lines.tell(visit.tickets, MOOT)
    teller.lines.withdraw(visit, WITHDRAWN)
    assert visit.tickets[0].outcome is MOOT
    teller.lines.hand_over(visit.tickets)
    assert visit.tickets[0].outcome is MOOT


def test_a_visitor_waits_until_all_its_orders_are_answered() -> None:
    """It is woken for each answer, and when it is its turn."""
    store = Store(e=image_of(), f=image_of())
    teller = teller_of(store)
    for key in (KEY, OTHER):
        claim(teller, key)
    visit = Visit(teller, [need(1_000), need(1_000, account_of(OTHER))], binding=False)
    teller.lines.line_up(visit)
    signal = waiting(teller, visit)
    teller.lines.tell(visit.tickets[:1], MOOT)
    assert signal.given
    signal = waiting(teller, visit)
    release(teller, OTHER)
    assert signal.given
    assert call_of(teller, visit) == ([visit.tickets[1:]], None)
    teller.lines.tell(visit.tickets[1:], MOOT)
    assert call_of(teller, visit) == ([], None)


# Waiting.


def busy_with(*steps: Callable[[], None]) -> tuple[Store, Teller, Scripted]:
    """A bucket that is busy, and what happens while somebody waits."""
    store, colour = Store(e=image_of(), f=image_of()), Scripted(*steps)
    teller = teller_of(store)
    teller.colour = colour
    claim(teller, KEY)
    return store, teller, colour


def move(teller: Teller) -> None:
    """Let the leader of a line begin another write."""
    leader = teller.lines.by_key[KEY].leader
    teller.lines.send([leader], ())


def test_who_waits_in_line_gives_up_after_two_calls() -> None:
    """Its line moves, as one does in which others write."""
    store, teller, colour = busy_with(lambda: move(teller))
    (outcome,), interruption = run_sync(teller.post([need(1_000)]))
    assert (outcome.applied, outcome.item, interruption) == (False, None, None)
    assert outcome.failure is not None
    assert not outcome.failure.ambiguous
    assert f"waited 4000 ms in line for {KEY.partition!r}" in str(outcome.failure)
    assert (colour.waits, store.calls) == ([OVERDUE_S, 2 * CALL_S - OVERDUE_S], [])


def test_patience_is_counted_from_the_beginning() -> None:
    """An answer to one order does not prolong the wait for another; time that is over is not negative."""
    store, teller, colour = busy_with()
    claim(teller, OTHER)
    visit = Visit(teller, [need(1_000), need(1_000, account_of(OTHER))], binding=False)

    def answer(seconds: float) -> None:
        store.clock.advance(seconds)
        visit.tickets[1].wake()

    def tell() -> None:
        store.clock.advance(2.0)
        teller.lines.tell(visit.tickets[:1], MOOT)

    colour.steps = [lambda: answer(1.5), tell, lambda: answer(1.0)]
    one, other = run_sync(visit.run())
    assert one is MOOT
    assert other.failure is not None
    assert colour.waits == [3.0, 2.5, 0.5, 0.0]


def test_who_is_called_leads() -> None:
    store, teller, colour = busy_with(lambda: release(teller, KEY))
    (outcome,), _ = run_sync(teller.post([need(1_000)]))
    assert outcome.applied
    assert (store.sent, colour.waits, is_busy(teller, KEY)) == ([[-1_000]], [OVERDUE_S], False)


def interrupted() -> None:
    raise KeyboardInterrupt


def test_who_is_interrupted_leaves_the_line() -> None:
    store, teller, _ = busy_with(interrupted)
    outcomes, interruption = run_sync(teller.post([need(1_000)]))
    assert outcomes == [WITHDRAWN]
    assert isinstance(interruption, KeyboardInterrupt)
    release(teller, KEY)
    assert (store.calls, is_busy(teller, KEY)) == ([], False)


def test_who_is_interrupted_in_line_with_a_binding_order_stays() -> None:
    store, teller, colour = busy_with(interrupted, lambda: release(teller, KEY))
    (outcome,), interruption = run_sync(teller.post([credit(1_000)], binding=True))
    assert outcome.applied
    assert isinstance(interruption, KeyboardInterrupt)
    assert (store.sent, colour.waits) == ([[1_000]], [CALL_S, CALL_S])


@pytest.mark.parametrize("answered", [True, False])
def test_who_is_interrupted_in_flight_waits_for_the_answer_as_long_as_the_line_moves(answered: bool) -> None:
    """If there is none in the end, the order was taken back."""
    _, teller, colour = busy_with()
    visit = Visit(teller, [need(1_000)], binding=False)

    def interrupt() -> None:
        visit.tickets[0].sent = True
        raise KeyboardInterrupt

    def answer() -> None:
        if answered:
            teller.lines.tell(visit.tickets, MOOT)
        else:
            teller.lines.hand_over(visit.tickets)

    colour.steps = [interrupt, lambda: move(teller), lambda: move(teller), answer]
    assert run_sync(visit.run()) == [MOOT if answered else WITHDRAWN]
    assert isinstance(visit.interruption, KeyboardInterrupt)
    assert colour.waits == [OVERDUE_S] * 4


# Leaders that do not come back.


def test_who_sees_nothing_happen_for_longer_than_a_call_takes_leads() -> None:
    """With all who wait; the one who was waited for finds that it does not lead any more."""
    store, teller, colour = busy_with()
    lost, others = teller.lines.by_key[KEY].leader, in_line(teller, need(500))
    (outcome,), interruption = run_sync(teller.post([need(1_000)]))
    assert (outcome.applied, interruption, colour.waits) == (True, None, [OVERDUE_S])
    assert (store.sent, outcomes(others)) == ([[-1_500]], [outcome])
    (late,) = in_line_or_leading(teller, need(2_000))
    teller.lines.hand_over([lost])
    assert teller.lines.by_key[KEY].leader is late.tickets[0]


def in_line_or_leading(teller: Teller, *orders: Order) -> list[Visit]:
    visits = [Visit(teller, [order], binding=False) for order in orders]
    for visit in visits:
        teller.lines.line_up(visit)
    return visits


def test_who_went_out_with_a_leader_that_does_not_come_back_is_told_that_nobody_knows() -> None:
    """Who came back late tells them nothing else, and its own order has its outcome."""
    store, teller, colour = busy_with()
    release(teller, KEY)
    visits, group = group_of(teller, need(1_000), need(2_000), need(9_000))

    def look_on() -> None:
        # While the leader of the first two is on its way, the third waits and then goes on.
        store.meanwhile = lambda: None
        (outcome,) = run_sync(visits[2].run())
        assert outcome.applied

    store.meanwhile = look_on
    run_sync(teller.serve([group]))
    first, second, _ = outcomes(visits)
    assert first is not None
    assert first.applied
    assert second is not None
    assert second.failure is not None
    assert second.failure.ambiguous
    assert (store.sent, store.tokens()) == ([[-3_000], [-9_000], [-1_000]], 0)
    assert (colour.waits, is_busy(teller, KEY)) == ([OVERDUE_S], False)


def test_a_leader_that_is_gone_is_replaced_by_whoever_comes_next() -> None:
    """Nobody has to wait for that; those whom it led are told that nobody knows."""
    store, teller, colour = busy_with()
    release(teller, KEY)
    visits, group = group_of(teller, need(1_000), need(2_000))
    teller.lines.send(group, group)
    visits[0].tickets[0].gone = lambda: True
    (outcome,), _ = run_sync(teller.post([need(3_000)]))
    assert (outcome.applied, store.sent, colour.waits) == (True, [[-3_000]], [])
    told = outcomes(visits)[1]
    assert told is not None
    assert told.failure is not None
    assert told.failure.ambiguous
    teller.lines.by_key[KEY] = Line(visits[0].tickets[0])
    lone, _ = run_sync(teller.post_one(need(3_000)))
    assert lone is not None
    assert lone.applied
    assert not is_busy(teller, KEY)


def test_who_is_gone_is_not_called() -> None:
    _, teller, _ = busy_with()
    visits = in_line(teller, need(1_000), need(2_000))
    visits[0].tickets[0].gone = lambda: True
    release(teller, KEY)
    assert [ticket.visit for ticket in call_of(teller, visits[1])[0][0]] == visits[1:]


def test_who_is_thrown_away_while_the_lines_are_locked_does_not_wait() -> None:
    """It may be the garbage of the very thread that has the lock. Whoever comes next finds it gone."""
    store = Store(e=image_of())
    teller = teller_of(store)

    def throw_away_in_the_middle() -> None:
        assert teller.lines.lock.acquire(blocking=False)
        throw_away()

    store.meanwhile = throw_away_in_the_middle
    for how in (teller.post, lambda orders: teller.post_one(orders[0])):
        with pytest.raises(GeneratorExit):
            run_sync(how([need(1_000)]))
        teller.lines.lock.release()
        assert is_busy(teller, KEY)
    store.meanwhile = lambda: None
    (outcome,), _ = run_sync(teller.post([need(1_000)]))
    assert outcome.applied
    assert not is_busy(teller, KEY)


def test_a_visit_that_is_thrown_away_lets_the_next_lead() -> None:
    """It was asked to lead the others, and never will."""
    store, teller, _ = busy_with()
    visit = Visit(teller, [need(1_000)], binding=True)
    others: list[Visit] = []

    def called_and_thrown_away() -> None:
        others.extend(in_line(teller, need(2_000)))
        release(teller, KEY)
        throw_away()

    teller.colour = Scripted(called_and_thrown_away)
    with pytest.raises(GeneratorExit):
        run_sync(visit.run())
    assert visit.tickets[0].outcome is WITHDRAWN
    assert [ticket.visit for ticket in call_of(teller, others[0])[0][0]] == others
    assert store.calls == []


def test_a_write_that_is_thrown_away_frees_the_bucket() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)

    store.meanwhile = throw_away
    with pytest.raises(GeneratorExit):
        run_sync(Visit(teller, [need(1_000)], binding=True).run())
    assert not is_busy(teller, KEY)
