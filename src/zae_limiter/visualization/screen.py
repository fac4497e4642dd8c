"""One frame of ``zae-limiter watch``: who is near a limit, and who was refused. Pure: a scene to lines.

No line is wider than the screen and no frame is higher. Where columns have no room they go, the least needed
first, then each bucket takes two lines; names lose their middle and numbers nothing. What a colour says is
said by a word as well. Whatever stands still from one frame to the next stands at the same place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from .bars import BLOCKS, Ink, level
from .wording import cut, padded, wrapped

NEAR = 0.25
"""From where on a limit is drawn as nearly used up."""
GAP = 2
WHO_MIN, NAME_MIN, BAR_MIN, BAR_MAX = 16, 9, 10, 32
STACKED_BAR_MIN, STACKED_BAR_MAX = 4, 24
INDENT_MAX = 6
WHEN_MAX = 18
REFUSALS_SHARE = 3
"""Refusals get one line in so many."""

GOOD, WARNING, BAD, QUIET = "green", "yellow", "red", "bright_black"


class Gauge(NamedTuple):
    """One limit of a bucket, as it stands."""

    who: str
    what: str
    limit: str
    ratio: float
    """How full, from 1 down to -1."""
    left: str
    """``12 of 60``"""
    when: str = ""
    """``full in 48 s``, ``again in 1.2 s``"""
    refuses: bool = False
    depth: int = 0
    """How far below the first of a family."""

    @property
    def colour(self) -> str:
        return BAD if self.refuses else WARNING if self.ratio < NEAR else GOOD


class RefusalLine(NamedTuple):
    """Who was refused, and why, once or more often."""

    clock: str
    who: str
    what: str
    why: str
    wait: str = ""
    times: int = 1


class Scene(NamedTuple):
    """All that a frame shows."""

    title: str
    clock: str
    heading: Sequence[str]
    """Above the gauges, as much of it as there is room for: how many buckets there are, what is used."""
    gauges: Sequence[Gauge]
    refusals: Sequence[RefusalLine] | None = None
    """The newest first; ``None`` where nobody tells of them."""
    trouble: str = ""
    """What keeps the scene from being as it is now."""


def frame(scene: Scene, width: int, height: int | None = None, ink: Ink = BLOCKS) -> Text:
    """A scene in so many columns, and in no more lines than there are."""
    top = [_ends(scene.title, scene.clock, width)]
    if scene.trouble:
        top += [Text(line, style=BAD) for line in wrapped(scene.trouble, width)]
    heading = list(scene.heading)
    while len(heading) > 1 and cell_len(", ".join(heading)) > width:
        heading.pop()
    top += [Text(cut(", ".join(heading), width), style="bold")]
    refusals, rows_max = list[Text](), None
    if scene.refusals is not None:
        refusals = _refusals(scene.refusals, width)
    if height is not None:
        share = max(3, (height - len(top)) // REFUSALS_SHARE)
        refusals = refusals[: min(share, max(0, height - len(top) - 2))]
        rows_max = max(0, height - len(top) - len(refusals))
    lines = [*top, *_gauges(scene.gauges, width, rows_max, ink), *refusals][:height]
    for line in lines:
        line.rstrip()
        line.truncate(width)
    return Text("\n").join(lines)


def _ends(left: str, right: str, width: int) -> Text:
    """Two texts at the ends of a line; the right one is whole."""
    left = padded(left, max(0, width - cell_len(right) - GAP))
    line = Text(f"{left}{'':{GAP}}", style="bold")
    line.append(right, QUIET)
    return line


def _gauges(gauges: Sequence[Gauge], width: int, rows_max: int | None, ink: Ink) -> list[Text]:
    columns = _columns(gauges, width)
    told = list(_told_once(gauges, is_stacked=not columns.who))
    blocks = [
        [_line(one, columns, ink)] if columns.who else _stacked(one, columns, width, ink) for one in told
    ]
    lines = [line for block in blocks for line in block]
    if rows_max is None or len(lines) <= rows_max:
        return lines
    shown = list[Text]()
    for n, block in enumerate(blocks):
        if len(shown) + len(block) >= rows_max:
            left_out = Text(cut(f"and {len(blocks) - n} more", width), style=QUIET)
            return [*shown, left_out][:rows_max]
        shown += block
    return shown


def _told_once(gauges: Sequence[Gauge], *, is_stacked: bool) -> Iterator[Gauge]:
    """Whose a limit is, is told by the first line of several; a line above others says all of it."""
    before: Gauge | None = None
    for one in gauges:
        same_who = before is not None and (before.who, before.depth) == (one.who, one.depth)
        same_what = before is not None and same_who and before.what == one.what
        before = one
        is_told = same_what if is_stacked else same_who
        yield one._replace(who="" if is_told else one.who, what="" if same_what else one.what)


class _Columns(NamedTuple):
    """How wide each part of a line is; one that is 0 is left out, and whose it is then has its own line."""

    who: int
    what: int
    limit: int
    bar: int
    left: int
    when: int


def _columns(gauges: Sequence[Gauge], width: int) -> _Columns:
    """How a line is divided."""

    def widest(name: str) -> int:
        return max((cell_len(getattr(one, name)) for one in gauges), default=0)

    who = max((cell_len(one.who) + 2 * one.depth for one in gauges), default=0)
    what, limit, left = widest("what"), widest("limit"), widest("left")
    for when in (min(WHEN_MAX, widest("when")), 0):
        room = width - sum(n + GAP for n in (limit, left, when) if n) - 2 * GAP
        least = WHO_MIN if when else NAME_MIN  # who it is matters more than until when
        if room >= min(who, least) + min(what, NAME_MIN) + BAR_MIN:
            bar = min(BAR_MAX, max(BAR_MIN, room - who - what))
            spare = room - bar
            what = min(what, max(NAME_MIN, spare - who, spare // 3))
            return _Columns(min(who, spare - what), what, limit, bar, left, when)
    indent = max((min(INDENT_MAX, 2 * one.depth) for one in gauges), default=0)
    bar = width - indent - limit - left - 2
    return _Columns(0, 0, limit, max(0, min(bar, STACKED_BAR_MAX)), left, 0)


def _line(one: Gauge, columns: _Columns, ink: Ink) -> Text:
    gap = " " * GAP
    line = Text()
    line.append(padded(f"{'  ' * one.depth}{one.who}" if one.who else "", columns.who), "bold")
    line.append(f"{gap}{padded(one.what, columns.what)}{gap}{padded(one.limit, columns.limit)}{gap}")
    line.append(_bar(one, columns.bar, ink), one.colour)
    line.append(f"{gap}{_right(one.left, columns.left)}")
    if columns.when:
        line.append(f"{gap}{cut(one.when, columns.when)}", BAD if one.refuses else QUIET)
    return line


def _stacked(one: Gauge, columns: _Columns, width: int, ink: Ink) -> list[Text]:
    """Whose it is above, how it stands below."""
    indent = " " * min(INDENT_MAX, 2 * one.depth)
    lines = []
    if one.who or one.what:
        room = max(0, width - len(indent))
        what = cut(one.what, max(0, min(cell_len(one.what), room - NAME_MIN - GAP)))
        head = Text(indent)
        head.append(cut(one.who, max(0, room - cell_len(what) - GAP)), "bold")
        head.append(f"{' ' * GAP if one.who else ''}{what}")
        lines.append(head)
    line = Text(indent)
    if columns.bar < STACKED_BAR_MIN:
        line.append(f"{one.limit} {one.left.strip()}", BAD if one.refuses else "")
        return [*lines, line]
    line.append(f"{padded(one.limit, columns.limit)} ")
    line.append(_bar(one, columns.bar, ink), one.colour)
    line.append(f" {_right(one.left, columns.left)}", BAD if one.refuses else "")
    return [*lines, line]


def _bar(one: Gauge, width: int, ink: Ink) -> str:
    """What is left, or a debt in another fill."""
    if one.ratio >= 0:
        return level(one.ratio, 1, width, 0, ink)
    owed = max(1, round(-one.ratio * width))
    return f"{ink.fills[2] * owed:{ink.empty}<{width}}"


def _right(text: str, columns: int) -> str:
    return f"{' ' * (columns - cell_len(text))}{text}"


def _refusals(refusals: Sequence[RefusalLine], width: int) -> list[Text]:
    lines = [Text(), Text(cut("refused lately" if refusals else "nobody was refused lately", width), "bold")]
    whys = [f"{one.why}{f', wait {one.wait}' if one.wait else ''}" for one in refusals]
    clock = max((cell_len(one.clock) for one in refusals), default=0)
    why = max(map(cell_len, whys), default=0)
    times = max((len(f"×{one.times}") for one in refusals if one.times > 1), default=0)
    what = max((cell_len(one.what) for one in refusals), default=0)
    room = width - clock - why - times - GAP * (4 if times else 3)
    is_stacked = room < 2 * NAME_MIN
    what = min(what, max(NAME_MIN, room // 3))
    who = min(max((cell_len(one.who) for one in refusals), default=0), room - what)
    for one, said in zip(refusals, whys, strict=True):
        often = f"×{one.times}" if one.times > 1 else ""
        line = Text()
        line.append(one.clock, QUIET)
        if is_stacked:
            line.append(f" {cut(one.who, max(0, width - clock - 1))}", "bold")
            below = " ".join(filter(None, (one.what, said, often)))
            lines += [line, Text(f"{'':{clock + 1}}{below}", BAD)]
            continue
        line.append(f"{'':{GAP}}{padded(one.who, who)}", "bold")
        line.append(f"{'':{GAP}}{padded(one.what, what)}{'':{GAP}}")
        line.append(padded(said, why), BAD)
        line.append(f"{'':{GAP}}{often}")
        lines.append(line)
    return lines
