"""Usage over time: snapshots of one kind of window, added up by window and folded into bars. Pure.

Windows have numbers (hours, days or months since the epoch), so that gaps cost nothing: a window in
which nothing was used has no snapshot and counts as nothing. All times are in UTC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import chain, count
from typing import NamedTuple

from ..models import UsageSnapshot, UsageWindow

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LENGTHS = {UsageWindow.HOURLY: timedelta(hours=1), UsageWindow.DAILY: timedelta(days=1)}

STEPS: dict[UsageWindow, tuple[int, ...]] = {
    UsageWindow.HOURLY: (1, 2, 3, 4, 6, 8, 12, 24, 48, 72, 168),
    UsageWindow.DAILY: (1, 2, 7, 14, 28),
    UsageWindow.MONTHLY: (1, 2, 3, 6, 12),
}
"""How many windows make a bar that people can name; beyond that, multiples of the last."""

ORIGINS = {UsageWindow.HOURLY: 4 * 24, UsageWindow.DAILY: 4, UsageWindow.MONTHLY: 0}
"""From where bars are counted off, so that they start at midnight, on Mondays and in January."""


class Fold(StrEnum):
    """What one bar says of several windows."""

    SUM = "sum"
    MAX = "max"


class Timeline(NamedTuple):
    """What was used of each limit, by the number of the window, between the first window and the last."""

    window: UsageWindow
    first: int
    last: int
    used: Mapping[str, Mapping[int, int]]

    def numbers(self, each: int) -> range:
        """The numbers of the bars that hold it, each for so many windows."""
        origin = ORIGINS[self.window]
        return range((self.first - origin) // each, (self.last - origin) // each + 1)


class Bars(NamedTuple):
    """A timeline in as many bars as fit, each for ``each`` windows from the first window's own on."""

    timeline: Timeline
    each: int
    fold: Fold
    heights: Mapping[str, tuple[int, ...]]

    @property
    def length(self) -> int:
        return len(self.timeline.numbers(self.each))

    def start_of(self, bar: int) -> datetime:
        window, number = self.timeline.window, self.timeline.numbers(self.each)[bar]
        return start_of(window, number * self.each + ORIGINS[window])


def timeline(snapshots: Iterable[UsageSnapshot]) -> Timeline | None:
    """Snapshots of one kind of window, whosever they are, added up; ``None`` if there are none."""
    used: dict[str, Counter[int]] = {}
    numbers: set[int] = set()
    kind: UsageWindow | None = None
    for snapshot in snapshots:
        kind = kind or snapshot.window_type
        assert snapshot.window_type is kind, f"{kind} and {snapshot.window_type} windows do not add up"
        number = number_of(kind, datetime.fromisoformat(snapshot.window_start))
        numbers.add(number)
        for name, amount in snapshot.counters.items():
            used.setdefault(name, Counter())[number] += amount
    if kind is None:
        return None
    return Timeline(kind, min(numbers), max(numbers), dict(sorted(used.items())))


def folded(line: Timeline, bars_max: int, fold: Fold = Fold.SUM) -> Bars:
    """A timeline in at most so many bars."""
    steps, last = STEPS[line.window], STEPS[line.window][-1]
    each = next(n for n in chain(steps, count(2 * last, last)) if len(line.numbers(n)) <= max(2, bars_max))
    bars, heights = line.numbers(each), {}
    for name, used in line.used.items():
        met: list[list[int]] = [[] for _ in bars]
        for number, amount in used.items():
            met[(number - ORIGINS[line.window]) // each - bars.start].append(amount)
        # A window that nobody used counts as nothing.
        peaks = (max(amounts if len(amounts) == each else [*amounts, 0]) for amounts in met)
        heights[name] = tuple(map(sum, met) if fold is Fold.SUM else peaks)
    return Bars(line, each, fold, heights)


def number_of(window: UsageWindow, start: datetime) -> int:
    """Which window of its kind one is."""
    if window is UsageWindow.MONTHLY:
        return (start.year - 1970) * 12 + start.month - 1
    return (start - EPOCH) // LENGTHS[window]


def start_of(window: UsageWindow, number: int) -> datetime:
    """When a window starts."""
    if window is UsageWindow.MONTHLY:
        return datetime(1970 + number // 12, number % 12 + 1, 1, tzinfo=UTC)
    return EPOCH + number * LENGTHS[window]
