"""Random worlds of one bucket that people wait for: processes with old images, and a judge of their starts.

Only pure functions are called: a write is shaped from what a process last saw, and applied to what is there.
The judge is a bucket as one could build it of tin. Work takes from it when it begins, what comes back is
poured in, and what does not fit flows over. Whoever begins must find what it needs, except for what was taken
after it had booked by those who need not ask: debits after the fact, and cuts of the limits.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.quotas import quota
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.booking import NEAR_MS, Booked, Turn, outcomes, schedule, slot_ms, turns
from zae_limiter.engine.bucket_view import has_terms, is_outdated, level, life_of, outlived, stored_terms
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.fitting import fitting
from zae_limiter.engine.law import Rate, accrued, floored, is_cut
from zae_limiter.engine.operator_writes import Gift, gifts, give
from zae_limiter.engine.posting import Booking, Posting, merged
from zae_limiter.engine.rebase import rebase
from zae_limiter.repository_protocol import Item, Key, Outcome, apply
from zae_limiter.schema import LIFE, is_deleted, stored_rate

ATTEMPTS_MAX = 20
CAPACITIES, REFILLS, PERIODS_MS = (
    (5_000, 10_000, 50_000, 100_000),
    (1_000, 5_000, 10_000, 60_000),
    (333, 1_000, 7_000, 60_000),
)
QUOTAS = ("cron(* * * * *)@UTC", "cron(*/3 * * * *)@Europe/Berlin", "hour@Asia/Kathmandu")
FOR_EVER_MS = 10**15


@dataclass
class Tin:
    """One limit of the bucket that judges."""

    rate: Rate
    level: int
    at_ms: int
    apart: int = 0
    """What is kept beside it for those who had booked before the limits were changed."""

    def advance(self, now_ms: int) -> None:
        self.pour(accrued(self.rate, now_ms) - accrued(self.rate, self.at_ms))
        self.at_ms = now_ms

    def pour(self, amount: int) -> None:
        """What does not fit flows over."""
        self.level = min(self.rate.capacity_milli + self.apart, self.level + amount)

    def change(self, rate: Rate) -> None:
        before, shift = self.level, rate.capacity_milli - self.rate.capacity_milli
        self.level += shift
        if is_cut(self.rate, rate):
            self.level = floored(self.level, before, rate.capacity_milli)
        self.rate = rate


@dataclass
class Work:
    """Something that was admitted, from asking to its end."""

    number: int
    asked_ms: int
    at_ms: int
    need: Mapping[str, int]
    account: Account
    booking: Booking | None
    epoch: int
    """How often the limits had been changed when it asked."""
    state: str = "waits"
    allowed: Counter[str] = field(default_factory=Counter)
    """By how much the bucket may fall short when it begins."""
    apart: set[str] = field(default_factory=set)
    """The limits that were changed since it booked."""
    gifts: set[str] = field(default_factory=set)
    """The limits of which an operator has given it what it booked."""


@dataclass
class Process:
    """What one process believes."""

    terms: Terms
    image: Item | None = None


@dataclass
class Traits:
    """What happens in a world, as shares of what could."""

    cancels: float = 0.15
    impatient: float = 0.2
    grouped: float = 0.2
    debits: float = 0.0
    changes: float = 0.0
    deletions: float = 0.0
    quotas: float = 0.0
    gifts: float = 0.0
    returned: float | None = None


class BookedWorld:
    """One seed's world; ``wrong`` lists every promise that was broken."""

    def __init__(self, seed: int, traits: Traits, steps: int = 200) -> None:
        self.rng = rng = random.Random(seed)
        self.traits, self.steps = traits, steps
        self.now_ms = 10**6 + rng.randrange(10**6)
        self.names = tuple(f"l{at}" for at in range(rng.choice((1, 1, 2, 3))))
        self.terms = Terms({name: self._rate() for name in self.names}, 1)
        self.tins = {
            name: Tin(rate, rate.capacity_milli, self.now_ms) for name, rate in self.terms.rates.items()
        }
        self.processes = [Process(self.terms) for _ in range(rng.choice((1, 2, 4)))]
        self.item: Item | None = None
        self.largest = rng.choice((1_000, 2_000, 5_000))
        self.works: list[Work] = []
        self.begun: list[Work] = []
        self.wrong: list[str] = []
        self.refused = self.undone = self.writes = self.epoch = self.deletions = 0
        self.given = self.ended = self.far = 0
        self._events: list[tuple[int, int, int, str, Any]] = []
        self._pushed = 0

    def _rate(self) -> Rate:
        choice = self.rng.choice
        if self.traits.quotas and self.rng.random() < self.traits.quotas:
            return quota(choice(CAPACITIES), choice(REFILLS), choice(QUOTAS))
        return Rate(choice(CAPACITIES), choice(REFILLS), choice(PERIODS_MS))

    def push(self, at_ms: int, what: str, about: Any = None) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (at_ms, what != "begin", self._pushed, what, about))

    def run(self) -> BookedWorld:
        at_ms, rng, traits = self.now_ms, self.rng, self.traits
        for _ in range(self.steps):
            at_ms += rng.choice((0, 0, 1, 5, 50, 200, 2_000))
            fate = rng.random()
            if fate < traits.changes:
                self.push(at_ms, "change")
            elif fate < traits.changes + traits.deletions:
                self.push(at_ms, "delete")
            elif fate < traits.changes + traits.deletions + traits.gifts:
                self.push(at_ms, "give")
            else:
                self.push(at_ms, "ask")
        while self._events and not self.wrong:
            self.now_ms, _, _, what, about = heapq.heappop(self._events)
            for tin in self.tins.values():
                tin.advance(self.now_ms)
            getattr(self, f"_{what}")(about)
        if not self.wrong:
            self._check_order()
        return self

    # What happens.

    def _ask(self, _: object) -> None:
        rng, process = self.rng, self.rng.choice(self.processes)
        waits = rng.random() >= self.traits.impatient
        count = rng.choice((2, 3, 5)) if rng.random() < self.traits.grouped else 1
        postings = [self._demand(waits=waits) for _ in range(count)]
        before = self.item
        answers = self.post(process, postings)
        if not any(answers) and count == 1 and before is not None and has_terms(before, self.terms):
            self._expect(self.item is before, "a refusal left something behind")
        for posting, outcome in zip(postings, answers, strict=True):
            if outcome is None:
                self.refused += 1
                if posting.booking is not None and count == 1:
                    self._check_refusal(posting)
            else:
                self._admit(process, posting, outcome)

    def _demand(self, *, waits: bool) -> Posting:
        rng = self.rng
        most = {name: min(self.largest, self.terms.rates[name].capacity_milli) for name in self.names}
        need = {name: rng.randint(1, most[name]) for name in self.names if rng.random() < 0.8}
        need = need or {self.names[0]: most[self.names[0]]}
        latest_ms = self.now_ms + rng.choice((10, 1_000, 10_000, 10**6))
        return Posting(need, booking=Booking(latest_ms) if waits else None)

    def _admit(self, process: Process, posting: Posting, outcome: Outcome) -> None:
        booking, at_ms = None, self.now_ms
        if isinstance(outcome, Booked):
            booking = outcome.booking
            at_ms = booking.latest_ms
            assert posting.booking is not None
            self._expect(at_ms <= posting.booking.latest_ms, "somebody waits for longer than it would")
        account = self._account(process)._replace(life=life_of(outcome.item))
        work = Work(len(self.works), self.now_ms, at_ms, posting.need, account, booking, self.epoch)
        self.works.append(work)
        self.push(at_ms, "begin", work)
        if at_ms > self.now_ms and self.rng.random() < self.traits.cancels:
            self.push(self.rng.randint(self.now_ms, at_ms - 1), "cancel", work)

    def _begin(self, work: Work) -> None:
        if work.state != "waits":
            return
        work.state, rng = "begun", self.rng
        self._no_longer_apart(work)
        self.begun.append(work)
        for name, need in work.need.items():
            if name in self.tins and name not in work.gifts and work.account.life == self._life:
                tin = self.tins[name]
                tin.level -= need
                least = -work.allowed[name]
                self._expect(tin.level >= least, f"{name} stands at {tin.level}, not above {least}")
        if rng.random() < 0.8:
            share = self.traits.returned if self.traits.returned is not None else rng.random()
            change = {name: -int(need * share) for name, need in work.need.items()}
            if rng.random() < self.traits.debits:
                change[rng.choice([*work.need])] = rng.randint(1, self.largest)
            self.push(self.now_ms + rng.choice((0, 1, 30, 500, 5_000)), "settle", (work, change))

    def _settle(self, about: tuple[Work, Mapping[str, int]]) -> None:
        """What it really cost: some of it comes back, some is taken after the fact."""
        work, change = about
        credit = {name: -amount for name, amount in change.items() if amount < 0}
        debit = {name: amount for name, amount in change.items() if amount > 0}
        if not credit and not debit:
            return
        process, posting = self.rng.choice(self.processes), Posting(debit=debit, credit=credit)
        life, rider, outcome = work.account.life, None, None
        if self.rng.random() < self.traits.grouped and life is self._life is life_of(process.image):
            rider = self._demand(waits=False)  # of somebody else of the same process
            outcome, settled = self.post(process, [rider, posting])
            self._expect(settled is not None, "a settlement was refused")
        else:
            self.post(process, [posting], work.account)
        owed = life == self._life
        for name, amount in credit.items() if owed else ():
            self.tins[name].level += amount  # before it flows over, what came along is taken
        if rider is not None and outcome is not None:
            self._admit(process, rider, outcome)
            self._begin(self.works[-1])
        for name, amount in debit.items() if owed else ():
            self.tins[name].level -= amount
            self._allow(name, amount)
        for tin in self.tins.values():
            tin.pour(0)

    def _allow(self, name: str, amount: int) -> None:
        """Whoever waits did not know of what is taken now."""
        for work in self.works:
            if work.state == "waits":
                work.allowed[name] += amount

    def _no_longer_apart(self, work: Work) -> None:
        if work.account.life == self._life:
            for name in work.apart - work.gifts:
                self.tins[name].apart -= work.need.get(name, 0)

    def _cancel(self, work: Work) -> None:
        if work.state != "waits":
            return
        work.state = "cancelled"
        self._no_longer_apart(work)
        self.undone += 1
        posting = Posting(credit=work.need, booking=work.booking)
        self.post(self.rng.choice(self.processes), [posting], work.account)

    def _change(self, _: object) -> None:
        """Somebody sets other limits; a bucket has them when it is next used, or at once."""
        rng = self.rng
        rates = {
            name: self._rate() if rng.random() < 0.6 else rate for name, rate in self.terms.rates.items()
        }
        self.terms = Terms(rates, (self.terms.version or 0) + 1)
        if rng.random() < 0.7:
            self._refresh(rng.choice(self.processes))

    def _delete(self, _: object) -> None:
        """The entity goes, with all that its buckets hold; another one of the same name may come."""
        self.deletions += 1
        version = (self.terms.version or 0) + 1
        self.item = {"status": "deleted", "cv": version, LIFE: str(self.deletions)}
        self.terms = Terms(self.terms.rates, version + 1)
        self.tins = {
            name: Tin(rate, rate.capacity_milli, self.now_ms) for name, rate in self.terms.rates.items()
        }
        self.epoch += 1

    def _give(self, _: object) -> None:
        """An operator gives something; what was given by what is not there any more is given anew."""
        rng, process = self.rng, self.rng.choice(self.processes)
        kind, amounts = rng.choice(list(Gift)), {name: rng.randint(1, 20) for name in self.names}
        for _ in range(ATTEMPTS_MAX):
            image = process.image
            if image is None or is_deleted(image):
                process.image = image = self.item
            if image is None or is_deleted(image):
                return
            gift = gifts(kind, self.names, [image], self.now_ms, amounts)
            (mine,), (ended,) = gift.by_shard, gift.ended
            if not mine and not ended:
                return
            if self._apply(process, give(Key("p", "s"), image, mine, self.now_ms, ended)).applied:
                self.given += 1
                for name in mine.keys() - ended:
                    self.tins[name].pour(mine[name])
                for name in ended:
                    self._end(name, kind)
                return
        self._expect(False, f"{kind} was tried {ATTEMPTS_MAX} times")

    def _end(self, name: str, kind: Gift) -> None:
        """What was booked of a limit is a gift to those who wait, and others find what the verb says."""
        assert self.item is not None
        self.ended += 1
        self.epoch += 1
        tin, terms = self.tins[name], stored_terms(self.item)
        found = level(terms, name, self.item, self.now_ms).balance(self.now_ms)
        right = {Gift.RESET: found == tin.rate.capacity_milli, Gift.FORGIVE: found >= 0}[kind]
        self._expect(right, f"{kind} left {found} of {name}")
        for work in self.works:
            if work.state == "waits" and name in work.need and work.account.life == self._life:
                if name in work.apart - work.gifts:
                    tin.apart -= work.need[name]
                work.gifts.add(name)
        tin.level = max(tin.level, found)

    @property
    def _life(self) -> str | None:
        return life_of(self.item)

    # How a process writes.

    def _account(self, process: Process) -> Account:
        return Account(Key("p", "s"), "n", "e", "r", process.terms)

    def post(
        self, process: Process, postings: Sequence[Posting], account: Account | None = None
    ) -> list[Outcome | None]:
        """Carry out postings as one group; ``None`` for those who are refused, or whom nobody owes."""
        answers: dict[int, Outcome | None] = {}
        for _ in range(ATTEMPTS_MAX):
            left = [at for at in range(len(postings)) if at not in answers]
            if not left:
                return [answers[at] for at in range(len(postings))]
            process.terms = self.terms if is_outdated(process.terms, process.image) else process.terms
            asked = account or self._account(process)
            if account is not None and outlived(account, process.image):
                return [None] * len(postings)
            open_ = [postings[at] for at in left]
            if process.image is None or is_deleted(process.image):  # nothing can be booked yet
                open_ = [posting._replace(booking=None) for posting in open_]
            fits = fitting(open_, asked.terms, process.image, self.now_ms)
            chosen = [at for at, fit in zip(left, fits, strict=True) if fit] or left[:1]
            sent = [postings[at] for at in chosen]
            write = write_for(asked, merged(sent) if len(sent) > 1 else sent[0], process.image, self.now_ms)
            if write is None:
                return [None] * len(postings)
            waits = sent[0].booking is not None and bool(sent[0].need)
            given = turns(asked, sent, process.image, self.now_ms) if waits else []
            outcome = self._apply(process, write)
            if outcome.applied:
                told: Sequence[Outcome] = [outcome] * len(sent)
                if given and outcome.item is not None:
                    told = outcomes(sent, given, outcome.item, self.now_ms)
                answers.update(zip(chosen, told, strict=True))
            elif account is None:
                self._refuse(process, postings, answers, outcome.item)
        self._expect(False, f"{postings} were tried {ATTEMPTS_MAX} times")
        return [None] * len(postings)

    def _refuse(
        self,
        process: Process,
        postings: Sequence[Posting],
        answers: dict[int, Outcome | None],
        image: Item | None,
    ) -> None:
        left = [at for at in range(len(postings)) if at not in answers]
        process.terms = (
            self.terms
            if is_outdated(process.terms, image) or image is None or "rf" not in image
            else process.terms
        )
        if image is not None and "rf" in image and not has_terms(image, process.terms):
            self._refresh(process)
            return
        fits = fitting([postings[at] for at in left], process.terms, image, self.now_ms)
        answers.update((at, None) for at, fit in zip(left, fits, strict=True) if not fit)

    def _refresh(self, process: Process) -> None:
        """Give the bucket the numbers that it is to have."""
        process.terms, image = self.terms, process.image
        if (
            image is None
            or "rf" not in image
            or has_terms(image, self.terms)
            or is_outdated(self.terms, image)
        ):
            return
        self._apply(process, rebase(self._account(process), Posting(), image, self.now_ms))

    def _apply(self, process: Process, write: Any) -> Outcome:
        outcome, before = apply(write, self.item), self.item
        self.writes += 1
        process.image = outcome.item
        if outcome.applied:
            self.item = outcome.item
            self._notice(before, outcome.item)
        return outcome

    def _notice(self, before: Item | None, after: Item | None) -> None:
        """The bucket may have other numbers by now."""
        if before is None or after is None or "rf" not in before:
            return
        for name, tin in self.tins.items():
            rate, was = stored_rate(after, name), tin.rate
            if rate is None or rate == was:
                continue
            tin.change(rate)
            self.epoch += 1
            self._allow(name, max(0, was.capacity_milli - rate.capacity_milli))
            for work in self.works:
                if work.state == "waits" and name not in work.gifts and work.account.life == self._life:
                    # Its slot was told by the numbers of then, whatever there is by these.
                    would, will = (accrued(r, work.at_ms) - accrued(r, self.now_ms) for r in (was, rate))
                    work.allowed[name] += max(0, would - will)
                    if name not in work.apart:
                        work.apart.add(name)
                        tin.apart += work.need.get(name, 0)

    # What is promised.

    def _expect(self, holds: bool, promise: str) -> None:
        if not holds:
            self.wrong.append(f"{promise} at {self.now_ms}")

    def _check_refusal(self, posting: Posting) -> None:
        """A wait is refused if it would be too long, by the very millisecond; and that is what is told."""
        assert posting.booking is not None
        if self.item is None or not has_terms(self.item, self.terms):
            return
        (turn,) = schedule(
            [posting._replace(booking=Booking(FOR_EVER_MS))], self.terms, self.item, self.now_ms
        )
        if not turn.fits:
            self._check_far(posting, turn)
            return
        for latest_ms, fits in ((turn.at_ms, True), (turn.at_ms - 1, False)):
            asked = posting._replace(booking=Booking(latest_ms))
            self._expect(
                fitting([asked], self.terms, self.item, self.now_ms) == [fits], f"{asked} fits: {not fits}"
            )
            write = write_for(self._account(Process(self.terms)), asked, self.item, self.now_ms)
            assert write is not None
            self._expect(apply(write, self.item).applied == fits, f"{asked} is written: {not fits}")
        self._expect(turn.at_ms > posting.booking.latest_ms, "somebody was refused who would have waited")
        levels = {name: level(self.terms, name, self.item, self.now_ms) for name in posting.need}
        told_ms = max(slot_ms(levels[name], need, self.now_ms) for name, need in posting.need.items())
        self._expect(told_ms == turn.at_ms, f"{told_ms} was told, {turn.at_ms} is right")

    def _check_far(self, posting: Posting, turn: Turn) -> None:
        """Who is not booked waits for a boundary that is far, and takes of what could give sooner."""
        self.far += 1
        levels = {name: level(self.terms, name, self.item, self.now_ms) for name in posting.need}
        slots = {name: slot_ms(levels[name], need, self.now_ms) for name, need in posting.need.items()}
        last, near_ms = max(slots, key=lambda name: slots[name]), self.now_ms + NEAR_MS
        right = self.terms.rates[last].accrual is not None and near_ms < slots[last] > min(slots.values())
        self._expect(right and turn.at_ms == near_ms, f"{posting} was not booked for {slots}")

    def _check_order(self) -> None:
        """Nobody who asks later, for no more of the same limits, begins earlier."""
        begun = sorted(self.begun, key=lambda work: work.number)
        for place, early in enumerate(begun):
            for late in begun[place + 1 : place + 40]:
                if late.epoch != early.epoch or late.need.keys() != early.need.keys():
                    continue
                if late.at_ms < early.at_ms and all(late.need[n] <= early.need[n] for n in late.need):
                    self.wrong.append(f"{late} overtook {early}")
