"""Who stands in line for which bucket, and who leads: no I/O.

A bucket that has a line has a leader, who may write to it. Orders that arrive meanwhile wait, and when the
leader is done the first of them is called to lead all who wait then.

A line goes on whatever becomes of its leader. One whose event loop was closed is replaced by whoever comes
next, one that does not move for longer than a call may take by whoever waited for it. Lines only save
writes, so it does no harm if a leader who was given up comes back: it finds that it does not lead any more.

An exception out of a signal handler can come between any two steps, while somebody leads, calls or leaves.
So a ticket stays in line until it has its outcome, and whatever ends a turn may be done twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ..exceptions import RateLimiterUnavailable
from ..repository_protocol import Key, Outcome
from ..runtime.colour import LAST_WORDS_SECONDS, Colour, Signal, taken
from .door import Call
from .posting import Order

if TYPE_CHECKING:
    from .visit import Visit

GROUP_MAX = 1_000  # orders in one write
WITHDRAWN = Outcome(False, None)  # of an order that was taken back before it was sent


class Ticket(Call):
    """An order in line, or one that is alone: it wakes nobody, and knows how far its write has come."""

    outcome: Outcome | None = None
    is_in_line: bool = False
    sent: bool = False
    """Part of the write that is in flight."""

    def __init__(self, order: Order, gone: Callable[[], bool], visit: Visit | None = None) -> None:
        self.order: Order = order
        self.gone: Callable[[], bool] = gone
        self.visit: Visit | None = visit

    def wake(self) -> None:
        """Let the visitor see what is new."""
        if self.visit is not None and self.visit.signal is not None:
            self.visit.signal.give()


class Line:
    """Who waits for one bucket, and who leads. The leader of a line waits in it, unless it came alone."""

    __slots__ = ("leader", "moves", "waiting")

    def __init__(self, leader: Ticket) -> None:
        self.leader: Ticket = leader
        self.waiting: deque[Ticket] = deque()
        self.moves: int = 0
        """How often the line has got another leader or a leader has begun a write."""

    def lead(self, ticket: Ticket) -> None:
        self.leader = ticket
        self.moves += 1


class Lines:
    """The lines of one process. A bucket without one is idle."""

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self.by_key: dict[Key, Line] = {}

    def claim(self, ticket: Ticket) -> bool:
        """Begin a line for a bucket that is idle."""
        with self.lock:
            return self.by_key.setdefault(ticket.order.account.key, Line(ticket)).leader is ticket

    def leave(self, ticket: Ticket) -> None:
        """End the line of one who was alone, or let the next in it lead."""
        with self.lock:
            line = self.by_key.get(ticket.order.account.key)
            if line is None or line.leader is not ticket or line.waiting or ticket.visit is not None:
                self._hand_over([ticket])
            else:
                ticket.sent = False
                del self.by_key[ticket.order.account.key]

    def _line_up(self, ticket: Ticket) -> None:
        key = ticket.order.account.key
        line = self.by_key.get(key)
        if line is None:
            line = self.by_key[key] = Line(ticket)
        elif line.leader.gone():
            self._replace(line, ticket)
        ticket.is_in_line = True
        line.waiting.append(ticket)

    def call_of(self, visit: Visit, colour: Colour) -> tuple[list[list[Ticket]], Signal | None]:
        """Put a visit in line. What has it to do next: lead groups, or wait for a signal, or neither?"""
        groups: list[list[Ticket]] = []
        seen: list[tuple[Line, int]] = []
        with self.lock:
            for ticket in visit.tickets:
                if ticket.outcome is not None:
                    continue
                if not ticket.is_in_line:
                    self._line_up(ticket)
                line = self.by_key.get(ticket.order.account.key)
                if line is None or line.leader is ticket:
                    groups.append([ticket] if line is None else _group_of(line))
                else:
                    seen.append((line, line.moves))
            if groups or not seen:
                return groups, None
            visit.seen, visit.signal = seen, colour.signal()
            return [], visit.signal

    def send(self, group: Sequence[Ticket], chosen: Iterable[Ticket]) -> list[Ticket]:
        """Let some of a group go out in a write that begins now, those who have not left meanwhile."""
        leader = group[0]
        with self.lock:
            line = self.by_key.get(leader.order.account.key)
            if line is not None and line.leader is leader:
                line.moves += 1
            going = [ticket for ticket in chosen if ticket.outcome is None]
            for ticket in (leader, *going):  # who leads cannot leave before the write is done
                ticket.sent = True
        return going

    def tell(self, tickets: Iterable[Ticket], outcome: Outcome) -> None:
        """Answer tickets. Who was told that nobody knows keeps that answer, and may have acted on it."""
        with self.lock:
            for ticket in tickets:
                if ticket.outcome is None:
                    ticket.outcome = outcome
                ticket.wake()

    def hand_over(self, group: Sequence[Ticket]) -> None:
        """Let the next in line lead; those of the group that have no answer yet stand first."""
        with self.lock:
            self._hand_over(group)

    def throw_away(self, group: Sequence[Ticket]) -> None:
        """Hand over because the leader may not go on, perhaps in the middle of whatever holds the lock."""
        self._last_words(group[:1], lambda: self._hand_over(group))

    def throw_away_all(self, visit: Visit) -> None:
        """Take tickets back because their visitor may not go on."""
        self._last_words(visit.tickets, lambda: self._withdraw(visit, WITHDRAWN))

    def _last_words(self, tickets: Iterable[Ticket], act: Callable[[], None]) -> None:
        for ticket in tickets:
            ticket.gone = lambda: True  # so that others find out, should nothing else succeed
        for _ in taken(self.lock, LAST_WORDS_SECONDS):
            try:
                act()
            finally:
                self.lock.release()

    def _hand_over(self, group: Sequence[Ticket]) -> None:
        for ticket in group:
            ticket.sent = False
            visit = ticket.visit
            if ticket.outcome is None and visit is not None:
                ticket.outcome = visit.withdrawn
            if ticket.outcome is not None:
                ticket.wake()
        key = group[0].order.account.key
        line = self.by_key.get(key)
        if line is not None:
            self._call_next(key, line, group[0])

    def _call_next(self, key: Key, line: Line, leader: Ticket) -> None:
        """Call the first in line to lead if this one still does; end the line if there is nobody."""
        if line.leader is leader:
            waiting = line.waiting
            while waiting and (waiting[0].outcome is not None or waiting[0].gone()):
                waiting.popleft()
            if not waiting:
                del self.by_key[key]
                return
            line.lead(waiting[0])
        line.leader.wake()

    def withdraw(self, visit: Visit, outcome: Outcome) -> None:
        """Take the tickets of a visit back; those that are in flight, when they are not any more."""
        with self.lock:
            self._withdraw(visit, outcome)

    def _withdraw(self, visit: Visit, outcome: Outcome) -> None:
        visit.withdrawn = outcome
        for ticket in visit.tickets:
            if ticket.sent:
                continue
            if ticket.outcome is None:
                ticket.outcome = outcome
            key = ticket.order.account.key
            line = self.by_key.get(key)
            if line is not None:
                self._call_next(key, line, ticket)
        if visit.signal is not None:
            visit.signal.give()

    def overtake(self, visit: Visit) -> bool:
        """Lead the lines that have not moved while a visitor waited; whether there are any.

        Those whose orders had gone out are told that nobody knows what became of them.
        """
        seen = {id(line): moves for line, moves in visit.seen}
        overtaken = False
        with self.lock:
            for ticket in visit.tickets:
                line = self.by_key.get(ticket.order.account.key)
                if ticket.outcome is not None or line is None or line.leader is ticket:
                    continue
                if line.leader.gone() or seen.get(id(line)) == line.moves:
                    self._replace(line, ticket)
                    overtaken = True
                    if ticket.sent:  # it has its answer now
                        self._call_next(ticket.order.account.key, line, ticket)
        return overtaken

    def _replace(self, line: Line, leader: Ticket) -> None:
        """Let somebody else lead in place of one who is gone."""
        former = line.leader
        partition = former.order.account.key.partition
        lost = RateLimiterUnavailable(
            f"who was writing to {partition!r} did not come back; the write may have happened", ambiguous=True
        )
        for ticket in line.waiting:
            if ticket.sent and ticket is not former and ticket.outcome is None:
                ticket.outcome = Outcome(False, None, failure=lost)
                ticket.wake()
        if former in line.waiting:  # should it come back it brings its own write to an end
            line.waiting.remove(former)
        line.lead(leader)


def _group_of(line: Line) -> list[Ticket]:
    """Whom the leader of a line leads: those who wait and whose orders one write can carry out.

    They are counted when the leader comes and not when it is called. Those who were answered just now
    often have another order by then, and would else have to wait for this write.
    """
    leader, order = line.leader, line.leader.order
    group, has_seats = [leader], bool(order.posting.seats)
    for ticket in line.waiting:
        if ticket is leader or ticket.sent or ticket.outcome is not None:
            continue
        alike = ticket.order == order and not has_seats
        if len(group) == GROUP_MAX or not (alike or ticket.order.goes_with(order)):
            break
        group.append(ticket)
    return group
