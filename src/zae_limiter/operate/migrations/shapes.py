"""How older tables spelled their records, and how one of them is recognised. Pure.

Keys had no namespace. Two shapes are known, and a table that lived through both may hold either:

    one item per limit   ENTITY#{id}        #BUCKET#{resource}#{limit}, #LIMIT#{resource}#{limit}
                         RESOURCE#{name}    #LIMIT#{name}#{limit}
                         SYSTEM#            #LIMIT#{resource}#{limit}
    composite            ENTITY#{id}        #BUCKET#{resource}, #CONFIG#{resource}
                         RESOURCE#{name}    #CONFIG
                         SYSTEM#            #CONFIG
    both                 ENTITY#{id}        #META, #USAGE#{resource}#{window}
                         AUDIT#{id}         #AUDIT#{event}
                         SYSTEM#            #VERSION

The oldest records keep their attributes in a map, ``data``; ``fields`` makes no difference of it. What
was moved carries ``moved_to``, so every record is moved once however often that is tried.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from ...exceptions import ValidationError
from ...naming import DEFAULT_RESOURCE, validate_entity_id, validate_limit_name, validate_resource
from ...repository_protocol import Item, Key, Row
from ...schema import RESOURCE_AUDIT, SYSTEM_AUDIT, older_version_key

MOVED_TO = "moved_to"
"""On an old record: where it went, the two parts of the key with a space between them."""

SUPERSEDED = "superseded"
"""What ``moved_to`` says of a record that was not needed, because something newer stood in its place."""

COUNTED = "counted"
"""On the old record of a child: its new parent knows of it."""


class Kind(StrEnum):
    """What a record is about, in the order in which kinds are moved."""

    LIMITS = "limits"
    ENTITY = "entities"
    BUCKET = "buckets"
    USAGE = "usage"
    AUDIT = "audit"
    VERSION = "version"
    MANIFEST = "manifest"
    """Which levels a file of limits had made, in one record for a namespace."""
    LIST = "lists"
    """Names that an older version kept beside the records, and that this one finds by its indexes."""


class Source(NamedTuple):
    """One old record, and what its key says."""

    kind: Kind
    key: Key
    item: Item
    owner: str = ""
    """The entity; or whose events, for the audit trail; nothing for defaults."""
    resource: str = ""
    limit: str = ""
    """Of one item per limit: which."""
    namespace_id: str = ""
    """Of a record whose key already has a namespace: which."""
    shard_id: int = 0

    @property
    def group(self) -> tuple[str, ...]:
        """Records with the same group become one record."""
        if self.namespace_id:
            is_bucket = self.kind is Kind.BUCKET
            return (self.namespace_id, self.owner, self.resource) if is_bucket else self.key
        if self.kind in (Kind.LIMITS, Kind.BUCKET):
            # A level that was written in both shapes becomes two groups, and the newer one comes first.
            shape = "limit" if self.limit and self.kind is Kind.LIMITS else ""
            return (self.kind, self.key.partition, self.resource, shape)
        return self.key

    @property
    def is_moved(self) -> bool:
        return MOVED_TO in self.item


class Finding(NamedTuple):
    """A record that stays where it is, and why."""

    key: Key
    reason: str


class Current(NamedTuple):
    """A record of the present shape."""

    key: Key


class Obstacle(NamedTuple):
    """A record that this version cannot serve, and why: as long as it is there, nothing is changed."""

    key: Key
    reason: str


def recognise(row: Row) -> Source | Finding | Current:
    """What a row of a table is, if keys with a namespace are of the present shape."""
    key = row.key
    head, _, rest = key.partition.partition("#")
    if "/" in head:
        return Current(key)
    try:
        found = _read(head, rest, key.sort.split("#"), row)
    except ValidationError as error:
        return Finding(key, str(error))
    return found or Finding(key, "no record of any known shape has such a key")


def _read(head: str, rest: str, sort: list[str], row: Row) -> Source | None:
    if sort[0] != "":
        return None
    match head, sort[1:]:
        case "ENTITY", ["META"]:
            return Source(Kind.ENTITY, *row, validate_entity_id(rest))
        case "ENTITY", ["BUCKET", resource]:
            return Source(Kind.BUCKET, *row, validate_entity_id(rest), validate_resource(resource))
        case "ENTITY", ["BUCKET", resource, limit]:
            owner = validate_entity_id(rest)
            return Source(Kind.BUCKET, *row, owner, validate_resource(resource), validate_limit_name(limit))
        case "ENTITY", ["CONFIG", resource]:
            return Source(Kind.LIMITS, *row, validate_entity_id(rest), level_resource(resource))
        case "ENTITY", ["LIMIT", resource, limit]:
            owner = validate_entity_id(rest)
            return Source(Kind.LIMITS, *row, owner, level_resource(resource), validate_limit_name(limit))
        case "ENTITY", ["USAGE", resource, _]:
            return Source(Kind.USAGE, *row, validate_entity_id(rest), validate_resource(resource))
        case "RESOURCE", ["CONFIG"]:
            return Source(Kind.LIMITS, *row, "", validate_resource(rest))
        case "RESOURCE", ["LIMIT", resource, limit] if resource == rest:
            return Source(Kind.LIMITS, *row, "", validate_resource(rest), validate_limit_name(limit))
        case "SYSTEM", ["CONFIG"]:
            return Source(Kind.LIMITS, *row, "", DEFAULT_RESOURCE)
        case "SYSTEM", ["LIMIT", resource, limit]:
            return Source(Kind.LIMITS, *row, "", level_resource(resource), validate_limit_name(limit))
        case "SYSTEM", ["VERSION"]:
            return Source(Kind.VERSION, *row)
        case "AUDIT", ["AUDIT", _]:
            return Source(Kind.AUDIT, *row, _audited(rest))
        case _:
            return None


def is_system(source: Source) -> bool:
    """Whether limits were the system's; those it had for one resource are that resource's by now."""
    return source.key.partition == older_version_key().partition


def older_resource_limits(resource: str) -> tuple[str, str]:
    """The partition, and how sort keys begin, of the limits that a resource had of its own."""
    return f"RESOURCE#{resource}", "#LIMIT#"


def fields(item: Item) -> dict[str, Any]:
    """The attributes of an old record, wherever it keeps them."""
    data = item.get("data")
    return {**(data if isinstance(data, dict) else {}), **{n: v for n, v in item.items() if n != "data"}}


def target_of(item: Item) -> Key | None:
    """Where an old record went; ``None`` if it went nowhere."""
    moved_to = item.get(MOVED_TO)
    if not isinstance(moved_to, str) or moved_to == SUPERSEDED:
        return None
    # Names may hold spaces, but none before a '#', with which sort keys begin.
    partition, _, sort = moved_to.partition(" #")
    return Key(partition, f"#{sort}")


def level_resource(resource: str) -> str:
    return resource if resource == DEFAULT_RESOURCE else validate_resource(resource)


def _audited(name: str) -> str:
    if name == SYSTEM_AUDIT:
        return name
    if name.startswith(RESOURCE_AUDIT):
        validate_resource(name.removeprefix(RESOURCE_AUDIT))
        return name
    return validate_entity_id(name)
