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


BLOCKS = Ink("█", "░", "│", " ▁▂▃▄▅▆▇█", " ▏▎▍▌▋▊▉█", "┤", "└", "─", "┬", "╌")
ASCII = Ink("#", ".", "|", " ....:::#", "        #", "+", "+", "-", "+", "-")


def bar(value: float, top: float, width: int, ink: Ink = BLOCKS) -> str:
    """A plain bar, as long as its width for what is ``top``; its end is as fine as can be shown.

    >>> bar(3, 4, 8, ASCII), bar(5, 8, 2)
    ('######', '█▎')
    """
    if value <= 0 or top <= 0:
        return ""
    eighths = max(1, int(min(value / top, 1) * width * 8))
    whole, part = divmod(eighths, 8)
    if not ink.ends[part].strip():
        return ink.full * max(whole, 1)
    return ink.full * whole + ink.ends[part]


def gauge(value: float, top: float, width: int, ink: Ink = BLOCKS) -> str:
    """How much of ``top`` is there; what is in debt is as empty as can be.

    >>> gauge(3, 4, 8, ASCII)
    '######..'
    """
    filled = bar(value, top, width, ink)
    return filled + ink.empty * (width - len(filled))


def diverging(value: float, bottom: float, top: float, width: int, ink: Ink = BLOCKS) -> str:
    """A bar that starts at a zero line: to the left for debt, to the right for what is there.

    >>> diverging(-2, -4, 4, 8, ASCII)
    '  ##|    '
    """
    span = max(top, 0) - min(bottom, 0)
    left = _cells(-min(bottom, 0), span, width)
    right = width - left
    below = min(_cells(-min(value, 0), span, width), left)
    above = bar(value, span, width, ink)[:right]
    return f"{' ' * (left - below)}{ink.full * below}{ink.axis}{above:<{right}}"


def level(value: float, top: float, width: int, debt_width: int = 0, ink: Ink = BLOCKS) -> str:
    """A gauge with room for debt on its left, on the same scale; debt beyond that room ends in ``<``.

    >>> level(-3, 4, 8, 8, ASCII)
    '  ######|........'
    """
    if not debt_width:
        return gauge(value, top, width, ink)
    owed = max(1, int(-value / top * width)) if value < 0 < top else 0
    debt = ink.full * owed if owed <= debt_width else f"<{ink.full * (debt_width - 1)}"
    return f"{debt:>{debt_width}}{ink.axis}{gauge(value, top, width, ink)}"


def debt_width(values: Iterable[tuple[float, float]], width: int) -> int:
    """How much room the debt of some gauges needs, each a value and its top: none, or at most as much."""
    needed = [-value / top * width for value, top in values if value < 0 < top]
    return max(1, min(width, ceil(max(needed)))) if needed else 0


def _cells(part: float, whole: float, width: int) -> int:
    """How many of ``width`` cells a part fills; something is never shown as nothing."""
    if part <= 0 or whole <= 0:
        return 0
    return max(1, int(min(part / whole, 1) * width))
