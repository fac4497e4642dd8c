"""How tables without namespaces spelled their records, and how one of them is recognised. Pure.

Two shapes are known, and a table that lived through both may hold either:

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

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from ...exceptions import ValidationError
from ...models import UsageWindow
from ...naming import DEFAULT_RESOURCE, validate_entity_id, validate_limit_name, validate_resource
from ...records.items import usage_row
from ...records.levels import check_level_resource
from ...repository_protocol import Item, Key, Row, Value
from ...schema import RESOURCE_AUDIT, SYSTEM_AUDIT

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


class OldRecord(NamedTuple):
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
        if self.kind is Kind.BUCKET:
            return (self.namespace_id, self.owner, self.resource)
        if self.kind is Kind.LIMITS:
            # A level that was written in both shapes becomes two groups, and the newer one comes first.
            return (self.key.partition, self.resource, "limit" if self.limit else "")
        return self.key

    @property
    def is_moved(self) -> bool:
        return MOVED_TO in self.item

    @property
    def is_system(self) -> bool:
        """Whether limits were the system's; those it had for one resource are that resource's by now."""
        return self.key.partition == "SYSTEM#"


class Finding(NamedTuple):
    """A record that stays where it is, and why."""

    key: Key
    reason: str
    blocks: bool = False
    """This version cannot serve it: as long as it is there, nothing is changed."""


Found: TypeAlias = OldRecord | Finding | None
"""What a row is; nothing for a record of the present shape."""


def recognise(row: Row) -> Found:
    """What a row of a table is, if keys with a namespace are of the present shape."""
    head, _, name = row.key.partition.partition("#")
    if "/" in head:
        return None
    before, *sort = row.key.sort.split("#")
    try:
        found = None if before else read_key(head, name, sort, row)
    except ValidationError as error:
        return Finding(row.key, str(error))
    return found or Finding(row.key, "no record of any known shape has such a key")


def read_key(head: str, name: str, sort: list[str], row: Row) -> OldRecord | None:
    """What the parts of a key say; nothing if no kind of record has such a key."""
    match head, sort:
        case "ENTITY", ["META"]:
            return OldRecord(Kind.ENTITY, *row, validate_entity_id(name))
        case "ENTITY", ["USAGE", resource, _]:
            return OldRecord(Kind.USAGE, *row, validate_entity_id(name), validate_resource(resource))
        case "ENTITY", ["BUCKET", resource] | ["BUCKET", resource, _]:
            found = OldRecord(Kind.BUCKET, *row, validate_entity_id(name), validate_resource(resource))
        case "ENTITY", ["CONFIG", resource] | ["LIMIT", resource, _]:
            found = OldRecord(Kind.LIMITS, *row, validate_entity_id(name), check_level_resource(resource))
        case "RESOURCE", ["CONFIG"] | ["LIMIT", _, _] if sort[1:2] in ([], [name]):
            found = OldRecord(Kind.LIMITS, *row, resource=validate_resource(name))
        case "SYSTEM", ["CONFIG"]:
            found = OldRecord(Kind.LIMITS, *row, resource=DEFAULT_RESOURCE)
        case "SYSTEM", ["LIMIT", resource, _]:
            found = OldRecord(Kind.LIMITS, *row, resource=check_level_resource(resource))
        case "SYSTEM", ["VERSION"]:
            return OldRecord(Kind.VERSION, *row)
        case "AUDIT", ["AUDIT", _]:
            if name.startswith(RESOURCE_AUDIT):
                validate_resource(name.removeprefix(RESOURCE_AUDIT))
            elif name != SYSTEM_AUDIT:
                validate_entity_id(name)
            return OldRecord(Kind.AUDIT, *row, name)
        case _:
            return None
    return found._replace(limit=validate_limit_name(sort[2])) if sort[2:] else found


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


def usage_place(namespace_id: str, record: OldRecord) -> tuple[Key, dict[str, Value]]:
    """Where a row of usage belongs by what it says itself, and the attributes of the row there."""
    item = fields(record.item)
    window = UsageWindow.of(str(item.get("window")))
    start_ms = time_ms("window_start", item.get("window_start"))
    return usage_row(namespace_id, record.owner, record.resource, window, start_ms)


_END_MS = int(datetime(9999, 12, 1, tzinfo=UTC).timestamp() * 1000)
"""The last month that a calendar knows: what begins in it may not end."""


def time_ms(field: str, value: object) -> int:
    try:
        moment = datetime.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValidationError(field, value, "it is no instant such as 2024-01-01T14:00:00Z") from None
    ms = round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
    if not 0 <= ms < _END_MS:
        raise ValidationError(field, value, "it is too far away")
    return ms
