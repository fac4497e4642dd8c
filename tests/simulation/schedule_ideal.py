"""A limit of the textbook whose numbers change with the time of day, and when they do.

That is found by looking at what the clocks of a zone show, one minute after another, and not by the code that
is tried. Whatever happens to a bucket is poured into one of tin, at the instants by which it was written, and
what somebody waits for when its work begins. At a change of numbers a raise gives the difference, once, and a
cut takes it without making debt.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple
from unittest import mock
from zoneinfo import ZoneInfo

from tests.engine.booking_worlds import Tin
from tests.simulation.ideal import Intent
from tests.simulation.simulation import Process, Simulation
from tests.simulation.waiting import Bucket, Move, Waiting
from zae_limiter.engine import wait
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.law import Rate, accrued
from zae_limiter.engine.posting import Posting
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.schema import (
    PHASE,
    booking_attributes,
    bucket_limit_names,
    limit_attributes,
    number,
    stored_rate,
)

SOFT = "soft"
"""The limit that refuses nobody."""

MINUTE_MS, DAY_MS = 60_000, 86_400_000
SPAN_DAYS = 5
"""How long a world lasts at most."""

WINDOWS: Mapping[str, Callable[[datetime], bool]] = {
    "* 2 * * *": lambda wall: wall.hour == 2,  # which is left out one night, and comes twice another
    "30-44 * * * *": lambda wall: 30 <= wall.minute <= 44,
    "*/2 * * * *": lambda wall: wall.minute % 2 == 0,
    "* 9-16 * * mon-fri": lambda wall: 9 <= wall.hour <= 16 and wall.isoweekday() <= 5,
    "* * 29 * sun": lambda wall: wall.day == 29 or wall.isoweekday() == 7,  # either will do
    "17 1-3 * * *": lambda wall: 1 <= wall.hour <= 3 and wall.minute == 17,
    "5-55/10 0-11 * * *": lambda wall: wall.hour <= 11 and wall.minute % 10 == 5,
}
"""What a wall clock shows while a window holds."""


@lru_cache(None)
def minutes(zone: str, start_ms: int) -> Sequence[tuple[int, datetime]]:
    """What the clocks of a zone show, minute by minute."""
    place, first_ms = ZoneInfo(zone), start_ms - 60 * MINUTE_MS
    instants = range(first_ms, start_ms + SPAN_DAYS * DAY_MS, MINUTE_MS)
    return [(at_ms, datetime.fromtimestamp(at_ms / 1000, place)) for at_ms in instants]


@lru_cache(None)
def holds(window: str, zone: str, start_ms: int) -> Sequence[bool]:
    """In which minutes a window holds."""
    shows = WINDOWS[window]
    return [shows(wall) for _, wall in minutes(zone, start_ms)]


@lru_cache(None)
def winners(windows: tuple[str, ...], zone: str, start_ms: int) -> tuple[Sequence[int], Sequence[int]]:
    """From which instants on which window is the first that holds; the last one always does."""
    instants, places = list[int](), list[int]()
    held = zip(*(holds(window, zone, start_ms) for window in windows), strict=True)
    for (at_ms, _), there in zip(minutes(zone, start_ms), held, strict=True):
        place = there.index(True) if True in there else len(there)
        if not places or places[-1] != place:
            instants.append(at_ms)
            places.append(place)
    return instants, places


class Timetable(NamedTuple):
    """Which numbers a limit has when."""

    instants: Sequence[int]
    places: Sequence[int]
    numbers: Sequence[tuple[int, int]]

    def place(self, t_ms: int) -> int:
        return bisect_right(self.instants, t_ms) - 1

    def at(self, t_ms: int) -> tuple[int, int]:
        return self.numbers[self.places[self.place(t_ms)]]

    def changes(self, after_ms: int, until_ms: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """The boundaries after an instant until another one, and the numbers from then on."""
        for place in range(self.place(after_ms) + 1, self.place(until_ms) + 1):
            yield self.instants[place], self.numbers[self.places[place]]

    def end_ms(self, t_ms: int) -> int:
        """When the numbers of an instant are no longer those that count."""
        numbers, place = self.at(t_ms), self.place(t_ms) + 1
        while place < len(self.places) and self.numbers[self.places[place]] == numbers:
            place += 1
        return self.instants[place] if place < len(self.places) else 10**15


@lru_cache(4096)
def timetable(schedule: str, start_ms: int) -> Timetable:
    """The numbers of a schedule as a bucket keeps it: in thousandths, and with those of all other times."""
    text, _, zone = schedule.rpartition("@")
    found = re.findall(r"([0-9]+)(?::([0-9]+))?\(([^)]*)\)", text)
    windows, numbers = tuple(when for *_, when in found), [(int(burst or n), int(n)) for n, burst, _ in found]
    assert windows[-1] == "", schedule
    instants, places = winners(windows[:-1], zone, start_ms)
    return Timetable(instants, places, numbers)


@dataclass
class Tide(Tin):
    """One limit of the bucket that judges, by the numbers of the wall clock."""

    start_ms: int = 0

    def advance(self, now_ms: int) -> None:
        assert now_ms < self.start_ms + SPAN_DAYS * DAY_MS, "the world lasts too long for its judge"
        if self.rate.schedule is not None:
            plan = timetable(self.rate.schedule, self.start_ms)
            for at_ms, numbers in plan.changes(self.at_ms, now_ms):
                super().advance(at_ms)
                if self.level == self.rate.capacity_milli and not self.apart:  # what is full stays full
                    self.rate, self.at_ms = _with(self.rate, plan.at(now_ms)), now_ms
                    self.level = self.rate.capacity_milli
                    return
                super().change(_with(self.rate, numbers))
        if now_ms > self.at_ms:
            super().advance(now_ms)

    def change(self, rate: Rate) -> None:
        """Go on with other numbers, which somebody has set."""
        super().change(self.by_the_wall(rate))

    def go_back(self, before: Item, name: str, to_ms: int) -> None:
        """Begin at an earlier instant with what was there at the origin, by the numbers of that instant.

        What has accrued since is to come once more. What flowed over meanwhile is only known by the bucket.
        """
        counted = accrued(self.rate, self.at_ms) - accrued(self.rate, number(before, "rf"))
        held = number(before, limit_attributes(name).tk) + number(before, booking_attributes(name).back)
        self.level = max(self.level - max(0, counted), min(self.rate.capacity_milli, held))
        self.at_ms = to_ms
        super().change(self.by_the_wall(self.rate))

    def by_the_wall(self, rate: Rate) -> Rate:
        """A rate with the numbers that it has now."""
        if rate.schedule is None:
            return rate
        return _with(rate, timetable(rate.schedule, self.start_ms).at(self.at_ms))

    def at(self, t_ms: int) -> int:
        """What it holds at an instant, if nobody takes anything."""
        later = Tide(self.rate, self.level, self.at_ms, start_ms=self.start_ms)
        later.advance(t_ms)
        return min(later.level, later.rate.capacity_milli)

    def brings(self, until_ms: int) -> int:
        """By how much more it holds at an instant, if it has room for all and a cut takes all."""
        total, at_ms, rate = 0, self.at_ms, self.rate
        plan = None if rate.schedule is None else timetable(rate.schedule, self.start_ms)
        for begins_ms, numbers in plan.changes(at_ms, until_ms) if plan is not None else ():
            after = _with(rate, numbers)
            total += accrued(rate, begins_ms) - accrued(rate, at_ms)
            total += after.capacity_milli - rate.capacity_milli
            at_ms, rate = begins_ms, after
        return total + accrued(rate, until_ms) - accrued(rate, at_ms)

    def end_ms(self) -> int:
        """When its numbers change next."""
        schedule = self.rate.schedule
        return 10**15 if schedule is None else timetable(schedule, self.start_ms).end_ms(self.at_ms)


def tide(rate: Rate, level_milli: int, at_ms: int, start_ms: int) -> Tide:
    """A limit that holds so much at an instant."""
    made = Tide(rate, level_milli, at_ms, start_ms=start_ms)
    made.rate = made.by_the_wall(rate)
    return made


def _with(rate: Rate, numbers: tuple[int, int]) -> Rate:
    return rate._replace(capacity_milli=numbers[0], refill_amount_milli=numbers[1])


def instant_ms(before: Item | None, after: Item, intent: Intent, start_ms: int) -> int:
    """When a write happens to a bucket: never before what others have counted, whatever a clock says.

    Unless that lies further ahead than is believed: then it is put right. What comes back is there before the
    phase ends that the bucket is in, even if that is over by now.
    """
    at_ms = max(intent.client_ms, since_ms(after if is_put_right(before, after) else before or {}))
    if any(posting.need or posting.debit for posting in intent.postings):
        return at_ms
    rates = (stored_rate(after, name) for name in bucket_limit_names(after))
    plans = [timetable(rate.schedule, start_ms) for rate in rates if rate is not None and rate.schedule]
    return min([at_ms, *(plan.end_ms(since_ms(after)) - 1 for plan in plans)])


def is_put_right(before: Item | None, after: Item) -> bool:
    """Whether a bucket that lay ahead was set back to the present."""
    return before is not None and number(after, "rf") < number(before, "rf")


def since_ms(image: Item) -> int:
    """Since when a bucket certainly has its numbers."""
    return max(number(image, "rf"), number(image, PHASE))


class TidalBucket(Bucket):
    """What one bucket saw, at the instants by which it was written."""

    start_ms = 0

    def tin(self, rate: Rate, level_milli: int) -> Tin:
        return tide(rate, level_milli, self.since_ms, self.start_ms)

    @staticmethod
    def _change(name: str, tin: Tin, rate: Rate, ahead: Sequence[Move]) -> None:
        """Whoever has booked keeps its slot, whatever comes until then by the other numbers."""
        assert isinstance(tin, Tide)
        was = replace(tin)
        tin.change(rate)
        for move in ahead:
            cut = max(0, was.rate.capacity_milli - tin.rate.capacity_milli)
            move.allowed[name] += cut + max(0, was.brings(move.at_ms) - tin.brings(move.at_ms))
            if not move.apart[name]:
                move.apart[name] = move.need.get(name, 0)
                tin.apart += move.apart[name]

    def _slack(self, rate: Rate, error_ms: int) -> int:
        """Somebody whose clock is behind counts again what others have counted."""
        plan = None if rate.schedule is None else timetable(rate.schedule, self.start_ms)
        amount = rate.refill_amount_milli if plan is None else max(amount for _, amount in plan.numbers)
        return accrued(rate._replace(refill_amount_milli=amount), 2 * error_ms) + 2


class Starts(Waiting):
    """Who begins when, by the clocks that the buckets go by: no clock can be wrong there."""

    def __init__(self, simulation: Simulation, start_ms: int) -> None:
        super().__init__(simulation)
        self._start_ms, self._at_ms = start_ms, 0
        self._latest_ms: dict[Key, int] = {}
        """By when a bucket was written that was written last, or before by a clock that was ahead."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Be told who begins when; time may jump while all who are on their way sleep."""
        with super().watching():
            sleep = wait._sleep_until

            async def sleeping(writer: BucketWriter, at_ms: int) -> None:
                self._simulation.in_flight -= 1
                try:
                    await sleep(writer, at_ms)
                finally:
                    self._simulation.in_flight += 1

            with mock.patch("zae_limiter.engine.wait._sleep_until", sleeping):
                yield

    def _made(self, image: Item, at_ms: int) -> Bucket:
        bucket = TidalBucket(image, at_ms, is_new=True)
        bucket.start_ms = self._start_ms
        return bucket

    def _instant_ms(self, before: Item | None, intent: Intent) -> int:
        del before, intent
        return self._at_ms

    def _told_ms(self, at_ms: int, client_ms: int) -> int:
        del client_ms
        return at_ms

    def _is_changed(self, before: Rate | None, after: Rate) -> bool:
        """That a phase has passed is nobody's will."""
        if before is None or after.schedule is None:
            return before != after
        return before._replace(capacity_milli=0, refill_amount_milli=0) != after._replace(
            capacity_milli=0, refill_amount_milli=0
        )

    def see(self, key: Key, before: Item | None, after: Item, intent: Intent, process: Process) -> None:
        """A write was applied; across a boundary nobody's place is kept."""
        bucket, at_ms = self._buckets.get(key), instant_ms(before, after, intent, self._start_ms)
        if bucket is not None and is_put_right(before, after):
            # Of what was counted ahead some is counted again: who began until now is judged by itself.
            bucket.check(key.partition, self._simulation.clock_error_ms)
            bucket = self._buckets[key] = None
            self._latest_ms[key] = at_ms
        self._at_ms = self._latest_ms[key] = max(at_ms, self._latest_ms.get(key, 0))
        if before is not None and at_ms < self._at_ms and self._is_ahead(before, after, at_ms):
            self._buckets[key] = None
        if bucket is not None and before is not None and before.get(PHASE) != after.get(PHASE):
            bucket.epoch += 1
        postings = tuple(part for posting in intent.postings for part in self._parts(posting))
        super().see(key, before, after, intent._replace(postings=postings), process)

    def _is_ahead(self, before: Item, after: Item, at_ms: int) -> bool:
        """Whether a schedule was set by somebody in another phase of it than a clock that is ahead."""
        for name in bucket_limit_names(after):
            rate = stored_rate(after, name)
            if rate is not None and rate.schedule and self._is_changed(stored_rate(before, name), rate):
                plan = timetable(rate.schedule, self._start_ms)
                if plan.place(at_ms) != plan.place(self._at_ms):
                    return True
        return False

    def _parts(self, posting: Posting) -> Iterator[Posting]:
        """What a posting takes before it gives back, with needs that must be there."""
        soft = {name: amount for name, amount in posting.need.items() if name == SOFT}
        if soft:
            need = {name: amount for name, amount in posting.need.items() if name != SOFT}
            posting = posting._replace(need=need, debit={**posting.debit, **soft})
        if posting.debit and posting.credit:
            yield posting._replace(credit={})
            posting = Posting(credit=posting.credit)
        yield posting
