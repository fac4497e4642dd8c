"""How tables of 0.9 to 0.17 spelled their records, and what in them this version cannot serve. Pure.

Keys already had a namespace and are those of today, so what tells an older record is in it:

    entity         no index entry among the entities       GSI3PK
    config level   no event that it was born by            born
    bucket shard   no version of its configuration         cv
    usage          the index entry names no kind of window, and a day has the key of its first hour

Beside them lie lists that are made of the others, notes of operations that expire, and one record of what a
file of limits had made. Some records say what this version does not know, such as a limit that changes by
a calendar. They are named before anything is written, and never left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ...exceptions import ValidationError
from ...naming import WCU, validate_entity_id, validate_limit_name, validate_resource
from ...records.items import config_limits, unknown_settings
from ...records.levels import check_level_resource
from ...repository_protocol import Item, Row
from ...schema import REGISTRY, is_number, parse_bucket_pk
from .shapes import Finding, Found, Kind, OldRecord, read_key, usage_place

_PARTITION = re.compile(r"([^/#]+)/([A-Z_]+)#(.*)", re.DOTALL)
_NAMESPACE_ID = re.compile(r"[A-Za-z0-9_-]{11}")
_OF_TODAY = ("CLAIM", "VERSION", "NAMESPACE", "NSID", "MIGRATION", "CHECKPOINT", "CHANGES")
"""Records of the system that were always as they are, or are made by this version only."""


def recognise_namespaced(row: Row, now_ms: int) -> Found:
    """What a row of a table is whose keys have namespaces and whose records may be older."""
    partition = _PARTITION.fullmatch(row.key.partition)
    if partition is None:
        return Finding(row.key, "no record of any known shape has such a key")
    namespace_id, head, name = partition.groups()
    try:
        found = _read(namespace_id, head, name, row)
        reasons = list(dict.fromkeys(_obstacles(found, now_ms))) if isinstance(found, OldRecord) else []
    except ValidationError as error:
        reasons = [str(error)]
    return Finding(row.key, "; ".join(reasons), blocks=True) if reasons else found


def _read(namespace_id: str, head: str, name: str, row: Row) -> Found:
    found, sort = None, row.key.sort.split("#")[1:]
    match head, sort:
        case ("BUCKET", ["OP", _]) | ("AUDIT", ["AUDIT", _]) | ("RESOURCE", ["ENTITY_CONFIGS"]):
            return None
        case "SYSTEM", [kind, *_] if kind in _OF_TODAY:
            return None
        case ("ENTITY", ["META"] | ["CONFIG", _] | ["USAGE", _, _]) | ("RESOURCE" | "SYSTEM", ["CONFIG"]):
            found = read_key(head, name, sort, row)
        case "BUCKET", ["STATE"]:
            at = parse_bucket_pk(row.key.partition)
            found = OldRecord(Kind.BUCKET, *row, at.entity_id, at.resource, shard_id=at.shard_id)
        case "SYSTEM", ["PROVISIONER"]:
            found = OldRecord(Kind.MANIFEST, *row)
        case "SYSTEM", ["RESOURCES"] | ["ENTITY_CONFIG_RESOURCES"]:
            found = OldRecord(Kind.LIST, *row)
    if found is None:
        is_ours = namespace_id == REGISTRY or _NAMESPACE_ID.fullmatch(namespace_id) is not None
        return Finding(row.key, "no version that is known has a record of this kind", blocks=is_ours)
    found = found._replace(namespace_id=namespace_id)
    return None if _is_current(found) else found


def _is_current(record: OldRecord) -> bool:
    """Whether a record is of the present shape."""
    item = record.item
    match record.kind:
        case Kind.ENTITY:
            return "GSI3PK" in item
        case Kind.BUCKET:
            return "cv" in item
        case Kind.LIMITS:
            is_tombstone = not says_anything(item) and "GSI3PK" not in item and "resource" not in item
            return "born" in item or (is_tombstone and "config_version" in item)
        case Kind.USAGE:
            key, attributes = usage_place(record.namespace_id, record)
            return key == record.key and item.get("GSI2SK") == attributes["GSI2SK"]
    return False


_SAID = frozenset(("on_unavailable", "cascade"))


def says_anything(item: Item) -> bool:
    """Whether a config record says more than whose it is."""
    return any(name[:2] in ("l_", "w_") for name in item) or not item.keys().isdisjoint(_SAID)


# What this version cannot serve.


def _obstacles(record: OldRecord, now_ms: int) -> Iterator[str]:
    item = record.item
    match record.kind:
        case Kind.LIMITS:
            strange = list(unknown_settings(item))
            yield from strange
            try:
                config_limits(item)
            except ValidationError as error:
                if not strange:
                    yield str(error)
        case Kind.ENTITY:
            yield from (_nobody_knows(name) for name in sorted(item) if not _ENTITY.fullmatch(name))
            if item.get("parent_id") is not None:
                validate_entity_id(item["parent_id"])  # type: ignore[arg-type]  # which is checked
        case Kind.BUCKET:
            if not is_number(item.get("rf")) and any(name.endswith("_tk") for name in item):
                yield "it does not say since when it is refilled"
            for name in sorted(item):
                yield from _bucket_obstacles(name, item[name], now_ms)
        case Kind.USAGE:
            overdrawn = sorted(name[:-3] for name in item if name.endswith("#od"))
            if overdrawn:
                yield f"it counts what went beyond the soft limits {', '.join(map(repr, overdrawn))}"
        case Kind.MANIFEST:
            yield from _manifest_obstacles(item)


_ENTITY = re.compile(
    r"entity_id|name|parent_id|cascade|metadata|created_at|version|children|pgen|pinc|GSI[1-4][PS]K"
)
_BUCKET = re.compile(
    r"entity_id|resource|rf|shard_count|cascade|parent_id|ttl|pgen|pinc|vu|sched_tz|GSI[1-4][PS]K"
)
_LIMIT = re.compile(r"b_(.+)_([a-z]+)", re.DOTALL)


def _is_over(value: object, now_ms: int) -> bool:
    return is_number(value) and value <= now_ms


def _has_no_schedule(value: object, _: int) -> bool:
    return value == "-"


_Harmless = Callable[[object, int], bool]
_OF_BUCKETS: dict[str, tuple[_Harmless, str]] = {
    "disabled": (lambda value, _: not value, "it is disabled"),
    "bypass": (_is_over, "its limits are bypassed"),
    "sched": (_has_no_schedule, "its limits change by a schedule"),
    "rsched": (_has_no_schedule, "it holds a calendar quota"),
}
_OF_LIMITS: dict[str, tuple[_Harmless, str]] = {
    "soft": (_is_over, "is soft"),
    "sched": (_has_no_schedule, "has a schedule"),
    **dict.fromkeys(("gc", "rn", "rsa", "rsched", "tu", "wa", "ws", "wtc"), (lambda *_: False, "is a quota")),
}
"""What buckets and their limits may say beside their numbers, when it means nothing, and what it means."""


def _bucket_obstacles(name: str, value: object, now_ms: int) -> Iterator[str]:
    """What an attribute of a bucket says that is not its numbers, as far as it still holds."""
    limit, field = found.groups() if (found := _LIMIT.fullmatch(name)) else ("", "")
    if name in _OF_BUCKETS:
        is_harmless, reason = _OF_BUCKETS[name]
        if not is_harmless(value, now_ms):
            yield reason
    elif field in ("tk", "cp", "ra", "rp", "tc"):
        if limit != WCU:
            validate_limit_name(limit)
        if not is_number(value):
            yield f"limit {limit!r} has {value!r} where a number belongs"
        elif field == "ra" and value == 0:
            yield f"limit {limit!r} is a quota"
    elif field in _OF_LIMITS:
        is_harmless, reason = _OF_LIMITS[field]
        if not is_harmless(value, now_ms):
            yield f"limit {limit!r} {reason}"
    elif limit or _BUCKET.fullmatch(name) is None:
        yield _nobody_knows(name)


def _manifest_obstacles(item: Item) -> Iterator[str]:
    resources, entities = item.get("managed_resources", []), item.get("managed_entities", {})
    lists = [resources, *(entities.values() if isinstance(entities, dict) else [None])]
    if not isinstance(entities, dict) or not all(isinstance(names, list) for names in lists):
        yield "it does not list what a file of limits made"
        return
    for name in resources:  # type: ignore[union-attr]  # which is a list
        validate_resource(name)
    for entity_id, names in entities.items():
        validate_entity_id(entity_id)
        for name in names:
            check_level_resource(name)


def _nobody_knows(name: str) -> str:
    return f"nobody knows what {name!r} says"
