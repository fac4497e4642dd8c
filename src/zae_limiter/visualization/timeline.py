"""Usage over time: snapshots of one kind of window, added up by window and folded into bars. Pure.

Windows have numbers (hours, days or months since the epoch), so that gaps cost nothing: a window in
which nothing was used has no snapshot and counts as nothing. All times are in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import count
from typing import NamedTuple

from ..models import UsageSnapshot, UsageWindow

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

STEPS = {
    UsageWindow.HOURLY: (1, 2, 3, 4, 6, 8, 12, 24, 48, 72, 168),
    UsageWindow.DAILY: (1, 2, 7, 14, 28),
    UsageWindow.MONTHLY: (1, 2, 3, 6, 12),
}
"""How many windows make a bar that people can name; beyond that, multiples of the last."""

ORIGINS = {UsageWindow.HOURLY: 0, UsageWindow.DAILY: 4, UsageWindow.MONTHLY: 0}
"""From where bars are counted off, so that they start at midnight, on Mondays and in January."""

UNITS = {UsageWindow.HOURLY: "hour", UsageWindow.DAILY: "day", UsageWindow.MONTHLY: "month"}


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


class Bars(NamedTuple):
    """A timeline in as many bars as fit, each for ``each`` windows from the first window's own on."""

    timeline: Timeline
    each: int
    fold: Fold
    heights: Mapping[str, tuple[int, ...]]

    @property
    def length(self) -> int:
        return len(_bars(self.timeline, self.each))

    def start_of(self, bar: int) -> datetime:
        window = self.timeline.window
        return start_of(window, _bars(self.timeline, self.each)[bar] * self.each + ORIGINS[window])


def timeline(snapshots: Iterable[UsageSnapshot]) -> Timeline | None:
    """Snapshots of one kind of window, whosever they are, added up; ``None`` if there are none."""
    used: dict[str, dict[int, int]] = {}
    numbers: set[int] = set()
    kind: UsageWindow | None = None
    for snapshot in snapshots:
        kind = kind or snapshot.window_type
        assert snapshot.window_type is kind, f"{kind} and {snapshot.window_type} windows do not add up"
        number = number_of(kind, datetime.fromisoformat(snapshot.window_start))
        numbers.add(number)
        for name, amount in snapshot.counters.items():
            of_limit = used.setdefault(name, {})
            of_limit[number] = of_limit.get(number, 0) + amount
    if kind is None:
        return None
    return Timeline(kind, min(numbers), max(numbers), {name: used[name] for name in sorted(used)})


def folded(line: Timeline, bars_max: int, fold: Fold = Fold.SUM) -> Bars:
    """A timeline in at most so many bars."""
    each = next(each for each in _steps(line.window) if len(_bars(line, each)) <= max(2, bars_max))
    bars = _bars(line, each)
    heights = {}
    for name, used in line.used.items():
        met: list[list[int]] = [[] for _ in bars]
        for number, amount in used.items():
            met[(number - ORIGINS[line.window]) // each - bars.start].append(amount)
        heights[name] = tuple(_height(amounts, each, fold) for amounts in met)
    return Bars(line, each, fold, heights)


def _height(amounts: list[int], windows: int, fold: Fold) -> int:
    """What a bar says of the windows that were used; the others used nothing."""
    if fold is Fold.SUM:
        return sum(amounts)
    return max(amounts if len(amounts) == windows else [*amounts, 0])


def _steps(window: UsageWindow) -> Iterator[int]:
    yield from STEPS[window]
    yield from count(2 * STEPS[window][-1], STEPS[window][-1])


def _bars(line: Timeline, each: int) -> range:
    """The numbers of the bars that hold a timeline."""
    origin = ORIGINS[line.window]
    return range((line.first - origin) // each, (line.last - origin) // each + 1)


def number_of(window: UsageWindow, start: datetime) -> int:
    """Which window of its kind one is."""
    if window is UsageWindow.MONTHLY:
        return (start.year - 1970) * 12 + start.month - 1
    return (start - EPOCH) // _length(window)


def start_of(window: UsageWindow, number: int) -> datetime:
    """When a window starts."""
    if window is UsageWindow.MONTHLY:
        return datetime(1970 + number // 12, number % 12 + 1, 1, tzinfo=UTC)
    return EPOCH + number * _length(window)


def _length(window: UsageWindow) -> timedelta:
    return timedelta(hours=1) if window is UsageWindow.HOURLY else timedelta(days=1)
