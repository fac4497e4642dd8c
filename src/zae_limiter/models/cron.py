"""Marks on a wall clock, written in the five fields of cron: minute, hour, day, month, day of the week.

Wall clocks know nothing of zones here: a time of day is a number of minutes, a day is counted from the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from functools import lru_cache

from ..exceptions import ValidationError, shown

DAY_MS = 86_400_000
MINUTE_MS = 60_000

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("day of the week", 0, 7))
_RULE = "write minute, hour, day, month and day of the week, such as '0 6 * * 1' for Mondays at six"
_PART = re.compile(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")


def day_of(when: date) -> int:
    """A date as the number of its day since the epoch."""
    return when.toordinal() - _EPOCH_ORDINAL


def date_of(day: int) -> date:
    return date.fromordinal(day + _EPOCH_ORDINAL)


class Marks:
    """The minutes of a wall clock that an expression names."""

    def __init__(self, expression: str) -> None:
        words = expression.lower().split() if isinstance(expression, str) else []
        if len(words) != len(_FIELDS):
            raise ValidationError("cron", expression, _RULE)
        words[3] = _numbered(words[3], _MONTHS, 1)
        words[4] = _numbered(words[4], _WEEKDAYS, 0)
        minutes, hours, self._days, self._months, weekdays = (
            _numbers(expression, word, *field) for word, field in zip(words, _FIELDS, strict=True)
        )
        self._weekdays = {weekday % 7 for weekday in weekdays}
        # As cron has it: where both are given a day of either kind will do.
        self._either = words[2][0] != "*" and words[4][0] != "*"
        self.minutes: tuple[int, ...] = tuple(
            hour * 60 + minute for hour in sorted(hours) for minute in sorted(minutes)
        )
        self.every_hour: bool = len(hours) == 24
        """Whether no hour is like another, so that one that comes twice counts twice."""

    def on(self, day: int) -> bool:
        """Whether a day has marks."""
        when = date_of(day)
        by_day, by_weekday = when.day in self._days, when.isoweekday() % 7 in self._weekdays
        fits = by_day or by_weekday if self._either else by_day and by_weekday
        return fits and when.month in self._months

    def between(self, first_ms: int, end_ms: int) -> Iterator[int]:
        """The marks from one wall time to another, in milliseconds; the last is not among them."""
        for day in range(first_ms // DAY_MS, (end_ms - 1) // DAY_MS + 1):
            for minute in self.minutes if self.on(day) else ():
                at_ms = day * DAY_MS + minute * MINUTE_MS
                if first_ms <= at_ms < end_ms:
                    yield at_ms


@lru_cache(1024)
def longest_seconds(expression: str) -> int:
    """The longest time between two marks of an expression; one that never comes is refused."""
    marks, longest, before = Marks(expression), 0, None
    # 28 years have every kind of year; 2100 is the next that leaves a leap day out.
    years = ((1996, 2025), (2092, 2109))
    for first, end in years:
        for day in range(day_of(date(first, 1, 1)), day_of(date(end, 1, 1))):
            if marks.on(day):
                if before is not None:
                    longest = max(longest, (day - before) * 1440 - marks.minutes[-1] + marks.minutes[0])
                before = day
        if before is None:
            raise ValidationError("cron", expression, "that day never comes")
        before = None
    within = (later - earlier for earlier, later in zip(marks.minutes, marks.minutes[1:], strict=False))
    return max(longest, *within, 0) * 60


def _numbered(word: str, names: Sequence[str], first: int) -> str:
    """A field whose names are numbers."""
    for number, name in enumerate(names, first):
        word = re.sub(rf"\b{name}\b", str(number), word)
    return word


def _numbers(expression: str, word: str, field: str, least: int, most: int) -> set[int]:
    found: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValidationError("cron", expression, f"{shown(part)} is no {field}; {_RULE}")
        first, last, step = (None if number is None else int(number) for number in match.groups())
        if first is None:
            first, last = least, most
        elif last is None:
            last = first if step is None else most
        if least <= last < first <= most:
            around = ",".join((f"{first}-{most}", f"{least}-{last}"))
            reason = f"{shown(part)} runs backwards; write {around} if the {field} is to go round"
            raise ValidationError("cron", expression, reason)
        if not least <= first <= last <= most or step == 0:
            raise ValidationError("cron", expression, f"{shown(part)} is no {field} from {least} to {most}")
        found.update(range(first, last + 1, step or 1))
    return found
