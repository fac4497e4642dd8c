"""The first look: who is near a limit, who was refused, what is off, and whether all is well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..exceptions import DamagedRecordError, RateLimiterUnavailable
from ..models import Limit
from ..records.reports import ProcessReport, Refusal
from ..records.resolution import level_keys, resolve
from ..records.sampling import SampledResource
from ..version import check_compatibility, client_version
from .questions import ViewQuery
from .view_shapes import (
    CheckShape,
    HealthShape,
    OverviewShape,
    ProcessShape,
    RefusalShape,
    RefusalsShape,
    ResourceShape,
    limit_shape,
    near_shape,
    switch_shape,
)
from .view_state import REFUSALS_MAX, ViewState

RESOURCES_MAX = 100
SWITCHES_MAX = 100
LIMIT_ROWS_MAX = 200

NOBODY = "_"
"""Stands for whoever has no limits of its own."""

WORST_FIRST = ("red", "yellow", "green")


async def overview(view: ViewState, _: ViewQuery) -> OverviewShape:
    near = await view.near()
    off, _after = await view.server.repository.list_switches(SWITCHES_MAX)
    sample = near.sample
    return {
        "now_ms": near.at_ms,
        "near": [near_shape(one) for one in near.buckets],
        "looked_at": sample.looked_at,
        "buckets_known": sample.buckets_known,
        "is_all": sample.is_all,
        "refusals": await _refusals(view, await view.refusals()),
        "resources": await _resources(view, sample.resources),
        "off": [switch_shape(one) for one in off],
        "counters": view.counters(),
    }


async def refusals(view: ViewState, query: ViewQuery) -> RefusalsShape:
    most = query.number("limit_rows", LIMIT_ROWS_MAX, REFUSALS_MAX) or REFUSALS_MAX
    found = await view.refusals(query.maybe_entity(), query.maybe_resource(), most)
    return {"rows": await _refusals(view, found)}


async def _refusals(view: ViewState, found: Sequence[Refusal]) -> list[RefusalShape]:
    units = await view.units(one.resource for one in found)
    return [refusal_shape(one, units[one.resource]) for one in found]


async def health(view: ViewState, _: ViewQuery) -> HealthShape:
    """Whether the store answers, its versions go together, what this worker has lost, and what is around."""
    world, limiter = view.scope.world, view.server.limiter
    checks, latency_ms = list[CheckShape](), None
    started_ms = world.ticks_ms()
    try:
        record = await view.server.repository.get_version_record()
        latency_ms = round(world.ticks_ms() - started_ms, 3)
        checks.append({"part": "store", "health": "green", "detail": f"it answered in {latency_ms:.1f} ms"})
    except RateLimiterUnavailable:
        checks.append({"part": "store", "health": "red", "detail": "it does not answer"})
    else:
        if record is not None:
            said = check_compatibility(
                client_version(), record.schema_version, record.client_min_version, record.lambda_version
            )
            about = f"schema {record.schema_version}, client {client_version()}"
            colour = "red" if not said.is_compatible else "yellow" if said.requires_lambda_update else "green"
            checks.append(
                {"part": "versions", "health": colour, "detail": about if colour == "green" else said.message}
            )
    lost = {"refunds": limiter.refunds_lost, "seats": limiter.seats_lost, "checks": limiter.degraded}
    told = ", ".join(f"{count} {what}" for what, count in lost.items() if count)
    detail = f"since this worker was started it lost {told}" if told else "this worker has lost nothing"
    checks.append({"part": "worker", "health": "yellow" if told else "green", "detail": detail})
    checks += await view.surroundings.checks()
    processes = [] if latency_ms is None else await view.processes()
    found = {check["health"] for check in checks}
    return {
        "health": next(colour for colour in WORST_FIRST if colour in found),
        "checks": checks,
        "latency_ms": latency_ms,
        "processes": [_process(one) for one in processes],
    }


def _process(report: ProcessReport) -> ProcessShape:
    return {
        "name": report.name,
        "seen_ms": report.seen_ms,
        "started_ms": report.started_ms,
        "admitted": report.admitted,
        "refused": report.refused,
        "degraded": report.degraded,
        "unavailable": report.unavailable,
    }


def refusal_shape(one: Refusal, units: Mapping[str, str]) -> RefusalShape:
    return {
        "at_ms": one.at_ms,
        "entity": one.entity_id,
        "resource": one.resource,
        "limits": list(one.limits),
        "retry_after_ms": one.retry_after_ms,
        "requested": dict(one.requested),
        "units": {name: unit for name, unit in units.items() if name in one.requested},
        "count": one.count,
        "process": one.process,
        "retry_after_is_latest": one.is_latest,
        "reason": one.reason or None,
    }


async def _resources(view: ViewState, found: Mapping[str, SampledResource]) -> list[ResourceShape]:
    """Resources by how many of their buckets refuse, with the limits of whoever has none of its own."""
    order = sorted(found.items(), key=lambda one: (-one[1].refusing, one[1].worst_ratio, one[0]))
    some = dict(order[:RESOURCES_MAX])
    limits = await _limits(view, some)
    return [
        {
            "resource": name,
            "buckets": seen.buckets,
            "refusing": seen.refusing,
            "worst_ratio": round(seen.worst_ratio, 6),
            "limits": [limit_shape(one) for one in limits[name]],
        }
        for name, seen in some.items()
    ]


async def _limits(view: ViewState, resources: Iterable[str]) -> dict[str, tuple[Limit, ...]]:
    scope = view.scope
    # The levels of nobody in particular: those of the resource and of the system, and no entity's own.
    keys = {name: level_keys(scope.namespace_id, NOBODY, name)[2:] for name in resources}
    distinct = list(dict.fromkeys(key for levels in keys.values() for key in levels))
    items = dict(zip(distinct, await scope.connection.fetch(distinct), strict=True)) if distinct else {}
    limits: dict[str, tuple[Limit, ...]] = {}
    for name, levels in keys.items():
        try:
            limits[name] = resolve([None, None, *(items[key] for key in levels)]).limits or ()
        except DamagedRecordError:
            limits[name] = ()
    return limits
