"""The one place through which all writes of a process to its buckets pass.

A bucket has at most one write of this process in flight. Orders that arrive meanwhile stand in line,
and when the reply is there the first of them is called to lead all who are in line when it comes: one
write for all of them. A lone order is written at once and alone.

A group is decided as if its orders came one after another: in the order of arrival, each against what
those before it left. Beliefs about a bucket only shape writes; that an order does not fit is told only
by an image which the store returned after the order had been placed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ._colour import ForkSafe, Signal
from .exceptions import RateLimiterUnavailable
from .posting import Posting, fitting, merged, rebased, write_for
from .repository_protocol import Backend, Item, Key, Outcome, Swap, Update, Write
from .schema import is_deleted, number
from .seen_buckets import SeenBuckets
from .terms import Account, has_same_terms, has_terms, is_ahead, is_outdated, is_overloaded, is_split
from .world import AHEAD_MS_MAX, World

logger = logging.getLogger("zae_limiter")

GROUP_MAX = 1_000
"""How many orders travel in one write."""

PATIENCE_CALLS = 2
"""How many times the deadline of a call somebody waits in line: one call is in flight, one is its own."""

WRITE_ATTEMPTS_MAX = 16
"""How often a group is shaped anew for a bucket that changes under it."""


class Order(NamedTuple):
    """A posting to be carried out on an account."""

    account: Account
    posting: Posting


MOOT = Outcome(True, None)
"""The outcome of an order that needs no write, such as a refund to a limit that is gone."""

WITHDRAWN = Outcome(False, None)
"""The outcome of an order that was taken back before it was sent."""


class Ticket:
    """An order in line."""

    __slots__ = ("called", "order", "outcome", "sent", "visit")

    def __init__(self, order: Order, visit: Visit) -> None:
        self.order, self.visit = order, visit
        self.outcome: Outcome | None = None
        self.called = False
        """First in line, and to lead the next group."""
        self.sent = False
        """Part of the write that is in flight."""


class Lines:
    """Who stands in line for which bucket. A bucket that has a line has a write in flight."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[Key, deque[Ticket]] = {}


class Teller(SeenBuckets):
    """Shapes, groups and sends the writes of one process, and remembers what it sees of the buckets."""

    def __init__(self, backend: Backend, world: World, images_max: int = 100_000) -> None:
        super().__init__(world, images_max)
        self.backend, self.colour = backend, backend.colour
        self.swap: Swap | None = getattr(backend, "swap", None)
        """How this store replaces an image at once, if it can."""
        self.refunds_lost = 0
        """How many refunds and settlements could not be stored, each of them logged."""
        self.degraded, self.told = 0, set[str]()
        """How often work went ahead unchecked, each time logged; what is set up wrong, as far as was told."""
        self._lines = ForkSafe(Lines)

    async def look(self, keys: Sequence[Key]) -> list[Item | None]:
        """Read buckets as they are now."""
        images = await self.backend.batch_get(keys)
        self.remember(dict(zip(keys, images, strict=True)))
        return images

    async def post(
        self, orders: Sequence[Order], *, binding: bool = False
    ) -> tuple[list[Outcome], BaseException | None]:
        """Carry out orders on different buckets, each with whatever else is in line for its bucket.

        If the caller is cancelled meanwhile, what is in line is taken back, unless the orders are
        ``binding``, and what is in flight is waited for; the cancellation is returned beside the
        outcomes.
        """
        for account, posting in orders if self._refused else ():
            if posting.credit:
                self._refused.pop(account.whole_key, None)
        visit = Visit(self, orders, binding=binding)
        outcomes, interruption = await self.colour.finish(visit.run(), visit.withdraw)
        return outcomes, visit.interruption or interruption

    async def post_one(self, order: Order) -> tuple[Outcome | None, BaseException | None]:
        """Carry out one order without a credit, like ``post``, with less ado if nobody else is in line.

        No outcome means that nothing happened because the bucket changed meanwhile.
        """
        key = order.account.key
        if not self.claim(key):
            (answer,), interruption = await self.post([order])
            return answer, interruption
        outcome, interruption = await self.colour.finish(self.write_alone(order))
        if outcome is None:
            self._release(key)
        return outcome, interruption

    async def post_together(
        self, orders: Sequence[Order], *, read_first: bool = False
    ) -> tuple[list[Outcome], BaseException | None]:
        """Carry out orders all or none, from images read for the purpose if that is wanted."""
        return await self.colour.finish(self._transact(orders, read_first=read_first))

    async def _transact(self, orders: Sequence[Order], *, read_first: bool) -> list[Outcome]:
        if read_first:
            await self.look([order.account.key for order in orders])
        now_ms = self.world.now_ms()
        writes = [write for order in orders if (write := self._shape([order], now_ms)) is not None]
        assert len(writes) == len(orders), "a refund needs no transaction"
        one = len(writes) == 1
        outcomes = await (self.backend.write_each(writes) if one else self.backend.transact_write(writes))
        for write, outcome in zip(writes, outcomes, strict=True):
            self._learn(write, outcome)
        return outcomes

    async def bring_up_to_date(self, account: Account) -> None:
        """Give a bucket the numbers of its terms although nobody takes anything from it.

        Else a bucket that refuses everybody would go on to fill at the rate it had before.
        """
        write = self._refresh(account, self.world.now_ms())
        if write is not None:
            (outcome,) = await self.backend.write_each([write])
            self._learn(write, outcome)

    # The lines.

    def claim(self, key: Key) -> bool:
        """Begin a line for a bucket that is idle."""
        lines = self._lines.get()
        with lines.lock:
            if key in lines.by_key:
                return False
            lines.by_key[key] = deque()
        return True

    async def write_alone(self, order: Order) -> Outcome | None:
        """Write one order to a bucket that was claimed for it; ``None``, and still claimed, to try again."""
        sent_ms, done = self.world.now_ms(), True
        try:
            write = self._shape([order], sent_ms)
            if write is None:
                return MOOT
            (outcome,) = await self.backend.write_each([write])
            self._learn(write, outcome)
            if outcome.applied or outcome.failure is not None:
                return outcome
            done = not self._fitting([order], outcome, sent_ms)[0]
            return Outcome(False, outcome.item, held=False) if done else None
        finally:
            if done:
                self._release(order.account.key)

    def _release(self, key: Key) -> None:
        """End a claim."""
        lines = self._lines.get()
        with lines.lock:
            self._call_next(lines, key)

    def line_up(self, tickets: Sequence[Ticket]) -> list[list[Ticket]]:
        """Put tickets in line; those whose bucket was idle are returned, to be served at once."""
        lines, leading = self._lines.get(), []
        with lines.lock:
            for ticket in tickets:
                line = lines.by_key.get(ticket.order.account.key)
                if line is None:
                    lines.by_key[ticket.order.account.key] = deque()
                    leading.append([ticket])
                else:
                    line.append(ticket)
        return leading

    async def serve(self, groups: list[list[Ticket]]) -> None:
        """Write groups, one for each bucket, until their leaders have an answer; then others lead."""
        for _ in range(WRITE_ATTEMPTS_MAX):
            sent_ms = self.world.now_ms()
            chosen = [self._chosen(group, sent_ms) for group in groups]
            writes = [self._shape([ticket.order for ticket in some], sent_ms) for some in chosen]
            due = [write for write in writes if write is not None]
            try:
                landed = iter(await self.backend.write_each(due) if due else [])
            except BaseException as error:
                for some, group in zip(chosen, groups, strict=True):
                    self._tell(some, Outcome(False, None, failure=_unknown(error)))
                    self._hand_over(group)
                raise
            for group, some, write in zip(groups, chosen, writes, strict=True):
                if write is None:
                    self._tell(some, MOOT)
                else:
                    outcome = next(landed)
                    self._learn(write, outcome)
                    self._judge(group, some, outcome, sent_ms)
            unanswered = [group for group in groups if group[0].outcome is None]
            if not unanswered:
                break
            for group in groups:
                if group[0].outcome is not None:
                    self._hand_over(group)
            groups = unanswered
        else:
            for group in groups:  # a bucket that would not hold still
                self._tell(group[:1], Outcome(False, self.image(group[0].order.account.key), held=False))
        try:
            if any(len(group) > 1 for group in groups):
                # Who was answered just now often has another order, and is in line for the next write then.
                await self.colour.sleep(0)
        finally:
            for group in groups:
                self._hand_over(group)

    def _chosen(self, group: Sequence[Ticket], now_ms: int) -> list[Ticket]:
        """Those who go out now: the ones believed to fit; if nobody is, the first asks for the truth."""
        with self._lines.get().lock:
            chosen = [ticket for ticket in group if ticket.outcome is None]
            if len(chosen) > 1:
                account = group[0].order.account
                image = self.image(account.key)
                fits = fitting([t.order.posting for t in chosen], account.terms, image, now_ms)
                chosen = [t for t, fit in zip(chosen, fits, strict=True) if fit] or chosen[:1]
            for ticket in chosen:
                ticket.sent = True
        return chosen

    def _judge(
        self, group: Sequence[Ticket], chosen: Sequence[Ticket], outcome: Outcome, sent_ms: int
    ) -> None:
        """Answer all of a group whom the reply to its write answers, as of the time it was sent.

        Who would fit by the time of the reply has still been refused: somebody else may have been faster.
        """
        if outcome.applied or outcome.failure is not None:
            self._tell(chosen, outcome)
        waiting = [ticket for ticket in group if ticket.outcome is None]
        if not waiting or outcome.failure is not None:
            return
        fits = self._fitting([ticket.order for ticket in waiting], outcome, sent_ms)
        refused = [ticket for ticket, fit in zip(waiting, fits, strict=True) if not fit]
        self._tell(refused, Outcome(False, outcome.item, held=False))

    def _fitting(self, orders: Sequence[Order], outcome: Outcome, sent_ms: int) -> list[bool]:
        """Which orders the image in a reply leaves room for; a refusal for want of tokens is noted."""
        account, image = orders[0].account, outcome.item
        postings = [order.posting for order in orders]
        misled = is_outdated(account.terms, image) or is_split(account, image)
        if misled or is_overloaded(account, image, sent_ms):
            fits = [not posting.need for posting in postings]
        else:
            fits = fitting(postings, account.terms, image, sent_ms)
        if image is None and not any(posting.need or posting.debit for posting in postings):
            fits = [False] * len(postings)  # there is no bucket that refunds could go to
        refused = not all(fits) and not outcome.applied and account.shard_count == 1
        if refused and not self.is_doubtful(account.key) and not self.is_held_here(account.key):
            self.note_refusal(account.key)
        return fits

    def _tell(self, tickets: Sequence[Ticket], outcome: Outcome) -> None:
        with self._lines.get().lock:
            for ticket in tickets:
                ticket.outcome = outcome
                ticket.visit.wake()

    def _hand_over(self, group: Sequence[Ticket]) -> None:
        """Let the next in line lead; those of the group that have no answer yet stand first."""
        lines, key = self._lines.get(), group[0].order.account.key
        with lines.lock:
            line = lines.by_key[key]
            for ticket in group:
                ticket.sent = False
                if ticket.outcome is None and ticket.visit.withdrawn is not None:
                    ticket.outcome = ticket.visit.withdrawn
                    ticket.visit.wake()
            line.extendleft(reversed([ticket for ticket in group if ticket.outcome is None]))
            self._call_next(lines, key)

    def _call_next(self, lines: Lines, key: Key) -> None:
        """Call the first in line to lead a group; end the line if there is nobody."""
        line = lines.by_key[key]
        while line and line[0].outcome is not None:
            line.popleft()
        if line:
            line[0].called = True
            line[0].visit.wake()
        else:
            del lines.by_key[key]

    def withdraw(self, visit: Visit, outcome: Outcome) -> None:
        """Take the tickets of a visit back; those that are in flight, when they are not any more."""
        lines = self._lines.get()
        with lines.lock:
            visit.withdrawn = outcome
            for ticket in visit.tickets:
                if ticket.outcome is None and not ticket.sent:
                    ticket.outcome = outcome
                    if ticket.called:
                        self._call_next(lines, ticket.order.account.key)
            visit.wake()

    def call_of(self, visit: Visit) -> tuple[list[list[Ticket]], Signal | None]:
        """What a visitor has to do next: lead groups, or wait for a signal, or neither."""
        lines, leading, waits = self._lines.get(), [], False
        with lines.lock:
            for ticket in visit.tickets:
                if ticket.outcome is None:
                    waits = True
                    if ticket.called:
                        leading.append(self._group_of(lines, ticket))
            if leading or not waits:
                return leading, None
            visit.signal = self.colour.signal()
            return [], visit.signal

    def _group_of(self, lines: Lines, leader: Ticket) -> list[Ticket]:
        """Whom a ticket that was called leads: those behind it whose orders one write can carry out.

        They are counted when the leader comes and not when it is called. Those who were answered just now
        often have another order by then, and would else have to wait for this write.
        """
        leader.called = False
        account = leader.order.account
        line = lines.by_key[account.key]
        group = [line.popleft()]
        while line and len(group) < GROUP_MAX and has_same_terms(line[0].order.account, account):
            group.append(line.popleft())
        return group

    # Writes and what they teach.

    def _shape(self, orders: Sequence[Order], now_ms: int) -> Write | None:
        """The write that carries out some orders on one bucket, by what is believed of it."""
        if not orders:
            return None
        account, posting = orders[0]
        if len(orders) > 1:
            posting = merged([order.posting for order in orders])
        return write_for(account, posting, self.image(account.key), now_ms)

    def _refresh(self, account: Account, now_ms: int) -> Write | None:
        """The write that gives a bucket the numbers of its terms, if it has others, and a right origin."""
        image = self.image(account.key)
        if (
            image is None
            or is_deleted(image)
            or (has_terms(image, account.terms) and not is_ahead(image, now_ms))
        ):
            return None
        return rebased(account, image, now_ms)

    def _learn(self, write: Write, outcome: Outcome) -> None:
        if outcome.failure is not None:
            return
        if outcome.applied and type(write) is Update and "rf" in write.set:
            ahead_ms = number(self.image(write.key) or {}, "rf") - number(write.set, "rf")
            if ahead_ms > AHEAD_MS_MAX:
                told = "%s began %d s in the future, by a wrong clock; it begins now with what it has"
                logger.warning(told, write.key.partition, ahead_ms // 1000)
        if outcome.item is not None or not outcome.held:
            self.remember({write.key: outcome.item})
        elif outcome.applied:
            self.forget(write.key)  # a transaction does not show what it left behind


def _unknown(error: BaseException) -> RateLimiterUnavailable:
    return RateLimiterUnavailable(f"interrupted by {error!r}", ambiguous=True)


class Visit:
    """One caller's orders, from standing in line to the last outcome."""

    __slots__ = ("_binding", "_teller", "interruption", "signal", "tickets", "withdrawn")

    def __init__(self, teller: Teller, orders: Sequence[Order], *, binding: bool) -> None:
        self._teller, self._binding = teller, binding
        self.tickets = [Ticket(order, self) for order in orders]
        self.withdrawn: Outcome | None = None
        """The outcome of the tickets that were taken back, if they were."""
        self.interruption: BaseException | None = None
        self.signal: Signal | None = None

    async def run(self) -> list[Outcome]:
        """Stand in line, lead when it is one's turn, and return when every order has its outcome."""
        leading = self._teller.line_up(self.tickets)
        if leading and len(self.tickets) == 1:
            try:
                outcome = await self._teller.write_alone(self.tickets[0].order)
            except GeneratorExit:
                raise
            except BaseException as error:  # returned beside the outcome
                self.interruption, outcome = error, Outcome(False, None, failure=_unknown(error))
            if outcome is not None:
                return [outcome]
        patience_ms = PATIENCE_CALLS * self._teller.backend.capabilities.timeout_ms
        give_up_ms = self._teller.world.ticks_ms() + patience_ms
        while True:
            try:
                if leading:
                    await self._teller.serve(leading)
                leading, signal = self._teller.call_of(self)
                if signal is not None:
                    left_ms = give_up_ms - self._teller.world.ticks_ms()
                    await signal.wait(max(left_ms, 0) / 1000 if self.withdrawn is None else None)
                    if not signal.given and self.withdrawn is None:
                        self._give_up(patience_ms)
                elif not leading:
                    return [ticket.outcome for ticket in self.tickets if ticket.outcome is not None]
            except GeneratorExit:  # a coroutine that is thrown away may not await any more
                self._teller.withdraw(self, WITHDRAWN)
                raise
            except BaseException as error:  # returned beside the outcomes
                self.interruption, leading = error, []
                self.withdraw()

    def wake(self) -> None:
        if self.signal is not None:
            self.signal.give()

    def withdraw(self) -> None:
        if not self._binding:
            self._teller.withdraw(self, WITHDRAWN)

    def _give_up(self, patience_ms: float) -> None:
        """Leave a line that does not move."""
        key = self.tickets[0].order.account.key
        failure = RateLimiterUnavailable(f"waited {patience_ms:.0f} ms in line for {key.partition!r}")
        self._teller.withdraw(self, Outcome(False, None, failure=failure))
