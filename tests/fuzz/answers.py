"""Answers that arrive whole and are odd all the same, and every operation of the store that may get one."""

import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import strategies as st

from tests.dynamodb.peer import answer, refusal
from zae_limiter.backends.dynamodb import DynamoDBBackend
from zae_limiter.repository_protocol import Absent, Check, Delete, Key, Put, Query, Update

A, B = Key("a", "s"), Key("b", "s")
ABSENT = (Absent(),)

Operation = Callable[[DynamoDBBackend], Awaitable[Any]]
OPERATIONS: dict[str, Operation] = {
    "UpdateItem": lambda store: store.write_each([Update(A, {"n": 1})]),
    "UpdateItem twice": lambda store: store.write_each([Update(A, {"n": 1}), Update(A, {"n": 1})]),
    "PutItem": lambda store: store.write_each([Put(A, {"n": 1}, ABSENT)]),
    "DeleteItem": lambda store: store.write_each([Delete(A, ABSENT)]),
    "BatchGetItem": lambda store: store.batch_get([A, B]),
    "BatchGetItem to check": lambda store: store.write_each([Check(A, ABSENT)]),
    "Query": lambda store: store.query(Query("a")),
    "Query of an index": lambda store: store.query(Query("a", index="GSI1")),
    "TransactWriteItems": lambda store: store.transact_write([Update(A, {"n": 1}), Put(B, {}, ABSENT)]),
    "DescribeTable": lambda store: store.setup(),
}

KEY = {"PK": {"S": "a"}, "SK": {"S": "s"}}
ITEM = {**KEY, "n": {"N": "1"}}
READABLE = {
    "Attributes": ITEM,
    "Responses": {"table": [ITEM]},
    "Items": [ITEM],
    "Table": {"TableStatus": "ACTIVE"},
}
"""What each operation could read, so that one member at a time can be made odd."""


def deep(levels: int = 100_000) -> bytes:
    return b'{"Attributes":' + b'{"M":' * levels + b"1" + b"}" * (levels + 1)


ODD_ATTRIBUTES: dict[str, Any] = {
    "no map": 1,
    "a list": [],
    "a text": "N",
    "nothing": None,
    "two kinds": {"N": "1", "M": {}, "L": []},
    "a number that is a number": {"N": 1.5},
    "a number that is true": {"N": True},
    "a number that is a list": {"N": ["1"]},
    "a number that is none": {"N": "NaN"},
    "a number without end": {"N": "Infinity"},
    "a number that is text": {"N": "one"},
    "an empty number": {"N": ""},
    "a number too large": {"N": "1e999999999"},
    "a number too long": {"N": "9" * 5_000},
    "a text that is a number": {"S": 1},
    "a text that is a map": {"S": {}},
    "a map that is a list": {"M": [1]},
    "a list that is a map": {"L": {"a": 1}},
    "a list of nothing": {"L": [None]},
}
ODD_MEMBERS: dict[str, Any] = {
    "null": None,
    "true": True,
    "a number": 7,
    "a text": "text",
    "no text": "",
    "a list": [[]],
    "no list": [],
    "a list of numbers": [1],
    "a list of lists": [[1]],
    "a map of numbers": {"table": 1, "Keys": 1, "PK": 1, "SK": 1, "TableStatus": 1},
    "a map of maps": {"table": {"Keys": {"PK": {}}}, "PK": {}, "SK": {}, "TableStatus": {}},
    "another table": {"other": [ITEM]},
    "keys that are numbers": [{"PK": {"N": "1"}, "SK": {"S": 1}}],
    "somebody else's": {"table": [{"PK": {"S": "z"}, "SK": {"S": "z"}}]},
    "a table with odd indexes": {"TableStatus": "ACTIVE", "GlobalSecondaryIndexes": [1]},
    "a table with odd keys": {"TableStatus": "ACTIVE", "KeySchema": [[]], "AttributeDefinitions": 5},
}
MEMBERS = (*READABLE, "UnprocessedKeys", "LastEvaluatedKey")

BODIES: dict[str, bytes] = {
    "nothing": b"",
    "an empty object": b"{}",
    "a list": b"[]",
    "a number": b"1",
    "no JSON": b"<html>",
    "half of it": b'{"Attributes": {',
    "more than one": b"{}{}",
    "no UTF-8": b'{"Attributes": "\xff"}',
    "UTF-16": '{"Attributes": {}}'.encode("utf-16"),
    "half a character": b'{"Attributes": {"n": {"S": "\\ud800"}}}',
    "a mark in front": b"\xef\xbb\xbf{}",
    "deep": deep(),
    "a deep list": b'{"Items":' + b"[" * 100_000,
    "no number": b'{"Attributes": {"n": {"N": NaN}}, "Items": NaN, "Responses": NaN, "Table": NaN}',
    "a long number": b'{"Attributes": {"n": {"N": ' + b"9" * 10_000 + b"}}}",
    "an endless number": b'{"Attributes": {"n": {"N": 1e999999}}, "Items": 1e999999, "Table": -1e999999}',
    "twice": b'{"Attributes": {"n": {"N": "1"}}, "Attributes": 1, "Items": [], "Items": 2, "Table": 3}',
    "zeros": b"\x00" * 100,
}
CODES = (
    "ConditionalCheckFailedException",
    "TransactionCanceledException",
    "ValidationException",
    "ResourceNotFoundException",
    "InvalidSignatureException",
    "ThrottlingException",
    "",
)
REASONS: dict[str, Any] = {
    "none": None,
    "a number": 1,
    "a text": "None",
    "empty": [],
    "numbers": [1, 2],
    "too few": [{"Code": "ConditionalCheckFailed"}],
    "too many": [{"Code": "ConditionalCheckFailed"}] * 9,
    "for nothing": [{"Code": "None"}, {"Code": "None"}],
    "codes that are lists": [{"Code": []}, {"Code": {}}],
    "odd items": [{"Code": "ConditionalCheckFailed", "Item": 1}, {"Code": "None"}],
}
DATES = ("Thu, 01 Jan 99999999999 12:00:00 GMT", "Thu, 99 Foo 2032 99:99:99 +9999", "\t", "0" * 5_000)


def readable(**odd: Any) -> bytes:
    return json.dumps(READABLE | odd).encode()


def hostile() -> dict[str, bytes]:
    """Every answer by its name."""
    said = {f"body: {name}": answer(body) for name, body in BODIES.items()}
    for name, odd in ODD_ATTRIBUTES.items():
        item = {**KEY, "n": odd}
        body = readable(Attributes=item, Responses={"table": [item]}, Items=[item])
        said[f"attribute: {name}"] = answer(body)
        said[f"image: {name}"] = refusal("ConditionalCheckFailedException", Item=item)
    for member in MEMBERS:
        for name, odd in ODD_MEMBERS.items():
            said[f"{member}: {name}"] = answer(readable(**{member: odd}))
    for name, odd in REASONS.items():
        said[f"reasons: {name}"] = refusal("TransactionCanceledException", CancellationReasons=odd)
    for code in CODES:
        for name, odd in {"text": "x", "list": [1], "number": 1, "null": None}.items():
            said[f"{code or 'no code'}: {name}"] = refusal(code, Item=odd, message=odd)  # type: ignore[arg-type]
    for number, date in enumerate(DATES):
        said[f"date {number}"] = refusal("InvalidSignatureException", fields={"Date": date})
    for status in ("201 Created", "204 No Content", "206 Partial", "301 Moved", "307 Temporary", "399 Odd"):
        said[f"status {status}"] = answer(readable(), status)
    for status in ("400 Bad", "403 Forbidden", "408 Timeout", "429 Many", "499 Gone", "500 Oh", "599 Oh"):
        said[f"status {status}"] = answer(b"<html>", status)
        said[f"status {status}, no object"] = answer(b"[]", status)
        said[f"status {status}, odd code"] = answer({"__type": {"a": 1}, "message": []}, status)
        said[f"status {status}, deep"] = answer(deep(), status)
    said["continue"] = b"HTTP/1.1 100 Continue\r\n\r\n" + answer(readable())
    said["early hints"] = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + answer(readable())
    said["compressed"] = answer(gzip.compress(readable()), fields={"Content-Encoding": "gzip"})
    said["compressed unasked"] = answer(gzip.compress(readable()))
    said["another type"] = answer(readable(n=1), fields={"Content-Type": "text/html; charset=utf-16"})
    for name, checksum in {"wrong": "1", "long": "9" * 5_000, "no number": "x", "empty": ""}.items():
        said[f"checksum: {name}"] = answer(readable(), fields={"x-amz-crc32": checksum})
    return said


# Anything that JSON can say, with the names that somebody reads more often than others.

KINDS = ("S", "N", "M", "L", "BOOL", "NULL")
READ = (
    "PK",
    "SK",
    "GSI1SK",
    "n",
    "table",
    "Keys",
    "Item",
    "Code",
    "CancellationReasons",
    "__type",
    "message",
)
DESCRIBED = ("TableStatus", "KeySchema", "AttributeDefinitions", "GlobalSecondaryIndexes", "IndexName")
NAMES = st.sampled_from([*MEMBERS, *KINDS, *READ, *DESCRIBED])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["1", "a", "s", "b", "NaN", "Infinity", "-0", "1e400", "ACTIVE", *CODES, "None"])
)
values = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
objects = st.dictionaries(NAMES, values, min_size=1, max_size=5)
