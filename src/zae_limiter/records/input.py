"""What callers bring along to be stored, checked so that every store keeps it alike.

A write that somebody makes by hand names keys of its own namespace only, in the table and in every index.
Nothing here knows what the records mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from ..exceptions import ValidationError, shown
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

T = TypeVar("T")

NAME_LENGTH_MAX = 256
METADATA_BYTES_MAX = 64 * 1024
METADATA_DEPTH_MAX = 16
NUMBER_MAX = 10**38
"""Numbers of more digits, or much nearer to zero, are not kept exactly by every store."""
KEY_BYTES_MAX = (2048, 1024)
"""What a partition key and a sort key may have on every store."""

PARTITIONS = frozenset(f"{index}PK" for index in INDEXES)
PLACES = PARTITIONS | {f"{index}SK" for index in INDEXES}
KINDS = "pass a list of Put, Update, Delete and Check"


def check_name(name: str | None) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX:
        raise ValidationError("name", name, f"it must be a text of 1 to {NAME_LENGTH_MAX} characters")
    return _storable("name", name)


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as plain JSON data."""
    if metadata is None:
        return {}
    rule = "it must be a mapping of JSON values"
    given = check_mapping("metadata", metadata, rule)
    try:
        text = json.dumps(given, allow_nan=False)
        plain: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValidationError("metadata", metadata, f"{rule} ({error})") from error
    if len(text) > METADATA_BYTES_MAX:
        raise ValidationError("metadata", f"{len(text)} bytes", f"at most {METADATA_BYTES_MAX} are kept")
    return _storable("metadata", plain, METADATA_DEPTH_MAX)


def _storable(field: str, value: T, depth: int = 0) -> T:
    """A value that every store keeps the same way."""
    if problem := problem_of(value, depth):
        raise ValidationError(field, value, problem)
    return value


def problem_of(value: Any, depth_left: int = 0) -> str | None:
    """What keeps a value from being stored the same way everywhere."""
    match value:
        case None | bool():
            return None
        case str():
            return None if _is_whole(value) else "half of a character is in it"
        case int() | float():
            exact = not value or 1 / NUMBER_MAX <= abs(value) < NUMBER_MAX
            return None if exact else f"the number {shown(value)} is not kept exactly"
        case dict() | list() if not depth_left:
            return f"it is nested more than {METADATA_DEPTH_MAX} levels deep"
        case dict():
            if "" in value:
                return "a key is empty"
            if not all(isinstance(key, str) and _is_whole(key) for key in value):
                return "a key is no text"
            return next((found for one in value.values() if (found := problem_of(one, depth_left - 1))), None)
        case list():
            return next((found for one in value if (found := problem_of(one, depth_left - 1))), None)
        case _:
            return f"a store keeps texts, numbers, lists and mappings, not {type(value).__name__}"


def _is_whole(text: str) -> bool:
    """Whether no half of a surrogate pair stands alone, which cannot be written down."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


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
            amounts, attributes = _amounts(add), _attributes(namespace_id, set_)
            if both := sorted(amounts.keys() & attributes.keys()):
                raise ValidationError("attribute", both[0], "it is both added to and set")
            return Update(key, amounts, attributes, when)
        case Delete() | Check():
            return type(write)(key, when)


def _key(namespace_id: str, key: object) -> Key:
    if not isinstance(key, tuple) or len(key) != 2:
        raise ValidationError("key", key, "pass a Key")
    for part, bytes_max in zip(key, KEY_BYTES_MAX, strict=True):
        if not isinstance(part, str) or not 0 < len(_storable("key", part).encode()) <= bytes_max:
            raise ValidationError("key", key, f"its parts are texts of at most {KEY_BYTES_MAX} bytes")
    if not key[0].startswith(f"{namespace_id}/"):
        raise ValidationError("key", key[0], f"it is not in this namespace; start it with '{namespace_id}/'")
    return Key(*key)


def _attributes(namespace_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    attributes = check_mapping("item", given, "pass a mapping of attributes")
    for name, value in attributes.items():
        _storable(f"value of {_name(name)!r}", value, METADATA_DEPTH_MAX)
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
    return _storable("attribute", name)
