"""What is asked of the script, as arguments, and its answers as outcomes, items and pages.

A write names attributes by their place in a list, so that all but its values is the same for all writes of
one shape and is encoded once. A client that knows the version of an item gets no image back: it makes the
new one itself, by the same rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...exceptions import RateLimiterUnavailable
from ...repository_protocol import (
    AtLeast,
    AtMost,
    Check,
    Cursor,
    Delete,
    Equal,
    Exists,
    Item,
    Key,
    Outcome,
    Page,
    Put,
    Query,
    Row,
    Update,
    Write,
)
from ...schema import INDEXES, sk_state
from .encoding import (
    HOUR,
    VERSION,
    bounds_of,
    is_flat,
    item_of,
    place_of,
    plain,
    set_of,
    text,
    value_of,
    version_in,
)
from .resp import LENGTHS, bulk

STATE = sk_state()
ATTRIBUTES_MAX = 1_000
MOVING = frozenset((*(f"{index}{half}" for index in INDEXES for half in ("PK", "SK")), "ttl", "status"))
"""Attributes by which an item stands in sets, expires, or is forgotten by the change log."""

_KINDS = {Put: b"P", Update: b"U", Delete: b"D", Check: b"C"}


class Known(NamedTuple):
    version: bytes
    item: Item


class Question(NamedTuple):
    """Something to ask: keys and arguments of the script as they are sent, and how many of each there are."""

    keys: bytes
    keys_count: int
    arguments: bytes
    length: int


def words(*given: bytes) -> tuple[bytes, int]:
    return b"".join(map(bulk, given)), len(given)


def get(key: bytes) -> Question:
    return Question(key, 1, bulk(b"G"), 1)


def page(tag: bytes, query: Query) -> Question:
    partition = b"" if query.index else b"p" + text(query.partition)
    rows = b"%d" % (query.rows_max + 1)  # one more tells whether there is another page
    backwards = b"1" if query.backwards else b""
    told = words(b"Q", *bounds_of(query), backwards, rows, partition)
    return Question(bulk(set_of(tag, query)), 1, *told)


def simple(tag: bytes, verb: bytes, number: int | None = None) -> Question:
    """A verb about a whole namespace, with a number at most."""
    return Question(bulk(tag + b"c"), 1, *words(verb, *(() if number is None else (b"%d" % number,))))


def group(
    writes: Sequence[Write],
    keys: Sequence[bytes],
    known: Sequence[Known | None],
    is_news: Callable[[Key], bool],
) -> Question:
    """Writes that happen together or not at all."""
    lines, count = [b"$1\r\nW\r\n%b" % bulk(b"%d" % len(writes))[:-2]], 2
    for write, item in zip(writes, known, strict=True):
        role = b"b" if write.key.sort == STATE else b"w" if is_news(write.key) else b""
        shape: list[type | str | int] = [type(write), len(write.when)]
        told = [item.version if item else b"", role]
        for condition in write.when:
            attribute, given = condition or ("", None)
            shape += (type(condition), type(given), attribute)
            told.append(b"%d" % given if type(given) is int else value_of(given))
        if isinstance(write, Update):
            shape += (len(write.add), *write.add, *write.set)
            told += [b"%d" % amount for amount in write.add.values()]
            told += [b"%d" % v if type(v) is int else value_of(v) for v in write.set.values()]
        elif isinstance(write, Put):
            fields = [(name, value) for name, value in write.item.items() if value is not None]
            told.append(b"%d" % len(fields))
            told += [word for name, value in fields for word in (_name(name), value_of(value))]
            if len(fields) > ATTRIBUTES_MAX:
                raise impossible(f"an item has {len(fields)} attributes, more than {ATTRIBUTES_MAX}")
        same, length = _shape(tuple(shape))
        count += length + len(told)
        lines.append(same)
        for word in told:
            lines += (LENGTHS.get(len(word)) or b"$%d" % len(word), word)
    lines.append(b"")
    return Question(b"".join(keys), len(keys), b"\r\n".join(lines), count)


def impossible(what: str) -> RateLimiterUnavailable:
    return RateLimiterUnavailable(f"Redis cannot do this: {what}", impossible=True)


def _name(name: str) -> bytes:
    if name[:1] in ("", "\0"):
        raise impossible(f"the name of an attribute is {name!r}; it must be some text without NUL before it")
    return text(name)


@functools.lru_cache(4096)
def _shape(of: tuple[Any, ...]) -> tuple[bytes, int]:
    """All of a write that is the same whatever its values are, up to the end of its last line."""
    (kind, count), end = of[:2], 2 + 3 * of[1]
    sets_at = end + 1 + sum(of[end : end + 1])
    adds, sets = of[end + 1 : sets_at], of[sets_at:]
    places: dict[bytes, int] = {VERSION: 1, HOUR: 2}

    def place(name: str) -> bytes:
        return b"%d" % places.setdefault(_name(name), len(places) + 1)

    told: list[bytes] = [b"%d" % count]
    for at in range(2, end, 3):
        told += (_test(of[at], of[at + 1]), b"1" if not of[at + 2] else place(of[at + 2]))
    for names in (adds, sets):
        told += (b"%d" % len(names), *map(place, names))
    moves = b"1" if not MOVING.isdisjoint((*adds, *sets)) else b""
    if len(places) > ATTRIBUTES_MAX:
        raise impossible(f"a write names {len(places)} attributes, more than {ATTRIBUTES_MAX}")
    line, length = words(_KINDS[kind], moves, b"%d" % len(places), *places, *told)
    return line[:-2], length


def _test(condition: type, of: type) -> bytes:
    if condition is Equal:
        return b"n" if of is type(None) else b"="
    if condition in (AtLeast, AtMost):
        texts = (b"]", b"[") if of is str else (b">", b"<")
        return texts[condition is AtMost]
    return b"e" if condition is Exists else b"a"


def outcomes_of(
    writes: Sequence[Write], known: Sequence[Known | None], told: Sequence[Any]
) -> list[tuple[Outcome, Known | None]]:
    """What became of the writes of a group, and what is known of their items from now on."""
    if isinstance(told, bytes) and known[0] is not None:  # the new version is all there is to say
        image = _changed(writes[0], known[0].item)
        return [(Outcome(True, image), Known(told, image) if image and _stays_flat(writes[0]) else None)]
    found = []
    for write, before, code, version, flat in zip(
        writes, known, told[::3], told[1::3], told[2::3], strict=True
    ):
        applied, held = bool(code & 1), bool(code & 2)
        if flat is not None:
            image = item_of(flat)
        elif applied and isinstance(write, Put):
            image = {name: value for name, value in write.item.items() if value is not None}
        elif code & 4 and before is not None:
            image = _changed(write, before.item) if applied else dict(before.item)
        else:
            image = None
        now = None
        if image is not None and version and (_stays_flat(write) if code & 4 else is_flat(image)):
            now = Known(version, image)
        found.append((Outcome(applied, image, held), now))
    return found


def _stays_flat(write: Write) -> bool:
    """Whether an item that nobody can change by what is inside its values is none after a write, either."""
    return type(write) is not Update or not write.set or is_flat(write.set)


def _changed(write: Write, image: Item) -> Item | None:
    """What an applied write made of an image, as ``apply`` says without asking its conditions again."""
    if isinstance(write, Delete):
        return None
    if not isinstance(write, Update):
        return image
    changed = dict(image)
    for name, value in write.set.items():
        if value is None:
            changed.pop(name, None)
        else:
            changed[name] = value
    for name, amount in write.add.items():
        changed[name] = changed.get(name, 0) + amount  # type: ignore[operator]
    return changed


def page_of(query: Query, told: Sequence[Any]) -> Page:
    """The rows of a page, and where it ended."""
    rows: list[Row] = []
    if query.index is None:
        cursors = [Cursor(Key(query.partition, sort), sort) for sort in map(plain, told[::2])]
        items: list[Item] = [item_of(flat) or {} for flat in told[1::2]]
    else:
        cursors = [place_of(member) for member in told]
        items = [{} for _ in cursors]
    for cursor, item in list(zip(cursors, items, strict=True))[: query.rows_max]:
        if all(condition.holds(item) for condition in query.when):
            rows.append(Row(cursor.key, item))
    return Page(tuple(rows), cursors[query.rows_max - 1] if len(cursors) > query.rows_max else None)


def known_of(flat: Sequence[bytes], item: Item | None) -> Known | None:
    return Known(version_in(flat), item) if item is not None and is_flat(item) else None
