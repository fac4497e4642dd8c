"""Items, writes and questions as the texts that the functions of a store take, and their answers. Pure.

An item is one object of JSON. Whole numbers, truth values and text are what they are; anything else becomes
an object with the text of its JSON under an empty name, which the server compares with nothing and adds
nothing to. PostgreSQL keeps no NUL in a text: it becomes two characters that sort as it did, wherever text
goes.

Conditions become one expression of SQL/JSON path. That compares numbers exactly and text by code point, and
holds only between values of one type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...exceptions import RateLimiterUnavailable, ValidationError
from ...records.items import is_widely_remembered
from ...repository_protocol import (
    Absent,
    AtLeast,
    AtMost,
    Check,
    Condition,
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

Encoded: TypeAlias = dict[str, Any]

_dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode
_quoted = json.JSONEncoder().encode
_NEVER = "false == true"
_VERBS = {Update: "u", Put: "p", Delete: "d", Check: "c"}


def text_of(text: str) -> str:
    """A text as PostgreSQL can keep it. It sorts among others as it did before."""
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\2").replace("\0", "\1\1")
    return text


def text_from(text: str) -> str:
    """What a text was that PostgreSQL kept."""
    return text.replace("\1\1", "\0").replace("\1\2", "\1") if "\1" in text else text


def key_of(key: Key) -> tuple[str, str]:
    """A key as it stands in the table."""
    for part in key:
        if not part.isascii() and not _is_whole(part):
            raise RateLimiterUnavailable(
                f"{part!r} can be no key: it cannot be written down", impossible=True
            )
    return text_of(key[0]), text_of(key[1])


def _is_whole(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, which UTF-8 cannot carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def value_of(value: Any) -> Any:
    """A value as it stands in an item on the server."""
    kind = type(value)
    if kind is int or kind is bool:
        return value
    if isinstance(value, str) and (value.isascii() or _is_whole(value)):
        return text_of(str.__str__(value))
    if isinstance(value, int):
        return int(value)
    try:
        return {"": _dumps(value)}
    except (TypeError, ValueError) as error:
        raise ValidationError(
            "value", value, f"a store keeps text, numbers, lists and maps: {error}"
        ) from error


def values_of(values: Mapping[str, Any]) -> Encoded:
    return {text_of(name): value_of(value) for name, value in values.items() if value is not None}


def item_from(body: Encoded) -> Item:
    """The item that stands on the server in this form."""
    return {
        text_from(name): _nested(value) if type(value) is dict
        else text_from(value) if type(value) is str
        else value
        for name, value in body.items()
    }  # fmt: skip


def _nested(value: dict[str, Any]) -> Any:
    try:
        return json.loads(value[""])
    except (KeyError, TypeError, ValueError):  # somebody else has put it there
        return value


class Said(NamedTuple):
    """What a function answered, and whether items in it have to be read as ours."""

    said: Any
    odd: bool


class FunctionAnswer(NamedTuple):
    """What a function says: the server's time, how often limits changed, and what was asked for."""

    at_ms: float
    counter: int
    said: Any
    is_own: bool
    """Whether the last of these changes was made by this very call."""
    odd: bool
    """Whether items have to be read as ours."""


def answer_from(reply: bytes) -> FunctionAnswer:
    text = reply.decode()
    at_ms, counter, said, *own = json.loads(text)
    if type(at_ms) is not float or not 0 < at_ms < 1e15 or type(counter) is not int:
        raise ValueError("it says no time that a clock can show, or no count of changes")
    return FunctionAnswer(at_ms, counter, said, any(own), '{"": "' in text or "\\u0001" in text)


def condition_of(conditions: Sequence[Condition]) -> Encoded:
    """What an item has to be: whether it must be there, and an expression that must hold."""
    asked: Encoded = {}
    terms = []
    for condition in conditions:
        kind = type(condition)
        if kind is Equal:
            name, value = condition  # type: ignore[misc]
            path = f"$.{_quoted(text_of(name))}"
            terms.append(f"!exists({path})" if value is None else f"{path} == {_literal(value)}")
        elif kind is AtLeast or kind is AtMost:
            name, value = condition  # type: ignore[misc]
            sign = ">=" if kind is AtLeast else "<="
            terms.append(f"$.{_quoted(text_of(name))} {sign} {_literal(value)}")
        elif asked.setdefault("x", kind is Exists) is not (kind is Exists):
            terms.append(_NEVER)  # there and not there
        else:
            assert kind in (Exists, Absent), f"no condition: {condition!r}"
    if terms:
        asked["c"] = " && ".join(terms)
    return asked


def _literal(value: Any) -> str:
    encoded = value_of(value)
    if type(encoded) is int:
        return str(encoded) if encoded >= 0 else f"({encoded})"
    # What is kept as an object equals nothing: stores compare text, whole numbers and truth values.
    return _quoted(encoded) if type(encoded) is not dict else "null"


def write_of(write: Write) -> Encoded:
    pk, sk = key_of(write.key)
    asked = condition_of(write.when) if write.when else {}
    asked |= {"k": _VERBS[type(write)], "p": pk, "s": sk}
    if isinstance(write, Update):
        if write.add:
            assert write.set.keys().isdisjoint(write.add), f"{write.key} is both added to and set"
            asked["a"] = {text_of(name): amount for name, amount in write.add.items()}
        if write.set:
            asked["v"] = values_of(write.set)
            if removed := [text_of(name) for name, value in write.set.items() if value is None]:
                asked["d"] = removed
    elif isinstance(write, Put):
        asked["v"] = values_of(write.item)
    if type(write) is not Check and is_widely_remembered(write.key):
        asked["m"] = True
    return asked


def batch_of(groups: Sequence[str], now_ms: int, wait_ms: float) -> bytes:
    """Groups of writes, each encoded before, as one request."""
    head = f'{{"w":"{max(1, int(wait_ms))}","t":{now_ms},"g":['
    return f"{head}{','.join(groups)}]}}".encode()


def group_of(writes: Sequence[Write]) -> str:
    return _dumps([write_of(write) for write in writes])


def items_of(count: int, said: Sequence[Any], odd: bool) -> list[Item | None]:
    """The items that stand there under so many keys."""
    if len(said) != count or any(body is not None and type(body) is not dict for body in said):
        raise ValueError(f"no {count} items")
    return [item_from(body) if odd and body is not None else body for body in said]


def answers_of(count: int, said: Sequence[Any], odd: bool) -> list[Said]:
    """What is said of so many groups: of each write whether it held, and its image."""
    for group in said:
        items_of(len(group), [image for _, image in group], odd=False)
    if len(said) != count:
        raise ValueError(f"no answers to {count} groups")
    return [Said(group, odd) for group in said]


def outcomes_of(writes: Sequence[Write], said: Sequence[Any], odd: bool) -> list[Outcome]:
    """What became of a group."""
    applied = all(held for held, _ in said)
    outcomes = []
    for write, (held, image) in zip(writes, said, strict=True):
        item: Item | None = item_from(image) if odd and image is not None else image
        if applied and type(write) is Put:
            item = {name: value for name, value in write.item.items() if value is not None}
        outcomes.append(Outcome(applied, item, bool(held)))
    return outcomes


def question_of(query: Query) -> str:
    first, last = text_of(query.first), text_of(query.last)
    asked: Encoded = {"p": text_of(query.partition), "b": query.backwards, "n": query.rows_max + 1}
    if query.index is not None:
        asked["i"] = query.index.lower()
    if query.after is not None:
        sort, key = text_of(query.after.sort), key_of(query.after.key)
        asked["a"] = [sort, *key]
        # So that an index is entered there, and not only filtered.
        first, last = (first, min(last, sort)) if query.backwards else (max(first, sort), last)
    if query.when:
        condition = condition_of(query.when)
        if condition.get("x") is False:
            condition["c"] = _NEVER
        if "c" in condition:
            asked["c"] = condition["c"]
    return _dumps(asked | {"f": first, "l": last})


def page_of(query: Query, said: Sequence[Any], odd: bool) -> Page:
    items = items_of(len(said), [body for _, _, _, body in said], odd)
    rows = []
    for (_, pk, sk, _), item in zip(said[: query.rows_max], items, strict=False):
        rows.append(Row(Key(text_from(pk), text_from(sk)), item or {}))
    if len(said) <= query.rows_max:
        return Page(tuple(rows), None)
    return Page(tuple(rows), Cursor(rows[-1].key, text_from(said[query.rows_max - 1][0])))
