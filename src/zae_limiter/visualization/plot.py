"""Usage as charts: a panel for each limit, all on one axis of time. Pure: numbers to lines.

Where the limit is not far above what was used, a line shows what it lets through. Colours are part of the
text that is returned; whoever prints it knows whether they can be shown, and nothing is said by them alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from ..models.windows import UNITS
from .bars import BLOCKS, Ink
from .panel import LINE, Panel, scale_of
from .shares import layers_of, legend, shares_of
from .timeline import Bars, Fold, Timeline, folded, start_of
from .wording import short, wrapped

WIDTH_MIN = 24
LABEL_MAX = 5  # letters of the longest number at the side, such as -1.5k
MONEY_LABEL_MAX = 10  # and of an amount of money, such as -$0.000005
BAR_COLUMNS_MAX = 6


def usage_chart(
    line: Timeline,
    width: int,
    fold: Fold = Fold.SUM,
    ink: Ink = BLOCKS,
    allowed: Mapping[str, int] | None = None,
    shares: Mapping[str, Timeline] | None = None,
    units: Mapping[str, str] | None = None,
) -> Text:
    """The use of every limit over time, no line wider than the terminal.

    ``allowed`` is what a limit lets through in one window; ``shares`` is what each entity used, by its name.
    ``units`` are those of limits that count money.
    """
    width = max(width, WIDTH_MIN)
    units = {name: unit for name, unit in (units or {}).items() if name in line.used}
    columns = width - (MONEY_LABEL_MAX if units else LABEL_MAX) - 1
    bars = folded(line, columns, fold)
    each = min(BAR_COLUMNS_MAX, columns // bars.length)
    windows = bars.each if fold is Fold.SUM else 1
    lets = {name: amount * windows for name, amount in (allowed or {}).items() if name in bars.heights}
    scales = {name: scale_of(heights, lets.get(name)) for name, heights in bars.heights.items()}
    gutter = max(len(short(tick, units.get(name))) for name, ticks in scales.items() for tick in ticks)
    parts = []
    for name in bars.heights:
        room = width - gutter - 1
        panel = Panel(bars, each, gutter, scales[name], lets.get(name), ink, units.get(name), room)
        parts += [*_part(panel, name, shares or {}, width), Text()]
    return Text("\n").join([*parts, *map(Text, wrapped(_caption(bars), width))])


def _part(panel: Panel, name: str, shares: Mapping[str, Timeline], width: int) -> list[Text]:
    """A panel with what is said above and below it."""
    bars, used = panel.bars, panel.bars.timeline.used[name].values()
    unit = UNITS[bars.timeline.window]
    title = f"{name}: {panel.told(sum(used))} used, at most {panel.told(max(used))} in one {unit}"
    rows = shares_of(panel, name, shares)
    layers = layers_of(panel, rows) if rows else []
    lines = [*map(Text, wrapped(title, width)), *panel.drawn(bars.heights[name], layers)]
    if panel.lets is not None:
        sign = "" if panel.line_row is None else f"{panel.ink.limit * 2} "
        windows = bars.each if bars.fold is Fold.SUM else 1
        span = f"one {unit}" if windows == 1 else f"{windows} {unit}s"
        said = wrapped(f"{sign}{name} lets {panel.told(panel.lets)} through in {span}", width)
        lines += [Text(line, LINE if n == 0 and sign else "") for n, line in enumerate(said)]
    return [*lines, *legend(panel, rows, width, is_stacked=bool(layers))] if rows else lines


def _caption(bars: Bars) -> str:
    """What a bar stands for, and from when to when."""
    line, unit = bars.timeline, UNITS[bars.timeline.window]
    means = f"the {'sum' if bars.fold is Fold.SUM else 'busiest'} of {bars.each} {unit}s"
    start, end = start_of(line.window, line.first), start_of(line.window, line.last + 1)
    span = f"from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
    return f"each bar is {means if bars.each > 1 else f'one {unit}'}; {span}"
