"""What a value is on the server: a class of its own changes nothing of it. And what is no answer of one."""

import enum

import pytest

from zae_limiter.backends.postgres.encoding import answer_from, condition_of, page_of, value_of
from zae_limiter.repository_protocol import Equal, Key, Page, Query, Row


class Word(str):
    """A text of a class of its own, as names and ids of namespaces are."""

    __slots__ = ()


class Number(enum.IntEnum):
    FIVE = 5


@pytest.mark.parametrize(("own", "plain"), [(Word("text"), "text"), (Number.FIVE, 5)], ids=["text", "number"])
def test_a_class_of_its_own_changes_no_value(own: object, plain: object) -> None:
    """It is stored and compared as what it is, not as an object that equals nothing."""
    assert (value_of(own), type(value_of(own))) == (plain, type(plain))
    assert condition_of([Equal("a", own)]) == condition_of([Equal("a", plain)])  # type: ignore[arg-type]


AT = "1763588506123.456"


@pytest.mark.parametrize(
    "head",
    [
        *[
            f"{at},1"
            for at in ("Infinity", "-Infinity", "NaN", "1e999", "1763588e12", "9" * 400, '"1"', "null")
        ],
        *[f"{AT},{counter}" for counter in ('"1"', "1.0", "null", "true", "[1]")],
    ],
)
def test_an_answer_without_a_time_or_a_count_is_none(head: str) -> None:
    """Clocks go by the one and caches by the other, until the next answer."""
    assert answer_from(f"[{AT},1,[]]".encode())[:3] == (float(AT), 1, [])
    with pytest.raises(ValueError, match="says no time"):
        answer_from(f"[{head},[]]".encode())


@pytest.mark.parametrize("odd", [False, True])
def test_a_page_has_items_only(odd: bool) -> None:
    """A row of an index has none; whatever else stands there is no answer."""
    found = [["a", "p", "a", {"n": 1}], ["b", "p", "b", None]]
    rows = Row(Key("p", "a"), {"n": 1}), Row(Key("p", "b"), {})
    assert page_of(Query("p"), found, odd) == Page(rows, None)
    for body in ([], ["n"], "n", 1, False):
        with pytest.raises(ValueError, match="no 1 items"):
            page_of(Query("p"), [["a", "p", "a", body]], odd)
