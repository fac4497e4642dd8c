"""How tables of 0.9 to 0.17 spelled their records, and what in them this version cannot serve. Pure.

Keys already had a namespace and are those of today, so what tells an older record is in it:

    entity         no index entry among the entities       GSI3PK
    config level   no event that it was born by            born
    bucket shard   no version of its configuration         cv
    usage          the index entry names no kind of window, and a day has the key of its first hour

Beside them lie lists that are made of the others, notes of operations that expire, and one record of what a
file of limits had made. Some records say what this version does not know, such as a quota that is reset by
several rules. They are named before anything is written, and never left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...engine.law import Rate
from ...exceptions import ValidationError
from ...naming import DEFAULT_RESOURCE, WCU, validate_entity_id, validate_limit_name, validate_resource
from ...records.items import config_limits, unknown_settings
from ...records.levels import check_level_resource
from ...repository_protocol import Item, Key, Row, Value
from ...schema import REGISTRY, entity_config_key, entity_key, is_number, parse_bucket_pk, text
from .kinds import level_of_today, quota_rate
from .schedules import NONE, old_windows
from .shapes import Finding, Found, Kind, OldRecord, read_key, usage_place

_PARTITION = re.compile(r"([^/#]+)/([A-Z_]+)#(.*)", re.DOTALL)
_NAMESPACE_ID = re.compile(r"[A-Za-z0-9_-]{11}")
_OF_TODAY = ("CLAIM", "VERSION", "NAMESPACE", "NSID", "MIGRATION", "CHECKPOINT", "CHANGES")
"""Records of the system that were always as they are, or are made by this version only."""


def recognise_namespaced(row: Row) -> Found:
    """What a row of a table is whose keys have namespaces and whose records may be older."""
    partition = _PARTITION.fullmatch(row.key.partition)
    if partition is None:
        return Finding(row.key, "no record of any known shape has such a key")
    namespace_id, head, name = partition.groups()
    try:
        found = _read(namespace_id, head, name, row)
        reasons = list(dict.fromkeys(_obstacles(found))) if isinstance(found, OldRecord) else []
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
    is_switch = item.get("disabled") is not None
    return is_switch or any(name[:2] in ("l_", "w_") for name in item) or not item.keys().isdisjoint(_SAID)


# What this version cannot serve.


def _obstacles(record: OldRecord) -> Iterator[str]:
    item = record.item
    match record.kind:
        case Kind.LIMITS:
            today = level_of_today(item)
            strange = list(unknown_settings(today))
            yield from strange
            try:
                config_limits(today)
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
                yield from _bucket_obstacles(name, item)
        case Kind.MANIFEST:
            yield from _manifest_obstacles(item)


_ENTITY = re.compile(
    r"entity_id|name|parent_id|cascade|metadata|created_at|version|children|pgen|pinc|GSI[1-4][PS]K"
)
_BUCKET = re.compile(
    r"entity_id|resource|rf|shard_count|cascade|parent_id|ttl|pgen|pinc|vu|sched_tz|rsched|disabled|bypass"
    r"|GSI[1-4][PS]K"
)
_LIMIT = re.compile(r"b_(.+)_([a-z]+)", re.DOTALL)
_ANY = Rate(1, 1, 1)
"""Numbers for which a schedule is read to see whether it can be."""


_STAMPS = ("soft", "rsched", "rsa", "gc", "rn", "tu", "wa", "ws", "wtc")
"""What the limits of a bucket say beside their numbers: what their level says too, and how quotas stand."""


def _bucket_obstacles(name: str, item: Item) -> Iterator[str]:
    """What an attribute of a bucket says that is not its numbers and cannot be moved."""
    value, found = item[name], _LIMIT.fullmatch(name)
    limit, field = found.groups() if found else ("", "")
    if "sched" in (name, field):
        if value != NONE:
            old_windows(limit, _ANY, value, item.get("sched_tz"))
    elif field in ("tk", "cp", "ra", "rp", "tc"):
        if limit != WCU:
            validate_limit_name(limit)
        if not is_number(value):
            yield f"limit {limit!r} has {value!r} where a number belongs"
        elif field == "ra" and value == 0:
            quota_rate(item, limit)
    elif (limit and field not in _STAMPS) or (not limit and _BUCKET.fullmatch(name) is None):
        yield _nobody_knows(name)


class Switches:
    """The switches of a table, and where they would not be the same when they are moved with their levels.

    A bucket may say itself that it is off, which a level has to say as well. And a child that is on was
    refused all the same where its parent was off by the resource; today the child's own say counts there.
    """

    def __init__(self) -> None:
        self._off: list[OldRecord] = []
        self._said: dict[tuple[str, str, str], Value] = {}
        self._cascades: set[tuple[str, str, str]] = set()

    def note(self, record: OldRecord) -> None:
        at, said = (record.namespace_id, record.owner, record.resource), record.item.get("disabled")
        if record.kind is Kind.BUCKET and said:
            self._off.append(record)
        elif record.kind is Kind.LIMITS and said is not None:
            self._said[at] = said
        if record.kind is Kind.LIMITS and record.item.get("cascade") is True:
            self._cascades.add(at)

    def children(self) -> list[Key]:
        """The entities whose parents have to be known."""
        return [entity_key(at, owner) for at, owner, _, _ in self._exceptions()]

    def changed(self, entities: Mapping[Any, Item | None]) -> Iterator[Finding]:
        """The records by which a switch would be lifted."""
        for record in self._off:
            if self._first(record.namespace_id, record.owner, record.resource) is not True:
                yield Finding(record.key, "it is disabled, and no level says so", blocks=True)
        for at, owner, resource, level in self._exceptions():
            child = entities[entity_key(at, owner)] or {}
            parent_id, levels = text(child, "parent_id"), _levels(at, owner, resource)
            cascades = child.get("cascade") is True or not self._cascades.isdisjoint(levels)
            own = parent_id and [
                level for level in _levels(at, parent_id, resource)[:2] if level in self._said
            ]
            if parent_id is not None and cascades and not own:
                told = f"it is on where {resource!r} is off, for its parent {parent_id!r} as well"
                yield Finding(entity_config_key(at, owner, level), told, blocks=True)

    def _first(self, at: str, owner: str, resource: str) -> Value:
        """What the most specific level says that has a switch."""
        return next((self._said[one] for one in _levels(at, owner, resource) if one in self._said), None)

    def _exceptions(self) -> Iterator[tuple[str, str, str, str]]:
        """Entities that are on where a resource is off, and the level at which that is said."""
        off = [
            (at, resource) for (at, owner, resource), said in self._said.items() if said is True and not owner
        ]
        for (at, owner, level), said in self._said.items():
            for resource in (name for space, name in off if owner and said is False and space == at):
                if level == resource or (
                    level == DEFAULT_RESOURCE and (at, owner, resource) not in self._said
                ):
                    yield at, owner, resource, level


def _levels(at: str, owner: str, resource: str) -> list[tuple[str, str, str]]:
    return [(at, owner, resource), (at, owner, DEFAULT_RESOURCE), (at, "", resource)]


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
