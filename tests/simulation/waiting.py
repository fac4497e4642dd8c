"""Waiting, judged by when work begins: the theorem, the order, and who may touch which bucket meanwhile.

Every write that a bucket sees is noted in the order of the store; whoever booked, when it begins. In the end
all of it is poured into a bucket of tin: a booking counts at its slot, and not at all if nobody begins then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from tests.engine.booking_worlds import Tin
from tests.simulation.ideal import Intent
from tests.simulation.simulation import Process, Simulation
from zae_limiter.engine import wait
from zae_limiter.engine.booking import schedule
from zae_limiter.engine.bucket_view import ended_attribute, level, shard_count, stored_terms
from zae_limiter.engine.demand import BookedDemand, BucketDemand
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.law import Rate, accrued
from zae_limiter.engine.posting import Booking, Posting
from zae_limiter.engine.settle import Charge
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.runtime.colour import ForkSafe
from zae_limiter.schema import MOVED, bucket_limit_names, number, stored_rate

WAITS_SECONDS = (0.5, 30.0, 3_600.0, float("inf"))
FOR_EVER_MS = 10**15
LEAD_MS = wait.LEAD_MS
CROWD_AMOUNTS = ({"fast": 1}, {"fast": 1, "slow": 1}, {"fast": 4}, {"fast": 2})


@dataclass
class Move:
    """Something that happens to a bucket, in millitokens by limit."""

    at_ms: int
    place: float
    """Which of all writes of the store it is, or came with, and where in that."""
    need: Mapping[str, int] = field(default_factory=dict)
    debit: Mapping[str, int] = field(default_factory=dict)
    credit: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, Rate] = field(default_factory=dict)
    """The numbers that the bucket has from then on, where they changed."""
    process: Process | None = None
    booked: bool = False
    alone: bool = True
    """No other bucket had a say in when it begins."""
    undone: bool = False
    epoch: int = 0
    allowed: Counter[str] = field(default_factory=Counter)
    apart: Counter[str] = field(default_factory=Counter)
    ended: Mapping[str, int] = field(default_factory=dict)
    """The limits whose bookings an operator has ended, and what they held then."""
    gifts: set[str] = field(default_factory=set)
    """The limits of which an operator has given it what it booked."""

    @property
    def happens(self) -> bool:
        """Whether there is somebody whose work begins."""
        died_ms = None if self.process is None else self.process.died_ms
        return not self.undone and (not self.booked or died_ms is None or died_ms >= self.at_ms)


class Bucket:
    """What one bucket saw."""

    def __init__(self, image: Item, now_ms: int, *, is_new: bool) -> None:
        names = bucket_limit_names(image)
        self.rates = {name: rate for name in names if (rate := stored_rate(image, name))}
        self.since_ms = now_ms
        terms = stored_terms(image)
        self._first = {
            name: rate.capacity_milli if is_new else level(terms, name, image, now_ms).balance(now_ms)
            for name, rate in self.rates.items()
        }
        self.moves: list[Move] = []
        self.epoch = 0
        self.delay_ms = 0
        """The longest time between a client's look at its clock and the write."""

    def tin(self, rate: Rate, level_milli: int) -> Tin:
        """What one limit is poured into."""
        return Tin(rate, level_milli, self.since_ms)

    @staticmethod
    def held(image: Item, name: str, now_ms: int) -> int:
        return level(stored_terms(image), name, image, now_ms).balance(now_ms)

    def check(self, name: str, error_ms: int) -> None:
        self._pour(name, error_ms)
        self._check_order(name, error_ms)

    def _pour(self, partition: str, error_ms: int) -> None:
        tins = {n: self.tin(rate, self._first[n]) for n, rate in self.rates.items()}
        slack = {n: self._slack(rate, error_ms) for n, rate in self.rates.items()}
        moves = sorted((m for m in self.moves if m.happens), key=lambda move: (move.at_ms, move.place))
        for at, move in enumerate(moves):
            ahead = [m for m in moves[at + 1 :] if m.booked and m.place <= move.place]
            for tin in tins.values():
                tin.advance(max(move.at_ms, tin.at_ms))
            for name, rate in move.rates.items():
                slack[name] += max(self._slack(rate, error_ms), self._slack(tins[name].rate, error_ms))
                self._change(name, tins[name], rate, ahead)
            for name, amount in move.debit.items():
                tins[name].level -= amount
                for other in ahead:
                    other.allowed[name] += amount
            for name, amount in move.credit.items():
                tins[name].pour(amount)
            for name, found in move.ended.items():
                self._end(name, tins[name], found, ahead)
            for name, need in move.need.items():
                if name in move.gifts:
                    continue
                tin = tins[name]
                tin.apart -= move.apart[name]
                tin.level -= need
                least = -move.allowed[name] - slack[name]
                assert tin.level >= least, (
                    f"{partition}: {need} of {name} began when {tin.level + need} was there, "
                    f"{-least} may be missing: {move}"
                )

    def _slack(self, rate: Rate, error_ms: int) -> int:
        return accrued(rate, 2 * error_ms + self.delay_ms) + 4

    @staticmethod
    def _change(name: str, tin: Tin, rate: Rate, ahead: Sequence[Move]) -> None:
        was = tin.rate
        tin.change(rate)
        for move in ahead:
            would, will = (accrued(r, move.at_ms) - accrued(r, tin.at_ms) for r in (was, rate))
            cut = max(0, was.capacity_milli - rate.capacity_milli)
            move.allowed[name] += cut + max(0, would - will)
            if not move.apart[name] and name not in move.gifts:
                move.apart[name] = move.need.get(name, 0)
                tin.apart += move.apart[name]

    @staticmethod
    def _end(name: str, tin: Tin, found: int, ahead: Sequence[Move]) -> None:
        """Who has booked begins all the same, and takes nothing: an operator has given it that."""
        for move in ahead:
            tin.apart -= move.apart.pop(name, 0)
            move.gifts.add(name)
        tin.level = max(tin.level, found)

    def _check_order(self, partition: str, error_ms: int) -> None:
        """Nobody who asks later for no more of the same limits begins earlier, as far as clocks can tell."""
        began = sorted((m for m in self.moves if m.happens and m.need), key=lambda move: move.place)
        for at, early in enumerate(began):
            if not early.booked or not early.alone:
                continue
            for late in began[at + 1 :]:
                if late.epoch == early.epoch and late.need.keys() == early.need.keys():
                    sooner_ms = early.at_ms - late.at_ms
                    overtakes = all(late.need[n] <= early.need[n] for n in early.need)
                    assert not overtakes or sooner_ms <= 2 * error_ms + self.delay_ms + 1, (
                        f"{partition}: {late} overtook {early} by {sooner_ms} ms"
                    )


def ended_limits(before: Item, after: Item) -> list[str]:
    """The limits whose bookings an operator has ended by a write."""
    counts = {name: ended_attribute(name) for name in bucket_limit_names(after)}
    return [name for name, count in counts.items() if number(after, count) > number(before, count)]


def booked_from(need: Mapping[str, int], earliest_ms: int = 0) -> Posting:
    """A need that is booked, however long that takes."""
    return Posting(need, booking=Booking(FOR_EVER_MS, earliest_ms))


def alone_ms(need: Mapping[str, int], ahead: Sequence[Posting], image: Item, now_ms: int) -> int | None:
    """How long a bucket takes to have a need behind who is booked by the same write; ``None`` if it changes.

    Whoever is ahead takes at its slot, and what is full by then flows over: it keeps others waiting as long.
    """
    terms, postings = stored_terms(image), [*ahead, booked_from(need)]
    if any(name not in terms.rates for posting in postings for name in posting.need):
        return None
    return schedule(postings, terms, image, now_ms)[-1].at_ms - now_ms


class Asked(NamedTuple):
    """A need that was written for somebody who waits."""

    need: Mapping[str, int]
    place: float
    written_ms: int
    before: Item | None
    ahead: Sequence[Posting]
    """Who was booked before it by the same write."""
    epoch: int
    client_ms: int
    """When it was written by the clock of who asked."""


class Waiting:
    """All buckets of a world, and who waits for them."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._buckets: dict[Key, Bucket | None] = {}
        self._asked: dict[int, Asked] = {}
        """By the identity of what somebody asked for."""
        self._begins: dict[int, tuple[BucketDemand, Move]] = {}
        self._noted: set[int] = set()
        self.waited = 0
        self._writes = 0
        self._credited: dict[Key, int] = {}

    def find(self, key: Key, image: Item) -> None:
        """A bucket is there already."""
        self._buckets[key] = Bucket(image, self._simulation.now_ms, is_new=False)

    def _made(self, image: Item, at_ms: int) -> Bucket:
        """A bucket that was not there before."""
        return Bucket(image, at_ms, is_new=True)

    def _instant_ms(self, before: Item | None, intent: Intent) -> int:
        """When a write happens, by the clock of this judge."""
        del before, intent
        return self._simulation.now_ms

    def _told_ms(self, at_ms: int, client_ms: int) -> int:
        """What an instant of a client whose clock shows another one now is by the clock of this judge."""
        return self._simulation.now_ms + at_ms - client_ms

    def _is_changed(self, before: Rate | None, after: Rate) -> bool:
        """Whether a limit has other numbers than before, by somebody's will."""
        return before != after

    def see(self, key: Key, before: Item | None, after: Item, intent: Intent, process: Process) -> None:
        """A write was applied."""
        self._writes += 1
        now_ms = self._instant_ms(before, intent)
        if before is None and key not in self._buckets and MOVED not in after:
            self._buckets[key] = self._made(after, now_ms)
        bucket = self._buckets.setdefault(key, None)
        if bucket is None or MOVED in after or shard_count(after) > 1:
            self._buckets[key] = None  # what a split or a migration may move is judged elsewhere
            return
        bucket.delay_ms = max(bucket.delay_ms, abs(self._simulation.now_ms - intent.client_ms))
        rates = {name: rate for name in bucket.rates if (rate := stored_rate(after, name))}
        changed = {
            n: rate for n, rate in rates.items() if before and self._is_changed(stored_rate(before, n), rate)
        }
        bucket.epoch += bool(changed)
        if changed:
            bucket.moves.append(Move(now_ms, self._writes, rates=changed))
        ended = {name: bucket.held(after, name, now_ms) for name in ended_limits(before or {}, after)}
        if ended:
            bucket.epoch += 1
            bucket.moves.append(Move(now_ms, self._writes, ended=ended))
        # What one write takes it takes before it gives back: first what was needed, then what is due.
        ahead: list[Posting] = []
        in_turn = sorted(intent.postings, key=lambda p: 0 if p.need else 1 if p.debit else 2)
        for at, posting in enumerate(in_turn):
            if posting.need and posting.booking is not None:
                place = self._writes + at / 1000
                told = now_ms, before, tuple(ahead), bucket.epoch, intent.client_ms
                self._asked[id(posting.need)] = Asked(posting.need, place, *told)
                earliest_ms = self._told_ms(posting.booking.earliest_ms, intent.client_ms)
                ahead.append(booked_from(posting.need, earliest_ms))
                continue
            if posting.credit:
                self._credited[key] = now_ms
                if posting.booking is not None and not self._had_begun(bucket, posting, intent):
                    continue
            credit = {name: amount for name, amount in posting.credit.items() if name not in ended}
            parts = posting.need, posting.debit, credit
            bucket.moves.append(Move(now_ms, self._writes, *parts, process=process, epoch=bucket.epoch))
        if not intent.postings and any(intent.needs.values()):
            needs = {name: need for name, need in intent.needs.items() if need}
            bucket.moves.append(Move(now_ms, self._writes, needs, process=process, epoch=bucket.epoch))

    def _had_begun(self, bucket: Bucket, posting: Posting, intent: Intent) -> bool:
        """Whether the turn of somebody who gives back had come: that counts as if it had begun."""
        assert posting.booking is not None
        late_ms = intent.client_ms - posting.booking.latest_ms
        asked = self._asked.get(id(posting.credit))
        if late_ms >= 0 and asked is not None and id(posting.credit) not in self._noted:
            self._noted.add(id(posting.credit))
            at_ms = self._begins_ms(asked, posting.booking.latest_ms, intent.client_ms)
            bucket.moves.append(
                Move(at_ms, asked.place, asked.need, booked=True, alone=False, epoch=asked.epoch)
            )
        return late_ms >= 0

    def _begins_ms(self, asked: Asked, at_ms: int, client_ms: int) -> int:
        """When somebody begins whose turn is at an instant of a client whose clock shows another one now.

        Who need not wait begins with its write, before whatever others write until it hears of that; others
        begin by their clock, which may run otherwise.
        """
        waits = at_ms > asked.client_ms
        return max(asked.written_ms, self._told_ms(at_ms, client_ms)) if waits else asked.written_ms

    def check(self) -> None:
        for key, bucket in self._buckets.items():
            if bucket is not None:
                bucket.check(key.partition, self._simulation.clock_error_ms)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Be told who begins when, and who gives up before."""
        book, sleep = wait._book, wait._sleep_until
        give_back: Callable[..., Coroutine[Any, Any, None]] = vars(wait)["give_back"]

        async def booking(
            writer: BucketWriter, short: Sequence[wait._Wait], *given: Any
        ) -> tuple[int, list[BucketDemand]]:
            asked_ms = self._simulation.now_ms
            at_ms, rest = await book(writer, short, *given)
            self._note(writer, short, given[-1], at_ms, asked_ms)
            return at_ms, rest

        async def giving_back(writer: BucketWriter, taken: Sequence[BucketDemand]) -> None:
            for demand in taken:
                if isinstance(demand, BookedDemand) and id(demand) in self._begins:
                    # Whose turn has come counts as if it had begun.
                    is_early = demand.booking.latest_ms > writer.world.now_ms()
                    self._begins[id(demand)][1].undone = is_early
            await give_back(writer, taken)

        async def sleeping(writer: BucketWriter, at_ms: int) -> None:
            await sleep(_Watched(writer, at_ms), at_ms)  # type: ignore[arg-type]
            assert writer.world.now_ms() >= at_ms, "somebody began before its turn"
            self.waited += 1

        place = "zae_limiter.engine.wait"
        with (
            mock.patch(f"{place}._book", booking),
            mock.patch(f"{place}._sleep_until", sleeping),
            mock.patch(f"{place}.give_back", giving_back),
        ):
            yield

    def _note(
        self,
        writer: Any,
        short: Sequence[wait._Wait],
        booked: Charge[BucketDemand],
        together_ms: int,
        asked_ms: int,
    ) -> None:
        """Somebody has booked, and sleeps until its turn."""
        process = writer._process
        leads = {id(demand.amounts): wait_ms + LEAD_MS for demand, wait_ms in short}
        for demand in booked:
            asked = self._asked.get(id(demand.amounts))
            bucket = self._buckets.get(demand.account.key)
            if not isinstance(demand, BookedDemand) or asked is None or bucket is None:
                continue
            # Whoever is late begins where its turn was, bucket by bucket.
            late = together_ms <= process.world.now_ms()
            at_ms = demand.booking.latest_ms if late else together_ms
            begins_ms = self._begins_ms(asked, at_ms, process.world.now_ms())
            credited = self._credited.get(demand.account.key, 0) >= asked_ms
            move = Move(
                begins_ms,
                asked.place,
                demand.amounts,
                process=process,
                booked=True,
                alone=len(booked) == 1,
                epoch=asked.epoch,
            )
            bucket.moves.append(move)
            self._noted.add(id(demand.amounts))
            self._begins[id(demand)] = demand, move
            if len(booked) > 1 and asked.before is not None and not credited:
                self._check_untouched(demand, asked, begins_ms, leads.get(id(demand.amounts), LEAD_MS))

    def _check_untouched(self, demand: BookedDemand, asked: Asked, at_ms: int, lead_ms: float) -> None:
        """Who waits for one bucket does not take from another one long before: meanwhile others can use that.

        It is booked about as long before as it takes to have what is needed, or seemed to when it was asked.
        """
        assert asked.before is not None
        now_ms = asked.written_ms
        waits_ms = alone_ms(demand.amounts, asked.ahead, asked.before, now_ms)
        if waits_ms is None:
            return
        longest_ms = max(lead_ms, waits_ms + LEAD_MS) + 2 * self._simulation.clock_error_ms
        assert at_ms - now_ms <= longest_ms, (
            f"{demand.account.key.partition} could give {dict(demand.amounts)} in {waits_ms} ms, "
            f"and was booked for {at_ms - now_ms} ms later"
        )


class _Watched(SimpleNamespace):
    """A writer whose sleeper is looked after: nobody sleeps past its slot."""

    def __init__(self, writer: BucketWriter, at_ms: int) -> None:
        async def sleep(seconds: float) -> None:
            assert seconds * 1000 < at_ms - writer.world.now_ms() + 1, "somebody sleeps past its turn"
            await writer.colour.sleep(seconds)

        closing = SimpleNamespace(wait=sleep, given=False)  # nobody closes a store here
        room = ForkSafe(lambda: SimpleNamespace(closing=closing))
        super().__init__(world=writer.world, colour=writer.colour, waiting_room=room)
