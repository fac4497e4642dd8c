"""Requests as data: every waist value has one exact compilation, and values survive the codec."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter.backends.dynamodb.expressions import (
    batch_get_request,
    decode,
    decode_item,
    encode,
    page_of,
    query_request,
    transaction_request,
    write_request,
)
from zae_limiter.exceptions import ValidationError
from zae_limiter.repository_protocol import (
    LAST,
    Absent,
    AtLeast,
    AtMost,
    Check,
    Cursor,
    Delete,
    Equal,
    Exists,
    Key,
    Page,
    Put,
    Query,
    Row,
    Update,
    Write,
)

KEY = Key("p", "s")
ENCODED_KEY: dict[str, Any] = {"PK": {"S": "p"}, "SK": {"S": "s"}}


def spelled(payload: dict[str, Any], expression: str) -> str:
    """An expression with its placeholders replaced by what they stand for."""
    names = payload.get("ExpressionAttributeNames", {})
    values = payload.get("ExpressionAttributeValues", {})
    text = payload[expression]
    for mark, shown in sorted({**names, **values}.items(), key=lambda entry: -len(entry[0])):
        text = text.replace(mark, shown if isinstance(shown, str) else str(*shown.values()))
    return text


@pytest.mark.parametrize(
    ("write", "verb", "expressions"),
    [
        (Delete(KEY), "Delete", {}),
        (Delete(KEY, (Exists(),)), "Delete", {"ConditionExpression": "attribute_exists(PK)"}),
        (Put(KEY, {}, (Absent(),)), "Put", {"ConditionExpression": "attribute_not_exists(PK)"}),
        (Update(KEY), "Update", {}),
        (Update(KEY, when=(Exists(),)), "Update", {"ConditionExpression": "attribute_exists(PK)"}),
        (Update(KEY, add={"a": -5}), "Update", {"UpdateExpression": "ADD a -5"}),
        (Update(KEY, set={"a": 1, "b": "x"}), "Update", {"UpdateExpression": "SET a = 1, b = x"}),
        (Update(KEY, set={"a": None, "b": None}), "Update", {"UpdateExpression": "REMOVE a, b"}),
        (
            Update(KEY, {"n": 1, "m": 2}, {"a": 3, "b": None}),
            "Update",
            {"UpdateExpression": "SET a = 3 REMOVE b ADD n 1, m 2"},
        ),
        (
            Update(KEY, {"tk": -1}, when=(AtLeast("tk", 1), AtMost("tk", 9), Equal("rf", 7))),
            "Update",
            {"UpdateExpression": "ADD tk -1", "ConditionExpression": "tk >= 1 AND tk <= 9 AND rf = 7"},
        ),
        (
            Check(KEY, (Equal("a", True),)),
            "ConditionCheck",
            {"ConditionExpression": "a = True"},
        ),
        (
            Check(KEY, (Equal("a", None),)),
            "ConditionCheck",
            {"ConditionExpression": "(attribute_not_exists(a) OR a = True)"},
        ),
        (
            Check(KEY),
            "ConditionCheck",
            {"ConditionExpression": "attribute_exists(PK) OR attribute_not_exists(PK)"},
        ),
    ],
)
def test_a_write_compiles_to_its_expressions(write: Write, verb: str, expressions: dict[str, str]) -> None:
    """Each kind of write and condition has one clause, and nothing that is not needed is sent."""
    found, payload = write_request("t", write)
    assert found == verb
    assert {name: spelled(payload, name) for name in payload if name.endswith("Expression")} == expressions
    assert payload.get("Key", payload.get("Item")) == ENCODED_KEY
    assert ("ReturnValuesOnConditionCheckFailure" in payload) == bool(write.when)


@pytest.mark.parametrize("name", ["ttl", "window", "b_tokens.in_tk", "l_in-out_cp", "size", "b_a.b-c_tk"])
def test_no_name_stands_in_an_expression(name: str) -> None:
    """Reserved words, dots and dashes go through placeholders, one for each name."""
    write = Update(KEY, {name: 1}, when=(AtLeast(name, 1), AtMost(name, 2), Equal(name, None)))
    _, payload = write_request("t", write)
    assert payload["ExpressionAttributeNames"] == {"#n0": name}
    assert name not in payload["UpdateExpression"] + payload["ConditionExpression"]


def test_a_put_holds_the_key_and_leaves_out_none() -> None:
    """``None`` is not a value."""
    _, payload = write_request("t", Put(KEY, {"a": 1, "b": None, "c": False, "d": ""}))
    assert payload == {
        "TableName": "t",
        "Item": {**ENCODED_KEY, "a": {"N": "1"}, "c": {"BOOL": False}, "d": {"S": ""}},
    }


def test_an_item_cannot_name_its_key() -> None:
    """An attribute called like a key would change which item is written."""
    with pytest.raises(AssertionError, match="not part of the item"):
        write_request("t", Put(KEY, {"PK": "other"}))
    with pytest.raises(AssertionError, match="both added to and set"):
        write_request("t", Update(KEY, {"a": 1}, {"a": 2}))


def test_a_transaction_names_each_write_by_its_verb() -> None:
    """The elements of a transaction are the single requests."""
    writes = [Put(KEY, {"a": 1}), Check(Key("q", "s"), (Exists(),))]
    payload = transaction_request("t", writes, "token")
    assert payload["ClientRequestToken"] == "token"
    assert payload["TransactItems"] == [
        {"Put": write_request("t", writes[0])[1]},
        {"ConditionCheck": write_request("t", writes[1])[1]},
    ]


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        (Query("p"), "PK = p"),
        (Query("p", "a"), "PK = p AND SK >= a"),
        (Query("p", last="z"), "PK = p AND SK <= z"),
        (Query("p", "a", "a" + LAST), f"PK = p AND SK BETWEEN a AND a{LAST}"),
        (Query("p", "a", "a"), "PK = p AND SK BETWEEN a AND a"),
        (Query("p", "a", index="GSI2"), "GSI2PK = p AND GSI2SK >= a"),
    ],
)
def test_a_query_compiles_to_its_range(query: Query, condition: str) -> None:
    """Open ends are left out: DynamoDB compares no key with an empty text."""
    payload = query_request("t", query)
    assert payload is not None
    assert spelled(payload, "KeyConditionExpression") == condition
    assert payload.get("ConsistentRead", False) == (query.index is None)
    assert payload.get("IndexName") == query.index


@pytest.mark.parametrize(
    "query", [Query("p", "b", "a"), Query("p", "", ""), Query("p", when=(AtLeast("n", 1), Absent()))]
)
def test_an_empty_range_is_not_asked_for(query: Query) -> None:
    """DynamoDB would call it invalid."""
    assert query_request("t", query) is None


def test_a_filter_does_not_ask_about_the_key() -> None:
    """Every row exists, and DynamoDB lets no filter ask."""
    some = query_request("t", Query("p", when=(Exists(), AtLeast("n", 1))))
    none = query_request("t", Query("p", when=(Exists(),)))
    assert some is not None
    assert none is not None
    assert spelled(some, "FilterExpression") == "n >= 1"
    assert "FilterExpression" not in none


def test_a_page_starts_behind_its_cursor() -> None:
    """The start key of an index holds the place in the index as well."""
    cursor = Cursor(KEY, "place")
    on_table = query_request("t", Query("p", after=cursor, rows_max=7, backwards=True))
    on_index = query_request("t", Query("g", index="GSI1", after=cursor))
    assert on_table is not None
    assert on_index is not None
    assert on_table["ExclusiveStartKey"] == ENCODED_KEY
    assert (on_table["Limit"], on_table["ScanIndexForward"]) == (7, False)
    place = {"GSI1PK": {"S": "g"}, "GSI1SK": {"S": "place"}}
    assert on_index["ExclusiveStartKey"] == ENCODED_KEY | place


def test_a_page_of_an_index_has_keys_only() -> None:
    """An older table may project more; nobody may come to rely on it."""
    found = ENCODED_KEY | {"GSI1PK": {"S": "g"}, "GSI1SK": {"S": "place"}, "more": {"N": "1"}}
    page = page_of({"Items": [found], "LastEvaluatedKey": found}, Query("g", index="GSI1"))
    assert page.rows == (Row(KEY, {}),)
    assert page.after == Cursor(KEY, "place")


def test_a_page_of_the_table_has_its_items() -> None:
    """An item that has nothing but its key is a row as well; without a last key there is no other page."""
    found = [ENCODED_KEY | {"n": {"N": "1"}}, {"PK": {"S": "p"}, "SK": {"S": "t"}}]
    rows = (Row(KEY, {"n": 1}), Row(Key("p", "t"), {}))
    assert page_of({"Items": found}, Query("p")) == Page(rows, None)
    assert page_of({"Items": found, "LastEvaluatedKey": found[1]}, Query("p")) == Page(
        rows, Cursor(Key("p", "t"), "t")
    )


def test_a_batch_is_read_as_it_is_now() -> None:
    """A read that may lag behind would show what somebody has already changed."""
    assert batch_get_request("t", [KEY]) == {
        "RequestItems": {"t": {"Keys": [ENCODED_KEY], "ConsistentRead": True}}
    }


integers = st.integers(-(10**38) + 1, 10**38 - 1)
fractions = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x % 1 and abs(x) > 1e-130)
leaves = st.none() | st.booleans() | integers | fractions | st.text()
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner), max_leaves=20
)


@given(values)
def test_values_survive_the_codec(value: Any) -> None:
    """Values come back equal and of the same type at every depth: exact integers, bool and int apart."""
    decoded = decode(encode(value))
    assert decoded == value
    assert repr(decoded) == repr(value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-5", -5),
        ("1E+3", 1000),
        ("1.50", 1.5),
        ("1E+126", 10**126),
        ("1E+127", 1e127),
        ("12345678901234567890123456789012345678", 12345678901234567890123456789012345678),
    ],
)
def test_numbers_are_read_in_every_spelling(text: str, number: float) -> None:
    """Whole numbers are integers, however the service writes them."""
    assert repr(decode({"N": text})) == repr(number)


@pytest.mark.parametrize(
    ("value", "attribute"),
    [
        (10**38 - 1, {"N": "9" * 38}),
        (1 - 10**38, {"N": "-" + "9" * 38}),
        (0.0, {"N": "0.0"}),
        (1e-130, {"N": "1e-130"}),
        (-1e-130, {"N": "-1e-130"}),
        (9.99e125, {"N": "9.99e+125"}),
        (True, {"BOOL": True}),
        (None, {"NULL": True}),
        ((1, "a"), {"L": [{"N": "1"}, {"S": "a"}]}),
        ({"a": {}}, {"M": {"a": {"M": {}}}}),
    ],
)
def test_what_dynamodb_can_just_keep_is_spelled_out(value: object, attribute: dict[str, Any]) -> None:
    """The largest and smallest numbers are kept as they are."""
    assert encode(value) == attribute


@pytest.mark.parametrize(
    "value",
    [10**38, -(10**38), math.nan, math.inf, -math.inf, 1e126, 1e200, 1e-200, object(), {1, 2}, {"": 1}],
)
def test_what_dynamodb_cannot_keep_is_refused(value: object) -> None:
    """A clear error instead of a changed value."""
    with pytest.raises(ValidationError):
        encode(value)


def test_an_item_is_read_without_its_key() -> None:
    """Every kind of attribute, in whatever order it comes."""
    attributes = ENCODED_KEY | {
        "n": {"N": "-7"},
        "half": {"N": "0.5"},
        "thousand": {"N": "1E+3"},
        "s": {"S": ""},
        "b": {"BOOL": False},
        "l": {"L": [{"N": "1"}]},
    }
    expected = {"n": -7, "half": 0.5, "thousand": 1000, "s": "", "b": False, "l": [1]}
    assert repr(decode_item(attributes)) == repr(expected)


def test_null_is_read_as_not_there() -> None:
    """Older tables hold ``parent_id: NULL``; inside a map it is kept."""
    attributes = ENCODED_KEY | {"a": {"NULL": True}, "m": {"M": {"x": {"NULL": True}}}}
    assert decode_item(attributes) == {"m": {"x": None}}
    assert decode_item(ENCODED_KEY) == {}
    assert decode_item(None) is None


def test_an_empty_map_is_read_in_both_spellings() -> None:
    """The streams of DynamoDB Local leave out that it is a map; one such value must not spoil an image."""
    attributes = ENCODED_KEY | {"m": {}, "n": {"M": {"x": {}}}, "l": {"L": [{}, {"M": {}}]}, "rf": {"N": "1"}}
    assert decode_item(attributes) == {"m": {}, "n": {"x": {}}, "l": [{}, {}], "rf": 1}


@pytest.mark.parametrize("content", ["AP8=", b"\x00\xff"], ids=["as it travels", "as a driver reads it"])
def test_bytes_are_no_text(content: object) -> None:
    """A condition on a text that is none would never hold."""
    assert decode({"B": content}) == b"\x00\xff"
    assert decode_item({"a": {"B": content}}) == {"a": b"\x00\xff"}
