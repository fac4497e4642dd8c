"""The boundaries of calendar periods in a time zone, as integers.

A boundary is the first instant at which the zone's wall clock shows a mark, or has jumped over it: a day
whose midnight does not exist begins with its first instant, and one that comes twice begins once. Marks
within every hour count each time that they are shown, so an hour that comes twice is two.

Boundaries are counted by days, from the first instant of each to that of the next, and years keep the sums.
What was found is remembered as periods, between whose ends nobody has to be asked. Before the first year and
after the last one periods are of one length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import accumulate
from typing import NamedTuple

from .cron import DAY_MS, MINUTE_MS, Marks, date_of, day_of

FIRST_YEAR, ANCHOR_YEAR, LAST_YEAR = 1970, 2020, 2200
PERIODS_MAX = 4_096
"""How many periods are remembered."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS, _HOUR_MS = timedelta(milliseconds=1), 3_600_000


class WallClock:
    """What the clocks of a zone show."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._odd: dict[int, frozenset[int]] = {}

    def is_set_about(self, day: int) -> bool:
        """Whether it may be set on a day, or just before or after it."""
        year = date_of(day).year
        if year not in self._odd:
            days = range(day_of(date(year, 1, 1)) - 2, day_of(date(year + 1, 1, 1)) + 2)
            offsets = [self.offset_ms(one * DAY_MS) for one in (*days, days.stop)]
            changes = (one for place, one in enumerate(days) if offsets[place] != offsets[place + 1])
            self._odd[year] = frozenset(near for one in changes for near in range(one - 2, one + 3))
        return day in self._odd[year]

    def offset_ms(self, t_ms: int) -> int:
        """How far the wall clock is ahead at an instant."""
        offset = (_EPOCH + timedelta(milliseconds=t_ms)).astimezone(self._zone).utcoffset()
        return 0 if offset is None else offset // _MS

    def first_at(self, wall_ms: int) -> int:
        """The first instant at which it shows at least this."""
        shown = _EPOCH.replace(tzinfo=self._zone) + timedelta(milliseconds=wall_ms)
        before, after = (shown.replace(fold=fold).utcoffset() or timedelta() for fold in (0, 1))
        high_ms, low_ms = wall_ms - before // _MS, wall_ms - after // _MS
        if high_ms <= low_ms:
            return high_ms
        while high_ms - low_ms > 1:  # it jumps over this, between the two
            middle_ms = (low_ms + high_ms) // 2
            is_past = middle_ms + self.offset_ms(middle_ms) >= wall_ms
            low_ms, high_ms = (low_ms, middle_ms) if is_past else (middle_ms, high_ms)
        return high_ms

    def changes_ms(self, t_ms: int, end_ms: int) -> int:
        """When it is set next, or the end if that is earlier."""
        offset_ms = self.offset_ms(t_ms)
        while t_ms < end_ms:
            next_ms = min(t_ms + _HOUR_MS, end_ms)
            if self.offset_ms(next_ms) != offset_ms:
                while next_ms - t_ms > 1:
                    middle_ms = (t_ms + next_ms) // 2
                    is_same = self.offset_ms(middle_ms) == offset_ms
                    t_ms, next_ms = (middle_ms, next_ms) if is_same else (t_ms, middle_ms)
                return next_ms
            t_ms = next_ms
        return end_ms


class Period(NamedTuple):
    """The time from one boundary to the next, and how many there were until then."""

    start_ms: int
    end_ms: int
    number: int


class Calendar:
    """Steps at the boundaries of calendar periods."""

    def __init__(self, marks: Marks, clock: WallClock, period_ms: int) -> None:
        self._marks, self._clock, self._period_ms = marks, clock, period_ms
        self._first_day, self._last_day = (day_of(date(year, 1, 1)) for year in (FIRST_YEAR, LAST_YEAR))
        self._first_ms, self._last_ms = map(self._begins, (self._first_day, self._last_day))
        self._sums: dict[int, Sequence[int]] = {}
        self._before = {ANCHOR_YEAR: 0}
        self._known: tuple[list[int], list[Period]] = ([], [])

    def count(self, t_ms: int) -> int:
        return self.period(t_ms).number

    def period(self, t_ms: int) -> Period:
        """The period of an instant."""
        starts, periods = self._known
        place = bisect_right(starts, t_ms) - 1
        if place >= 0 and t_ms < periods[place].end_ms:
            return periods[place]
        found = self._even(t_ms) or self._found(t_ms)
        others = periods if len(periods) < PERIODS_MAX else []
        periods = sorted({*others, found})
        self._known = [period.start_ms for period in periods], periods
        return found

    def instant(self, number: int) -> int:
        year = ANCHOR_YEAR
        while year < LAST_YEAR and self._before_year(year + 1) < number:
            year += 1
        if year == LAST_YEAR:
            return self._last_ms + (number - self._before_year(year) - 1) * self._period_ms
        while year >= FIRST_YEAR and self._before_year(year) >= number:
            year -= 1
        if year < FIRST_YEAR:
            return self._first_ms - (self._before_year(FIRST_YEAR) - number) * self._period_ms
        within = number - self._before_year(year)
        place = bisect_left(self._sums_of(year), within) - 1
        day = day_of(date(year, 1, 1)) + place
        return self._boundaries(day)[within - self._sums_of(year)[place] - 1]

    def _even(self, t_ms: int) -> Period | None:
        """The period of an instant before the first year, or after the last."""
        if self._first_ms <= t_ms < self._last_ms:
            return None
        is_early = t_ms < self._first_ms
        year, base_ms = (FIRST_YEAR, self._first_ms) if is_early else (LAST_YEAR, self._last_ms)
        periods = (t_ms - base_ms) // self._period_ms
        start_ms, before = base_ms + periods * self._period_ms, self._before_year(year)
        return Period(start_ms, start_ms + self._period_ms, before + periods + (not is_early))

    def _found(self, t_ms: int) -> Period:
        day = (t_ms + self._clock.offset_ms(t_ms)) // DAY_MS
        while self._begins(day + 1) <= t_ms:
            day += 1
        while self._begins(day) > t_ms:
            day -= 1
        boundaries, year = self._boundaries(day), date_of(day).year
        place = bisect_right(boundaries, t_ms)
        within = self._sums_of(year)[day - day_of(date(year, 1, 1))]
        number = self._before_year(year) + within + place
        earlier, later = boundaries[:place], boundaries[place:]
        first = last = day
        while not earlier and first > self._first_day:
            first -= 1
            earlier = self._boundaries(first)
        while not later and last < self._last_day - 1:
            last += 1
            later = self._boundaries(last)
        return Period(
            earlier[-1] if earlier else self._first_ms, later[0] if later else self._last_ms, number
        )

    def _before_year(self, year: int) -> int:
        """How many boundaries there were before a year, counted from the anchor."""
        before = self._before
        if year not in before:
            nearer = year - 1 if year > ANCHOR_YEAR else year + 1
            while nearer not in before:
                nearer += 1 if year < ANCHOR_YEAR else -1
            while nearer < year:
                before[nearer + 1] = before[nearer] + self._sums_of(nearer)[-1]
                nearer += 1
            while nearer > year:
                before[nearer - 1] = before[nearer] - self._sums_of(nearer - 1)[-1]
                nearer -= 1
        return before[year]

    def _sums_of(self, year: int) -> Sequence[int]:
        """How many boundaries a year has before each of its days, and at last in all."""
        if (sums := self._sums.get(year)) is None:
            days = range(day_of(date(year, 1, 1)), day_of(date(year + 1, 1, 1)))
            sums = self._sums[year] = (0, *accumulate(map(self._size, days)))
        return sums

    def _begins(self, day: int) -> int:
        return self._clock.first_at(day * DAY_MS)

    def _size(self, day: int) -> int:
        """How many boundaries a day has."""
        odd = self._odd(day)
        return len(odd) if odd is not None else len(self._marks.minutes) if self._marks.on(day) else 0

    def _boundaries(self, day: int) -> Sequence[int]:
        """The boundaries from the first instant of a day to that of the next."""
        if (odd := self._odd(day)) is not None:
            return odd
        begin_ms = self._begins(day)
        return [begin_ms + minute * MINUTE_MS for minute in self._marks.minutes if self._marks.on(day)]

    def _odd(self, day: int) -> Sequence[int] | None:
        """The boundaries of a day on which the clock is set; ``None`` if that is not such a day."""
        marks, clock = self._marks, self._clock
        if not marks.on(day) and not marks.on(day - 1):  # whose last marks may have been jumped over
            return ()
        if not clock.is_set_about(day):
            return None
        begin_ms, end_ms = self._begins(day), self._begins(day + 1)
        found, shown_ms = set[int](), begin_ms + clock.offset_ms(begin_ms - 1)
        while begin_ms < end_ms:
            offset_ms, until_ms = clock.offset_ms(begin_ms), clock.changes_ms(begin_ms, end_ms)
            wall_ms, wall_end_ms = begin_ms + offset_ms, until_ms + offset_ms
            if next(marks.between(shown_ms, wall_ms), None) is not None:
                found.add(begin_ms)
            from_ms = wall_ms if marks.every_hour else max(wall_ms, shown_ms)
            found.update(mark_ms - offset_ms for mark_ms in marks.between(from_ms, wall_end_ms))
            shown_ms = wall_end_ms if marks.every_hour else max(shown_ms, wall_end_ms)
            begin_ms = until_ms
        return sorted(found)
