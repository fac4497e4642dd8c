"""The specification of a write and of a range by itself, without any store to run it."""

import pytest

from tests.conformance.test_waist import CONDITIONS, ITEM, WRITES
from zae_limiter.repository_protocol import (
    LAST,
    Absent,
    AtLeast,
    AtMost,
    Check,
    Condition,
    Cursor,
    Delete,
    Equal,
    Item,
    Key,
    Outcome,
    Put,
    Query,
    Update,
    Write,
    apply,
    apply_all,
)

K, OTHER, THIRD = Key("p", "a"), Key("p", "b"), Key("p", "c")


@pytest.mark.parametrize(("condition", "on_item", "on_nothing"), CONDITIONS, ids=str)
def test_condition(condition: Condition, on_item: bool, on_nothing: bool) -> None:
    """Each asks one question about an item, which may be missing."""
    assert condition.holds(ITEM) is on_item
    assert condition.holds(None) is on_nothing


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (AtLeast("s", "text"), True),
        (AtLeast("s", "texu"), False),
        (AtLeast("s", "T"), True),
        (AtMost("s", "text"), True),
        (AtMost("s", "tex"), False),
        (AtMost("s", "ü"), True),
    ],
)
def test_texts_compare_by_code_point(condition: Condition, holds: bool) -> None:
    assert condition.holds(ITEM) is holds


@pytest.mark.parametrize(("one", "before", "expected"), [w[1:] for w in WRITES], ids=[w[0] for w in WRITES])
def test_write(one: Write, before: Item | None, expected: Outcome) -> None:
    """The outcome, down to the type of every value; what was there is not changed by it."""
    kept = None if before is None else dict(before)
    assert repr(apply(one, before)) == repr(expected)
    assert before == kept


def test_a_transaction_is_applied_as_a_whole() -> None:
    writes: list[Write] = [Update(K, add={"n": 1}), Put(OTHER, {"m": 2}, (Absent(),)), Delete(THIRD)]
    assert apply_all(writes, [{"n": 1}, None, {"x": 1}]) == [
        Outcome(True, {"n": 2}),
        Outcome(True, {"m": 2}),
        Outcome(True, None),
    ]


def test_a_transaction_is_refused_as_a_whole() -> None:
    """With the old image of each, and who was to blame."""
    writes: list[Write] = [
        Update(K, add={"n": 1}),
        Put(OTHER, {"m": 2}, (Absent(),)),
        Check(THIRD, (Equal("x", 2),)),
    ]
    assert apply_all(writes, [{"n": 1}, None, {"x": 1}]) == [
        Outcome(False, {"n": 1}, held=True),
        Outcome(False, None, held=True),
        Outcome(False, {"x": 1}, held=False),
    ]


@pytest.mark.parametrize(
    ("query", "accepted"),
    [
        (Query("p"), "abc"),
        (Query("p", "b"), "bc"),
        (Query("p", last="b"), "ab"),
        (Query("p", "b", "b"), "b"),
        (Query("p", "c", "a"), ""),
        (Query("p", "", LAST, after=Cursor(OTHER, "b")), "c"),
        (Query("p", "", LAST, after=Cursor(OTHER, "b"), backwards=True), "a"),
        (Query("p", "c", LAST, after=Cursor(K, "a")), "c"),
    ],
)
def test_a_range_includes_its_ends_and_excludes_its_cursor(query: Query, accepted: str) -> None:
    assert "".join(key.sort for key in (K, OTHER, THIRD) if query.accepts(key.sort, key)) == accepted


@pytest.mark.parametrize(("backwards", "accepted"), [(False, "c"), (True, "a")])
def test_in_one_place_of_an_index_keys_decide(backwards: bool, accepted: str) -> None:
    query = Query("i", index="GSI1", after=Cursor(OTHER, "same"), backwards=backwards)
    assert "".join(key.sort for key in (K, OTHER, THIRD) if query.accepts("same", key)) == accepted
