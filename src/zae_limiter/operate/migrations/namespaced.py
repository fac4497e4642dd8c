"""How tables of 0.9 to 0.17 spelled their records, and what in them this version cannot serve. Pure.

Keys already had a namespace and are those of today, so what tells an older record is in it:

    entity         no index entry among the entities       GSI3PK
    config level   no event that it was born by            born
    bucket shard   no version of its configuration         cv
    usage          the index entry names no kind of window, and a day has the key of its first hour

Beside them lie lists that are made of the others, notes of operations that expire, and one record of what a
file of limits had made. Some records say what this version does not know, such as a limit that changes by
a calendar. These are obstacles: they are named before anything is written, and never left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from ...exceptions import ValidationError
from ...models import UsageWindow
from ...naming import DEFAULT_RESOURCE, WCU, validate_entity_id, validate_limit_name, validate_resource
from ...records.items import unknown_settings, usage_row
from ...repository_protocol import Item, Key, Row
from ...schema import REGISTRY, config_limits, is_number, text
from .shapes import Current, Finding, Kind, Obstacle, Source, level_resource

_PLACE = re.compile(r"([^/#]+)/([A-Z_]+)#(.*)", re.DOTALL)
_NAMESPACE_ID = re.compile(r"[A-Za-z0-9_-]{11}")

Found = Source | Finding | Current | Obstacle


class Place(NamedTuple):
    """A key, taken apart."""

    namespace_id: str
    head: str
    name: str
    sort: tuple[str, ...]


def recognise_namespaced(row: Row, now_ms: int) -> Found:
    """What a row of a table is whose keys have namespaces and whose records may be older."""
    found = _PLACE.fullmatch(row.key.partition)
    if found is None:
        return Finding(row.key, "no record of any known shape has such a key")
    place = Place(found[1], found[2], found[3], tuple(row.key.sort.split("#")[1:]))
    try:
        source = _read(place, row)
    except ValidationError as error:
        return Obstacle(row.key, str(error))
    if isinstance(source, Source):
        reasons = list(dict.fromkeys(_obstacles(source, now_ms)))
        return Obstacle(row.key, "; ".join(reasons)) if reasons else source
    if source is None:
        is_ours = found[1] == REGISTRY or _NAMESPACE_ID.fullmatch(found[1]) is not None
        reason = "no version that is known has a record of this kind"
        return Obstacle(row.key, reason) if is_ours else Finding(row.key, reason)
    return source


def _read(place: Place, row: Row) -> Source | Current | None:
    """The source if a record is older, nothing if its kind is not known."""
    match place.head, place.sort:
        case "ENTITY", ("META",):
            return _entity(place, row)
        case "ENTITY", ("CONFIG", resource):
            return _level(place, row, validate_entity_id(place.name), level_resource(resource))
        case "ENTITY", ("USAGE", resource, _):
            return _usage(place, row, validate_resource(resource))
        case "RESOURCE", ("CONFIG",):
            return _level(place, row, "", validate_resource(place.name))
        case "SYSTEM", ("CONFIG",):
            return _level(place, row, "", DEFAULT_RESOURCE)
        case "SYSTEM", ("PROVISIONER",):
            return Source(Kind.MANIFEST, *row, namespace_id=place.namespace_id)
        case "SYSTEM", ("RESOURCES",) | ("ENTITY_CONFIG_RESOURCES",):
            return Source(Kind.LIST, *row, namespace_id=place.namespace_id)
        case "BUCKET", ("STATE",):
            return _bucket(place, row)
        case "BUCKET", ("OP", _):
            return Current(row.key)  # it says that a request was carried out, and expires
        case "AUDIT", ("AUDIT", _):
            return Current(row.key)
        case "RESOURCE", ("ENTITY_CONFIGS",):
            return Current(row.key)
        case "SYSTEM", (
            "CLAIM" | "VERSION" | "NAMESPACE" | "NSID" | "MIGRATION" | "CHECKPOINT" | "CHANGES",
            *_,
        ):
            return Current(row.key)
    return None


def _entity(place: Place, row: Row) -> Source | Current:
    if "GSI3PK" in row.item:
        return Current(row.key)
    return Source(Kind.ENTITY, *row, validate_entity_id(place.name), namespace_id=place.namespace_id)


def _level(place: Place, row: Row, owner: str, resource: str) -> Source | Current:
    is_tombstone = not says_anything(row.item) and "GSI3PK" not in row.item and "resource" not in row.item
    if "born" in row.item or (is_tombstone and "config_version" in row.item):
        return Current(row.key)
    return Source(Kind.LIMITS, *row, owner, resource, namespace_id=place.namespace_id)


def _bucket(place: Place, row: Row) -> Source | Current:
    if "cv" in row.item:
        return Current(row.key)
    entity_id, resource, shard = (*place.name.split("#"), "", "")[:3]
    owner, resource = validate_entity_id(entity_id), validate_resource(resource)
    if not re.fullmatch(r"[0-9]{1,9}", shard):
        raise ValidationError("bucket", row.key.partition, "its key names no shard")
    return Source(Kind.BUCKET, *row, owner, resource, namespace_id=place.namespace_id, shard_id=int(shard))


def _usage(place: Place, row: Row, resource: str) -> Source | Current:
    owner = validate_entity_id(place.name)
    key, attributes = usage_place(place.namespace_id, owner, resource, row.item)
    if key == row.key and row.item.get("GSI2SK") == attributes["GSI2SK"]:
        return Current(row.key)
    return Source(Kind.USAGE, *row, owner, resource, namespace_id=place.namespace_id)


def usage_place(namespace_id: str, owner: str, resource: str, item: Item) -> tuple[Key, dict[str, Any]]:
    """Where a usage row belongs by what it says itself."""
    window = UsageWindow.of(str(item.get("window")))
    try:
        start = datetime.fromisoformat(text(item, "window_start") or "")
        return usage_row(namespace_id, owner, resource, window, int(start.timestamp()) * 1000)
    except (ValueError, OverflowError, OSError):
        reason = "it is no instant such as 2024-01-01T14:00:00Z"
        raise ValidationError("window_start", item.get("window_start"), reason) from None


def says_anything(item: Item) -> bool:
    """Whether a config record says more than whose it is."""
    return any(name[:2] in ("l_", "w_") for name in item) or "on_unavailable" in item


# Obstacles.


def _obstacles(source: Source, now_ms: int) -> Iterator[str]:
    match source.kind:
        case Kind.LIMITS:
            yield from level_obstacles(source.item)
        case Kind.ENTITY:
            yield from _unknown(source.item, _ENTITY)
            if source.item.get("parent_id") is not None:
                validate_entity_id(source.item["parent_id"])  # type: ignore[arg-type]  # which is checked
        case Kind.BUCKET:
            yield from _bucket_obstacles(source.item, now_ms)
        case Kind.USAGE:
            overdrawn = sorted(name[:-3] for name in source.item if name.endswith("#od"))
            if overdrawn:
                yield f"it counts what went beyond the soft limits {', '.join(map(repr, overdrawn))}"
        case Kind.MANIFEST:
            yield from _manifest_obstacles(source.item)


_ENTITY = re.compile(
    r"entity_id|name|parent_id|cascade|metadata|created_at|version|children|pgen|pinc|GSI[1-4][PS]K"
)
_BUCKET = re.compile(
    r"entity_id|resource|rf|shard_count|cascade|parent_id|ttl|pgen|pinc|vu|sched_tz|GSI[1-4][PS]K"
)
_LIMIT = re.compile(r"b_(.+)_([a-z]+)", re.DOTALL)
_NUMBERS = frozenset(("tk", "cp", "ra", "rp", "tc"))
_QUOTA = frozenset(("gc", "rn", "rsa", "rsched", "tu", "wa", "ws", "wtc"))
NO_SCHEDULE = "-"


def _unknown(item: Item, known: re.Pattern[str]) -> Iterator[str]:
    for name in sorted(item):
        if known.fullmatch(name) is None:
            yield f"nobody knows what {name!r} says"


def level_obstacles(item: Item) -> Iterator[str]:
    """What a config level says that limits of this version cannot."""
    strange = list(unknown_settings(item))
    yield from strange
    try:
        config_limits(item)
    except ValidationError as error:
        if not strange:
            yield str(error)


def _bucket_obstacles(item: Item, now_ms: int) -> Iterator[str]:
    """What a bucket says that is not its numbers, as far as it still holds."""
    if not is_number(item.get("rf")) and any(name.endswith("_tk") for name in item):
        yield "it does not say since when it is refilled"
    for name in sorted(item):
        if name == "disabled":
            if item[name]:
                yield "it is disabled"
        elif name == "bypass":
            if not is_number(item[name]) or item[name] > now_ms:  # type: ignore[operator]
                yield "its limits are bypassed"
        elif name in ("sched", "rsched"):
            if item[name] != NO_SCHEDULE:
                yield "its limits change by a schedule" if name == "sched" else "it holds a calendar quota"
        elif found := _LIMIT.fullmatch(name):
            yield from _limit_obstacles(found[1], found[2], item[name], now_ms)
        elif _BUCKET.fullmatch(name) is None:
            yield f"nobody knows what {name!r} says"


def _limit_obstacles(limit: str, field: str, value: object, now_ms: int) -> Iterator[str]:
    if field in _NUMBERS:
        if limit != WCU:
            validate_limit_name(limit)
        if not is_number(value):
            yield f"limit {limit!r} has {value!r} where a number belongs"
        elif field == "ra" and value == 0:
            yield f"limit {limit!r} is a quota"
    elif field in _QUOTA:
        yield f"limit {limit!r} is a quota"
    elif field == "soft":
        if not is_number(value) or value > now_ms:
            yield f"limit {limit!r} is soft"
    elif field == "sched":
        if value != NO_SCHEDULE:
            yield f"limit {limit!r} has a schedule"
    else:
        yield f"nobody knows what {f'b_{limit}_{field}'!r} says"


def _manifest_obstacles(item: Item) -> Iterator[str]:
    resources, entities = item.get("managed_resources", []), item.get("managed_entities", {})
    if not isinstance(resources, list) or not isinstance(entities, dict):
        yield "it does not list what a file of limits made"
        return
    for name in resources:
        validate_resource(name)
    for entity_id, names in entities.items():
        validate_entity_id(entity_id)
        for name in names:
            level_resource(name)
