"""Whole records as models, and back: entities, config, audit events, the registry, usage.

What these functions write they read again, whatever the names. Attributes that are missing or of
another type count as not there, so that a record written by another version can be read. Where one of
them is what the record is about, ``DamagedRecordError`` is raised: a limit that cannot be read must not
count as no limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from ..exceptions import DamagedRecordError, ValidationError, shown
from ..models import (
    AuditAction,
    AuditEvent,
    BucketState,
    Bypass,
    Entity,
    Limit,
    LimiterConfig,
    Namespace,
    NamespaceStatus,
    OnUnavailable,
    UsageSnapshot,
    UsageWindow,
    VersionRecord,
)
from ..models.switches import check_disabled
from ..naming import validate_namespace, validate_namespace_id
from ..repository_protocol import Item, Key, Value
from ..schema import (
    INDEXES,
    BucketAddress,
    audit_key,
    bucket_limit_names,
    entity_key,
    gsi1_pk_parent,
    gsi1_sk_child,
    gsi2_pk_resource,
    gsi2_sk_usage,
    gsi3_pk_entities,
    identifier,
    is_number,
    limit_attributes,
    number,
    sk_config,
    stored_rate,
    text,
    usage_key,
    within_namespace,
)


def is_widely_remembered(key: Key) -> bool:
    """Whether all clients of a namespace depend on a record: the config of a resource, or of the system."""
    return key.sort == sk_config() and ("/SYSTEM#" in key.partition or "/RESOURCE#" in key.partition)


def _fields_of(model: Any) -> dict[str, Any]:
    """A model's fields as attributes of the same names; a word of a list is the text, a mapping a dict."""
    return {field.name: _plain(getattr(model, field.name)) for field in fields(model)}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Enum) else dict(value) if isinstance(value, Mapping) else value


# Config. One item holds every limit of one level, in whole tokens and seconds.


def config_attributes(limits: Iterable[Limit]) -> dict[str, Value]:
    attributes: dict[str, Value] = {}
    for limit in limits:
        attributes[f"l_{limit.name}_cp"] = limit.capacity
        attributes[f"l_{limit.name}_ra"] = limit.refill_amount
        attributes[f"l_{limit.name}_rp"] = limit.refill_period_seconds
        kind = {"ac": limit.accrual, "un": limit.unit, "so": 1 if limit.soft else None, "sd": limit.schedule}
        attributes |= {f"l_{limit.name}_{part}": said for part, said in kind.items() if said is not None}
    return attributes


def configured_names(item: Item) -> list[str]:
    """The limits that a config item says anything about."""
    parts = ("_cp", "_ra", "_rp")
    return sorted({a[2:-3] for a in item if a.startswith("l_") and a.endswith(parts) and len(a) > 5})


def config_limits(item: Mapping[str, Value]) -> tuple[Limit, ...]:
    """The limits of a config item, in the order of their names; malformed ones are an error."""
    return tuple(
        Limit(
            name,
            *(item.get(f"l_{name}_{field}") for field in ("cp", "ra", "rp", "ac", "un")),  # type: ignore[arg-type]
            soft=_softness(item.get(f"l_{name}_so")),
            schedule=item.get(f"l_{name}_sd"),  # type: ignore[arg-type]
        )
        for name in configured_names(item)
    )


def _softness(stored: Value) -> bool:
    """Whether a limit is soft; what is neither said nor unsaid is for ``Limit`` to refuse."""
    return stored is not None if stored is None or (type(stored) is int and stored == 1) else stored  # type: ignore[return-value]


def config_item(config: LimiterConfig) -> dict[str, Value]:
    attributes = _fields_of(config)
    # Where older versions say `disabled` they mean something else by some values.
    return config_attributes(attributes.pop("limits")) | {"off": attributes.pop("disabled")} | attributes


CHANGES_MAX = 10**15
"""How often a level can have been changed; a larger count is not one of ours."""


def config_of(item: Item) -> LimiterConfig:
    """What a level says as a whole."""
    return LimiterConfig(limits=limits_of(item, "limits"), **_settings_of(item), **switch_of(item, "switch"))


def readable_config(item: Item) -> LimiterConfig:
    """What a level says as far as it can be read, for those who replace it."""
    with suppress(DamagedRecordError):
        return config_of(item)
    with suppress(DamagedRecordError):
        return LimiterConfig(**_settings_of(item), **switch_of(item, "switch"))
    return LimiterConfig(**_settings_of(item))


_SETTING = re.compile(
    r"l_.+_(?:cp|ra|rp|ac|un|so|sd)|on_unavailable|cascade|off|bypass|auto_update|strict_version|config_version"
    r"|born|switched_at|switched_by|resource"
    r"|entity_id|ttl"
    r"|GSI[1-4][PS]K",
    re.DOTALL,
)
_STRANGE = re.compile(r"[lw]_(.+?)_([a-z]+)", re.DOTALL)
_KINDS = {"sched": "has a schedule", "rsched": "is a calendar quota", "soft": "is soft"}
NOBODY_KNOWS = "nobody knows"


def unknown_settings(item: Item) -> Iterator[str]:
    """What a level says that this version cannot do, in words. To leave it out could admit anything."""
    for name in item:
        if _SETTING.fullmatch(name) is not None and (name != "cascade" or isinstance(item[name], bool)):
            continue
        if item[name] is False and (name == "disabled" or name.endswith("_soft")):
            continue  # which is how it is anyway
        limit = _STRANGE.fullmatch(name)
        if name == "disabled":
            yield "it is bypassed" if item[name] == "bypass" else "it is disabled"
        elif limit is not None and (limit[2] in _KINDS or name[:2] == "w_"):
            yield f"limit {limit[1]!r} {_KINDS.get(limit[2], 'is a session quota')}"
        elif name != "sched_tz":  # which only comes with others
            yield f"{NOBODY_KNOWS} what {name!r} says"


def check_settings(item: Item, record: str, *, replacing: bool = False) -> None:
    """Raise if a level says something that this version cannot do.

    Whoever replaces it as a whole must not lift what somebody has set; something that is no level may go.
    """
    strange = sorted(set(unknown_settings(item)))
    if replacing and any(reason.startswith(NOBODY_KNOWS) for reason in strange):
        return
    if strange:
        told = f"{'; '.join(strange)}, which this version cannot do"
        raise DamagedRecordError(record, f"{told}; delete it, or use the version that wrote it")


def limits_of(item: Item, record: str) -> tuple[Limit, ...]:
    """The limits of a level, all of them or none."""
    check_settings(item, record)
    try:
        return config_limits(item)
    except ValidationError as error:
        raise DamagedRecordError(record, f"{error}; set or delete them again") from error


def policy_of(item: Item) -> OnUnavailable | None:
    with suppress(ValidationError):
        return OnUnavailable.of(item.get("on_unavailable"))  # type: ignore[arg-type]  # which is checked
    return None


def switch_of(item: Item, record: str) -> dict[str, Any]:
    """What a level says of its switch; one that cannot be read must not count as on."""
    disabled, bypass = item.get("off"), item.get("bypass")
    try:
        said = {} if bypass is None else {"bypass": Bypass.of(bypass)}  # type: ignore[arg-type]
        check_disabled(disabled, said.get("bypass"))  # type: ignore[arg-type]  # which is checked
    except ValidationError as error:
        raise DamagedRecordError(record, f"{error}; enable, disable or bypass it again") from error
    return said if disabled is None else {"disabled": disabled}


def changes_of(item: Item) -> int:
    """How often a level was changed; it counts from the beginning if that cannot be read."""
    count = number(item, "config_version")
    return count if 0 <= count <= CHANGES_MAX else 0


def _settings_of(item: Item) -> dict[str, Any]:
    # A bucket says whether it cascades as well, and may stand in the place of a level by mistake.
    own = ("auto_update", "strict_version", *(("cascade",) if is_number(item.get("config_version")) else ()))
    said = {name: value for name in own if isinstance(value := item.get(name), bool)}
    return {"on_unavailable": policy_of(item), "config_version": changes_of(item), **said}


def claim_item(
    namespace_id: str, key: Key, level: str, entity_id: str | None, resource: str | None
) -> dict[str, Value]:
    """What says that a manifest made a level, but for which life of it."""
    names = {"level": level, "entity_id": entity_id, "resource": resource}
    return names | within_namespace(namespace_id, key)


# Entities. ``children`` counts them, so that a parent is not deleted under a child that is being made.


def entity_item(namespace_id: str, entity: Entity) -> dict[str, Value]:
    key, parent_id = entity_key(namespace_id, entity.entity_id), entity.parent_id
    return {
        **_fields_of(entity),
        "GSI1PK": None if parent_id is None else gsi1_pk_parent(namespace_id, parent_id),
        "GSI1SK": None if parent_id is None else gsi1_sk_child(entity.entity_id),
        "GSI3PK": gsi3_pk_entities(namespace_id),
        "GSI3SK": entity.entity_id,
        **within_namespace(namespace_id, key),
    }


def entity_of(item: Item, entity_id: str | None = None) -> Entity:
    """The entity of a record; whose it is says its key, if the caller knows that."""
    metadata, parent_id = item.get("metadata"), identifier(item.get("parent_id"))
    if entity_id is None:
        entity_id = _required(item, "entity_id", "entity")
    return Entity(
        entity_id=entity_id,
        name=text(item, "name"),
        parent_id=None if parent_id == entity_id else parent_id,
        cascade=item.get("cascade") is True,
        metadata=metadata if isinstance(metadata, dict) else {},
        created_at=text(item, "created_at"),
        version=number(item, "version", 1),
    )


# Audit events.


def audit_item(namespace_id: str, event: AuditEvent, ttl_seconds: int | None) -> dict[str, Value]:
    key = audit_key(namespace_id, event.entity_id, event.event_id)
    return {**_fields_of(event), "ttl": ttl_seconds, **within_namespace(namespace_id, key)}


def audit_event_of(item: Item) -> AuditEvent:
    record, details = "audit event", item.get("details")
    action = _required(item, "action", record)
    return AuditEvent(
        event_id=_required(item, "event_id", record),
        timestamp=_required(item, "timestamp", record),
        # Newer and older versions know other actions; whatever happened is shown.
        action=AuditAction(action) if action in tuple(AuditAction) else action,
        entity_id=_required(item, "entity_id", record),
        principal=text(item, "principal"),
        resource=text(item, "resource"),
        details=details if isinstance(details, dict) else {},
    )


# The registry: namespaces and versions.


def namespace_item(namespace: Namespace) -> dict[str, Value]:
    return _fields_of(namespace)


def namespace_of(item: Item) -> Namespace:
    record, status = "namespace", item.get("status", NamespaceStatus.ACTIVE.value)
    try:
        name = validate_namespace(_required(item, "namespace_name", record))
        namespace_id = validate_namespace_id(_required(item, "namespace_id", record))
    except ValidationError as error:
        raise DamagedRecordError(record, str(error)) from error
    if status not in tuple(NamespaceStatus):
        raise DamagedRecordError(f"namespace {name!r}", f"{shown(status)} is no status")
    instants = text(item, "created_at"), text(item, "deleted_at")
    return Namespace(name, namespace_id, NamespaceStatus(status), *instants)


UPGRADING = "upgrading"
"""On the version record: the table's records are being moved, and nobody may use it until they are."""


def version_item(record: VersionRecord) -> dict[str, Value]:
    return _fields_of(record)


def version_of(item: Item) -> VersionRecord:
    versions = text(item, "schema_version") or "", text(item, "lambda_version")
    least = text(item, "client_min_version") or "0.0.0"
    return VersionRecord(*versions, least, text(item, "updated_at"), text(item, "updated_by"))


def _required(item: Item, attribute: str, record: str) -> str:
    value = text(item, attribute)
    if value is None:
        raise DamagedRecordError(record, f"its {attribute} is {shown(item.get(attribute))}")
    return value


# Usage. A row counts one window of one bucket. Counters stand under the names of their limits, so that
# one write can make the row and add to it; a limit that is named like an attribute is marked.

_KEYS = [prefix + part for prefix in ("", *INDEXES) for part in ("PK", "SK")]
_OWN = frozenset((*_KEYS, "entity_id", "resource", "window", "window_start", "total_events", "ttl"))
"""What a usage row calls its own. Attributes that are added later must not start with a letter."""


def usage_counter(limit_name: str) -> str:
    """The attribute that counts a limit: its name, behind a ``#`` if the row calls that its own."""
    return f"#{limit_name}" if limit_name in _OWN else limit_name


USAGE_SEEN = "_seen"
"""The attribute that says which changes a row is made of. Whoever adds to a row pins it and changes it."""
USAGE_PASSED = "_passed"
"""To whom a row's use was charged as well, and how many millitokens of each limit."""


def usage_passed_milli(item: Item) -> dict[str, dict[str, int]]:
    """How many millitokens of a row were charged to parents too, by parent and limit."""
    passed = item.get(USAGE_PASSED)
    return {
        parent_id: {name: milli for name, milli in amounts.items() if is_number(milli)}
        for parent_id, amounts in (passed.items() if isinstance(passed, dict) else ())
        if isinstance(amounts, dict) and identifier(parent_id) is not None
    }


def usage_counters(item: Item) -> dict[str, int]:
    """What a row counted, by limit."""
    counts = {a: n for a, n in item.items() if is_number(n) and a not in _OWN}
    return {a.removeprefix("#"): n for a, n in counts.items() if a[:1] == "#" or a[:1].isalpha()}


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
    record = "usage snapshot"
    start = _required(item, "window_start", record)
    try:
        window = UsageWindow.of(_required(item, "window", record))
        end = window_of(window, int(datetime.fromisoformat(start).timestamp()) * 1000)[2]
    except (ValueError, OverflowError, OSError) as error:  # whatever a calendar has against an instant
        raise DamagedRecordError(record, str(error)) from error
    return UsageSnapshot(
        entity_id=_required(item, "entity_id", record),
        resource=_required(item, "resource", record),
        window_type=window,
        window_start=start,
        window_end=end,
        counters=usage_counters(item),
        total_events=number(item, "total_events"),
        passed_on={
            parent_id: {name: milli // 1000 for name, milli in amounts.items()}
            for parent_id, amounts in usage_passed_milli(item).items()
        },
    )


def bucket_states(image: Item, at: BucketAddress | None = None) -> list[BucketState]:
    """A bucket item as one state for each limit that users know of; whose it is says its key, if known."""
    if at is None:
        at = BucketAddress("", text(image, "entity_id") or "", text(image, "resource") or "", 0)
    states = []
    for name in bucket_limit_names(image):
        tk, tc, rate = limit_attributes(name).tk, limit_attributes(name).tc, stored_rate(image, name)
        assert rate is not None, "every limit that a bucket holds has a rate"
        whose, stored = (at.entity_id, at.resource, name), (number(image, tk), number(image, "rf"))
        states.append(BucketState(*whose, *stored, *rate[:3], number(image, tc), at.shard_id, rate.accrual))
    return states
