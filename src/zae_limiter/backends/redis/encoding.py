"""How keys, places and values are spelled in Redis. Pure.

All keys of a namespace, which is a partition up to its first ``/``, begin with one hash tag, so that a
cluster keeps them in one slot. An integer is its decimal text, which the script can compare and add to;
before any other value stands a letter for its type. Members of sorted sets compare by their bytes, which in
UTF-8 is the order of code points. Attributes whose name begins with NUL are the store's own and never leave
it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from ...repository_protocol import Cursor, Item, Key, Query, Value

VERSION = b"\0v"
"""The field that is another one after every write to an item."""
HOUR = b"\0h"
_NESTED = dict, list
_OWN = 0  # the byte with which names of our own begin

_encode_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def plain(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


def namespace_of(partition: str) -> str:
    return partition.partition("/")[0]


@functools.lru_cache(4096)
def tag_of(root: str, namespace: str) -> bytes:
    """What all keys of a namespace begin with; nothing in it can end the tag early."""
    name = namespace.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return text(f"{root}{name}}}")


def item_key(tag: bytes, key: Key) -> bytes:
    partition = text(key.partition)
    return b"%bi%d:%b%b" % (tag, len(partition), partition, text(key.sort))


def key_of(rest: bytes) -> Key:
    """The key of an item whose tag was taken off."""
    length, _, names = rest[1:].partition(b":")
    return Key(plain(names[: int(length)]), plain(names[int(length) :]))


def value_of(value: Value) -> bytes:
    """A value as it is stored. Bools are not ints, and ``None`` is not stored at all."""
    kind = type(value)
    if kind is int:
        return b"%d" % value  # type: ignore[str-format]
    if kind is str:
        return b"s" + text(value)  # type: ignore[arg-type]
    if value is None:
        return b""
    if kind is bool:
        return b"t" if value else b"f"
    if isinstance(value, int):  # of a class of its own, such as an enumeration
        return b"%d" % value
    if isinstance(value, str):
        return b"s" + text(str.__str__(value))
    return b"j" + _encode_json(value).encode()


def item_of(flat: Sequence[bytes]) -> dict[str, Any] | None:
    """The item that a hash is; without a version it is none of ours. A foreign field is bytes."""
    if VERSION not in flat:
        return None
    item: dict[str, Any] = {}
    fields = iter(flat)
    for name, value in zip(fields, fields, strict=True):
        kind = value[0] if value else 0
        try:
            if kind < 58:  # a digit or a minus
                if name[0] != _OWN:
                    item[plain(name)] = int(value)
            elif kind == 115:
                item[plain(name)] = plain(value[1:])
            elif kind == 106:
                item[plain(name)] = json.loads(value[1:])
            else:
                item[plain(name)] = value == b"t" if value in (b"t", b"f") else value
        except ValueError:
            item[plain(name)] = value
    return item


def version_in(flat: Sequence[bytes]) -> bytes:
    """The version of an item among its fields."""
    return flat[flat.index(VERSION) + 1]


def _escaped(value: str) -> bytes:
    return text(value).replace(b"\0", b"\0\xff")


def _member(sort: str, key: Key) -> bytes:
    """A place in an index: the sort key there, then the key of the item."""
    return b"\0\0".join((_escaped(sort), _escaped(key.partition), _escaped(key.sort)))


def place_of(member: bytes) -> Cursor:
    """The place that a member of an index stands for."""
    sort, *key = (plain(part.replace(b"\0\xff", b"\0")) for part in member.split(b"\0\0"))
    return Cursor(Key(*key), sort)


def set_of(tag: bytes, query: Query) -> bytes:
    """The sorted set in which the rows of a query stand."""
    kind = b"p" if query.index is None else b"x%b:" % query.index[3:].encode()
    return b"%b%b%b" % (tag, kind, text(query.partition))


def bounds_of(query: Query) -> tuple[bytes, bytes]:
    """The range of a query as Redis writes them, lowest first."""
    after = query.after
    if query.index is None:
        first, last = b"[" + text(query.first), b"[" + text(query.last)
        behind = after and b"(" + text(after.sort)
    else:
        first, last = b"[" + _escaped(query.first), b"(" + _escaped(query.last) + b"\0\1"
        behind = after and b"(" + _member(after.sort, after.key)
    if behind:
        beyond = behind[1:] < first[1:] if not query.backwards else behind[1:] > last[1:]
        if not beyond:  # else the cursor of another query, which excludes nothing
            return (first, behind) if query.backwards else (behind, last)
    return first, last


def is_flat(item: Item) -> bool:
    """Whether nobody can change an item by what is inside its values."""
    return not any(isinstance(value, _NESTED) for value in item.values())
