"""From old records to those of the present shape. Pure, and the same however often it is done.

``translate`` says which writes move a group of old records, given the images of the records in whose
place they come (``wanted`` names them). What somebody has made there with a newer client is never
replaced: limits and entities that are there win, usage is added up, and a bucket that is there is
charged with what was missing from the old one.

Balances are kept by the balance law: at every instant after the move a bucket holds exactly what its old
records would hold by the law. A limit that had a ``burst`` could hold that much, so it is the capacity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from ...exceptions import ValidationError
from ...models import (
    AuditAction,
    AuditEvent,
    Entity,
    Limit,
    LimiterConfig,
    OnUnavailable,
    UsageWindow,
    check_limits,
)
from ...naming import DEFAULT_RESOURCE, validate_limit_name, validate_parent_id
from ...records.items import (
    audit_item,
    config_item,
    entity_item,
    usage_row,
)
from ...repository_protocol import Absent, Equal, Item, Key, Put, Query, Update, Value
from ...runtime.world import ULID, ulid_of
from ...schema import (
    audit_key,
    entity_config_key,
    entity_configs_key,
    entity_key,
    gsi3_pk_entity_config,
    resource_config_key,
    starting,
    system_config_key,
    text,
    within_namespace,
)
from .buckets import bucket_move, bucket_wanted
from .moving import Context, Move, counted, moved, superseded
from .shapes import Kind, Source, fields, is_system, older_resource_limits
from .usage import added

Images: TypeAlias = Mapping[Key, Item | None]


def wanted(sources: Sequence[Source], context: Context) -> list[Key]:
    """The records that the translation of a group looks at."""
    first = sources[0]
    match first.kind:
        case Kind.LIMITS:
            return [_level_key(first, context), system_config_key(context.namespace_id)]
        case Kind.ENTITY:
            return [entity_key(context.namespace_id, first.owner)]
        case Kind.BUCKET:
            return bucket_wanted(sources, context)
        case Kind.USAGE:
            return [_usage_row(first, context)[0]]
        case Kind.AUDIT:
            return [_audit(first, context)[0]]
        case _:
            return []


def translate(sources: Sequence[Source], images: Images, context: Context) -> Move:
    """How a group of old records is moved; a ``ValidationError`` if it holds nothing that can be used."""
    match sources[0].kind:
        case Kind.LIMITS:
            return _limits_move(sources, images, context)
        case Kind.ENTITY:
            return _entity_move(sources[0], images, context)
        case Kind.BUCKET:
            return bucket_move(sources, images, context)
        case Kind.USAGE:
            return _usage_move(sources[0], images, context)
        case Kind.AUDIT:
            return _audit_move(sources[0], images, context)
        case kind:
            raise AssertionError(f"{kind} is not moved")


def child_count(sources: Sequence[Source], images: Images, context: Context) -> Move:
    """How the parent of a child that was moved comes to count it."""
    (parent,) = parents(sources, context)
    return counted(sources[0], parent if images.get(parent) is not None else None)


def parents(sources: Sequence[Source], context: Context) -> list[Key]:
    return [entity_key(context.namespace_id, str(fields(sources[0].item)["parent_id"]))]


# Limits.


def _limits_move(sources: Sequence[Source], images: Images, context: Context) -> Move:
    key, first = _level_key(sources[0], context), sources[0]
    config, settings = _config(sources), _settings(sources, images, context)
    own = shadowing(sources)
    is_shadowed = own is not None and images.get(Key(own.partition, own.first)) is not None
    says_nothing = config == LimiterConfig(config_version=config.config_version)
    if is_shadowed or says_nothing or images.get(key) is not None:
        gone = superseded(sources)
        return gone._replace(writes=(*gone.writes, *settings))
    item: dict[str, Value] = config_item(config) | within_namespace(context.namespace_id, key)
    counts = []
    if key != system_config_key(context.namespace_id):
        item["resource"] = first.resource
    if first.owner:
        item["GSI3PK"] = gsi3_pk_entity_config(context.namespace_id, first.resource)
        item["GSI3SK"] = first.owner
        count_key = entity_configs_key(context.namespace_id, first.resource)
        named = {"resource": first.resource, **within_namespace(context.namespace_id, count_key)}
        counts.append(Update(count_key, {"entities": 1}, named))
    made = Put(key, {n: v for n, v in item.items() if v is not None}, (Absent(),))
    return moved(sources, key, [made, *settings], counts)


def shadowing(sources: Sequence[Source]) -> Query | None:
    """Which old records would make a group of limits void: a resource's own those of the system for it."""
    first = sources[0]
    if not is_system(first) or first.resource == DEFAULT_RESOURCE:
        return None
    return starting(*older_resource_limits(first.resource))._replace(rows_max=1)


def _settings(sources: Sequence[Source], images: Images, context: Context) -> list[Update]:
    """What is the system's alone, if it stood beside the limits of one resource."""
    if shadowing(sources) is None:
        return []
    key, said = system_config_key(context.namespace_id), _said(sources)
    there = images.get(key) or {}
    names = ("auto_update", "strict_version")
    found = {name: said[name] for name in names if isinstance(said.get(name), bool)}
    if not found or any(name in there for name in names):
        return []
    silent = tuple(Equal(name, None) for name in names)
    set_ = {**found, **within_namespace(context.namespace_id, key)}
    return [Update(key, {"config_version": 1}, set_, silent)]


def _level_key(source: Source, context: Context) -> Key:
    """Where the limits of a level are now. The system's own for one resource are that resource's."""
    if source.owner:
        return entity_config_key(context.namespace_id, source.owner, source.resource)
    if is_system(source) and source.resource == DEFAULT_RESOURCE:
        return system_config_key(context.namespace_id)
    return resource_config_key(context.namespace_id, source.resource)


def _config(sources: Sequence[Source]) -> LimiterConfig:
    limits: list[Limit] = []
    for source in sources:
        item = fields(source.item)
        if source.limit:
            numbers = (item.get(name) for name in ("refill_amount", "refill_period_seconds"))
            limits.append(Limit(source.limit, _burst(item, "capacity", "burst"), *numbers))  # type: ignore[arg-type]
        else:
            limits += _composite_limits(item)
    if limits:
        check_limits(limits)
    said = _said(sources)
    version = said.get("config_version")
    system = is_system(sources[0]) and sources[0].resource == DEFAULT_RESOURCE
    auto_update, strict = (said.get(name) if system else None for name in ("auto_update", "strict_version"))
    return LimiterConfig(
        tuple(limits),
        None if said.get("on_unavailable") is None else OnUnavailable.of(said["on_unavailable"]),
        auto_update if isinstance(auto_update, bool) else None,
        strict if isinstance(strict, bool) else None,
        version if type(version) is int and version > 0 else 1,
    )


def _said(sources: Sequence[Source]) -> dict[str, Any]:
    """What the records of one level say together; the first that says anything of a field counts."""
    said: dict[str, Any] = {}
    for source in reversed(sources):
        said |= {name: value for name, value in fields(source.item).items() if value is not None}
    return said


def _composite_limits(item: Mapping[str, Any]) -> list[Limit]:
    names = sorted(a[2:-3] for a in item if a.startswith("l_") and a.endswith("_cp") and len(a) > 5)
    return [
        Limit(
            validate_limit_name(name),
            _burst(item, f"l_{name}_cp", f"l_{name}_bx"),
            *(item.get(f"l_{name}_{field}") for field in ("ra", "rp")),  # type: ignore[arg-type]
        )
        for name in names
    ]


def _burst(item: Mapping[str, Any], capacity: str, burst: str) -> Any:
    """What a limit can hold; without a burst of its own that is its capacity."""
    return item[burst] if item.get(burst) is not None else item.get(capacity)


# Entities.


def _entity_move(source: Source, images: Images, context: Context) -> Move:
    key, item = entity_key(context.namespace_id, source.owner), fields(source.item)
    if images.get(key) is not None:
        return superseded([source])
    parent_id, metadata, version = item.get("parent_id"), item.get("metadata"), item.get("version")
    entity = Entity(
        source.owner,
        text(item, "name"),
        None if parent_id is None else validate_parent_id(parent_id),
        item.get("cascade") is True,
        metadata if isinstance(metadata, dict) else {},
        text(item, "created_at"),
        version if type(version) is int and version > 0 else 1,
    )
    made = {n: v for n, v in entity_item(context.namespace_id, entity).items() if v is not None}
    return moved([source], key, [Put(key, made, (Absent(),))])


# Usage.


def _usage_move(source: Source, images: Images, context: Context) -> Move:
    key, attributes = _usage_row(source, context)
    return moved([source], key, [added(key, attributes, images.get(key), fields(source.item))])


def _usage_row(source: Source, context: Context) -> tuple[Key, dict[str, Value]]:
    item = fields(source.item)
    window = UsageWindow.of(str(item.get("window")))
    start_ms = _time_ms("window_start", item.get("window_start"))
    return usage_row(context.namespace_id, source.owner, source.resource, window, start_ms)


# Audit events.


def _audit_move(source: Source, images: Images, context: Context) -> Move:
    key, event, ttl = _audit(source, context)
    if images.get(key) is not None:
        return superseded([source])
    item = audit_item(context.namespace_id, event, ttl)
    return moved([source], key, [Put(key, {n: v for n, v in item.items() if v is not None}, (Absent(),))])


def _audit(source: Source, context: Context) -> tuple[Key, AuditEvent, int | None]:
    item = fields(source.item)
    details, ttl, timestamp = item.get("details"), item.get("ttl"), item.get("timestamp")
    try:
        action = AuditAction(str(item.get("action")))
    except ValueError:
        actions = ", ".join(AuditAction)
        raise ValidationError("action", item.get("action"), f"it is none of {actions}") from None
    event = AuditEvent(
        _event_id(source, item),
        str(timestamp),
        action,
        source.owner,
        text(item, "principal"),
        text(item, "resource"),
        details if isinstance(details, dict) else {},
    )
    key = audit_key(context.namespace_id, source.owner, event.event_id)
    return key, event, ttl if type(ttl) is int else None


def _event_id(source: Source, item: Mapping[str, Any]) -> str:
    """The event's own id if events are called so today, else one made of its time and its old key."""
    for known in (item.get("event_id"), source.key.sort.rpartition("#")[2]):
        if isinstance(known, str) and ULID.fullmatch(known):
            return known
    digest = hashlib.sha256(f"{source.key.partition} {source.key.sort}".encode()).digest()
    return ulid_of(_time_ms("timestamp", item.get("timestamp")), int.from_bytes(digest[:10]))


_END_MS = int(datetime(9999, 12, 1, tzinfo=UTC).timestamp() * 1000)
"""The last month that a calendar knows: what begins in it may not end."""


def _time_ms(field: str, value: object) -> int:
    try:
        moment = datetime.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValidationError(field, value, "it is no instant such as 2024-01-01T14:00:00Z") from None
    ms = round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
    if not 0 <= ms < _END_MS:
        raise ValidationError(field, value, "it is too far away")
    return ms
