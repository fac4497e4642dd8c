"""A limit of the textbook whose refill comes at boundaries, and where these are.

Boundaries are found by looking at what the clocks of a zone show, one quarter of an hour after another, and
not by the code that is tried.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from zae_limiter.models import Limit
from zae_limiter.repository_protocol import Item
from zae_limiter.schema import kind_attributes, limit_attributes, number

SESSION = "session"
QUARTER, DAY_MS = timedelta(minutes=15), 86_400_000
SPAN_DAYS = 100
"""How long a world lasts at most."""

MARKS: Mapping[str, tuple[Callable[[datetime], bool], bool]] = {
    "hour": (lambda wall: wall.minute == 0, True),
    "day": (lambda wall: (wall.hour, wall.minute) == (0, 0), False),
    "week": (lambda wall: (wall.isoweekday(), wall.hour, wall.minute) == (1, 0, 0), False),
    "month": (lambda wall: (wall.day, wall.hour, wall.minute) == (1, 0, 0), False),
    "cron(30 2 * * *)": (lambda wall: (wall.hour, wall.minute) == (2, 30), False),
    "cron(15,45 * * * *)": (lambda wall: wall.minute in (15, 45), True),
    "cron(0 6 29 * mon)": (  # either will do
        lambda wall: (wall.hour, wall.minute) == (6, 0) and (wall.day == 29 or wall.isoweekday() == 1),
        False,
    ),
}
"""What a wall clock shows when a period begins, and whether every hour has such marks."""


@lru_cache(None)
def walls(zone: str, start_ms: int) -> Sequence[tuple[int, datetime]]:
    """What the clocks of a zone show, quarter by quarter."""
    place, first_ms = ZoneInfo(zone), start_ms - DAY_MS
    instants = range(first_ms, start_ms + SPAN_DAYS * DAY_MS, 900_000)
    return [(at, datetime.fromtimestamp(at / 1000, place).replace(tzinfo=None)) for at in instants]


@lru_cache(None)
def boundaries(accrual: str, start_ms: int) -> Sequence[int]:
    """When a mark is shown or jumped over; again in an hour that comes twice, if every hour has marks."""
    period, _, zone = accrual.rpartition("@")
    is_mark, every_hour = MARKS[period]
    (_, shown), *later = walls(zone, start_ms)
    found, latest = [], shown
    for at_ms, wall in later:
        since = shown if every_hour and wall > shown else wall - QUARTER if every_hour else latest
        while since < wall:
            since += QUARTER
            if is_mark(since):
                found.append(at_ms)
                break
        shown, latest = wall, max(latest, wall)
    return found


class Numbers(NamedTuple):
    """A limit as a bucket keeps it."""

    capacity: int
    amount: int
    period_ms: int
    accrual: str | None

    @classmethod
    def stored(cls, image: Item, name: str) -> Numbers:
        names, accrual = limit_attributes(name), image.get(kind_attributes(name).ac)
        assert accrual is None or isinstance(accrual, str)
        return cls(number(image, names.cp), number(image, names.ra), number(image, names.rp), accrual)

    @classmethod
    def of(cls, limit: Limit) -> Numbers:
        return cls(limit.capacity_milli, limit.refill_amount_milli, limit.refill_period_ms, limit.accrual)


class Ideal:
    """One limit of the textbook, as of the latest instant that a writer had."""

    def __init__(self, numbers: Numbers, at_ms: int, start_ms: int) -> None:
        self.numbers, self.at_ms, self._start_ms = numbers, at_ms, start_ms
        self.level, self.began_ms = numbers.capacity, 0
        self.levels = [(0, at_ms, self.level)]
        """What each write has left, when it was stored, and as of which instant."""

    def brought(self, t_ms: int) -> int:
        """What came in all until an instant."""
        _, amount, period_ms, accrual = self.numbers
        if accrual is None:
            return t_ms * amount // period_ms
        if accrual == SESSION:
            return max(0, (t_ms - self.began_ms) // period_ms) * amount
        assert t_ms < self._start_ms + SPAN_DAYS * DAY_MS, "the world lasts too long for its judge"
        return bisect_right(boundaries(accrual, self._start_ms), t_ms) * amount

    def held(self, tokens: int, since_ms: int, t_ms: int) -> int:
        """What was so much at an instant is so much at another."""
        gained = self.brought(t_ms) - self.brought(since_ms) if t_ms > since_ms else 0
        return min(self.numbers.capacity, tokens + gained)

    def level_at(self, t_ms: int) -> int:
        return self.held(self.level, self.at_ms, t_ms)

    def counted_since(self, t_ms: int) -> int:
        """What a clock has brought that is ahead of another."""
        return self.brought(self.at_ms) - self.brought(t_ms)

    def advance(self, t_ms: int) -> None:
        self.level, self.at_ms = self.level_at(t_ms), max(self.at_ms, t_ms)

    def change(self, after: Numbers) -> None:
        """Go on with other numbers: a cut makes no debt, and leaves none that a refill would not pay."""
        before, level = self.numbers, self.level
        slower = after.amount * before.period_ms < before.amount * after.period_ms
        self.numbers, self.level = after, level + after.capacity - before.capacity
        if slower or after.capacity < before.capacity:
            self.level = max(self.level, min(0, max(level, 1000 - after.capacity)))

    def lowest(self, since_ms: int) -> int:
        """What was there at least from an instant on, for somebody whose clock showed no later one."""
        first = max(0, bisect_right(self.levels, since_ms, key=lambda one: one[0]) - 1)
        sure = (level + self.brought(since_ms) - self.brought(at) for _, at, level in self.levels[first:])
        return min(self.numbers.capacity, *sure)

    def take(self, need: int, taken: int, at_ms: int) -> None:
        """A need must be there, and begins a window if none is; what else is taken or comes back need not."""
        assert not need or need <= self.level, (
            f"{need} were admitted where {self.level} are there: {self.numbers}"
        )
        if need and self.numbers.accrual == SESSION and at_ms - self.began_ms >= self.numbers.period_ms:
            self.began_ms = at_ms
        self.level = min(self.numbers.capacity, self.level - taken)
