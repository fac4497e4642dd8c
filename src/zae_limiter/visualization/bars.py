"""Bars made of characters. Pure.

Bars end in eighths of a block where blocks can be shown, and in whole signs elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple


class Ink(NamedTuple):
    """The characters that charts are drawn with."""

    full: str
    empty: str
    axis: str
    parts: str
    """From nothing to a full block, rising; nine of them."""
    ends: str
    """Likewise, from the left."""
    tick: str
    corner: str
    edge: str
    mark: str
    limit: str
    fills: str
    """Of those whose bars lie on one another, from the bottom; the last is for all others."""


BLOCKS = Ink("█", "░", "│", " ▁▂▃▄▅▆▇█", " ▏▎▍▌▋▊▉█", "┤", "└", "─", "┬", "╌", "█▓▒░▚·")
ASCII = Ink("#", ".", "|", " ....:::#", "        #", "+", "+", "-", "+", "-", "#%=+o*")


def bar(value: float, top: float, width: int, ink: Ink = BLOCKS) -> str:
    """A plain bar, as long as its width for what is ``top``; its end is as fine as can be shown.

    >>> bar(3, 4, 8, ASCII), bar(5, 8, 2)
    ('######', '█▎')
    """
    if value <= 0 or top <= 0:
        return ""
    whole, part = divmod(max(1, int(min(value / top, 1) * width * 8)), 8)
    if not ink.ends[part].strip():
        return ink.full * max(whole, 1)
    return ink.full * whole + ink.ends[part]


def diverging(value: float, bottom: float, top: float, width: int, ink: Ink = BLOCKS) -> str:
    """A bar that starts at a zero line: to the left for debt, to the right for what is there.

    >>> diverging(-2, -4, 4, 8, ASCII)
    '  ##|    '
    """
    span = max(top, 0) - min(bottom, 0)
    # Something is never shown as nothing.
    left, below = (max(1, int(min(-n / span, 1) * width)) if n < 0 < span else 0 for n in (bottom, value))
    below, right = min(below, left), width - left
    above = bar(value, span, width, ink)[:right]
    return f"{' ' * (left - below)}{ink.full * below}{ink.axis}{above:<{right}}"


def level(value: float, top: float, width: int, debt_width: int = 0, ink: Ink = BLOCKS) -> str:
    """How much of ``top`` is there; debt goes left on the same scale, and ends in ``<`` beyond its room.

    >>> level(3, 4, 8, 0, ASCII), level(-3, 4, 8, 8, ASCII)
    ('######..', '  ######|........')
    """
    gauge = f"{bar(value, top, width, ink):{ink.empty}<{width}}"
    if not debt_width:
        return gauge
    owed = max(1, int(-value / top * width)) if value < 0 < top else 0
    debt = ink.full * owed if owed <= debt_width else f"<{ink.full * (debt_width - 1)}"
    return f"{debt:>{debt_width}}{ink.axis}{gauge}"


def debt_width(values: Iterable[tuple[float, float]], width: int) -> int:
    """How much room the debt of some levels needs, each a value and its top: none, or at most as much."""
    needed = [-value / top * width for value, top in values if value < 0 < top]
    return max(1, min(width, ceil(max(needed)))) if needed else 0
