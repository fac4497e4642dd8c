"""Schedules: other numbers at other times of a wall clock, as a text that records keep.

``600(* 9-16 * * mon-fri);30:50(* * * * sat,sun)@Europe/Berlin`` is 600 in office hours, and 30 with a burst
of 50 at weekends. A *window* holds while the wall clock of the zone shows a minute that it names; the first
that holds says the numbers, and where none does the limit's own count. Windows are of wall-clock minutes: an
hour that a zone leaves out is in none, and one that comes twice is in its window twice.

A *phase* is the time from one change of numbers to the next, in milliseconds.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from functools import lru_cache
from typing import NamedTuple, TypeGuard

from ..exceptions import ValidationError, shown
from .accruals import clock_of
from .calendars import FIRST_YEAR, LAST_YEAR, PERIODS_MAX
from .checks import NUMBER_MAX, TOKENS_MAX
from .cron import DAY_MS, MINUTE_MS, Marks, day_of

WINDOWS_MAX = 16
"""How many windows a limit may have."""

DAYS_MAX = 16
"""Of how many days the changes are remembered."""

_DAY_MINUTES = 1_440
_TEXT = re.compile(r"(?P<windows>[^@]+)(?:@(?P<tz>[^@]+))?")
_WINDOW = re.compile(r"([0-9]{1,19})(?::([0-9]{1,19}))?\(([^();]*)\)")
_RULE = (
    "write AMOUNT[:BURST](WINDOW), one after another with ';' between, and @ZONE at the end "
    "unless it is UTC, such as '600(* 9-16 * * mon-fri)@Europe/Berlin'"
)


class Window(NamedTuple):
    """When it holds, and the numbers that a limit has then."""

    capacity: int
    amount: int
    expression: str
    """The five fields of cron; empty for always."""

    def __str__(self) -> str:
        burst = "" if self.capacity == self.amount else f":{self.capacity}"
        return f"{self.amount}{burst}({self.expression})"


class Phase(NamedTuple):
    """A time in which the numbers stay: from its start on, until its end."""

    start_ms: int
    end_ms: int
    capacity: int
    amount: int


def schedule_text(windows: Sequence[Window], tz: str) -> str:
    """The text for some windows in a time zone."""
    return f"{';'.join(map(str, windows))}@{tz}"


@lru_cache(1024)
def _marks_of(expression: str) -> Marks:
    """When a window holds: read once, for limits are made again and again."""
    return Marks(expression)


@lru_cache(4096)
def windows_of(text: str) -> tuple[tuple[Window, ...], str]:
    """The windows that a text names, and the zone."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValidationError("schedule", text, _RULE)
    windows = []
    for part in found["windows"].split(";"):
        if (window := _WINDOW.fullmatch(part.strip())) is None:
            raise ValidationError("schedule", text, f"{shown(part)} is no window; {_RULE}")
        amount, burst, expression = window.groups()
        numbers = int(amount if burst is None else burst), int(amount)
        windows.append(Window(*numbers, " ".join(expression.lower().split())))
    return tuple(windows), (found["tz"] or "UTC").strip()


def check_schedule(field_name: str, text: str) -> str:
    """A schedule that a limit may have, as it is kept."""
    if not isinstance(text, str):
        raise ValidationError(field_name, text, f"it must be text, not {type(text).__name__}; {_RULE}")
    try:
        windows, tz = windows_of(text)
        clock_of(tz)
        for window in windows:
            _marks_of(window.expression)
        said = _fault(windows)
    except ValidationError as error:
        why = (
            error.reason
            if error.field == "schedule"
            else f"{error.field} {shown(error.value)}: {error.reason}"
        )
        raise ValidationError(field_name, text, why) from None
    if said is not None:
        raise ValidationError(field_name, text, said)
    return schedule_text(windows, tz)


def is_schedule(value: object) -> TypeGuard[str]:
    """Whether a stored value is a schedule that this process knows, with the numbers for all other times."""
    return isinstance(value, str) and _is_known(value)


@lru_cache(4096)
def _is_known(text: str) -> bool:
    with suppress(ValidationError):
        schedule_of(text)
        return True
    return False


def mapped(text: str, change: Callable[[int], int]) -> str:
    """A schedule with other numbers."""
    windows, tz = windows_of(text)
    return schedule_text([Window(change(cp), change(ra), when) for cp, ra, when in windows], tz)


def with_rest(text: str, capacity: int, amount: int) -> str:
    """A schedule in thousandths of its numbers, which says itself what counts the rest of the time."""
    windows, tz = windows_of(text)
    inside = [Window(cp * 1000, ra * 1000, when) for cp, ra, when in windows]
    return schedule_text([*inside, Window(capacity, amount, "")], tz)


@lru_cache(4096)
def schedule_of(text: str) -> Schedule:
    """The phases of a schedule that says what counts the rest of the time."""
    return Schedule(*windows_of(text))


def window_at(text: str, t_ms: int) -> str | None:
    """The window that says the numbers of an instant; ``None`` if the limit's own count."""
    windows, tz = windows_of(text)
    day, in_day_ms = divmod(t_ms + clock_of(tz).offset_ms(t_ms), DAY_MS)
    for window in windows:
        marks = _marks_of(window.expression)
        if marks.on(day) and in_day_ms // MINUTE_MS in marks.minutes:
            return window.expression
    return None


@lru_cache(1024)
def places_reached(expressions: tuple[str, ...]) -> set[int]:
    """Which of some windows hold first at some time, by their places; the last place is that of no window."""
    return _Winners(expressions).reached()


class Schedule:
    """Which numbers count at an instant, and until when."""

    def __init__(self, windows: Sequence[Window], tz: str) -> None:
        *inside, rest = windows
        if rest.expression or any(not window.expression for window in inside):
            raise ValidationError("schedule", schedule_text(windows, tz), "only its last window is always")
        if any(not 0 <= cp <= TOKENS_MAX * 1000 or not 0 < ra <= TOKENS_MAX * 1000 for cp, ra, _ in windows):
            raise ValidationError(
                "schedule", schedule_text(windows, tz), "one of its numbers is out of range"
            )
        self._numbers = [(window.capacity, window.amount) for window in windows]
        self.capacity_max: int = max(capacity for capacity, _ in self._numbers)
        self.amount_min: int = min(amount for _, amount in self._numbers)
        """The least that comes in a period, whenever that is."""
        self._winners, self._clock = _Winners(window.expression for window in inside), clock_of(tz)
        self._first_day, self._last_day = (day_of(date(year, 1, 1)) for year in (FIRST_YEAR, LAST_YEAR))
        self._known: tuple[list[int], list[Phase]] = ([], [])
        self._by_day: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}

    def phase(self, t_ms: int) -> Phase:
        """The phase of an instant."""
        starts, phases = self._known
        place = bisect_right(starts, t_ms)
        if place and t_ms < phases[place - 1].end_ms:
            return phases[place - 1]
        found = self._found(t_ms)
        if len(phases) < PERIODS_MAX:  # others may be looking at what is known: it is replaced, not changed
            self._known = (
                [*starts[:place], found.start_ms, *starts[place:]],
                [*phases[:place], found, *phases[place:]],
            )
        else:
            self._known = [found.start_ms], [found]
        return found

    def _found(self, t_ms: int) -> Phase:
        if len(set(self._numbers)) == 1:  # of no day is there anything to find
            return Phase(-NUMBER_MAX, NUMBER_MAX, *self._numbers[0])
        day = self._first_day if t_ms < 0 else self._last_day
        if abs(t_ms) < 2**44:
            day = (t_ms + self._clock.offset_ms(t_ms)) // DAY_MS
        day = min(max(day, self._first_day), self._last_day - 1)
        first = next(i for i in (1, 0, -1, -2) if self._begins(day + i) <= t_ms or i == -2)
        day = min(max(day + first, self._first_day), self._last_day - 1)
        starts, each = self._runs(day)
        place = bisect_right(starts, t_ms) - 1
        if place < 0:  # before all that is known
            return Phase(-NUMBER_MAX, starts[0], *self._numbers[-1])
        numbers, start_ms = each[place], starts[place]
        is_last = place + 1 == len(starts)
        end_ms = self._next_other(day + 1, numbers) if is_last else starts[place + 1]
        if start_ms == self._begins(day):
            start_ms = self._last_other(day - 1, numbers, start_ms)
        if t_ms >= end_ms:  # after all that is known
            return Phase(end_ms, NUMBER_MAX, *self._numbers[-1])
        return Phase(start_ms, end_ms, *numbers)

    def _next_other(self, day: int, numbers: tuple[int, int]) -> int:
        """The first instant from a day on that has other numbers."""
        while day < self._last_day:
            if self._winners.alone(day, self._clock.is_set_about(day), self._numbers) != numbers:
                for at_ms, each in self._changes(day):
                    if each != numbers:
                        return at_ms
            day += 1
        return self._begins(self._last_day)

    def _last_other(self, day: int, numbers: tuple[int, int], start_ms: int) -> int:
        """Since when these numbers count, of which all is known from an instant on."""
        while day >= self._first_day:
            if self._winners.alone(day, self._clock.is_set_about(day), self._numbers) != numbers:
                changes = list(self._changes(day))
                for at_ms, each in reversed(changes):
                    if each != numbers:
                        return start_ms
                    start_ms = at_ms
            else:
                start_ms = self._begins(day)
            day -= 1
        return start_ms

    def _runs(self, day: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Since when which numbers count on a day that others count before: a day may have a thousand."""
        if (known := self._by_day.get(day)) is None:
            starts, numbers = list[int](), list[tuple[int, int]]()
            for at_ms, each in self._changes(day):
                if not numbers or numbers[-1] != each:
                    starts.append(at_ms)
                    numbers.append(each)
            if len(self._by_day) >= DAYS_MAX:
                self._by_day.clear()
            known = self._by_day[day] = starts, numbers
        return known

    def _begins(self, day: int) -> int:
        return self._clock.first_at(day * DAY_MS)

    def _changes(self, day: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Since when which numbers count, from the first instant of a day to that of the next."""
        clock, begin_ms = self._clock, self._begins(day)
        if not clock.is_set_about(day):
            for minute, place in self._winners.on(day):
                yield begin_ms + minute * MINUTE_MS, self._numbers[place]
            return
        end_ms = self._begins(day + 1)
        while begin_ms < end_ms:  # as long as it is not set again
            until_ms, offset_ms = clock.changes_ms(begin_ms, end_ms), clock.offset_ms(begin_ms)
            wall_ms, wall_end_ms = begin_ms + offset_ms, until_ms + offset_ms
            for shown_day in range(wall_ms // DAY_MS, (wall_end_ms - 1) // DAY_MS + 1):
                runs = self._winners.on(shown_day)
                for (minute, place), (after, _) in zip(runs, (*runs[1:], (_DAY_MINUTES, -1)), strict=True):
                    from_ms, to_ms = (shown_day * DAY_MS + m * MINUTE_MS for m in (minute, after))
                    if from_ms < wall_end_ms and to_ms > wall_ms:
                        yield max(from_ms, wall_ms) - offset_ms, self._numbers[place]
            begin_ms = until_ms


class _Winners:
    """Which window holds first, by the minutes of a day of the wall clock."""

    def __init__(self, expressions: Iterable[str]) -> None:
        self._marks = [_marks_of(expression) for expression in expressions]
        self._by_active: dict[tuple[int, ...], tuple[tuple[int, int], ...]] = {}
        self._by_day: dict[int, tuple[tuple[int, int], ...]] = {}

    def on(self, day: int) -> tuple[tuple[int, int], ...]:
        """From which minutes on which place wins, of one day."""
        if (runs := self._by_day.get(day)) is None:
            active = tuple(place for place, marks in enumerate(self._marks) if marks.on(day))
            if len(self._by_day) >= PERIODS_MAX:
                self._by_day.clear()
            runs = self._by_day[day] = self.among(active)
        return runs

    def among(self, active: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        if (runs := self._by_active.get(active)) is None:
            rest, by_minute = len(self._marks), dict[int, int]()
            for place in reversed(active):
                by_minute |= dict.fromkeys(self._marks[place].minutes, place)
            winners = [by_minute.get(minute, rest) for minute in range(_DAY_MINUTES)]
            changes = (m for m in range(_DAY_MINUTES) if m == 0 or winners[m] != winners[m - 1])
            runs = self._by_active[active] = tuple((minute, winners[minute]) for minute in changes)
        return runs

    def alone(self, day: int, is_set: bool, numbers: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """The numbers that count for a whole day, if there are such."""
        runs = self.on(day)
        if is_set:
            return None
        said = {numbers[place] for _, place in runs}
        return said.pop() if len(said) == 1 else None

    def reached(self) -> set[int]:
        """The places that win at some time: each date falls on each day of the week in the end."""
        years = ((1996, 2025),)
        days = (
            day for first, end in years for day in range(day_of(date(first, 1, 1)), day_of(date(end, 1, 1)))
        )
        kinds = {tuple(place for place, marks in enumerate(self._marks) if marks.on(day)) for day in days}
        return {place for active in kinds for _, place in self.among(active)}


@lru_cache(1024)
def _fault(windows: tuple[Window, ...]) -> str | None:
    """What is wrong with some windows, if something is."""
    if len(windows) > WINDOWS_MAX:
        return f"{len(windows)} windows are too many; use at most {WINDOWS_MAX}"
    for place, window in enumerate(windows):
        for what, number in (("amount", window.amount), ("burst", window.capacity)):
            if not 1 <= number <= TOKENS_MAX:
                return f"the {what} of {str(window)!r} must be from 1 to {TOKENS_MAX}"
        if window.expression in [earlier.expression for earlier in windows[:place]]:
            return f"the window {window.expression!r} is there twice; keep one of them"
    reached = places_reached(tuple(window.expression for window in windows))
    for place, window in enumerate(windows):
        if place not in reached:
            return (
                f"the window {window.expression!r} never holds: that day never comes, or the windows before "
                "it hold whenever it would; leave it out, or put it first"
            )
    if len(reached) == 1:
        return f"the window {windows[0].expression!r} always holds; give its numbers to the limit itself"
    return None
