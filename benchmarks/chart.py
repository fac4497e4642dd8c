"""Horizontal bars as SVG, written by hand: no library, readable on light and on dark pages. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 760
LABEL_WIDTH = 290
VALUE_WIDTH = 100
BAR_HEIGHT = 13
BAR_GAP = 3
GROUP_GAP = 10
TITLE_HEIGHT = 46

# Greys in the middle are legible on white and on black; pages that say which they are get a better one.
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #6e7781; }
  .title { font-size: 14px; font-weight: 600; }
  .axis { stroke: #8c959f; stroke-width: 1; }
  .ours { fill: #2f81f7; }
  .other { fill: #a0a8b0; }
  @media (prefers-color-scheme: dark) { text { fill: #9da7b1; } .other { fill: #6e7681; } }
"""


@dataclass(frozen=True)
class Bar:
    value: float
    text: str
    is_ours: bool = True


@dataclass(frozen=True)
class Group:
    """The bars that belong to one label."""

    label: str
    bars: tuple[Bar, ...]

    @property
    def height(self) -> int:
        return len(self.bars) * (BAR_HEIGHT + BAR_GAP) - BAR_GAP


def chart(title: str, note: str, groups: Sequence[Group]) -> str:
    """An SVG document. Lengths are logarithms: factors of ten are equally far apart."""
    values = [bar.value for group in groups for bar in group.bars]
    scale = lengths(values, WIDTH - LABEL_WIDTH - VALUE_WIDTH)
    parts = [
        text(0, 16, title, ' class="title"'),
        text(0, 34, note),
    ]
    y = TITLE_HEIGHT
    for group in groups:
        middle = y + group.height / 2 + 4
        parts.append(text(LABEL_WIDTH - 10, middle, group.label, ' text-anchor="end"'))
        for number, bar in enumerate(group.bars):
            top = y + number * (BAR_HEIGHT + BAR_GAP)
            length = scale(bar.value)
            kind = "ours" if bar.is_ours else "other"
            parts.append(
                f'<rect class="{kind}" x="{LABEL_WIDTH}" y="{top}" width="{length:.1f}" '
                f'height="{BAR_HEIGHT}" rx="2"/>'
            )
            parts.append(text(LABEL_WIDTH + length + 6, top + BAR_HEIGHT - 2, bar.text))
        y += group.height + GROUP_GAP
    parts.append(
        f'<line class="axis" x1="{LABEL_WIDTH}" y1="{TITLE_HEIGHT - 4}" x2="{LABEL_WIDTH}" y2="{y - 4}"/>'
    )
    body = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" '
        f'role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def text(x: float, y: float, words: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(words)}</text>'


def lengths(values: Sequence[float], longest: float) -> Callable[[float], float]:
    """From a value to the length of its bar; the smallest value still has a bar to see."""
    positive = [value for value in values if value > 0]
    low = math.floor(math.log10(min(positive, default=1)) - 0.1)
    span = math.log10(max(positive, default=10)) - low

    def length(value: float) -> float:
        return max((math.log10(value) - low) * longest / (span or 1), 1.0) if value > 0 else 0.0

    return length
