"""What was used, window by window, with what each limit lets through in one: series that a chart draws.

There is one series for all entities together of each resource and limit, which counts every request once; and
where no entity is named, one for each of those that used most. At most ``SNAPSHOTS_MAX`` rows are read; a
longer time, or more entities, is told to be not all. Windows are those of the aggregator, in UTC.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..backends.change_log import log_of
from ..exceptions import DamagedRecordError, RateLimiterUnavailable, ValidationError
from ..models import Limit, UsageSnapshot, UsageWindow
from ..models.money import grouped_amount, rounded_amount
from ..models.windows import SECONDS, lets_through
from ..records.items import window_of
from ..records.resolution import level_keys, resolve
from ..records.usage import own
from ..repository_protocol import Backend
from .overview import NOBODY
from .questions import ViewQuery
from .view_shapes import SeriesShape, UsageLimitShape, UsageShape, instant_ms
from .view_state import ViewState

SNAPSHOTS_MAX = 5_000
PAGE = 1_000
ENTITIES_MAX = 8
"""How many entities have a series of their own."""
WINDOWS_MAX = 2_000
WINDOWS_SHOWN = {UsageWindow.HOURLY: 48, UsageWindow.DAILY: 30, UsageWindow.MONTHLY: 12}
"""How many windows are told if nobody says since when."""

Totals = Mapping[tuple[str | None, str, str], Counter[str]]
"""By entity, resource and limit, what was used in windows, by their starts."""


class _UsageSpan(NamedTuple):
    """Some windows of one kind: what is asked for."""

    window: UsageWindow
    starts: tuple[str, ...]


async def usage(view: ViewState, query: ViewQuery) -> UsageShape:
    entity_id, resource = query.maybe_entity(), query.maybe_resource()
    if entity_id is None and resource is None:
        raise ValidationError("entity", None, "name an entity, a resource, or both")
    window = UsageWindow(query.choice("window", [*map(str, UsageWindow)], str(UsageWindow.HOURLY)))
    span = _span(window, query.instant_ms("start_ms"), query.instant_ms("end_ms"), view.now_ms)
    found, is_all = await _snapshots(view, entity_id, resource, span)
    rows = found if entity_id is not None else list(own(found))
    totals = totals_of(rows, entity_id)
    resources = sorted({one.resource for one in found} | ({resource} if resource is not None else set()))
    limits = await _limits(view, entity_id, resources)
    units = await view.units(resources) if entity_id is None else {}
    return {
        "window": str(window),
        "step_ms": None if window is UsageWindow.MONTHLY else SECONDS[window] * 1000,
        "limits": _limit_shapes(limits, units, totals, window),
        "times": [instant_ms(start) or 0 for start in span.starts],
        "resources": resources,
        "entities": list(dict.fromkeys(one for one, _, _ in totals if one is not None)),
        "series": _series(totals, span.starts),
        "pending": await asyncio.to_thread(_waits, view.scope.backend),
        "is_all": is_all,
    }


def _span(window: UsageWindow, start_ms: int | None, end_ms: int | None, now_ms: int) -> _UsageSpan:
    """The windows that start within some time, none of them in the future."""
    last_ms = min(now_ms, now_ms if end_ms is None else end_ms)
    if start_ms is None:
        start_ms = max(0, last_ms - (WINDOWS_SHOWN[window] - 1) * SECONDS[window] * 1000)
    elif end_ms is not None and start_ms > end_ms:
        raise ValidationError("end_ms", end_ms, f"it is before start_ms, {start_ms}")
    starts: list[str] = []
    _, start, end = window_of(window, start_ms)
    while (instant_ms(start) or 0) <= last_ms:
        if len(starts) == WINDOWS_MAX:
            raise ValidationError("start_ms", start_ms, f"that is more than {WINDOWS_MAX} windows")
        starts.append(start)
        _, start, end = window_of(window, instant_ms(end) or 0)
    return _UsageSpan(window, tuple(starts))


async def _snapshots(
    view: ViewState, entity_id: str | None, resource: str | None, span: _UsageSpan
) -> tuple[list[UsageSnapshot], bool]:
    found: list[UsageSnapshot] = []
    cursor: str | None = None
    while span.starts and len(found) < SNAPSHOTS_MAX:
        page, cursor = await view.server.repository.get_usage_snapshots(
            entity_id, resource, span.window, span.starts[0], span.starts[-1], PAGE, cursor
        )
        found += page
        if cursor is None:
            break
    return found[:SNAPSHOTS_MAX], cursor is None


def totals_of(snapshots: Iterable[UsageSnapshot], entity_id: str | None) -> Totals:
    """What was used by resource and limit, all together and by those who used most. Pure.

    Those are the entities with the largest share of any limit. Where one entity is asked for, everything is
    its own.
    """
    together: dict[tuple[str | None, str, str], Counter[str]] = {}
    each: dict[tuple[str | None, str, str], Counter[str]] = {}
    for one in snapshots:
        for name, amount in one.counters.items():
            whose = one.entity_id if entity_id is not None else None
            together.setdefault((whose, one.resource, name), Counter())[one.window_start] += amount
            each.setdefault((one.entity_id, one.resource, name), Counter())[one.window_start] += amount
    if entity_id is not None:
        return together
    shares: dict[str, float] = {}
    for (whose, resource, name), used in each.items():
        if whose is not None and (whole := together[None, resource, name].total()):
            shares[whose] = max(shares.get(whose, 0), used.total() / whole)
    shown = sorted(shares, key=lambda whose: (-shares[whose], whose))[:ENTITIES_MAX]
    return together | {place: each[place] for place in sorted(each, key=str) if place[0] in shown}


def _series(totals: Totals, starts: Sequence[str]) -> list[SeriesShape]:
    """A value for each window; one in which nothing was used has no row, and counts as nothing."""
    return [
        {"entity": whose, "resource": resource, "limit": name, "values": [used[start] for start in starts]}
        for (whose, resource, name), used in totals.items()
    ]


def _limit_shapes(
    limits: Mapping[str, Mapping[str, Limit]],
    money: Mapping[str, Mapping[str, str]],
    totals: Totals,
    window: UsageWindow,
) -> list[UsageLimitShape]:
    """Each limit with its total; a line to draw only where all that is drawn has the same."""
    sums: Counter[str] = Counter()
    places: dict[str, set[str]] = {}
    first = next(iter(totals), (None, "", ""))[0]
    for (whose, resource, name), used in totals.items():
        if whose == first:
            sums[name] += sum(used.values())
            places.setdefault(name, set()).add(resource)
    shapes: list[UsageLimitShape] = []
    for name in sorted(sums):
        said = [limits.get(resource, {}).get(name) for resource in places[name]]
        units = {
            money.get(resource, {}).get(name)
            if (known := limits.get(resource, {}).get(name)) is None
            else known.unit
            for resource in places[name]
        }
        unit = units.pop() if len(units) == 1 else None
        one = said[0] if len(said) == 1 and first is not None else None
        per_window = None if one is None else lets_through(one, window)
        shapes.append(
            {
                "name": name,
                "unit": unit,
                "per_window": per_window,
                "per_window_shown": None if per_window is None else grouped_amount(per_window, unit),
                "total": sums[name],
                "total_shown": rounded_amount(sums[name], unit),
            }
        )
    return shapes


async def _limits(
    view: ViewState, entity_id: str | None, resources: Sequence[str]
) -> dict[str, dict[str, Limit]]:
    """The limits that apply now, by resource and name: usage says neither units nor rates."""
    scope = view.scope
    keys = {name: level_keys(scope.namespace_id, entity_id or NOBODY, name) for name in resources}
    distinct = list(dict.fromkeys(key for levels in keys.values() for key in levels))
    items = dict(zip(distinct, await scope.connection.fetch(distinct), strict=True)) if distinct else {}
    limits: dict[str, dict[str, Limit]] = {}
    for name, levels in keys.items():
        try:
            found = resolve([items[key] for key in levels]).limits or ()
        except DamagedRecordError:
            found = ()
        limits[name] = {one.name: one for one in found}
    return limits


def _waits(backend: Backend) -> bool:
    """Whether something was used that is not counted yet, where the store can tell."""
    try:
        log = log_of(backend)
    except ValidationError:  # the function of a stack counts it
        return False
    try:
        return log.waits()
    except RateLimiterUnavailable:
        return False
    finally:
        log.close()
