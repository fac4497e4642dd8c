"""Usage as charts: a panel for each limit, all on one axis of time. Pure: numbers to lines.

Bars are drawn in eighths of a row and in whole columns, so that bars of the same height look the same
wherever they stand. A number at the side stands on the row whose upper edge it is, a time below the first
column of its bar. Where the limit is not far above what was used, a line shows what it lets through.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..models.money import MICRO, SIGNS, currency_of, decimal, grouped_amount
from .bars import BLOCKS, Ink, bar, diverging
from .timeline import UNITS, Bars, Fold, Timeline, folded, start_of

WIDTH_MIN = 24
LABEL_MAX = 5  # letters of the longest number at the side, such as -1.5k
MONEY_LABEL_MAX = 10  # and of an amount of money, such as -$0.000005
DIGITS_MAX = 4  # that count, in a number that has to be short
BAR_COLUMNS_MAX = 6
ROWS = 8  # about as many, so that every number stands on a row
TICKS_MAX = 5  # numbers at the side, besides nought
SHARES_MAX = 5  # entities one by one, or twice as many if each takes one line; the others are added up
SHARE_BAR, SHARE_BAR_MAX = 12, 40  # columns that a bar beside a name needs, and the most that one takes


def usage_chart(
    line: Timeline,
    width: int,
    fold: Fold = Fold.SUM,
    ink: Ink = BLOCKS,
    allowed: Mapping[str, int] | None = None,
    shares: Mapping[str, Timeline] | None = None,
    units: Mapping[str, str] | None = None,
) -> str:
    """The use of every limit over time, no line wider than the terminal.

    ``allowed`` is what a limit lets through in one window; ``shares`` is what each entity used, by its name.
    ``units`` are those of limits that count money.
    """
    width = max(width, WIDTH_MIN)
    units = {name: unit for name, unit in (units or {}).items() if name in line.used}
    columns = width - (MONEY_LABEL_MAX if units else LABEL_MAX) - 1
    bars = folded(line, columns, fold)
    each = min(BAR_COLUMNS_MAX, columns // bars.length)
    windows, unit = bars.each if fold is Fold.SUM else 1, UNITS[line.window]
    lets = {name: amount * windows for name, amount in (allowed or {}).items() if name in bars.heights}
    scales = {name: scale_of(heights, lets.get(name)) for name, heights in bars.heights.items()}
    gutter = max(len(_short(tick, units.get(name))) for name, ticks in scales.items() for tick in ticks)
    parts = []
    for name, heights in bars.heights.items():
        panel = Panel(bars, each, gutter, scales[name], lets.get(name), ink, units.get(name))
        used = line.used[name].values()
        title = f"{name}: {panel.told(sum(used))} used, at most {panel.told(max(used))} in one {unit}"
        lines = [*textwrap.wrap(title, width), *panel.drawn(heights)]
        if name in lets:
            sign = "" if panel.line_row is None else f"{ink.limit * 2} "
            span = f"one {unit}" if windows == 1 else f"{windows} {unit}s"
            lines += textwrap.wrap(f"{sign}{name} lets {panel.told(lets[name])} through in {span}", width)
        if shares and any(line.used.get(name) for line in shares.values()):
            lines += _shares(panel, name, shares, width)
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, textwrap.fill(_caption(bars), width)])


def scale_of(heights: Sequence[int], lets: int | None = None) -> tuple[int, ...]:
    """Numbers that read well, around all heights; the limit is among them unless it is far above.

    >>> [scale_of([height]) for height in (1, 7, 49, 1201)]
    [(0, 1), (0, 2, 4, 6, 8), (0, 10, 20, 30, 40, 50), (0, 500, 1000, 1500)]
    """
    lowest, highest = min(0, *heights), max(0, *heights)
    if lets is not None and highest < lets <= 2 * highest:
        highest = lets
    steps = (digit * 10**power for power in range(40) for digit in (1, 2, 5))
    step = next(n for n in steps if -(-highest // n) + -(lowest // n) <= TICKS_MAX)
    low, high = lowest // step * step, -(-highest // step) * step
    high = high if high > low else step
    return tuple(range(low, high + 1, step))


class Panel(NamedTuple):
    """How bars are laid out: columns of each, letters of the numbers at the side, these, and with what."""

    bars: Bars
    each: int
    gutter: int
    ticks: tuple[int, ...]
    lets: int | None
    ink: Ink
    unit: str | None = None

    def told(self, amount: int) -> str:
        """An amount in full."""
        return grouped_amount(amount, self.unit)

    @property
    def span(self) -> int:
        return self.ticks[-1] - self.ticks[0]

    @property
    def rows(self) -> int:
        steps = len(self.ticks) - 1
        return steps * max(1, round(ROWS / steps))

    @property
    def columns(self) -> int:
        return self.bars.length * self.each

    @property
    def line_row(self) -> int | None:
        """The row in which the line of the limit is drawn, if it is on the scale."""
        if self.lets is None or self.lets > self.ticks[-1]:
            return None
        return self.rows - 1 - (self._eighths(self.lets) - 1) // 8

    def drawn(self, heights: Sequence[int]) -> list[str]:
        """The bars, numbers at their side, and times below, as often as these have room."""
        labels = {self._edge(tick): _short(tick, self.unit) for tick in self.ticks}
        lines = []
        for row in range(self.rows):
            mark = self.ink.tick if row in labels else self.ink.axis
            cells = "".join(self._cell(height, row) for height in heights)
            lines.append(f"{labels.get(row, ''):>{self.gutter}}{mark}{cells}".rstrip())
        form = _time_form(self.bars)
        letters = len(f"{self.bars.start_of(0):{form}}")
        apart = -(-(letters + 2) // self.each)
        fitting = 1 + (self.columns - letters) // (apart * self.each) if letters <= self.columns else 0
        times = [f"{self.bars.start_of(n * apart):{form}}" for n in range(fitting)]
        marks = {n * apart * self.each for n in range(fitting)}
        edge = "".join(self.ink.mark if at in marks else self.ink.edge for at in range(self.columns))
        lines.append(f"{labels.get(self.rows, ''):>{self.gutter}}{self.ink.corner}{edge}")
        below = "".join(f"{time:<{apart * self.each}}" for time in times)
        return [*lines, f"{'':{self.gutter + 1}}{below}".rstrip()] if times else lines

    def spark(self, heights: Sequence[int], top: int) -> str:
        """Bars in one row, under those of the panel."""
        signs = [
            self.ink.parts[-(-height * 8 // top) if height else 0] if height >= 0 else self.ink.edge
            for height in heights
        ]
        return f"{'':{self.gutter + 1}}{''.join(map(self._widened, signs))}".rstrip()

    def _cell(self, height: int, row: int) -> str:
        """What one row shows of one bar."""
        zero, part = self._edge(0), 0
        if height > 0 and row < zero:
            part = min(8, max(0, self._eighths(height) - 8 * (self.rows - 1 - row)))
        elif height < 0 and row >= zero:
            deep = -(height * self.rows // self.span)
            part = 8 if row < zero + max(1, deep) else 0
        empty = self.ink.limit if row == self.line_row and part == 0 else " "
        return self._widened(self.ink.parts[part] if part else empty, empty)

    def _widened(self, sign: str, between: str = " ") -> str:
        gap = 1 if self.each > 2 else 0
        return sign * (self.each - gap) + between * gap

    def _eighths(self, number: int) -> int:
        """How many eighths of rows lie below a number; something above nought is never nothing."""
        floor, above = (n * self.rows * 8 // self.span for n in (-self.ticks[0], number - self.ticks[0]))
        return max(floor + (number > 0), above)

    def _edge(self, number: int) -> int:
        """The row whose upper edge a number is; the row below the last one for the lowest."""
        return round((self.ticks[-1] - number) * self.rows / self.span)


class Share(NamedTuple):
    """What one entity used of a limit: in all, and bar by bar; of several together no bars are drawn."""

    who: str
    total: int
    heights: tuple[int, ...] = ()


def _shares(panel: Panel, name: str, shares: Mapping[str, Timeline], width: int) -> list[str]:
    """Who used a limit, the most first, on one scale, so that bars of two can be compared.

    Bars of a single window lie beside the names if there is room, those of several under the panel's.
    """
    rows = _rows(panel, name, shares)
    heights = [height for row in rows for height in row.heights]
    low, high = min(0, *heights), max(0, *heights)
    told = f"by entity, all on one scale{f'; the largest bar is {panel.told(high)}' if high else ''}"
    fulls = [panel.told(row.total) for row in rows]
    # A number is in full where it leaves room for a name.
    totals = [
        n if len(n) <= width // 3 else _short(row.total, panel.unit)
        for n, row in zip(fulls, rows, strict=True)
    ]
    digits, letters = max(map(len, totals)), max(len(row.who) for row in rows)
    beside = panel.bars.length == 1 and letters + SHARE_BAR <= width - digits - 2
    if panel.bars.length == 1:
        columns = min(SHARE_BAR_MAX, width - (digits + letters + 3 if beside else 1))

        def lying(height: int) -> str:  # where something was given back, at a line for nothing
            ink = panel.ink
            return diverging(height, low, high, columns, ink) if low else bar(height, high, columns, ink)

        bars = ["".join(map(lying, row.heights)) for row in rows]
    else:
        bars = [panel.spark(row.heights, high) for row in rows]
        told += f"; {panel.ink.edge} was given back" if low < 0 else ""
    columns = max(map(len, bars))
    names = letters if beside else min(max(letters, columns - digits - 1), width - digits - 1)
    lines = textwrap.wrap(told, width)
    for row, drawn, total in zip(rows, bars, totals, strict=True):
        who = f"{_cut(row.who, names):<{names}}"
        if beside:
            lines.append(f"{who} {drawn:<{columns}} {total:>{digits}}")
        else:
            lines += [f"{who} {total:>{digits}}", *([drawn] if drawn.strip() else [])]
    return lines


def _rows(panel: Panel, name: str, shares: Mapping[str, Timeline]) -> list[Share]:
    used = {who: line.used[name] for who, line in shares.items() if line.used.get(name)}
    totals = {who: sum(amounts.values()) for who, amounts in used.items()}
    by_amount = sorted(used, key=lambda who: (-totals[who], who))
    most = SHARES_MAX if panel.bars.length > 1 else 2 * SHARES_MAX
    shown = by_amount if len(by_amount) == most + 1 else by_amount[:most]
    rows = []
    for who in shown:
        line = panel.bars.timeline._replace(used={name: used[who]})
        rows.append(Share(who, totals[who], folded(line, panel.columns, panel.bars.fold).heights[name]))
    if rest := by_amount[len(shown) :]:
        rows.append(Share(f"{len(rest)} others", sum(totals[who] for who in rest)))
    return rows


def _cut(text: str, letters: int) -> str:
    """A text without its middle where it is too long: names often differ at their ends only.

    >>> _cut("tenant-1-user-1", 10)
    'tenan~er-1'
    """
    if len(text) <= letters:
        return text
    tail = max(0, letters - 1) // 2
    return f"{text[: letters - 1 - tail]}~{text[len(text) - tail :]}"


def _time_form(bars: Bars) -> str:
    """How times are written below bars: no more of them than tells two apart."""
    line = bars.timeline
    first, last = (start_of(line.window, number) for number in (line.first, line.last))
    match UNITS[line.window]:
        case "month":
            return "%Y-%m"
        case "day":
            return "%m-%d" if first.year == last.year else "%Y-%m-%d"
        case _ if first.date() == last.date():
            return "%H:%M"
        case _:
            return "%m-%d" if bars.each % 24 == 0 else "%m-%d %H:%M"


def _caption(bars: Bars) -> str:
    """What a bar stands for, and from when to when."""
    line, unit = bars.timeline, UNITS[bars.timeline.window]
    means = f"the {'sum' if bars.fold is Fold.SUM else 'busiest'} of {bars.each} {unit}s"
    start, end = start_of(line.window, line.first), start_of(line.window, line.last + 1)
    span = f"from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
    return f"each bar is {means if bars.each > 1 else f'one {unit}'}; {span}"


def _short(amount: int, unit: str | None = None) -> str:
    """A number that reads well, rounded to few letters; of money without the letters of its currency.

    >>> [_short(amount) for amount in (0, 500, 1500, 2000, -50_000, 1_000_000, 20_000_000_000)]
    ['0', '500', '1.5k', '2k', '-50k', '1M', '20G']
    >>> [_short(amount, "usd_micro") for amount in (0, 5, 500_000, -1_500_000_000)]
    ['$0', '$0.000005', '$0.5', '-$1.5k']
    >>> _short(-1_582_105), _short(1_582_105, "usd_micro")
    ('-1.582M', '$1.582')
    """
    step = 10 ** max(0, len(str(abs(amount))) - DIGITS_MAX)
    amount = (amount + step // 2) // step * step
    if unit is not None:
        whole, rest = divmod(abs(amount), MICRO)
        digits = decimal(abs(amount)).rstrip("0").rstrip(".") if rest and whole < 1000 else _short(whole)
        return f"{'-' if amount < 0 else ''}{SIGNS.get(currency_of(unit), '')}{digits}"
    for power, letter in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(amount) >= 10**power:
            return f"{amount / 10**power:g}{letter}"
    return str(amount)
