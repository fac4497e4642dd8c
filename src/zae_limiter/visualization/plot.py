"""Usage drawn with plotext: a panel for each limit, all on one axis of time. Pure: numbers to lines.

plotext has one figure for the whole process, so drawing holds a lock; its colours are left out. Every
bar is drawn in whole columns, so bars of the same height look the same wherever they stand.
"""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..exceptions import InfrastructureError
from .bars import BLOCKS, Ink
from .timeline import UNITS, Bars, Fold, Timeline, folded, start_of

WIDTH_MIN = 24
LABEL_MAX = 5
"""Letters of the longest number at the side, such as -1.5k."""
FRAME = 2
BAR_COLUMNS_MAX = 6
ROWS = 8
"""Rows of a panel, without its axis."""

_ASCII = str.maketrans({**dict.fromkeys("┌┐└┘┤├┬┴┼", "+"), "─": "-", "│": "|"})
_figure = threading.Lock()


def usage_chart(
    line: Timeline, width: int, fold: Fold = Fold.SUM, ink: Ink = BLOCKS, rows: int = ROWS
) -> str:
    """The use of every limit over time, no line wider than the terminal."""
    width = max(width, WIDTH_MIN)
    columns = width - LABEL_MAX - FRAME
    bars = folded(line, columns, fold)
    scales = {name: _scale(heights) for name, heights in bars.heights.items()}
    gutter = max((len(_short(tick)) for scale in scales.values() for tick in scale), default=1)
    each = min(BAR_COLUMNS_MAX, columns // bars.length)
    panels = []
    for name, heights in bars.heights.items():
        panel = Panel(bars, each, gutter, rows, scales[name])
        panels.append("\n".join([*textwrap.wrap(_title(line, name), width), *_drawn(panel, heights, ink)]))
    return "\n\n".join([*panels, textwrap.fill(_caption(bars), width)])


class Panel(NamedTuple):
    """How bars are laid out: columns of each, letters of labels, rows, the lowest and the highest number."""

    bars: Bars
    each: int
    gutter: int
    rows: int
    scale: tuple[int, int]

    @property
    def columns(self) -> int:
        return self.bars.length * self.each

    @property
    def ticks(self) -> list[int]:
        """The numbers at the side; nought is left out where another has its row."""
        low, high = self.scale
        row = round(-low / (high - low) * (self.rows - 1))
        return [low, high] if low < 0 and row in (0, self.rows - 1) else sorted({low, 0, high})


def _drawn(panel: Panel, heights: Sequence[int], ink: Ink) -> list[str]:
    """The bars in their frame. A bar of nothing is not drawn, the smallest one is a cell."""
    plotext = _plotext()
    each, gap = panel.each, 1 if panel.each > 2 else 0
    places = [bar * each + column for bar in range(panel.bars.length) for column in range(each - gap)]
    points = [(x, heights[x // each]) for x in places if heights[x // each]]
    marks = _marks(panel)
    with _figure:
        figure = plotext.figure
        figure.clear()
        plotext.terminal.limit(False, False)  # the width is ours to choose, wherever the text goes
        figure.plot_size(panel.columns + panel.gutter + FRAME, panel.rows + 2 + bool(marks))
        bar: Any = figure.signal([x for x, _ in points], [y for _, y in points], marker=ink.full)
        figure.draw(bar.fillx())
        figure.ruler("x").lim(0, panel.columns - 1)
        figure.ruler("y").lim(*panel.scale)
        labels = [f"{_short(tick):>{panel.gutter}}" for tick in panel.ticks]
        figure.ruler("y").ticks(panel.ticks, labels=labels)
        figure.ruler("x").ticks([x for x, _ in marks], labels=[label for _, label in marks])
        text: str = figure.build().string(colorless=True)
    lines = [part.rstrip() for part in text.rstrip("\n").split("\n")]
    return lines if ink is BLOCKS else [part.translate(_ASCII) for part in lines]


def _plotext() -> Any:
    try:
        import plotext  # type: ignore[import-untyped]
    except ImportError as error:
        raise InfrastructureError(
            'charts need plotext, which is not installed; run: pip install "zae-limiter[cli]"'
        ) from error
    return plotext


def _marks(panel: Panel) -> list[tuple[int, str]]:
    """Where the axis of time is labelled, and how; as often as the labels have room."""
    bars, each = panel.bars, panel.each
    letters = len(_time(bars, 0))
    if letters > panel.columns:
        return []
    apart = -(-(letters + 2) // each)
    found = [bar for bar in range(0, bars.length, apart) if not bar or bar * each + letters <= panel.columns]
    return [(bar * each, _time(bars, bar)) for bar in found]


def _time(bars: Bars, bar: int) -> str:
    start = bars.start_of(bar)
    match UNITS[bars.timeline.window]:
        case "month":
            return f"{start:%Y-%m}"
        case "day":
            return f"{start:%Y-%m-%d}"
        case _ if bars.timeline.first // 24 == bars.timeline.last // 24:
            return f"{start:%H:%M}"
        case _:
            return f"{start:%m-%d %H:%M}"


def _caption(bars: Bars) -> str:
    """What a bar stands for, and from when to when."""
    line, unit = bars.timeline, UNITS[bars.timeline.window]
    if bars.each == 1:
        means = f"one {unit}"
    elif bars.fold is Fold.SUM:
        means = f"the sum of {bars.each} {unit}s"
    else:
        means = f"the busiest of {bars.each} {unit}s"
    start, end = start_of(line.window, line.first), start_of(line.window, line.last + 1)
    return f"each bar is {means}; from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"


def _title(line: Timeline, name: str) -> str:
    used = line.used[name].values()
    return f"{name}: {sum(used):,} used, at most {max(used):,} in one {UNITS[line.window]}"


def _scale(heights: Sequence[int]) -> tuple[int, int]:
    """The lowest and the highest number at the side, which are never the same."""
    low, high = -_round_up(-min(heights)), _round_up(max(heights))
    return low, high if high > low else 1


def _round_up(amount: int) -> int:
    """The next number that reads well.

    >>> [_round_up(amount) for amount in (0, 1, 7, 11, 49, 50, 1201, 98_765)]
    [0, 1, 8, 15, 50, 50, 1500, 100000]
    """
    if amount <= 0:
        return 0
    power: int = 10 ** (len(str(amount)) - 1)
    steps = (step * power for step in (10, 15, 20, 30, 40, 50, 60, 80, 100))
    return next(step // 10 for step in steps if step % 10 == 0 and step >= 10 * amount)


def _short(amount: int) -> str:
    """A number that reads well, in few letters.

    >>> [_short(amount) for amount in (0, 500, 1500, 2000, -50_000, 1_000_000, 20_000_000_000)]
    ['0', '500', '1.5k', '2k', '-50k', '1M', '20G']
    """
    for power, letter in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(amount) >= 10**power:
            return f"{amount / 10**power:g}{letter}"
    return str(amount)
