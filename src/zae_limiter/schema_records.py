"""Whole records as models, and back: entities, config, audit events, the registry, usage.

What these functions write they read again, whatever the names. Attributes that are missing or of
another type count as not there, so that a record written by another version can be read.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from .models import (
    AuditAction,
    AuditEvent,
    Entity,
    LimiterConfig,
    Namespace,
    NamespaceStatus,
    OnUnavailable,
    UsageSnapshot,
    UsageWindow,
    VersionRecord,
)
from .repository_protocol import Item, Key, Value
from .schema import (
    INDEXES,
    audit_key,
    config_attributes,
    config_limits,
    entity_key,
    gsi1_pk_parent,
    gsi1_sk_child,
    gsi2_pk_resource,
    gsi2_sk_usage,
    gsi3_pk_entities,
    number,
    text,
    usage_key,
    within_namespace,
)

# Config.


def config_item(config: LimiterConfig) -> dict[str, Value]:
    return {
        **config_attributes(config.limits),
        "on_unavailable": None if config.on_unavailable is None else config.on_unavailable.value,
        "auto_update": config.auto_update,
        "strict_version": config.strict_version,
        "config_version": config.config_version,
    }


def config_of(item: Item) -> LimiterConfig:
    policy, auto_update, strict = (item.get(f) for f in ("on_unavailable", "auto_update", "strict_version"))
    return LimiterConfig(
        limits=config_limits(item),
        on_unavailable=OnUnavailable.of(policy) if isinstance(policy, str) else None,
        auto_update=auto_update if isinstance(auto_update, bool) else None,
        strict_version=strict if isinstance(strict, bool) else None,
        config_version=number(item, "config_version"),
    )


# Entities. ``children`` counts them, so that a parent is not deleted under a child that is being made.


def entity_item(namespace_id: str, entity: Entity) -> dict[str, Value]:
    key, parent_id = entity_key(namespace_id, entity.entity_id), entity.parent_id
    return {
        "entity_id": entity.entity_id,
        "name": entity.name,
        "parent_id": parent_id,
        "cascade": entity.cascade,
        "metadata": dict(entity.metadata),
        "created_at": entity.created_at,
        "version": entity.version,
        "GSI1PK": None if parent_id is None else gsi1_pk_parent(namespace_id, parent_id),
        "GSI1SK": None if parent_id is None else gsi1_sk_child(entity.entity_id),
        "GSI3PK": gsi3_pk_entities(namespace_id),
        "GSI3SK": entity.entity_id,
        **within_namespace(namespace_id, key),
    }


def entity_of(item: Item) -> Entity:
    metadata = item.get("metadata")
    return Entity(
        entity_id=str(item["entity_id"]),
        name=text(item, "name"),
        parent_id=text(item, "parent_id"),
        cascade=item.get("cascade") is True,
        metadata=metadata if isinstance(metadata, dict) else {},
        created_at=text(item, "created_at"),
        version=number(item, "version", 1),
    )


# Audit events.


def audit_item(namespace_id: str, event: AuditEvent, ttl_seconds: int | None) -> dict[str, Value]:
    return {
        "event_id": event.event_id,
        "timestamp": event.timestamp,
        "action": event.action.value,
        "entity_id": event.entity_id,
        "principal": event.principal,
        "resource": event.resource,
        "details": dict(event.details),
        "ttl": ttl_seconds,
        **within_namespace(namespace_id, audit_key(namespace_id, event.entity_id, event.event_id)),
    }


def audit_event_of(item: Item) -> AuditEvent:
    details = item.get("details")
    return AuditEvent(
        event_id=str(item["event_id"]),
        timestamp=str(item["timestamp"]),
        action=AuditAction(str(item["action"])),
        entity_id=str(item["entity_id"]),
        principal=text(item, "principal"),
        resource=text(item, "resource"),
        details=details if isinstance(details, dict) else {},
    )


# The registry: namespaces and versions.


def namespace_item(namespace: Namespace) -> dict[str, Value]:
    return {
        "namespace_name": namespace.namespace_name,
        "namespace_id": namespace.namespace_id,
        "status": namespace.status.value,
        "created_at": namespace.created_at,
        "deleted_at": namespace.deleted_at,
    }


def namespace_of(item: Item) -> Namespace:
    return Namespace(
        str(item["namespace_name"]),
        str(item["namespace_id"]),
        NamespaceStatus(str(item.get("status", NamespaceStatus.ACTIVE))),
        text(item, "created_at"),
        text(item, "deleted_at"),
    )


def version_item(record: VersionRecord) -> dict[str, Value]:
    return {
        "schema_version": record.schema_version,
        "lambda_version": record.lambda_version,
        "client_min_version": record.client_min_version,
        "updated_at": record.updated_at,
        "updated_by": record.updated_by,
    }


def version_of(item: Item) -> VersionRecord:
    return VersionRecord(
        str(item.get("schema_version")),
        text(item, "lambda_version"),
        text(item, "client_min_version") or "0.0.0",
        text(item, "updated_at"),
        text(item, "updated_by"),
    )


# Usage. A row counts one window of one bucket. Counters stand under the names of their limits, so that
# one write can make the row and add to it; a limit that is named like an attribute is marked.

_KEYS = [prefix + part for prefix in ("", *INDEXES) for part in ("PK", "SK")]
_OWN = frozenset((*_KEYS, "entity_id", "resource", "window", "window_start", "total_events", "ttl"))
"""What a usage row calls its own. Attributes that are added later must not start with a letter."""


def usage_counter(limit_name: str) -> str:
    """The attribute that counts a limit: its name, behind a ``#`` if the row calls that its own."""
    return f"#{limit_name}" if limit_name in _OWN else limit_name


def window_of(window: UsageWindow, at_ms: int) -> tuple[str, str, str]:
    """The key, the start and the end of the window in which an instant lies."""
    start = datetime.fromtimestamp(at_ms // 1000, UTC).replace(minute=0, second=0)
    if window is UsageWindow.HOURLY:
        key, end = f"{start:%Y-%m-%dT%H:%M:%SZ}", start + timedelta(hours=1)
    elif window is UsageWindow.DAILY:
        start = start.replace(hour=0)
        key, end = f"{start:%Y-%m-%d}", start + timedelta(days=1)
    else:
        start = start.replace(day=1, hour=0)
        key, end = f"{start:%Y-%m}", (start + timedelta(days=31)).replace(day=1)
    return key, f"{start:%Y-%m-%dT%H:%M:%SZ}", f"{end:%Y-%m-%dT%H:%M:%SZ}"


def usage_row(
    namespace_id: str, entity_id: str, resource: str, window: UsageWindow, at_ms: int
) -> tuple[Key, dict[str, Value]]:
    """Where an instant's usage is counted, and the attributes of that row beside counters and ``ttl``."""
    window_key, start, _ = window_of(window, at_ms)
    key = usage_key(namespace_id, entity_id, resource, window_key)
    return key, {
        "entity_id": entity_id,
        "resource": resource,
        "window": window.value,
        "window_start": start,
        "GSI2PK": gsi2_pk_resource(namespace_id, resource),
        "GSI2SK": gsi2_sk_usage(window, window_key, entity_id),
        **within_namespace(namespace_id, key),
    }


def usage_snapshot_of(item: Item) -> UsageSnapshot:
    window, start = UsageWindow.of(str(item["window"])), str(item["window_start"])
    start_ms = int(datetime.fromisoformat(start).timestamp()) * 1000
    counts = {a: n for a, n in item.items() if type(n) is int and a not in _OWN}
    return UsageSnapshot(
        entity_id=str(item["entity_id"]),
        resource=str(item["resource"]),
        window_type=window,
        window_start=start,
        window_end=window_of(window, start_ms)[2],
        counters={a.removeprefix("#"): n for a, n in counts.items() if a[0] == "#" or a[0].isalpha()},
        total_events=number(item, "total_events"),
    )
