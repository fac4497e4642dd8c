"""From old records to those of the present shape. Pure, and the same however often it is done.

What somebody has made with a newer client is never replaced: limits and entities that are there win, usage
is added up, and a bucket that is there is charged with what was missing from the old one. Balances are kept
by the balance law: at every instant after the move a bucket holds exactly what its old records would hold by
the law. A limit that had a ``burst`` could hold that much, so it is the capacity.

Records without a namespace become records of the one for all, and are marked. Those of 0.9 to 0.17 are
rewritten under their keys, on condition that they still lack what tells a record of today.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...models import Entity, Limit, LimiterConfig, OnUnavailable, check_limits
from ...naming import DEFAULT_RESOURCE, validate_limit_name, validate_parent_id
from ...records.items import claim_item, config_item, entity_item
from ...records.switch_list import switch_entry
from ...repository_protocol import TRANSACT_WRITES_MAX, Absent, Check, Delete, Exists, Key, Put, Query, Update
from ...schema import (
    claim_key,
    entity_config_key,
    entity_configs_key,
    entity_key,
    gsi3_pk_entities,
    gsi3_pk_entity_config,
    number,
    pinned,
    resource_config_key,
    starting,
    system_config_key,
    text,
    within_namespace,
)
from .buckets import bucket_move, shards_move
from .history import audit_move, usage_move, usage_rewrite
from .kinds import level_of_today
from .moving import Context, Group, Images, Move, Translation, moved, superseded, unchanged
from .namespaced import says_anything
from .shapes import COUNTED, Kind, OldRecord, fields

FLAGS = ("auto_update", "strict_version")
BORN = "moved"
"""The event by which a level came to have limits, where an older version kept none."""


def translate(group: Group, context: Context) -> Translation:
    """How a group of old records is moved; a ``ValidationError`` if it holds nothing that can be used."""
    first = group[0]
    if first.is_moved:
        return _child_count(first, context)
    if first.namespace_id:
        return _REWRITES[first.kind](group, context._replace(namespace_id=first.namespace_id))
    return _MOVES[first.kind](group, context)


# Limits.


def _limits_move(group: Group, context: Context) -> Translation:
    first, system = group[0], system_config_key(context.namespace_id)
    key, own = _level_key(first, context.namespace_id), _overruling(first)
    images = yield [key, system] if own is None else [key, system, own]
    config = _config(group)
    settings = [] if own is None else _settings(group, images[system] or {}, context)
    is_overruled = own is not None and images[own] is not None
    says_nothing = config == LimiterConfig(config_version=config.config_version)
    if is_overruled or says_nothing or images[key] is not None:
        return [superseded(group, settings)]
    item = {**config_item(config), **within_namespace(context.namespace_id, key)}
    counts = []
    if key != system:
        item["resource"] = first.resource
    if first.owner:
        item["GSI3PK"] = gsi3_pk_entity_config(context.namespace_id, first.resource)
        item["GSI3SK"] = first.owner
        counts.append(_counted_level(first, context))
    return [moved(group, key, [Put(key, item, (Absent(),)), *settings], counts)]


def _overruling(record: OldRecord) -> Query | None:
    """Which old records would make limits void: a resource's own those of the system for it."""
    if not record.is_system or _is_for_all(record):
        return None
    return starting(f"RESOURCE#{record.resource}", "#LIMIT#")._replace(rows_max=1)


def _settings(group: Group, there: Mapping[str, Any], context: Context) -> list[Update]:
    """What is the system's alone, if it stood beside the limits of one resource."""
    key, found = system_config_key(context.namespace_id), _flags(_said(group))
    if not found or any(name in there for name in FLAGS):
        return []
    set_ = {**found, **within_namespace(context.namespace_id, key)}
    silent = tuple(pin for name in FLAGS for pin in pinned(there, name))
    return [Update(key, {"config_version": 1}, set_, silent)]


def _level_key(record: OldRecord, namespace_id: str) -> Key:
    """Where the limits of a level are now. The system's own for one resource are that resource's."""
    if record.owner:
        return entity_config_key(namespace_id, record.owner, record.resource)
    if _is_for_all(record):
        return system_config_key(namespace_id)
    return resource_config_key(namespace_id, record.resource)


def _config(group: Group) -> LimiterConfig:
    found: list[tuple[str, list[Any]]] = []
    for record in group:
        item = fields(record.item)
        if record.limit:
            attributes = ("capacity", "burst", "refill_amount", "refill_period_seconds")
            found.append((record.limit, [item.get(name) for name in attributes]))
            continue
        for name in sorted(a[2:-3] for a in item if a.startswith("l_") and a.endswith("_cp") and len(a) > 5):
            numbers = [item.get(f"l_{name}_{field}") for field in ("cp", "bx", "ra", "rp")]
            found.append((validate_limit_name(name), numbers))
    # What a limit can hold without a burst of its own is its capacity.
    limits = [Limit(name, cp if bx is None else bx, ra, rp) for name, (cp, bx, ra, rp) in found]
    if limits:
        check_limits(limits)
    said = _said(group)
    policy, cascade = said.get("on_unavailable"), said.get("cascade")
    return LimiterConfig(
        tuple(limits),
        None if policy is None else OnUnavailable.of(policy),
        config_version=_changes(said, "config_version"),
        cascade=cascade if isinstance(cascade, bool) else None,
        **(_flags(said) if _is_for_all(group[0]) else {}),  # type: ignore[arg-type]  # only two of these
    )


def _is_for_all(record: OldRecord) -> bool:
    """Whether limits were the system's for every resource."""
    return record.is_system and record.resource == DEFAULT_RESOURCE


def _flags(said: Mapping[str, Any]) -> dict[str, bool]:
    """What only the system can say."""
    return {name: said[name] for name in FLAGS if isinstance(said.get(name), bool)}


def _said(group: Group) -> dict[str, Any]:
    """What the records of one level say together; the first that says anything of a field counts."""
    said: dict[str, Any] = {}
    for record in reversed(group):
        said |= {name: value for name, value in fields(record.item).items() if value is not None}
    return said


def _changes(item: Mapping[str, Any], counter: str) -> int:
    """How often a record was changed, as far as it says so."""
    return max(1, number(item, counter, 1))


def _counted_level(record: OldRecord, context: Context) -> Update:
    """Let a resource count an entity that has limits of its own for it."""
    key = entity_configs_key(context.namespace_id, record.resource)
    named = {"resource": record.resource, **within_namespace(context.namespace_id, key)}
    return Update(key, {"entities": 1}, named)


def _limits_rewrite(group: Group, context: Context) -> Translation:
    yield ()
    (level,) = group
    item = level.item
    when = unchanged(level, "born", "config_version", "resource", "disabled")
    if not says_anything(item):
        return [Move(group, None, (Delete(level.key, when),))]
    today = level_of_today(item)
    known: dict[str, Any] = {
        **{name: today.get(name) for name in item.keys() | today.keys() if today.get(name) != item.get(name)},
        "born": BORN,
        "config_version": _changes(item, "config_version"),
        "entity_id": None,
        **(switch_entry(context.namespace_id, level.key) if {"off", "bypass"} & today.keys() else {}),
    }
    counts = (_counted_level(level, context),) if level.owner else ()
    return [Move(group, level.key, (Update(level.key, set=known, when=when),), counts)]


def _claims_rewrite(group: Group, context: Context) -> Translation:
    """One claim for each level that the record lists; the record goes with the last of them.

    A full transaction of claims has room for nothing else, so it is refused only if the record is gone.
    """
    yield ()
    (record,) = group
    item: Mapping[str, Any] = record.item  # which was looked through
    levels: list[tuple[str, str | None, str | None]] = []
    levels += [("system", None, None)] if item.get("managed_system") is True else []
    levels += [("resource", None, name) for name in item.get("managed_resources", [])]
    for entity_id, resources in item.get("managed_entities", {}).items():
        levels += [("entity", entity_id, name) for name in resources]
    keys = [claim_key(context.namespace_id, *filter(None, level)) for level in levels]
    claims = [
        Put(key, {**claim_item(context.namespace_id, key, *level), "born": BORN})
        for key, level in zip(keys, levels, strict=True)
    ]
    size, there = TRANSACT_WRITES_MAX - 1, (Exists(),)
    full = len(claims) - len(claims) % size
    asides = [
        Move(group, record.key, (*claims[at : at + size], Check(record.key, there)), is_aside=True)
        for at in range(0, full, size)
    ]
    return [*asides, Move(group, record.key, (*claims[full:], Delete(record.key, there)))]


# Entities.


def _entity_move(group: Group, context: Context) -> Translation:
    record, item = group[0], fields(group[0].item)
    key = entity_key(context.namespace_id, record.owner)
    images = yield [key]
    if images[key] is not None:
        return [superseded(group)]
    parent_id, metadata = item.get("parent_id"), item.get("metadata")
    entity = Entity(
        record.owner,
        text(item, "name"),
        None if parent_id is None else validate_parent_id(parent_id),
        item.get("cascade") is True,
        metadata if isinstance(metadata, dict) else {},
        text(item, "created_at"),
        _changes(item, "version"),
    )
    return [moved(group, key, [Put(key, entity_item(context.namespace_id, entity), (Absent(),))])]


def _child_count(record: OldRecord, context: Context) -> Translation:
    """How the parent of a child that was moved comes to count it; one that does not exist counts nobody."""
    parent = entity_key(context.namespace_id, str(fields(record.item)["parent_id"]))
    images = yield [parent]
    once = Update(record.key, set={COUNTED: True}, when=unchanged(record, COUNTED))
    return [Move([record], parent, (once,), _counted_child(parent, images), is_aside=True)]


def _counted_child(parent: Key, images: Images) -> tuple[Update, ...]:
    return () if images[parent] is None else (Update(parent, {"children": 1}, when=(Exists(),)),)


def _entity_rewrite(group: Group, context: Context) -> Translation:
    (record,) = group
    parent_id = text(record.item, "parent_id")
    parent = None if parent_id is None else entity_key(context.namespace_id, parent_id)
    images = yield [] if parent is None else [parent]
    known: dict[str, Any] = {
        "GSI3PK": gsi3_pk_entities(context.namespace_id),
        "GSI3SK": record.owner,
        "version": _changes(record.item, "version"),
        **dict.fromkeys(("pgen", "pinc")),
        **within_namespace(context.namespace_id, record.key),
    }
    counts = () if parent is None else _counted_child(parent, images)
    write = Update(record.key, set=known, when=unchanged(record, "GSI3PK", "parent_id"))
    return [Move(group, record.key, (write,), counts)]


_Translate = Callable[[Group, Context], Translation]
_MOVES: Mapping[Kind, _Translate] = {
    Kind.LIMITS: _limits_move,
    Kind.ENTITY: _entity_move,
    Kind.BUCKET: bucket_move,
    Kind.USAGE: usage_move,
    Kind.AUDIT: audit_move,
}
_REWRITES: Mapping[Kind, _Translate] = {
    Kind.LIMITS: _limits_rewrite,
    Kind.ENTITY: _entity_rewrite,
    Kind.BUCKET: shards_move,
    Kind.USAGE: usage_rewrite,
    Kind.MANIFEST: _claims_rewrite,
}
