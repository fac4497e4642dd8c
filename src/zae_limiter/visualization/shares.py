"""Who used a limit: what each entity used of the bars of a panel, the most first. Pure.

Where nothing was given back, the bars of a panel are made of those of the entities, each in a fill and a
colour of its own; below, everybody's own bars stand on one scale, so that two can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from .bars import bar, diverging
from .panel import BAR, LAYERS, Panel
from .timeline import Fold, Timeline, folded
from .wording import padded, short, wrapped

SHARES_MAX = 5  # entities one by one, or twice as many if each takes one line; the others are added up
SHARE_BAR, SHARE_BAR_MAX = 12, 40  # columns that a bar beside a name needs, and the most that one takes
PERCENT_WIDTH = 40  # columns of a terminal that has room for percentages


class Share(NamedTuple):
    """What one entity used of a limit, or several together: in all, and bar by bar."""

    who: str
    total: int
    heights: tuple[int, ...]
    are_many: bool = False


def shares_of(panel: Panel, name: str, shares: Mapping[str, Timeline]) -> list[Share]:
    """What each entity used of a limit, the most first; from some number on, all others together."""
    used = {who: line.used[name] for who, line in shares.items() if line.used.get(name)}
    totals = {who: sum(amounts.values()) for who, amounts in used.items()}
    by_amount = sorted(used, key=lambda who: (-totals[who], who))
    most = SHARES_MAX if panel.bars.length > 1 else 2 * SHARES_MAX
    shown = by_amount if len(by_amount) == most + 1 else by_amount[:most]
    heights = {}
    for who in by_amount:
        line = panel.bars.timeline._replace(used={name: used[who]})
        heights[who] = folded(line, panel.columns, panel.bars.fold).heights[name]
    rows = [Share(who, totals[who], heights[who]) for who in shown]
    if rest := by_amount[len(shown) :]:
        together = tuple(map(sum, zip(*(heights[who] for who in rest), strict=True)))
        rows.append(Share(f"{len(rest)} others", sum(totals[who] for who in rest), together, are_many=True))
    return rows


def layers_of(panel: Panel, rows: Sequence[Share]) -> list[tuple[int, ...]]:
    """What the bars of a panel are made of, from the bottom: nothing where sums would say something else."""
    is_plain = panel.bars.fold is Fold.SUM and all(height >= 0 for row in rows for height in row.heights)
    if not is_plain or panel.bars.length == 1:
        return []
    layers = [row.heights for row in rows]
    # All others are drawn in the last fill, however few are named.
    blank = (0,) * panel.bars.length
    return [*layers[:-1], *[blank] * (len(LAYERS) - len(layers)), layers[-1]] if rows[-1].are_many else layers


def legend(panel: Panel, rows: Sequence[Share], width: int, *, is_stacked: bool) -> list[Text]:
    """Who used how much. Bars of a single window lie beside the names if there is room.

    Those of several windows stand under the panel's.
    """
    heights = [height for row in rows for height in row.heights if not row.are_many]
    low, high = min(0, *heights), max(0, *heights)
    told = f"by entity, all on one scale{f'; the largest bar is {panel.told(high)}' if high else ''}"
    totals = _totals(panel, rows, width)
    last = len(LAYERS) - 1
    keys = [last if row.are_many else min(n, last) for n, row in enumerate(rows)]
    signs = [f"{panel.ink.fills[key]} " if is_stacked else "" for key in keys]
    digits, letters = max(map(len, totals)), max(cell_len(row.who) for row in rows) + len(signs[0])
    beside = panel.bars.length == 1 and letters + SHARE_BAR <= width - digits - 2
    if panel.bars.length == 1:
        columns = min(SHARE_BAR_MAX, width - (digits + letters + 3 if beside else 1))
        bars = [_lying(panel, row, (low, high), columns) for row in rows]
    else:
        colours = [LAYERS[key] if is_stacked else BAR for key in keys]
        bars = [
            Text() if row.are_many else panel.spark(row.heights, high, colour)
            for row, colour in zip(rows, colours, strict=True)
        ]
        told += f"; {panel.ink.edge} was given back" if low < 0 else ""
    columns = max(one.cell_len for one in bars)
    names = letters if beside else min(max(letters, columns - digits - 1), width - digits - 1)
    lines = [Text(line) for line in wrapped(told, width)]
    for row, drawn, total, sign, key in zip(rows, bars, totals, signs, keys, strict=True):
        who = Text(sign, LAYERS[key]) + Text(padded(row.who, names - len(sign)))
        if beside:
            drawn.pad_right(columns - drawn.cell_len)
            lines.append(who + Text(" ") + drawn + Text(f" {total:>{digits}}"))
        else:
            lines += [who + Text(f" {total:>{digits}}"), *([drawn] if drawn.plain.strip() else [])]
    return lines


def _totals(panel: Panel, rows: Sequence[Share], width: int) -> list[str]:
    """Everybody's number, in full where it leaves room for a name, and how much of all that is."""
    fulls = [panel.told(row.total) for row in rows]
    totals = [
        n if len(n) <= width // 3 else short(row.total, panel.unit)
        for n, row in zip(fulls, rows, strict=True)
    ]
    whole = sum(row.total for row in rows)
    if width < PERCENT_WIDTH or whole <= 0 or min(min(row.heights) for row in rows) < 0:
        return totals
    return [f"{n} {f'{row.total / whole:.0%}':>4}" for n, row in zip(totals, rows, strict=True)]


def _lying(panel: Panel, share: Share, ends: tuple[int, int], columns: int) -> Text:
    """A bar that lies; where something was given back, at a line for nothing."""
    if share.are_many:
        return Text()
    (low, high), (height,) = ends, share.heights
    drawn = diverging(height, low, high, columns, panel.ink) if low else bar(height, high, columns, panel.ink)
    return Text(drawn, BAR)
