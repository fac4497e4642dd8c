"""What becomes of usage and audit events. Pure.

Usage is added to the row that may be there already, for both may have counted in one window.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from ...exceptions import ValidationError
from ...models import AuditAction, AuditEvent
from ...naming import WCU
from ...records.items import USAGE_SEEN, audit_item, usage_counter, usage_counters
from ...repository_protocol import Absent, Delete, Equal, Exists, Item, Key, Put, Update, Value
from ...runtime.world import ULID, ulid_of
from ...schema import audit_key, number, text
from .moving import Context, Group, Move, Translation, moved, pins, superseded, unchanged
from .shapes import OldRecord, fields, time_ms, usage_place

_MOVED_BEFORE = re.compile(r"-1@0:0-(\d+);?")


def usage_move(group: Group, context: Context) -> Translation:
    key, attributes = usage_place(context.namespace_id, group[0])
    images = yield [key]
    return [moved(group, key, [_added(key, attributes, images[key], fields(group[0].item))])]


def usage_rewrite(group: Group, context: Context) -> Translation:
    """Give a row its place in the index; a day's row also its own key, where it is added to what is there."""
    (row,) = group
    key, attributes = usage_place(context.namespace_id, row)
    images = yield [key]
    when = unchanged(row, "window")
    if key == row.key:
        renamed = {**dict.fromkeys(_overdrawn(row.item)), **_kept(row.item)}
        return [Move(group, key, (Update(key, set={**attributes, **renamed}, when=when),))]
    gone = Delete(row.key, (*when, *pins(row)))
    return [Move(group, key, (_added(key, attributes, images[key], row.item), gone))]


def _added(key: Key, attributes: Mapping[str, Value], row: Item | None, older: Item) -> Update:
    """Add an older row to the one at the key, which may be missing.

    Whoever writes a row notes what it is made of and pins that, so no addition is lost. What an older
    table had counted is noted as versions of a shard that does not exist.
    """
    seen = text(row or {}, USAGE_SEEN)
    before = _MOVED_BEFORE.match(seen or "")
    versions, rest = (int(before[1]) + 1, (seen or "")[before.end() :]) if before else (1, seen or "")
    counted = {
        name: n for name, n in usage_counters(older).items() if name != WCU and name not in _overdrawn(older)
    }
    add = {usage_counter(name): amount for name, amount in counted.items()} | _kept(older)
    add["total_events"] = number(older, "total_events")
    set_: dict[str, Value] = {USAGE_SEEN: f"-1@0:0-{versions};{rest}".rstrip(";")}
    if row is None:
        ttl = older.get("ttl")
        set_ |= {**attributes, **({"ttl": ttl} if type(ttl) is int else {})}
    return Update(key, add, set_, (Equal(USAGE_SEEN, seen), Absent() if row is None else Exists()))


def _overdrawn(row: Item) -> list[str]:
    """The attributes that count what went beyond soft limits, which nobody counts today."""
    return [name for name in row if name.endswith("#od")]


def _kept(row: Item) -> dict[str, int]:
    """The same numbers where no reader takes them for those of a limit."""
    return {f"_od_{name[:-3]}": number(row, name) for name in _overdrawn(row)}


def audit_move(group: Group, context: Context) -> Translation:
    record, item = group[0], fields(group[0].item)
    try:
        action = AuditAction(str(item.get("action")))
    except ValueError:
        actions = ", ".join(AuditAction)
        raise ValidationError("action", item.get("action"), f"it is none of {actions}") from None
    details, ttl = item.get("details"), item.get("ttl")
    event = AuditEvent(
        _event_id(record, item),
        str(item.get("timestamp")),
        action,
        record.owner,
        text(item, "principal"),
        text(item, "resource"),
        details if isinstance(details, dict) else {},
    )
    key = audit_key(context.namespace_id, record.owner, event.event_id)
    images = yield [key]
    if images[key] is not None:
        return [superseded(group)]
    made = audit_item(context.namespace_id, event, ttl if type(ttl) is int else None)
    return [moved(group, key, [Put(key, made, (Absent(),))])]


def _event_id(record: OldRecord, item: Item) -> str:
    """The event's own id if events are called so today, else one made of its time and its old key."""
    for known in (item.get("event_id"), record.key.sort.rpartition("#")[2]):
        if isinstance(known, str) and ULID.fullmatch(known):
            return known
    digest = hashlib.sha256(f"{record.key.partition} {record.key.sort}".encode()).digest()
    return ulid_of(time_ms("timestamp", item.get("timestamp")), int.from_bytes(digest[:10]))
