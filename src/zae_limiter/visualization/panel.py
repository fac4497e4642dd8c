"""One panel of a chart: bars over time, numbers at their side, times below. Pure.

Bars are drawn in eighths of a row and in whole columns, so that bars of the same height look the same
wherever they stand. A number stands on the row whose upper edge it is, a time below the first column of its
bar, and times are round: full hours that divide a day, midnights, Mondays, Januaries. The bars of several
may lie on one another, each in a fill and a colour of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, count
from typing import NamedTuple

from rich.text import Text

from ..models.money import rounded_amount
from ..models.windows import UNITS
from .bars import Ink
from .timeline import STEPS, Bars, start_of
from .wording import short

ROWS = 8  # about as many, so that every number stands on a row
TICKS_MAX = 5  # numbers at the side, besides nought
APART = 2  # columns between two times

BAR, LINE = "cyan", "yellow"
LAYERS = ("cyan", "magenta", "green", "blue", "red", "bright_black")
"""The colours of those whose bars lie on one another, from the bottom; the last is for all others."""


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


class Sign(NamedTuple):
    """A letter of a drawing, and its colour where colours can be shown."""

    letter: str
    colour: str = ""


BLANK = Sign(" ")


class Panel(NamedTuple):
    """How bars are laid out: columns of each, letters of the numbers at the side, these, and with what.

    ``room`` is how many columns there are beside the numbers: a time may stand there beyond the last bar.
    """

    bars: Bars
    each: int
    gutter: int
    ticks: tuple[int, ...]
    lets: int | None
    ink: Ink
    unit: str | None = None
    room: int = 0

    def told(self, amount: int) -> str:
        """An amount as a sentence says it."""
        return rounded_amount(amount, self.unit)

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

    def drawn(self, heights: Sequence[int], layers: Sequence[Sequence[int]] = ()) -> list[Text]:
        """The bars with what stands around them. ``layers`` are what they are made of, from the bottom."""
        labels = {self._edge(tick): short(tick, self.unit) for tick in self.ticks}
        lines = []
        for row in range(self.rows):
            mark = self.ink.tick if row in labels else self.ink.axis
            cells = (
                self._cell(height, row, [layer[n] for layer in layers]) for n, height in enumerate(heights)
            )
            lines.append(self._line(f"{labels.get(row, ''):>{self.gutter}}{mark}", chain(*cells)))
        times = self._times()
        edge = "".join(
            self.ink.mark if n % self.each == 0 and n // self.each in times else self.ink.edge
            for n in range(self.columns)
        )
        lines.append(Text(f"{labels.get(self.rows, ''):>{self.gutter}}{self.ink.corner}{edge}"))
        below = ""
        for at, label in times.items():
            below = f"{below:<{at * self.each}}{label}"
        return [*lines, Text(f"{'':{self.gutter + 1}}{below}")] if times else lines

    def spark(self, heights: Sequence[int], top: int, colour: str = BAR) -> Text:
        """Bars in one row, under those of the panel."""
        signs = [
            self.ink.parts[-(-height * 8 // top) if height else 0] if height >= 0 else self.ink.edge
            for height in heights
        ]
        return self._line(" " * (self.gutter + 1), chain(*(self._widened(Sign(s, colour)) for s in signs)))

    def _line(self, start: str, signs: Iterable[Sign]) -> Text:
        line = Text(start)
        for sign in signs:
            line.append(sign.letter, sign.colour or None)
        line.rstrip()
        return line

    def _cell(self, height: int, row: int, layers: Sequence[int]) -> list[Sign]:
        """What one row shows of one bar."""
        zero, part = self._edge(0), 0
        if height > 0 and row < zero:
            part = min(8, max(0, self._eighths(height) - 8 * (self.rows - 1 - row)))
        elif height < 0 and row >= zero:
            deep = -(height * self.rows // self.span)
            part = 8 if row < zero + max(1, deep) else 0
        between = Sign(self.ink.limit, LINE) if row == self.line_row else BLANK
        if not part:
            return self._widened(between, between)
        if not layers:
            return self._widened(Sign(self.ink.parts[part], BAR), between)
        layer = self._layer_at(row, part, layers)
        fill = self.ink.fills[layer] if part == 8 else self.ink.parts[part]
        return self._widened(Sign(fill, LAYERS[layer]), between)

    def _layer_at(self, row: int, part: int, layers: Sequence[int]) -> int:
        """Whose the middle is of what a row shows of a bar."""
        middle, below = 8 * (self.rows - 1 - row) + part / 2, 0
        for layer, amount in enumerate(layers):
            below += amount
            if amount and below * self.rows * 8 >= middle * self.span:
                return layer
        return max(layer for layer, amount in enumerate(layers) if amount)

    def _widened(self, sign: Sign, between: Sign = BLANK) -> list[Sign]:
        gap = 1 if self.each > 2 else 0
        return [sign] * (self.each - gap) + [between] * gap

    def _eighths(self, number: int) -> int:
        """How many eighths of rows lie below a number; something above nought is never nothing."""
        floor, above = (n * self.rows * 8 // self.span for n in (-self.ticks[0], number - self.ticks[0]))
        return max(floor + (number > 0), above)

    def _edge(self, number: int) -> int:
        """The row whose upper edge a number is; the row below the last one for the lowest."""
        return round((self.ticks[-1] - number) * self.rows / self.span)

    def _times(self) -> dict[int, str]:
        """The bars below which a time stands, and that time: round ones, as many as have room."""
        line, each = self.bars.timeline, self.bars.each
        steps, numbers = STEPS[line.window], line.numbers(each)
        times = [_time(self.bars, bar) for bar in range(self.bars.length)]
        apart, room = max(map(len, times)) + APART, max(self.room, self.columns)
        many = chain(steps, count(2 * steps[-1], steps[-1]))
        step = next(n for n in many if n % each == 0 and n // each * self.each >= apart)
        fitting = [bar for bar, time in enumerate(times) if bar * self.each + len(time) <= room]
        chosen = [bar for bar in fitting if numbers[bar] * each % step == 0]
        if len(chosen) < 2:  # too short for round ones, so as many as there can be
            chosen = [bar for bar in fitting if bar % -(-apart // self.each) == 0]
        return {bar: times[bar] for bar in chosen}


def _time(bars: Bars, bar: int) -> str:
    """How the time of a bar is written: no more of it than tells two apart."""
    line, start = bars.timeline, bars.start_of(bar)
    first, last = (start_of(line.window, number) for number in (line.first, line.last))
    match UNITS[line.window]:
        case "month":
            return f"{start:%Y-%m}"
        case "day":
            return f"{start:%m-%d}" if first.year == last.year else f"{start:%Y-%m-%d}"
        case _:
            is_day = first.date() != last.date() and start.hour == 0
            return f"{start:%m-%d}" if is_day else f"{start:%H:%M}"
