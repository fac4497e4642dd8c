"""The lines before a bucket, step by step: who leads, who waits and who gives up.

Nothing runs at the same time here. A test moves visits through the lines itself, and changes the store
while a write is on its way.
"""

from collections.abc import Callable

import pytest

from tests.engine.fake_store import (
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
    throw_away,
    waiting,
    writer_of,
)
from zae_limiter.engine import line as module
from zae_limiter.engine.group_commit import MOOT, BucketWriter
from zae_limiter.engine.line import WITHDRAWN, Line
from zae_limiter.engine.posting import Order
from zae_limiter.engine.visit import Visit
from zae_limiter.runtime.colour import run_sync

CALL_S = 2.0
OVERDUE_S = 1.5 * CALL_S
"""How long somebody waits who sees nothing happen in its line."""


def test_a_line_moves_in_the_order_of_arrival() -> None:
    """Who has no answer yet stands before those who came later; who has one is passed over."""
    store = Store(e=image_of())
    writer = writer_of(store)
    visits, group = group_of(writer, need(1_000), need(1_000), need(1_000))
    late = in_line(writer, need(2_000), need(2_000))
    writer.lines.tell(group[:1], MOOT)
    writer.lines.tell(late[0].tickets, MOOT)
    leads, follows = (waiting(writer, visit) for visit in visits[1:])
    writer.lines.hand_over(group)
    assert (leads.given, follows.given) == (True, False)
    (group,) = call_of(writer, visits[1])[0]
    assert [ticket.visit for ticket in group] == [visits[1], visits[2], late[1]]
    assert call_of(writer, visits[2])[0] == []


def test_those_at_the_head_of_a_line_who_have_an_answer_are_passed_over() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    claim(writer, KEY)
    visits = in_line(writer, need(1_000), need(1_000), need(1_000))
    for visit in visits[:2]:
        signal = waiting(writer, visit)
        writer.lines.withdraw(visit, WITHDRAWN)
        assert signal.given
    release(writer, KEY)
    assert call_of(writer, visits[0]) == ([], None)
    assert [ticket.visit for ticket in call_of(writer, visits[2])[0][0]] == visits[2:]
    writer.lines.withdraw(visits[2], WITHDRAWN)
    writer.lines.hand_over(visits[2].tickets)
    assert not is_busy(writer, KEY)


def test_who_comes_before_the_leader_goes_out_with_it() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    claim(writer, KEY)
    visits = in_line(writer, need(1_000), need(1_000))
    release(writer, KEY)
    visits += in_line(writer, need(1_000))
    assert call_of(writer, visits[1])[0] == []
    (group,) = call_of(writer, visits[0])[0]
    assert [ticket.visit for ticket in group] == visits


def test_who_is_called_and_leaves_calls_the_next() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    claim(writer, KEY)
    visits = in_line(writer, need(1_000), need(1_000))
    release(writer, KEY)
    signal = waiting(writer, visits[1])
    writer.lines.withdraw(visits[0], WITHDRAWN)
    assert signal.given
    assert call_of(writer, visits[0]) == ([], None)
    assert [ticket.visit for ticket in call_of(writer, visits[1])[0][0]] == visits[1:]


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
    writer = writer_of(store)
    visits, group = group_of(writer, need(1_000), need(1_000))
    again: list[Visit] = []
    writer.colour = Polite(lambda: again.extend(in_line(writer, need(1_000), need(1_000))))
    run_sync(writer.serve([group]))
    assert [it is not None and it.applied for it in outcomes(visits)] == [True, True]
    assert [ticket.visit for ticket in call_of(writer, again[0])[0][0]] == again


def test_who_leads_others_at_one_of_two_buckets_waits_for_them_before_it_calls_at_both() -> None:
    store = Store(e=image_of(), f=image_of())
    writer = writer_of(store)
    _, group = group_of(writer, need(1_000), need(1_000))
    _, alone = group_of(writer, need(1_000, account_of(OTHER)))
    seen: list[bool] = []
    writer.colour = Polite(lambda: seen.extend(is_busy(writer, key) for key in (KEY, OTHER)))
    run_sync(writer.serve([alone, group]))
    assert seen == [True, True]
    assert not any(is_busy(writer, key) for key in (KEY, OTHER))


def test_who_leads_nobody_else_calls_at_once() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    _, group = group_of(writer, need(1_000))
    writer.colour = Polite()
    run_sync(writer.serve([group]))
    assert not is_busy(writer, KEY)


def test_who_is_interrupted_while_others_go_first_still_calls() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    visits, group = group_of(writer, need(1_000), need(1_000))
    writer.colour = Polite(throw_away)
    with pytest.raises(GeneratorExit):
        run_sync(writer.serve([group]))
    assert [it is not None and it.applied for it in outcomes(visits)] == [True, True]
    assert not is_busy(writer, KEY)


def test_a_group_ends_where_it_is_large_enough_or_the_terms_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GROUP_MAX", 2)
    store = Store(e=image_of())
    writer = writer_of(store)
    newer = account_of(version=2)
    visits, group = group_of(writer, *(need(1_000) for _ in range(3)), need(1_000, newer))
    for expected in (visits[:2], visits[2:3], visits[3:]):
        assert [ticket.visit for ticket in group] == expected
        writer.lines.tell(group, MOOT)
        writer.lines.hand_over(group)
        if expected[-1] is not visits[-1]:
            (group,) = call_of(writer, visits[visits.index(expected[-1]) + 1])[0]
    assert not is_busy(writer, KEY)


def test_what_is_in_flight_cannot_be_taken_back() -> None:
    """Who stayed behind can be, and at once; what was in flight has the answer of the store."""
    store = Store(e=image_of())
    writer = writer_of(store)
    visits, group = group_of(writer, need(6_000), need(4_000), need(9_000))

    def withdraw() -> None:
        for visit in visits[1:]:
            writer.lines.withdraw(visit, WITHDRAWN)
        assert outcomes(visits) == [None, None, WITHDRAWN]

    store.meanwhile = withdraw
    run_sync(writer.serve([group]))
    assert [it is not None and it.applied for it in outcomes(visits)] == [True, True, False]
    assert outcomes(visits)[2] is WITHDRAWN
    assert store.tokens() == 0


def test_what_was_in_flight_in_vain_is_taken_back_then() -> None:
    """Its write has no answer for it; the one who withdrew is told so, and not sent again."""
    store = Store(e=image_of())
    writer = writer_of(store)
    visits, group = group_of(writer, need(1_000), need(2_000))
    later = in_line(writer, need(500))
    sent = [ticket.order for ticket in writer._chosen(group, NOW)]
    assert sent == [need(1_000), need(2_000)]
    writer.lines.withdraw(visits[1], WITHDRAWN)
    assert outcomes(visits) == [None, None]
    signal = waiting(writer, visits[1])
    writer.lines.hand_over(group)
    assert signal.given
    assert outcomes(visits) == [None, WITHDRAWN]
    (group,) = call_of(writer, visits[0])[0]
    assert [ticket.visit for ticket in group] == [visits[0], *later]
    writer.lines.withdraw(visits[0], WITHDRAWN)
    assert outcomes(visits) == [WITHDRAWN, WITHDRAWN], "it is not in flight any more"


def test_an_answer_is_not_taken_back() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)
    claim(writer, KEY)
    (visit,) = in_line(writer, need(1_000))
    writer.lines.tell(visit.tickets, MOOT)
    writer.lines.withdraw(visit, WITHDRAWN)
    assert visit.tickets[0].outcome is MOOT
    writer.lines.hand_over(visit.tickets)
    assert visit.tickets[0].outcome is MOOT


def test_a_visitor_waits_until_all_its_orders_are_answered() -> None:
    """It is woken for each answer, and when it is its turn."""
    store = Store(e=image_of(), f=image_of())
    writer = writer_of(store)
    for key in (KEY, OTHER):
        claim(writer, key)
    visit = Visit(writer, [need(1_000), need(1_000, account_of(OTHER))], binding=False)
    call_of(writer, visit)
    signal = waiting(writer, visit)
    writer.lines.tell(visit.tickets[:1], MOOT)
    assert signal.given
    signal = waiting(writer, visit)
    release(writer, OTHER)
    assert signal.given
    assert call_of(writer, visit) == ([visit.tickets[1:]], None)
    writer.lines.tell(visit.tickets[1:], MOOT)
    assert call_of(writer, visit) == ([], None)


# Waiting.


def busy_with(*steps: Callable[[], None]) -> tuple[Store, BucketWriter, Scripted]:
    """A bucket that is busy, and what happens while somebody waits."""
    store, colour = Store(e=image_of(), f=image_of()), Scripted(*steps)
    writer = writer_of(store)
    writer.colour = colour
    claim(writer, KEY)
    return store, writer, colour


def move(writer: BucketWriter) -> None:
    """Let the leader of a line begin another write."""
    leader = writer.lines.by_key[KEY].leader
    writer.lines.send([leader], ())


def test_who_waits_in_line_gives_up_after_two_calls() -> None:
    """Its line moves, as one does in which others write."""
    store, writer, colour = busy_with(lambda: move(writer))
    (outcome,), interruption = run_sync(writer.post([need(1_000)]))
    assert (outcome.applied, outcome.item, interruption) == (False, None, None)
    assert outcome.failure is not None
    assert not outcome.failure.ambiguous
    assert f"waited 4000 ms in line for {KEY.partition!r}" in str(outcome.failure)
    assert (colour.waits, store.calls) == ([OVERDUE_S, 2 * CALL_S - OVERDUE_S], [])


def test_patience_is_counted_from_the_beginning() -> None:
    """An answer to one order does not prolong the wait for another; time that is over is not negative."""
    store, writer, colour = busy_with()
    claim(writer, OTHER)
    visit = Visit(writer, [need(1_000), need(1_000, account_of(OTHER))], binding=False)

    def answer(seconds: float) -> None:
        store.clock.advance(seconds)
        visit.tickets[1].wake()

    def tell() -> None:
        store.clock.advance(2.0)
        writer.lines.tell(visit.tickets[:1], MOOT)

    colour.steps = [lambda: answer(1.5), tell, lambda: answer(1.0)]
    one, other = run_sync(visit.run())
    assert one is MOOT
    assert other.failure is not None
    assert colour.waits == [3.0, 2.5, 0.5, 0.0]


def test_who_is_called_leads() -> None:
    store, writer, colour = busy_with(lambda: release(writer, KEY))
    (outcome,), _ = run_sync(writer.post([need(1_000)]))
    assert outcome.applied
    assert (store.sent, colour.waits, is_busy(writer, KEY)) == ([[-1_000]], [OVERDUE_S], False)


def interrupted() -> None:
    raise KeyboardInterrupt


def test_who_is_interrupted_leaves_the_line() -> None:
    store, writer, _ = busy_with(interrupted)
    outcomes, interruption = run_sync(writer.post([need(1_000)]))
    assert outcomes == [WITHDRAWN]
    assert isinstance(interruption, KeyboardInterrupt)
    release(writer, KEY)
    assert (store.calls, is_busy(writer, KEY)) == ([], False)


def test_who_is_interrupted_in_line_with_a_binding_order_stays() -> None:
    store, writer, colour = busy_with(interrupted, lambda: release(writer, KEY))
    (outcome,), interruption = run_sync(writer.post([credit(1_000)], binding=True))
    assert outcome.applied
    assert isinstance(interruption, KeyboardInterrupt)
    assert (store.sent, colour.waits) == ([[1_000]], [CALL_S, CALL_S])


@pytest.mark.parametrize("answered", [True, False])
def test_who_is_interrupted_in_flight_waits_for_the_answer_as_long_as_the_line_moves(answered: bool) -> None:
    """If there is none in the end, the order was taken back."""
    _, writer, colour = busy_with()
    visit = Visit(writer, [need(1_000)], binding=False)

    def interrupt() -> None:
        visit.tickets[0].sent = True
        raise KeyboardInterrupt

    def answer() -> None:
        if answered:
            writer.lines.tell(visit.tickets, MOOT)
        else:
            writer.lines.hand_over(visit.tickets)

    colour.steps = [interrupt, lambda: move(writer), lambda: move(writer), answer]
    assert run_sync(visit.run()) == [MOOT if answered else WITHDRAWN]
    assert isinstance(visit.interruption, KeyboardInterrupt)
    assert colour.waits == [OVERDUE_S] * 4


# Leaders that do not come back.


def test_who_sees_nothing_happen_for_longer_than_a_call_takes_leads() -> None:
    """With all who wait; the one who was waited for finds that it does not lead any more."""
    store, writer, colour = busy_with()
    lost, others = writer.lines.by_key[KEY].leader, in_line(writer, need(500))
    (outcome,), interruption = run_sync(writer.post([need(1_000)]))
    assert (outcome.applied, interruption, colour.waits) == (True, None, [OVERDUE_S])
    assert (store.sent, outcomes(others)) == ([[-1_500]], [outcome])
    (late,) = in_line_or_leading(writer, need(2_000))
    writer.lines.hand_over([lost])
    assert writer.lines.by_key[KEY].leader is late.tickets[0]


def in_line_or_leading(writer: BucketWriter, *orders: Order) -> list[Visit]:
    visits = [Visit(writer, [order], binding=False) for order in orders]
    for visit in visits:
        call_of(writer, visit)
    return visits


def test_who_went_out_with_a_leader_that_does_not_come_back_is_told_that_nobody_knows() -> None:
    """Who came back late tells them nothing else, and its own order has its outcome."""
    store, writer, colour = busy_with()
    release(writer, KEY)
    visits, group = group_of(writer, need(1_000), need(2_000), need(9_000))

    def look_on() -> None:
        # While the leader of the first two is on its way, the third waits and then goes on.
        store.meanwhile = lambda: None
        (outcome,) = run_sync(visits[2].run())
        assert outcome.applied

    store.meanwhile = look_on
    run_sync(writer.serve([group]))
    first, second, _ = outcomes(visits)
    assert first is not None
    assert first.applied
    assert second is not None
    assert second.failure is not None
    assert second.failure.ambiguous
    assert (store.sent, store.tokens()) == ([[-3_000], [-9_000], [-1_000]], 0)
    assert (colour.waits, is_busy(writer, KEY)) == ([OVERDUE_S], False)


def test_a_leader_that_is_gone_is_replaced_by_whoever_comes_next() -> None:
    """Nobody has to wait for that; those whom it led are told that nobody knows."""
    store, writer, colour = busy_with()
    release(writer, KEY)
    visits, group = group_of(writer, need(1_000), need(2_000))
    writer.lines.send(group, group)
    visits[0].tickets[0].gone = lambda: True
    (outcome,), _ = run_sync(writer.post([need(3_000)]))
    assert (outcome.applied, store.sent, colour.waits) == (True, [[-3_000]], [])
    told = outcomes(visits)[1]
    assert told is not None
    assert told.failure is not None
    assert told.failure.ambiguous
    writer.lines.by_key[KEY] = Line(visits[0].tickets[0])
    lone, _ = run_sync(writer.post_one(need(3_000)))
    assert lone is not None
    assert lone.applied
    assert not is_busy(writer, KEY)


def test_who_is_gone_is_not_called() -> None:
    _, writer, _ = busy_with()
    visits = in_line(writer, need(1_000), need(2_000))
    visits[0].tickets[0].gone = lambda: True
    release(writer, KEY)
    assert [ticket.visit for ticket in call_of(writer, visits[1])[0][0]] == visits[1:]


def test_who_is_thrown_away_while_the_lines_are_locked_does_not_wait() -> None:
    """It may be the garbage of the very thread that has the lock. Whoever comes next finds it gone."""
    store = Store(e=image_of())
    writer = writer_of(store)

    def throw_away_in_the_middle() -> None:
        assert writer.lines.lock.acquire(blocking=False)
        throw_away()

    store.meanwhile = throw_away_in_the_middle
    for how in (writer.post, lambda orders: writer.post_one(orders[0])):
        with pytest.raises(GeneratorExit):
            run_sync(how([need(1_000)]))
        writer.lines.lock.release()
        assert is_busy(writer, KEY)
    store.meanwhile = lambda: None
    (outcome,), _ = run_sync(writer.post([need(1_000)]))
    assert outcome.applied
    assert not is_busy(writer, KEY)


def test_a_visit_that_is_thrown_away_lets_the_next_lead() -> None:
    """It was asked to lead the others, and never will."""
    store, writer, _ = busy_with()
    visit = Visit(writer, [need(1_000)], binding=True)
    others: list[Visit] = []

    def called_and_thrown_away() -> None:
        others.extend(in_line(writer, need(2_000)))
        release(writer, KEY)
        throw_away()

    writer.colour = Scripted(called_and_thrown_away)
    with pytest.raises(GeneratorExit):
        run_sync(visit.run())
    assert visit.tickets[0].outcome is WITHDRAWN
    assert [ticket.visit for ticket in call_of(writer, others[0])[0][0]] == others
    assert store.calls == []


def test_a_write_that_is_thrown_away_frees_the_bucket() -> None:
    store = Store(e=image_of())
    writer = writer_of(store)

    store.meanwhile = throw_away
    with pytest.raises(GeneratorExit):
        run_sync(Visit(writer, [need(1_000)], binding=True).run())
    assert not is_busy(writer, KEY)
