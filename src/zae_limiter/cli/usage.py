"""``zae-limiter usage``: what was used, as rows, as totals and as charts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import click
from rich.console import Group, RenderableType
from rich.text import Text

from ..models import UsageSnapshot, UsageSummary, UsageWindow
from ..models.money import rounded_amount, shown_amount
from ..models.windows import lets_through
from ..records.units import Units, agreed
from ..records.usage import own
from ..schema import iso_time
from ..visualization.plot import usage_chart
from ..visualization.timeline import Fold, Timeline, timeline
from .nouns import Noun, option, together
from .output import ascii_option, console, grid, ink, plain, record
from .session import Session, cursor_option, with_existing
from .text import printable
from .units import units_of_all, units_of_places

PAGE = 1000
SNAPSHOTS_MAX = 100_000
"""The most that one chart is made of."""

AGO = re.compile(r"([0-9]{1,6})([hdw])")
HOURS = {"h": 1, "d": 24, "w": 168}

FOLD = click.Choice([*map(str, Fold)])


class Chosen(NamedTuple):
    """Whose usage is asked for, and when."""

    entity_id: str | None
    resource: str | None
    window: str | None
    start: str | None
    end: str | None

    def __str__(self) -> str:
        whose = "" if self.entity_id is None else f" by {self.entity_id!r}"
        return f"{whose}{'' if self.resource is None else f' of {self.resource!r}'}"


def _check_time(ctx: click.Context, _: click.Parameter, text: str | None) -> str | None:
    """Say what a command line understands, which is more than the store does."""
    try:
        if text is not None and not AGO.fullmatch(text):
            datetime.fromisoformat(text)
    except ValueError:
        ways = "write 2024-01-01 or 2024-01-01T14:00Z, or how long ago: 36h, 7d, 4w"
        raise click.UsageError(f"invalid time {text!r}: {ways}", ctx) from None
    return text


_START = "From 2024-01-01, 2024-01-01T14:00Z, or 36h, 7d, 4w ago."
_chosen = together(
    option("--entity-id --entity -e", "What this entity used."),
    option("--resource -r", "What was used of this resource."),
    option("--window -w", "Only windows of this kind.", type=click.Choice([*map(str, UsageWindow)])),
    option("--start", _START, metavar="TIME", callback=_check_time),
    option("--end", "Up to this time.", metavar="TIME", callback=_check_time),
)


@click.group(cls=Noun)
def usage() -> None:
    """What was used, and when.

    A store remembers what was used; `zae-limiter aggregate` counts it, or the function of a stack. All
    times are in UTC.
    """


@usage.verb("list", _chosen, meant="--entity-id")
@option("--limit", "At most so many.  [default: 100; --plot: all]", type=click.IntRange(1, PAGE))
@cursor_option
@option("--plot", "Draw it.", is_flag=True)
@ascii_option
@option("--fold", "What a bar of --plot says of several windows.", type=FOLD, default="sum")
@with_existing
def list_(
    session: Session, limit: int | None, cursor: str | None, plot: bool, fold: str, **chosen: Any
) -> None:
    """List snapshots, or draw them.

    A page has hours first, then days, then months. A chart shows windows of one kind: of the shortest of
    which there are any, unless one is named.
    """
    asked = _asked(session, **chosen)
    if plot:
        if session.output.is_json or cursor is not None:
            raise click.UsageError("--plot draws a whole; it goes with neither --output json nor --cursor")
        _draw(session, asked, limit or SNAPSHOTS_MAX, Fold(fold))
        return
    snapshots, after = session.repository.get_usage_snapshots(*asked, limit=limit or 100, next_key=cursor)
    kinds = list(UsageWindow)
    snapshots.sort(key=lambda s: (kinds.index(s.window_type), s.window_start, s.entity_id, s.resource))
    units = units_of_places(session, {(one.entity_id, one.resource) for one in snapshots})
    counted = [units.get((one.entity_id, one.resource), {}) for one in snapshots]
    rows = [_row(one, money) for one, money in zip(snapshots, counted, strict=True)]
    session.output.show({"snapshots": rows, "cursor": after}, lambda: _snapshots_table(snapshots, counted))
    if snapshots or after is None:
        _tell_behind(session, asked, is_empty=not snapshots)
    if after is not None:
        session.output.remark(f"there are more: --cursor {after}")


@usage.verb("summary", _chosen, with_existing, meant="--entity-id")
def summary(session: Session, **chosen: Any) -> None:
    """Show totals and averages.

    They are of windows of one kind: of the shortest of which there are any, unless one is named. Of a
    resource every request counts once, for the one who asked; a parent's own view has its children's too.
    """
    asked = _asked(session, **chosen)
    found = session.repository.get_usage_summary(*asked)
    units = units_of_all(session, asked.entity_id, asked.resource) if found.snapshot_count else {}
    units = {name: unit for name, unit in units.items() if name in found.total}
    data = {**plain(found), **({"units": units} if units else {})}
    session.output.show(data, lambda: _summary_table(found, asked, units))
    _tell_behind(session, asked, is_empty=not found.snapshot_count)


def _asked(session: Session, start: str | None, end: str | None, **whose: Any) -> Chosen:
    if whose["entity_id"] is None and whose["resource"] is None:
        raise click.UsageError("give --entity-id, --resource or both")
    now_ms = session.connection.world.now_ms()
    return Chosen(start=moment(start, now_ms), end=moment(end, now_ms), **whose)


def moment(text: str | None, now_ms: int) -> str | None:
    """A time, or how long ago it was, as the store understands it.

    >>> moment("2d", 1_704_326_400_000), moment("2024-01-01", 0)
    ('2024-01-02T00:00:00.000Z', '2024-01-01')
    """
    found = AGO.fullmatch(text or "")
    if found is None:
        return text
    return iso_time(max(0, now_ms - int(found[1]) * HOURS[found[2]] * 3_600_000))


def _tell_behind(session: Session, asked: Chosen, *, is_empty: bool) -> None:
    """Say beside numbers that they may be old; where there are none, what was looked for and a way out."""
    if session.output.is_json:
        return
    from zae_limiter_aggregator.processor import AggregatorSettings
    from zae_limiter_aggregator.runner import is_behind

    behind = is_behind(session.connection.backend)
    if not is_empty:
        if behind:
            waits = "some of what was used in this store is not counted yet"
            session.output.note(f"{waits}; `zae-limiter aggregate --once` counts it")
        return
    when = " in that time" if asked.start or asked.end else ""
    if asked.window is not None and asked.window not in AggregatorSettings().windows:
        way_out = f"; `zae-limiter aggregate --window {asked.window}` counts such windows from then on"
    elif behind is None:
        way_out = "; the function of its stack counts it, or `zae-limiter aggregate`"
    else:
        way_out = " yet; `zae-limiter aggregate --once` counts what was used" if behind else ""
        way_out = way_out or ", and nothing waits to be counted"
    kind = f"{asked.window} " if asked.window else ""
    session.output.note(f"no {kind}usage{asked}{when} was counted{way_out}")


def _draw(session: Session, asked: Chosen, snapshots_max: int, fold: Fold) -> None:
    for kind in UsageWindow if asked.window is None else (UsageWindow(asked.window),):
        found: list[UsageSnapshot] = []
        for page in _pages(session, asked._replace(window=kind)):
            found += page
            if len(found) > snapshots_max:
                session.output.note(f"only the first {snapshots_max} snapshots are drawn; narrow it down")
                break
        found = found[:snapshots_max]
        line = timeline(found if asked.entity_id is not None else own(found))
        if line is not None:
            out = console()
            allowed, shares = _allowed(session, asked, kind), _shares(asked, found)
            units = agreed(
                units_of_places(session, {(one.entity_id, one.resource) for one in found}).values()
            )
            out.print(Text(f"{_title(asked, found)}\n"))
            out.print(usage_chart(line, out.width, fold, ink(out), allowed, shares, units), soft_wrap=True)
            _tell_behind(session, asked, is_empty=False)
            return
    _tell_behind(session, asked, is_empty=True)


def _pages(session: Session, asked: Chosen) -> Iterator[list[UsageSnapshot]]:
    cursor = None
    while True:
        page, cursor = session.repository.get_usage_snapshots(*asked, limit=PAGE, next_key=cursor)
        yield page
        if cursor is None:
            return


def _title(asked: Chosen, snapshots: list[UsageSnapshot]) -> str:
    """Whose usage a chart shows; what it adds up is told."""
    counts = {
        "entities": len({one.entity_id for one in snapshots}),
        "resources": len({one.resource for one in snapshots}),
    }
    together = [f"{count} {what} together" for what, count in counts.items() if count > 1]
    return ", ".join([f"usage{asked}", *together])


def _allowed(session: Session, asked: Chosen, kind: UsageWindow) -> dict[str, int]:
    """What each limit of one entity for one resource lets through in a window, the burst not counted."""
    if asked.entity_id is None or asked.resource is None:
        return {}
    limits, _, _ = session.repository.resolve_limits(asked.entity_id, asked.resource)
    lets = {one.name: lets_through(one, kind) for one in limits or ()}
    return {name: amount for name, amount in lets.items() if amount is not None}


def _shares(asked: Chosen, found: list[UsageSnapshot]) -> dict[str, Timeline]:
    """What each entity asked for itself, where a chart shows several."""
    if asked.entity_id is not None or len({one.entity_id for one in found}) < 2:
        return {}
    by_entity: dict[str, list[UsageSnapshot]] = {}
    for one in own(found):
        by_entity.setdefault(printable(one.entity_id), []).append(one)
    lines = {entity_id: timeline(of) for entity_id, of in by_entity.items()}
    return {entity_id: line for entity_id, line in lines.items() if line is not None}


def _row(snapshot: UsageSnapshot, units: Units) -> dict[str, Any]:
    """A snapshot as JSON says it: whole numbers, and what they count where that is money."""
    money = {name: unit for name, unit in units.items() if name in snapshot.counters}
    return {**plain(snapshot), **({"units": money} if money else {})}


def _snapshots_table(snapshots: list[UsageSnapshot], counted: list[Units]) -> RenderableType:
    if not snapshots:
        return Group()
    names = sorted({name for one in snapshots for name in one.counters})
    columns = ["start", "window", "entity", "resource", *names]
    rows = [
        [s.window_start, s.window_type, s.entity_id, s.resource, *(_amount(s, name, units) for name in names)]
        for s, units in zip(snapshots, counted, strict=True)
    ]
    if any(one.passed_on for one in snapshots):
        columns.append("also counted for")
        rows = [[*row, ", ".join(one.passed_on)] for row, one in zip(rows, snapshots, strict=True)]
    return grid(columns, rows, numbers=names)


def _amount(snapshot: UsageSnapshot, name: str, units: Units) -> str | None:
    amount = snapshot.counters.get(name)
    return None if amount is None else shown_amount(amount, units.get(name))


def _summary_table(found: UsageSummary, asked: Chosen, units: Units) -> RenderableType:
    """Totals, and averages over snapshots: what such a one is of depends on what was left open."""
    if not found.snapshot_count:
        return Group()
    fields = {
        "snapshots": found.snapshot_count,
        "first window": found.min_window_start,
        "last window": found.max_window_start,
    }
    each = {"entity": asked.entity_id, "resource": asked.resource, "window": None}
    average = f"average per {' and '.join(what for what, named in each.items() if named is None)}"
    rows = []
    for name in sorted(found.total):
        unit, mean = units.get(name), found.average[name]
        shown = f"{mean:,.1f}" if unit is None else rounded_amount(round(mean), unit)
        rows.append((name, rounded_amount(found.total[name], unit), shown))
    totals = grid(["limit", "total", average], rows, numbers=("total", average))
    return Group(record(fields), totals)
