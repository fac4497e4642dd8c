"""The bucket of the textbook, and a writer that tells what each write was meant to do.

The ideal bucket hears of every write in the order in which the store applied it and keeps the level
that an exact bucket would have at that instant. A client's clock is read when it sends, and may be
off: its instant lies some way before or behind the store's. What accrues in the span of all these
offsets is not certain; that ``slack`` is the only difference allowed between the ideal and what is
stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import NamedTuple

from tests.simulation.simulation import Process, Simulation
from zae_limiter.engine.account import Account
from zae_limiter.engine.bucket_view import ended_attribute, shard_count
from zae_limiter.engine.door import Call
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.law import Rate, accrued, balance, wait_ms
from zae_limiter.engine.line import Lines, Ticket
from zae_limiter.engine.posting import Order, Posting, merged
from zae_limiter.engine.receipts import Beside
from zae_limiter.engine.seen_changes import has_missed
from zae_limiter.engine.sending import Sending
from zae_limiter.models import Limit
from zae_limiter.repository_protocol import Backend, Item, Key, Outcome, Write
from zae_limiter.schema import (
    BOOKED,
    BURIED,
    booking_attributes,
    bucket_limit_names,
    forgiven,
    limit_attributes,
    number,
    stored_rate,
)

SLOWLY_MS = 10**12
"""Long enough to tell which of two rates is slower."""


class Ideal:
    """One limit of one bucket."""

    def __init__(self, rate: Rate, now_ms: int) -> None:
        self.rate, self.level, self.at_ms = rate, rate.capacity_milli, now_ms
        self.slack = 0
        self.lowest = self.level
        self._lasting = 0

    def advance(self, now_ms: int) -> None:
        self.level = balance(self.rate, self.level, self.at_ms, now_ms)
        self.at_ms = max(self.at_ms, now_ms)

    def doubt(self, span_ms: int) -> None:
        self.slack = max(self.slack, self._lasting + accrued(self.rate, span_ms) + 2)

    def change(self, rate: Rate, span_ms: int) -> None:
        """Go on with other numbers; at which instant they changed is never settled any more."""
        self._lasting += max(accrued(rate, span_ms), accrued(self.rate, span_ms)) + 2
        before = self.level
        self.level += rate.capacity_milli - self.rate.capacity_milli
        smaller = rate.capacity_milli < self.rate.capacity_milli
        if smaller or accrued(rate, SLOWLY_MS) < accrued(self.rate, SLOWLY_MS):
            # A cut makes no debt, and whoever was in debt waits for no more than a refill.
            least = 0 if before >= 0 else max(before, 1000 - rate.capacity_milli)
            self.level = max(self.level, min(0, least))
        self.rate = rate


class Intent(NamedTuple):
    """What a write was meant to take if it was there, and when by the client's clock."""

    write: Write
    needs: Mapping[str, int]
    client_ms: int
    missing: Mapping[str, int] = {}
    """What an older bucket lacks when it is moved: it is taken without being consumed."""
    postings: tuple[Posting, ...] = ()
    credit: Mapping[str, int] = {}
    """What an operator gives: it comes without being consumed less."""
    together: Mapping[str, int] | None = {}
    """What all shards got in one transaction; ``None`` until the last of them is seen."""

    @property
    def waits(self) -> bool:
        """Whether it is taken for somebody who begins later."""
        return any(posting.booking is not None for posting in self.postings)

    def taken(self, name: str, before: Item | None, after: Item) -> int:
        """By how much the write lowers the level of a limit."""
        if before is not None and shard_count(after) < shard_count(before):
            return 0  # the total of the shard that came back was taken there
        consumed = limit_attributes(name).tc
        taken = self.missing.get(name, number(after, consumed) - number(before or {}, consumed))
        return taken - self.credit.get(name, 0) + self._ended(name, before or {})

    def _ended(self, name: str, before: Item) -> int:
        """What is given up of bookings that an operator has ended: it is not consumed, and was given then."""
        count = ended_attribute(name)
        return sum(
            posting.credit.get(name, 0)
            for posting in self.postings
            if posting.booking and dict(posting.booking.left).get(count, 0) != number(before, count)
        )


class Judge:
    """Compares every write that was applied to one bucket with the ideal."""

    def __init__(self, name: str, simulation: Simulation) -> None:
        self.name, self._simulation = name, simulation
        self.limits: dict[str, Ideal] = {}
        self.lost: Mapping[str, int] = {}
        """What was taken, and the store has lost: it may be given back all the same."""
        self._offsets_ms = (0, 0)

    @property
    def span_ms(self) -> int:
        """How far apart the instants of clients have been."""
        return 1 + self._offsets_ms[1] - self._offsets_ms[0]

    def copied(self) -> Judge:
        """Another one who has seen the same."""
        twin = copy(self)
        twin.limits = {name: copy(ideal) for name, ideal in self.limits.items()}
        return twin

    def see(self, before: Item | None, after: Item, intent: Intent, now_ms: int) -> None:
        """A write turned ``before`` into ``after``."""
        held = bucket_limit_names(after)
        split = before is not None and before.get("shard_count") != after.get("shard_count")
        if before is None or split:
            self.limits.clear()  # what a split may move is judged over all shards
        for name in list(self.limits):
            if name not in held:
                del self.limits[name]
        origin_ms = number(after, "rf")
        ahead_ms = min(max(0, origin_ms - now_ms), self._simulation.clock_error_ms)
        offsets = (*self._offsets_ms, intent.client_ms - now_ms, ahead_ms)
        self._offsets_ms = min(offsets), max(offsets)
        span_ms = self.span_ms
        for name in held:
            names, rate = limit_attributes(name), stored_rate(after, name)
            assert rate is not None
            ideal = self.limits.get(name)
            if ideal is None:
                ideal = self.limits[name] = Ideal(rate, now_ms)
                if split or number(after, "shard_count", 1) > 1:
                    taken = intent.taken(name, before, after)
                    ideal.level = taken + balance(rate, number(after, names.tk), origin_ms, now_ms)
            ideal.advance(now_ms)
            if ideal.rate != rate:
                ideal.change(rate, span_ms)
                ideal.level -= _made_up(name, before or {}, after)
            ideal.doubt(span_ms)
            # What was taken from a shard that came back may be given back to a later one in its place.
            is_owed = number(after, names.tc) >= -self.lost.get(name, 0) or BURIED in after
            assert is_owed, f"{self.name} was given back {name} that it never gave"
            need = 0 if intent.waits else intent.needs.get(name, 0)
            assert not need or ideal.level + ideal.slack >= need, (
                f"{self.name} admitted {need} of {name} at a level of {ideal.level} (slack {ideal.slack})"
            )
            ideal.level -= intent.taken(name, before, after)
            ideal.lowest = min(ideal.lowest, ideal.level)
            stored = balance(rate, number(after, names.tk), origin_ms, now_ms)
            expected = min(ideal.level, rate.capacity_milli)
            wrong = f"{self.name} holds {stored} of {name} where {expected} is right (slack {ideal.slack})"
            if BOOKED in after or BOOKED in (before or {}):
                # What is cut off at somebody's slot, and how much of what comes back is kept, is judged by
                # who begins when: here it is enough that there is never too much.
                back = number(after, booking_attributes(name).back)
                assert back >= 0, f"{self.name} has set {back} of {name} aside"
                whole = min(stored + back, rate.capacity_milli)
                assert whole <= ideal.level + ideal.slack, wrong
                ideal.lowest = min(ideal.lowest, stored)
                ideal.level = ideal.level if BOOKED in after else min(ideal.level, stored)
            else:
                assert abs(stored - expected) <= ideal.slack, wrong

    def check_wait(self, name: str, need_milli: int, told_ms: float) -> None:
        """Nobody is locked out: a wait is for what is missing at the worst, and for a clock's error."""
        ideal, error_ms = self.limits[name], self._simulation.clock_error_ms
        missing = need_milli - ideal.lowest + ideal.slack
        longest_ms = wait_ms(ideal.rate, missing, self._simulation.now_ms) + 2 * error_ms
        assert told_ms <= longest_ms, f"{self.name} says {told_ms} ms for {name}, {longest_ms} is right"


def _made_up(name: str, before: Item, after: Item) -> int:
    """What a raise does not give, because a cut by somebody who disagrees had spared it."""
    if before.get("cv") != after.get("cv"):
        return 0
    spared, left = (forgiven(image).get(name, 0) for image in (before, after))
    raised = number(after, limit_attributes(name).cp) - number(before, limit_attributes(name).cp)
    return max(0, min(raised, spared - left))


class Whole:
    """All shards of one bucket against the one bucket that they stand for.

    Each shard rounds what it accrues for itself, which can put them ahead of the whole by less than a
    millitoken a shard.
    """

    def __init__(self, name: str, limits: Sequence[Limit], simulation: Simulation) -> None:
        self.name, self._simulation = name, simulation
        self._limits = {limit.name: Ideal(Rate.of(limit), simulation.now_ms) for limit in limits}
        self._offsets_ms = (0, 0)

    def see(
        self, before: Item | None, after: Item, shards: Sequence[Item], intent: Intent, now_ms: int
    ) -> None:
        ahead_ms = max(number(shard, "rf") - now_ms for shard in shards)
        ahead_ms = min(max(0, ahead_ms), self._simulation.clock_error_ms)
        offsets = (*self._offsets_ms, intent.client_ms - now_ms, ahead_ms)
        self._offsets_ms = min(offsets), max(offsets)
        for name, ideal in self._limits.items():
            names = limit_attributes(name)
            ideal.advance(now_ms)
            ideal.doubt(1 + self._offsets_ms[1] - self._offsets_ms[0])
            ideal.level -= intent.taken(name, before, after)
            rates = [(shard, rate) for shard in shards if (rate := stored_rate(shard, name)) is not None]
            assert sum(rate.capacity_milli for _, rate in rates) == ideal.rate.capacity_milli, (
                f"the shares of {name} of {self.name} do not add up"
            )
            assert sum(rate.refill_amount_milli for _, rate in rates) == ideal.rate.refill_amount_milli
            held = sum(
                balance(rate, number(shard, names.tk), number(shard, "rf"), now_ms) for shard, rate in rates
            )
            most = min(ideal.level, ideal.rate.capacity_milli) + ideal.slack * len(rates) + len(rates)
            assert held <= most, f"the shards of {self.name} hold {held} of {name}, one bucket {most}"


class WatchedWriter(BucketWriter):
    """A writer whose intents are known to the simulation."""

    def __init__(self, process: Process, backend: Backend, intents: dict[int, Intent]) -> None:
        super().__init__(backend, process.world)
        self._process, self._simulation, self._intents = process, process.simulation, intents

    async def post(
        self, orders: Sequence[Order], *, binding: bool = False
    ) -> tuple[list[Outcome], BaseException | None]:
        # What is binding has a deadline, from standing in line on.
        self._simulation.in_flight += binding
        try:
            return await super().post(orders, binding=binding)
        finally:
            self._simulation.in_flight -= binding

    async def serve(self, groups: list[list[Ticket]]) -> None:
        # Between a look at the clock and the reply nobody may sleep for minutes.
        self._simulation.in_flight += 1
        try:
            await super().serve(groups)
        finally:
            self._simulation.in_flight -= 1

    async def write_alone(self, ticket: Ticket, lines: Lines) -> Outcome | None:
        self._simulation.in_flight += 1
        try:
            return await super().write_alone(ticket, lines)
        finally:
            self._simulation.in_flight -= 1

    async def _transact(
        self, orders: Sequence[Order], call: Call, beside: Beside = None, *, read_first: bool
    ) -> list[Outcome]:
        self._simulation.in_flight += 1
        try:
            return await super()._transact(orders, call, beside, read_first=read_first)
        finally:
            self._simulation.in_flight -= 1

    def _judge(self, sending: Sending, outcome: Outcome, sent_ms: int) -> None:
        waiting = [ticket for ticket in sending.group if ticket.outcome is None]
        super()._judge(sending, outcome, sent_ms)
        if outcome.applied:
            self._check_turns(waiting, sending.chosen)

    def _check_turns(self, group: Sequence[Ticket], chosen: Sequence[Ticket]) -> None:
        """Nobody is admitted before somebody who came earlier and asked for no more."""
        admitted = {id(ticket) for ticket in chosen}
        for place, late in enumerate(group):
            if id(late) not in admitted or not late.order.posting.need:
                continue
            for early in group[:place]:
                if (
                    id(early) in admitted
                    or (early.visit and early.visit.withdrawn)
                    or not early.order.posting.need
                    or _is_less_patient(early, late)
                ):
                    continue
                asked, given = early.order.posting.need, late.order.posting.need
                assert any(amount > given.get(name, 0) for name, amount in asked.items()), (
                    f"{late.order.account.key.partition}: {given} was admitted before {asked}"
                )

    async def bring_up_to_date(self, account: Account) -> None:
        self._simulation.in_flight += 1
        try:
            await super().bring_up_to_date(account)
        finally:
            self._simulation.in_flight -= 1

    def _refresh(self, account: Account, now_ms: int) -> Write | None:
        write = super()._refresh(account, now_ms)
        if write is not None:
            self._intents[id(write)] = Intent(write, {}, self._process.honest_ms(now_ms))
        return write

    def _shape(self, orders: Sequence[Order], now_ms: int) -> Write | None:
        write = super()._shape(orders, now_ms)
        if write is not None:
            postings = tuple(order.posting for order in orders)
            honest_ms = self._process.honest_ms(now_ms)
            self._intents[id(write)] = Intent(write, merged(postings).need, honest_ms, postings=postings)
        return write


def _is_less_patient(early: Ticket, late: Ticket) -> bool:
    """Whether one leaves earlier than another would."""
    one, other = early.order.posting.booking, late.order.posting.booking
    return one is not None and other is not None and one.latest_ms < other.latest_ms


def check_seen(key: Key, before: Item | None, after: Item | None) -> None:
    """No bucket forgets a change of the configuration that it has seen, at any level."""
    forgot = has_missed(number(after or {}, "cv"), number(before or {}, "cv"))
    assert not forgot, f"{key.partition} was turned back"
