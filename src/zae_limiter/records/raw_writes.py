"""Writes that callers bring along, checked: what reaches a store is what every store can keep.

A write names keys of its own namespace only, in the table and in every index. Nothing here knows what
the records mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..exceptions import ValidationError
from ..models import check_mapping
from ..repository_protocol import (
    TRANSACT_WRITES_MAX,
    Absent,
    AtLeast,
    AtMost,
    Check,
    Condition,
    Delete,
    Equal,
    Exists,
    Key,
    Put,
    Update,
    Write,
)
from ..schema import INDEXES
from .metadata_rules import METADATA_DEPTH_MAX, NUMBER_MAX, problem_of

KEY_BYTES_MAX = (2048, 1024)
"""What a partition key and a sort key may have on every store."""

PARTITIONS = frozenset(f"{index}PK" for index in INDEXES)
PLACES = PARTITIONS | {f"{index}SK" for index in INDEXES}
KINDS = "pass a list of Put, Update, Delete and Check"


def check_writes(namespace_id: str, writes: object, *, together: bool = False) -> tuple[Write, ...]:
    """The writes as new values; ``together`` if they are one transaction."""
    if not isinstance(writes, list | tuple):
        raise ValidationError("writes", writes, KINDS)
    checked = tuple(_write(namespace_id, write) for write in writes)
    if together:
        keys = [write.key for write in checked]
        if len(set(keys)) != len(keys):
            raise ValidationError("writes", keys, "a transaction names no key twice")
        if len(keys) > TRANSACT_WRITES_MAX:
            raise ValidationError("writes", len(keys), f"at most {TRANSACT_WRITES_MAX} in one transaction")
    return checked


def check_keys(namespace_id: str, keys: object) -> list[Key]:
    """The keys, each once."""
    if not isinstance(keys, list | tuple):
        raise ValidationError("keys", keys, "pass a list of keys")
    return list(dict.fromkeys(_key(namespace_id, key) for key in keys))


def _write(namespace_id: str, write: object) -> Write:
    if not isinstance(write, Put | Update | Delete | Check):
        raise ValidationError("write", write, KINDS)
    key, when = _key(namespace_id, write.key), _conditions(write.when)
    match write:
        case Put(item=item):
            return Put(key, _attributes(namespace_id, item), when)
        case Update(add=add, set=set_):
            return _update(key, _amounts(add), _attributes(namespace_id, set_), when)
        case Delete():
            return Delete(key, when)
        case Check():
            return Check(key, when)


def _update(key: Key, add: dict[str, int], set_: dict[str, Any], when: tuple[Condition, ...]) -> Update:
    if both := sorted(add.keys() & set_.keys()):
        raise ValidationError("attribute", both[0], "it is both added to and set")
    return Update(key, add, set_, when)


def _key(namespace_id: str, key: object) -> Key:
    if not isinstance(key, tuple) or len(key) != 2:
        raise ValidationError("key", key, "pass a Key")
    for part, bytes_max in zip(key, KEY_BYTES_MAX, strict=True):
        if not isinstance(part, str) or not 0 < len(_text("key", part).encode()) <= bytes_max:
            raise ValidationError("key", key, f"its parts are texts of at most {KEY_BYTES_MAX} bytes")
    if not key[0].startswith(f"{namespace_id}/"):
        raise ValidationError("key", key[0], f"it is not in this namespace; start it with '{namespace_id}/'")
    return Key(*key)


def _attributes(namespace_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    attributes = check_mapping("item", given, "pass a mapping of attributes")
    for name, value in attributes.items():
        _name(name)
        if problem := problem_of(value, METADATA_DEPTH_MAX):
            raise ValidationError(f"value of {name!r}", value, problem)
        if value is not None and name in PLACES:
            if not isinstance(value, str) or not value:
                raise ValidationError(name, value, "an index is made of texts")
            if name in PARTITIONS and value.partition("/")[0] != namespace_id:
                raise ValidationError(name, value, f"start it with '{namespace_id}/', as the key")
    return attributes


def _amounts(given: Mapping[str, int]) -> dict[str, int]:
    amounts = check_mapping("add", given, "pass a mapping of whole numbers")
    for name, amount in amounts.items():
        if _name(name) in PLACES or type(amount) is not int or abs(amount) >= NUMBER_MAX:
            raise ValidationError(f"amount of {name!r}", amount, "add a whole number to a number")
    return amounts


def _conditions(when: object) -> tuple[Condition, ...]:
    if not isinstance(when, list | tuple):
        raise ValidationError("when", when, "pass a tuple of conditions")
    for condition in when:
        match condition:
            case Exists() | Absent():
                continue
            case Equal(attribute=attribute, value=value) if isinstance(value, str | int | bool | None):
                kept = value
            case AtLeast(attribute=attribute, amount=kept) | AtMost(attribute=attribute, amount=kept) if (
                isinstance(kept, str) or type(kept) is int
            ):
                pass
            case _:
                raise ValidationError("condition", condition, "pass Exists, Absent, Equal, AtLeast or AtMost")
        _name(attribute)
        if problem := problem_of(kept):
            raise ValidationError("condition", condition, problem)
    return tuple(when)


def _name(name: object) -> str:
    if not isinstance(name, str) or not name or name in ("PK", "SK"):
        raise ValidationError("attribute", name, "name it with a text that is not part of the key")
    return _text("attribute", name)


def _text(field: str, text: str) -> str:
    if problem := problem_of(text):
        raise ValidationError(field, text, problem)
    return text
