"""What the page is told, as types and as the functions that make it from records. Pure.

Times are in milliseconds since the epoch and end in ``_ms``; amounts are whole tokens, and beside each is a
text that says it as people read it, for a limit may count money. Ids and names are data: whoever shows them
sees to it that they are text. The types are the contract with the page: tests compare every answer with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

from ..models import AuditEvent, Entity, Limit, LimiterConfig
from ..models.explanation import ExplainedBucket, ExplainedLevel, Explanation
from ..models.grammar import limit_text
from ..models.money import grouped_amount
from ..models.switches import Bypass, Switch, ThrownSwitch
from ..naming import DEFAULT_RESOURCE
from ..records.buckets_now import SeenBucket, SeenLevel
from ..records.config_lists import LevelEntry
from ..records.reasons import LEVELS, reasons
from ..schema import RESOURCE_AUDIT, SYSTEM_AUDIT


class LimitShape(TypedDict):
    name: str
    capacity: int
    text: str
    kind: str
    unit: str | None
    soft: bool
    schedule: str | None


class LevelShape(TypedDict):
    limit: LimitShape
    available: int
    capacity: int
    available_shown: str
    capacity_shown: str
    ratio: float
    full_in_ms: int | None
    per_second: float
    binds: bool
    refuses: bool
    held: int | None


class SwitchShape(TypedDict):
    level: str
    entity: str | None
    resource: str | None
    state: Literal["off", "bypass", "on"]
    text: str
    reason: str | None
    counted: bool | None
    since_ms: int | None
    by: str | None


class BucketShape(TypedDict):
    entity: str
    resource: str
    levels: list[LevelShape]
    at_ms: int
    shards: int
    switch: SwitchShape | None


class NearShape(BucketShape):
    worst: str


class SaidShape(TypedDict):
    limits: list[LimitShape]
    on_unavailable: str | None
    disabled: str | Literal[False] | None
    bypass: str | None
    cascade: bool | None


class ConfigShape(SaidShape):
    level: Literal["system", "resource", "entity"]
    entity: str | None
    resource: str | None


class EntityRow(TypedDict):
    entity: str
    name: str | None
    parent: str | None
    cascade: bool
    switch: SwitchShape | None


class EntitiesShape(TypedDict):
    rows: list[EntityRow]
    next: str | None


class ChildRow(TypedDict):
    entity: str
    name: str | None


class ChildrenShape(TypedDict):
    rows: list[ChildRow]
    next: str | None


class BucketsShape(TypedDict):
    rows: list[BucketShape]
    now_ms: int


class EntityShape(EntityRow):
    metadata: dict[str, Any]
    created_ms: int | None
    exists: bool
    chain: list[str]
    children: ChildrenShape
    buckets: list[BucketShape]
    own: list[ConfigShape]
    switches: list[SwitchShape]
    now_ms: int


class ConfigsShape(TypedDict):
    rows: list[ConfigShape]
    next: str | None
    resources: list[str]


class ExplainedLevelShape(SaidShape):
    source: str
    text: str
    wins: bool
    so: str


class ExplainedBucketShape(TypedDict):
    entity: str
    levels: list[ExplainedLevelShape]
    applying: list[LevelShape]
    switch: SwitchShape | None


class ExplainShape(TypedDict):
    entity: str
    resource: str
    parent: str | None
    sentences: list[str]
    buckets: list[ExplainedBucketShape]
    at_ms: int


class AuditRow(TypedDict):
    at_ms: int | None
    id: str
    action: str
    action_text: str
    principal: str | None
    entity: str | None
    resource: str | None
    details: dict[str, Any]


class AuditShape(TypedDict):
    rows: list[AuditRow]
    next: str | None


class MeShape(TypedDict):
    name: str
    scopes: list[str]
    changes: bool
    namespace: str
    store: str
    store_kind: str
    version: str
    now_ms: int
    refresh_ms: int


class RefusalShape(TypedDict):
    at_ms: int
    entity: str
    resource: str
    limits: list[str]
    retry_after_ms: int | None
    requested: dict[str, int]
    units: dict[str, str]
    count: int
    process: str
    retry_after_is_latest: bool
    reason: str | None


class RefusalsShape(TypedDict):
    rows: list[RefusalShape]


class ResourceShape(TypedDict):
    resource: str
    buckets: int
    refusing: int
    worst_ratio: float
    limits: list[LimitShape]


class OverviewShape(TypedDict):
    now_ms: int
    near: list[NearShape]
    looked_at: int
    buckets_known: int
    is_all: bool
    refusals: list[RefusalShape]
    resources: list[ResourceShape]
    off: list[SwitchShape]
    counters: dict[str, int]


class CheckShape(TypedDict):
    part: str
    health: str
    detail: str


class ProcessShape(TypedDict):
    name: str
    seen_ms: int
    started_ms: int
    admitted: int
    refused: int
    degraded: int
    unavailable: int


class HealthShape(TypedDict):
    health: str
    checks: list[CheckShape]
    latency_ms: float | None
    processes: list[ProcessShape]


class UsageLimitShape(TypedDict):
    name: str
    unit: str | None
    per_window: int | None
    per_window_shown: str | None
    total: int
    total_shown: str


class SeriesShape(TypedDict):
    entity: str | None
    resource: str
    limit: str
    values: list[int | None]


class UsageShape(TypedDict):
    window: str
    step_ms: int | None
    limits: list[UsageLimitShape]
    times: list[int]
    resources: list[str]
    entities: list[str]
    series: list[SeriesShape]
    pending: bool
    is_all: bool


class BucketChangeShape(TypedDict):
    bucket: BucketShape
    again: bool
    given: dict[str, int]


class SwitchChangeShape(TypedDict):
    switch: SwitchShape | None


class ParentChangeShape(TypedDict):
    entity: EntityRow


def limit_shape(limit: Limit) -> LimitShape:
    return {
        "name": limit.name,
        "capacity": limit.capacity,
        "text": limit_text(limit),
        "kind": limit.kind.value,
        "unit": limit.unit,
        "soft": limit.soft,
        "schedule": limit.schedule,
    }


def level_shape(seen: SeenLevel, *, binds: bool) -> LevelShape:
    unit = seen.limit.unit
    return {
        "limit": limit_shape(seen.limit),
        "available": seen.available,
        "capacity": seen.capacity,
        "available_shown": grouped_amount(seen.available, unit),
        "capacity_shown": grouped_amount(seen.capacity, unit),
        "ratio": round(seen.ratio, 6),
        "full_in_ms": seen.full_in_ms,
        "per_second": seen.per_second,
        "binds": binds,
        "refuses": seen.refuses,
        "held": seen.held,
    }


def bucket_shape(seen: SeenBucket) -> BucketShape:
    """A bucket; the limit that is nearest to empty binds."""
    nearest = seen.nearest
    return {
        "entity": seen.entity_id,
        "resource": seen.resource,
        "levels": [level_shape(one, binds=one is nearest) for one in seen.levels],
        "at_ms": seen.at_ms,
        "shards": seen.shards,
        "switch": None if seen.switch is None else switch_shape(seen.switch, seen.entity_id, seen.resource),
    }


def near_shape(seen: SeenBucket) -> NearShape:
    nearest = seen.nearest
    return {**bucket_shape(seen), "worst": nearest.limit.name if nearest is not None else ""}


def switch_shape(switch: Switch, entity_id: str | None = None, resource: str | None = None) -> SwitchShape:
    """A switch with the place where it was thrown, as far as its level is about that."""
    since, by = None, None
    if isinstance(switch, ThrownSwitch):
        entity_id, resource, since, by = switch.entity_id, switch.resource, switch.since, switch.by
    state: Literal["off", "bypass", "on"] = "off" if switch.disabled else "on"
    state = state if switch.bypass is None else "bypass"
    text = {"off": f"off: {switch.disabled}", "bypass": f"past its limits, {switch.bypass}", "on": "on"}
    return {
        "level": str(switch.level),
        "entity": entity_id if switch.level in ("entity", "entity_default") else None,
        "resource": resource if switch.level in ("entity", "resource") else None,
        "state": state,
        "text": text[state],
        "reason": switch.disabled or None,
        "counted": None if switch.bypass is None else switch.bypass is Bypass.COUNTED,
        "since_ms": instant_ms(since),
        "by": by,
    }


def config_shape(found: LevelEntry) -> ConfigShape:
    """What a level says; an entity's for all resources names none."""
    level: Literal["system", "resource", "entity"] = "system" if found.resource is None else "resource"
    return {
        "level": level if found.entity_id is None else "entity",
        "entity": found.entity_id,
        "resource": None if found.resource == DEFAULT_RESOURCE else found.resource,
        **_said(found.config),
    }


def _said(level: LimiterConfig | ExplainedLevel) -> SaidShape:
    return {
        "limits": [limit_shape(one) for one in level.limits],
        "on_unavailable": _word(level.on_unavailable),
        "disabled": level.disabled,
        "bypass": _word(level.bypass),
        "cascade": level.cascade,
    }


def entity_row(entity: Entity, switches: Iterable[ThrownSwitch] = ()) -> EntityRow:
    """An entity in a list, with the switch that is thrown for all that it does."""
    return {
        "entity": entity.entity_id,
        "name": entity.name,
        "parent": entity.parent_id,
        "cascade": entity.cascade,
        "switch": own_switch(entity.entity_id, switches),
    }


def own_switch(entity_id: str, switches: Iterable[ThrownSwitch]) -> SwitchShape | None:
    mine = (one for one in switches if one.entity_id == entity_id and one.resource is None)
    return next((switch_shape(one) for one in mine), None)


def child_row(entity: Entity) -> ChildRow:
    return {"entity": entity.entity_id, "name": entity.name}


def explain_shape(found: Explanation, seen: Mapping[str, SeenBucket]) -> ExplainShape:
    """An explanation with its buckets by entity; whoever of a family has least of a limit binds."""
    return {
        "entity": found.entity_id,
        "resource": found.resource,
        "parent": found.parent_id,
        "sentences": reasons(found),
        "buckets": [_explained(found, one, seen.get(one.entity_id)) for one in found.buckets],
        "at_ms": found.checked_at_ms,
    }


def _explained(found: Explanation, bucket: ExplainedBucket, seen: SeenBucket | None) -> ExplainedBucketShape:
    switch, binding = bucket.switch, found.binding
    there = () if seen is None else seen.levels
    return {
        "entity": bucket.entity_id,
        "levels": [_explained_level(one, has_winner=bucket.winner is not None) for one in bucket.levels],
        "applying": [
            level_shape(one, binds=binding.get(one.limit.name) == bucket.entity_id) for one in there
        ],
        "switch": None if switch is None else switch_shape(switch, bucket.entity_id, found.resource),
    }


def _explained_level(level: ExplainedLevel, *, has_winner: bool) -> ExplainedLevelShape:
    outcome = "overruled" if has_winner and level.limits else "has none"
    return {
        "source": str(level.source),
        "text": LEVELS[level.source],
        **_said(level),
        "wins": level.wins,
        "so": "wins" if level.wins else outcome,
    }


def audit_row(event: AuditEvent) -> AuditRow:
    """An event; those of defaults are about nobody, or about a resource."""
    about: str | None = event.entity_id
    resource = event.resource
    if event.entity_id == SYSTEM_AUDIT:
        about = None
    elif event.entity_id.startswith(RESOURCE_AUDIT):
        about, resource = None, event.entity_id.removeprefix(RESOURCE_AUDIT)
    return {
        "at_ms": instant_ms(event.timestamp),
        "id": event.event_id,
        "action": str(event.action),
        "action_text": str(event.action).replace("_", " "),
        "principal": event.principal,
        "entity": about,
        "resource": None if resource == DEFAULT_RESOURCE else resource,
        "details": dict(event.details),
    }


def instant_ms(text: str | None) -> int | None:
    """An instant as records write it; ``None`` if it is none.

    >>> instant_ms("1970-01-01T00:00:01.500Z"), instant_ms("yesterday")
    (1500, None)
    """
    try:
        return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def nearest_first(seen: Sequence[SeenBucket], most: int) -> list[SeenBucket]:
    """The buckets that are nearest to empty, without those that are full."""

    def order(one: SeenBucket) -> tuple[bool, float, str, str]:
        nearest = one.nearest
        is_soft = nearest is None or nearest.limit.soft
        return is_soft, 1.0 if nearest is None else nearest.ratio, one.entity_id, one.resource

    near = (one for one in seen if one.shards and any(level.ratio < 1 for level in one.levels))
    return sorted(near, key=order)[:most]


def _word(value: object) -> str | None:
    return None if value is None else str(value)
