"""From the waist's values to DynamoDB's requests, and back. Pure.

All is plain DynamoDB JSON (``{"S": "text"}``), whatever carries it. No name and no value ever stands in an
expression itself: both go through one ``Placeholders`` per request, so reserved words (``ttl``, ``window``)
and names with dots or dashes need no special care.

Numbers are exact to 38 digits. DynamoDB knows one type of number, so an integer comes back as an
integer and a float with a whole value (only metadata has floats) comes back as an integer too.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from math import isfinite
from typing import Any, TypeAlias, TypeVar

from ...exceptions import ValidationError
from ...repository_protocol import (
    LAST,
    PAGE_ROWS_MAX,
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
    Page,
    Put,
    Query,
    Row,
    Update,
    Value,
    Write,
)

T = TypeVar("T")

Attribute: TypeAlias = dict[str, Any]
Payload: TypeAlias = dict[str, Any]
Request: TypeAlias = Payload | str
"""The fields of a request, or the JSON of them."""

PARTITION, SORT = "PK", "SK"
INTEGER_MAX = 10**38 - 1
FLOAT_MIN, FLOAT_MAX = 1e-130, 9.99e125
EXPONENT_MAX = 126


def fields_of(request: Request) -> Payload:
    return json.loads(request) if isinstance(request, str) else request


class Placeholders:
    """Stand-ins for the names and values of one request, each used once however often it occurs."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Attribute] = {}

    def name(self, attribute: str) -> str:
        return self._names.setdefault(attribute, f"#n{len(self._names)}")

    def value(self, value: Value) -> str:
        placeholder = f":v{len(self._values)}"
        self._values[placeholder] = encode(value)
        return placeholder

    def fields(self) -> Payload:
        """What the request must carry beside its expressions; DynamoDB refuses empty ones."""
        names = {mark: name for name, mark in self._names.items()}
        fields = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": self._values}
        return {name: marks for name, marks in fields.items() if marks}


def encode(value: object) -> Attribute:
    # A bool is an int to Python but not to DynamoDB, so it is asked for first.
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, int):
        if abs(value) > INTEGER_MAX:
            raise ValidationError("number", value, "DynamoDB keeps at most 38 digits")
        return {"N": str(value)}
    if isinstance(value, float):
        # Neither infinity nor what is no number lies between the two.
        if not (value == 0 or FLOAT_MIN <= abs(value) <= FLOAT_MAX):
            raise ValidationError("number", value, "DynamoDB keeps finite numbers from 1e-130 to 9.99e125")
        return {"N": repr(value)}
    if value is None:
        return {"NULL": True}
    if isinstance(value, Mapping):
        if "" in value:
            raise ValidationError("value", dict(value), "DynamoDB has no maps with an empty name in them")
        return {"M": {name: encode(inner) for name, inner in value.items()}}
    if isinstance(value, list | tuple):
        return {"L": [encode(inner) for inner in value]}
    raise ValidationError("value", value, f"a store keeps text, numbers, lists and maps, not {type(value)}")


def decode(attribute: Attribute) -> Any:
    if attribute == {}:  # so the streams of DynamoDB Local spell a map with nothing in it
        return {}
    ((kind, content),) = attribute.items()
    match kind:
        case "N":
            return _number(content)
        case "NULL":
            return None
        case "M":
            return {name: decode(inner) for name, inner in content.items()}
        case "L":
            return [decode(inner) for inner in content]
        case "B" if isinstance(content, str):  # as it travels; it must not pass for text
            return b64decode(content)
        case _:
            return content


def _number(text: str) -> int | float:
    try:
        return int(text, 10)
    except ValueError:
        number = Decimal(text)
        if not isfinite(number):
            raise ValueError(f"{text[:64]!r} is no number") from None
        # Nothing that DynamoDB holds is larger, and writing it out would take for ever.
        whole = number.adjusted() <= EXPONENT_MAX and number == number.to_integral_value()
        return int(number) if whole else float(number)


def encode_key(key: Key) -> dict[str, Attribute]:
    return {PARTITION: {"S": key.partition}, SORT: {"S": key.sort}}


def decode_key(attributes: Mapping[str, Attribute]) -> Key:
    return Key(_a(str, attributes[PARTITION]["S"]), _a(str, attributes[SORT]["S"]))


def decode_item(attributes: Any) -> Item | None:
    """An item without its key. ``NULL``, which older tables hold, is the same as not there."""
    if not attributes or type(attributes) is not dict:
        return _map(attributes)
    item: dict[str, Value] = {}
    for name, attribute in attributes.items():
        # Nearly all that is stored is integers and text, and an image comes with every write.
        if "N" in attribute:
            try:
                item[name] = int(attribute["N"], 10)  # with its base it takes nothing but text
            except ValueError:
                item[name] = decode(attribute)
        elif "S" in attribute:
            item[name] = text = attribute["S"]
            if type(text) is not str:
                raise TypeError(f"{type(text)} is no text")
        elif "BOOL" in attribute:
            item[name] = attribute["BOOL"]
        elif "NULL" not in attribute:
            item[name] = decode(attribute)
    item.pop(PARTITION, None)
    item.pop(SORT, None)
    return item


COMPARISONS: dict[type[Condition], str] = {Equal: "=", AtLeast: ">=", AtMost: "<="}
"""A comparison with an attribute that is missing or of another type does not hold."""


def condition_expression(conditions: Iterable[Condition], marks: Placeholders) -> str:
    return " AND ".join(_clause(condition, marks) for condition in conditions)


def _clause(condition: Condition, marks: Placeholders) -> str:
    match condition:
        case Exists():
            return f"attribute_exists({marks.name(PARTITION)})"
        case Absent():
            return f"attribute_not_exists({marks.name(PARTITION)})"
        case Equal(attribute=attribute, value=None):
            name = marks.name(attribute)
            return f"(attribute_not_exists({name}) OR {name} = {marks.value(None)})"
        case (attribute, value):
            return f"{marks.name(attribute)} {COMPARISONS[type(condition)]} {marks.value(value)}"


def write_request(table: str, write: Write) -> tuple[str, Payload]:
    """The verb of a write (``Put``, ``Update``, ``Delete``, ``ConditionCheck``) and its fields.

    The verb is the key of the write inside a transaction, and with ``Item`` behind it the operation
    for the write alone.
    """
    marks, key = Placeholders(), encode_key(write.key)
    fields: Payload = {"TableName": table, "Key": key}
    match write:
        case Put(item=item):
            assert item.keys().isdisjoint(key), "the key is not part of the item"
            kept = {name: encode(value) for name, value in item.items() if value is not None}
            verb, fields = "Put", {"TableName": table, "Item": key | kept}
        case Update():
            verb = "Update"
            # An update that changes nothing is allowed; an empty expression is not.
            if expression := _update_expression(write, marks):
                fields["UpdateExpression"] = expression
        case Delete():
            verb = "Delete"
        case Check():
            verb = "ConditionCheck"
    if write.when:
        fields["ConditionExpression"] = condition_expression(write.when, marks)
        fields["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    elif verb == "ConditionCheck":
        # DynamoDB wants a condition here, so this is one that holds for every item and for none.
        name = marks.name(PARTITION)
        fields["ConditionExpression"] = f"attribute_exists({name}) OR attribute_not_exists({name})"
    return verb, fields | marks.fields()


def _update_expression(update: Update, marks: Placeholders) -> str:
    assert update.add.keys().isdisjoint(update.set.keys()), "an attribute is both added to and set"
    sets = [f"{marks.name(a)} = {marks.value(v)}" for a, v in update.set.items() if v is not None]
    removes = [marks.name(a) for a, v in update.set.items() if v is None]
    adds = [f"{marks.name(a)} {marks.value(amount)}" for a, amount in update.add.items()]
    sections = (("SET", sets), ("REMOVE", removes), ("ADD", adds))
    return " ".join(f"{word} {', '.join(parts)}" for word, parts in sections if parts)


def transaction_request(table: str, writes: Sequence[Write], token: str) -> Payload:
    """Within ten minutes DynamoDB applies one token once, however often it arrives."""
    items = [dict([write_request(table, write)]) for write in writes]
    return {"TransactItems": items, "ClientRequestToken": token}


def batch_get_request(table: str, keys: Iterable[Key]) -> Payload:
    wanted = {"Keys": [encode_key(key) for key in keys], "ConsistentRead": True}
    return {"RequestItems": {table: wanted}}


def query_request(table: str, query: Query) -> Payload | None:
    """The request for one page; ``None`` when no row can match, which DynamoDB would call invalid."""
    assert 0 < query.rows_max <= PAGE_ROWS_MAX, f"{query.rows_max} rows in one page"
    assert not (query.index and query.when), "an index yields keys: there is nothing to filter"
    never = any(isinstance(condition, Absent) for condition in query.when)
    if never or query.first > query.last or not query.last:
        return None
    marks, prefix = Placeholders(), query.index or ""
    payload: Payload = {
        "TableName": table,
        "KeyConditionExpression": _range(query, prefix, marks),
        "Limit": query.rows_max,
        "ScanIndexForward": not query.backwards,
        **({"IndexName": query.index} if query.index else {"ConsistentRead": True}),
    }
    # Every row exists, and a filter may not ask about the key that would tell.
    if filters := [condition for condition in query.when if not isinstance(condition, Exists)]:
        payload["FilterExpression"] = condition_expression(filters, marks)
    if query.after:
        payload["ExclusiveStartKey"] = encode_key(query.after.key)
        if query.index:
            at = encode_key(Key(query.partition, query.after.sort))
            payload["ExclusiveStartKey"] |= {f"{prefix}{name}": text for name, text in at.items()}
    return payload | marks.fields()


def _range(query: Query, prefix: str, marks: Placeholders) -> str:
    wanted = f"{marks.name(prefix + PARTITION)} = {marks.value(query.partition)}"
    # No key is empty, and DynamoDB does not even compare one with an empty text.
    if query.first == "" and query.last == LAST:
        return wanted
    if query.first == "":
        bounds = f"<= {marks.value(query.last)}"
    elif query.last == LAST:
        bounds = f">= {marks.value(query.first)}"
    else:
        bounds = f"BETWEEN {marks.value(query.first)} AND {marks.value(query.last)}"
    return f"{wanted} AND {marks.name(prefix + SORT)} {bounds}"


def _a(kind: type[T], member: object) -> T:
    """A member of an answer; a reader that raises, whatever it raises, could not read it."""
    if type(member) is not kind:
        raise TypeError(f"{type(member)} is no {kind.__name__}")
    return member


def _map(member: object) -> Payload | None:
    """A map; ``None`` if it is not there or has nothing in it, for which nothing else may stand."""
    return None if member is None else _a(dict, member) or None


def batch_of(reply: Payload, table: str, keys: Iterable[Key]) -> tuple[dict[Key, Item], list[Key]]:
    """The items of a batch, and the keys that DynamoDB left out for now."""
    left_out = _map(reply.get("UnprocessedKeys"))
    unread = [decode_key(key) for key in _a(list, left_out[table]["Keys"])] if left_out else []
    rows = _a(list, reply["Responses"].get(table, []) if unread else reply["Responses"][table])
    found = {decode_key(attributes): decode_item(attributes) or {} for attributes in rows}
    if not found.keys() | set(unread) <= set(keys):
        raise ValueError("it has keys that were not asked for")
    return found, unread


def read_rows(reply: Payload) -> tuple[tuple[Row, ...], Payload | None]:
    """The rows of a page, and the key after which the next one begins."""
    rows = tuple(Row(decode_key(found), decode_item(found) or {}) for found in _a(list, reply["Items"]))
    return rows, _map(reply.get("LastEvaluatedKey"))


def page_of(reply: Payload, query: Query) -> Page:
    rows, last = read_rows(reply)
    if query.index:
        rows = tuple(Row(row.key, {}) for row in rows)
    if last is None:
        return Page(rows, None)
    return Page(rows, Cursor(decode_key(last), _a(str, last[f"{query.index or ''}{SORT}"]["S"])))
