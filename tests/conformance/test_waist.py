"""What every store must do, written once: ``apply`` on one item, transactions, reads and queries.

A scenario is a coroutine over a backend. Ties inside an index may come in any order, and a store may
leave out images that the waist does not promise; the tests ask for no more than the waist says.
"""

import inspect
import itertools
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.conformance.open_store import OpenStore
from zae_limiter.repository_protocol import (
    LAST,
    Absent,
    AtLeast,
    AtMost,
    Backend,
    Check,
    Condition,
    Cursor,
    Delete,
    Equal,
    Exists,
    Item,
    Key,
    Outcome,
    Put,
    Query,
    Row,
    Update,
    Write,
)

K = Key("partition", "sort")
OTHER = Key("partition", "sort2")
ITEM: Item = {"n": 5, "zero": 0, "s": "text", "yes": True, "no": False, "big": 10**37}


def on_every_store(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine whose first parameter is the backend."""

    def test(store: OpenStore, **case: Any) -> None:
        store.run(scenario(store.backend, **case))

    asked = list(inspect.signature(scenario).parameters)[1:]
    parameters = [inspect.Parameter(p, inspect.Parameter.KEYWORD_ONLY) for p in ["store", *asked]]
    test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    test.__name__, test.__doc__, test.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
    return test


async def get(backend: Backend, key: Key = K) -> Item | None:
    (item,) = await backend.batch_get([key])
    return item


async def write(backend: Backend, one: Write) -> Outcome:
    (outcome,) = await backend.write_each([one])
    return outcome


async def pages(backend: Backend, query: Query) -> list[Row]:
    """All rows, page after page, each page no longer than asked for."""
    rows: list[Row] = []
    for _ in range(1000):
        page = await backend.query(query)
        assert len(page.rows) <= query.rows_max
        rows += page.rows
        if page.after is None:
            return rows
        query = query._replace(after=page.after)
    raise AssertionError("the pages never end")


CONDITIONS: list[tuple[Condition, bool, bool]] = [
    # condition, holds for ITEM, holds for a missing item
    (Exists(), True, False),
    (Absent(), False, True),
    (Equal("n", 5), True, False),
    (Equal("n", 6), False, False),
    (Equal("n", "5"), False, False),
    (Equal("s", "text"), True, False),
    (Equal("s", "Text"), False, False),
    (Equal("s", ""), False, False),
    (Equal("yes", True), True, False),
    (Equal("yes", 1), False, False),
    (Equal("no", False), True, False),
    (Equal("no", 0), False, False),
    (Equal("no", None), False, True),
    (Equal("zero", False), False, False),
    (Equal("zero", None), False, True),
    (Equal("missing", None), True, True),
    (Equal("missing", 0), False, False),
    (Equal("missing", ""), False, False),
    (Equal("big", 10**37), True, False),
    (Equal("big", 10**37 + 1), False, False),
    (AtLeast("n", 4), True, False),
    (AtLeast("n", 5), True, False),
    (AtLeast("n", 6), False, False),
    (AtLeast("big", 10**37), True, False),
    (AtLeast("big", 10**37 + 1), False, False),
    (AtLeast("s", 0), False, False),
    (AtLeast("yes", 0), False, False),
    (AtLeast("missing", -1), False, False),
    (AtMost("n", 6), True, False),
    (AtMost("n", 5), True, False),
    (AtMost("n", 4), False, False),
    (AtMost("big", 10**37 - 1), False, False),
    (AtMost("s", 10**9), False, False),
    (AtMost("no", 10), False, False),
    (AtMost("missing", 1), False, False),
]


@pytest.mark.parametrize(("condition", "on_item", "on_nothing"), CONDITIONS, ids=str)
@on_every_store
async def test_condition(backend: Backend, condition: Condition, on_item: bool, on_nothing: bool) -> None:
    """A condition decides over a write; a refusal shows the old image and changes nothing."""
    await write(backend, Put(K, ITEM))
    for key, image, holds in ((K, ITEM, on_item), (OTHER, None, on_nothing)):
        outcome = await write(backend, Update(key, set={"mark": 1}, when=(condition,)))
        new = {**(image or {}), "mark": 1} if holds else image
        assert outcome == Outcome(holds, new, held=holds)
        assert await get(backend, key) == new


@on_every_store
async def test_all_conditions_must_hold(backend: Backend) -> None:
    """One condition that does not hold is enough to refuse."""
    await write(backend, Put(K, ITEM))
    held = (Exists(), Equal("s", "text"), AtLeast("n", 1), AtMost("n", 9))
    assert (await write(backend, Update(K, add={"n": 1}, when=held))).applied
    for broken in (Equal("s", "else"), AtMost("n", 0)):
        refused = await write(backend, Update(K, add={"n": 1}, when=(*held, broken)))
        assert refused == Outcome(False, {**ITEM, "n": 6}, held=False)
    assert await get(backend) == {**ITEM, "n": 6}


WRITES: list[tuple[str, Write, Item | None, Outcome]] = [
    ("put on nothing", Put(K, {"a": 1}), None, Outcome(True, {"a": 1})),
    ("put replaces all", Put(K, {"a": 1}), ITEM, Outcome(True, {"a": 1})),
    ("put drops None", Put(K, {"a": 1, "b": None}), ITEM, Outcome(True, {"a": 1})),
    ("put refused", Put(K, {"a": 1}, (Absent(),)), {"n": 1}, Outcome(False, {"n": 1}, held=False)),
    ("add", Update(K, add={"n": 3}), {"n": 5}, Outcome(True, {"n": 8})),
    ("add negative", Update(K, add={"n": -7}), {"n": 5}, Outcome(True, {"n": -2})),
    ("add to a missing number", Update(K, add={"m": 3}), {"n": 5}, Outcome(True, {"n": 5, "m": 3})),
    ("add to a missing item", Update(K, add={"n": 3}), None, Outcome(True, {"n": 3})),
    ("add to text", Update(K, add={"s": 3}), {"s": "5"}, Outcome(False, {"s": "5"}, held=False)),
    ("add to a bool", Update(K, add={"b": 3}), {"b": True}, Outcome(False, {"b": True}, held=False)),
    ("add to a list", Update(K, add={"b": 3}), {"b": [1]}, Outcome(False, {"b": [1]}, held=False)),
    (
        "no part of a refused update happens",
        Update(K, add={"n": 1, "s": 3}, set={"mark": 1}),
        {"n": 5, "s": "5"},
        Outcome(False, {"n": 5, "s": "5"}, held=False),
    ),
    ("add 38 digits", Update(K, add={"n": 1}), {"n": 10**38 - 2}, Outcome(True, {"n": 10**38 - 1})),
    ("subtract 38 digits", Update(K, add={"n": -1}), {"n": 2 - 10**38}, Outcome(True, {"n": 1 - 10**38})),
    ("set", Update(K, set={"n": "x"}), {"n": 5, "m": 6}, Outcome(True, {"n": "x", "m": 6})),
    ("set on nothing", Update(K, set={"n": 1}), None, Outcome(True, {"n": 1})),
    ("set None removes", Update(K, set={"n": None}), {"n": 5, "m": 6}, Outcome(True, {"m": 6})),
    ("set None on missing", Update(K, set={"x": None}), {"n": 5}, Outcome(True, {"n": 5})),
    ("set and add", Update(K, add={"n": 1}, set={"s": "a"}), {"n": 5}, Outcome(True, {"n": 6, "s": "a"})),
    ("delete", Delete(K), {"n": 5}, Outcome(True, None)),
    ("delete nothing", Delete(K), None, Outcome(True, None)),
    ("delete refused", Delete(K, (Equal("n", 6),)), {"n": 5}, Outcome(False, {"n": 5}, held=False)),
    ("check holds", Check(K, (Equal("n", 5),)), {"n": 5}, Outcome(True, {"n": 5})),
    ("check refused", Check(K, (Equal("n", 6),)), {"n": 5}, Outcome(False, {"n": 5}, held=False)),
    ("check on nothing", Check(K, (Absent(),)), None, Outcome(True, None)),
]


@pytest.mark.parametrize(("one", "before", "expected"), [w[1:] for w in WRITES], ids=[w[0] for w in WRITES])
@on_every_store
async def test_write(backend: Backend, one: Write, before: Item | None, expected: Outcome) -> None:
    """Each write gives its outcome, and the store then holds the image that the outcome shows."""
    if before is not None:
        await write(backend, Put(K, before))
    assert await write(backend, one) == expected
    assert await get(backend) == expected.item


VALUES: list[Any] = [
    "",
    "text",
    'quotes " and \\ and \n and \0',
    "ünïcödé 漢字 🙂 \U0010ffff",
    0,
    -1,
    10**37 + 1,
    -(10**37) - 1,
    0.5,
    True,
    False,
    [],
    {},
    [1, "two", False, [3.5, None], {"four": {"five": []}}],
    {"nested": {"list": [1, 2, {"deep": True}]}, "none": None, "ключ": "значение", "big": 10**37},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@on_every_store
async def test_value_round_trip(backend: Backend, value: Any) -> None:
    """A value comes back equal and of the same type, however it was written."""
    await backend.write_each([Put(K, {"value": value}), Update(OTHER, set={"value": value})])
    for item in await backend.batch_get([K, OTHER]):
        assert item == {"value": value}
        assert type(item["value"]) is type(value)
        # As JSON, 1 and 1.0 and True differ; the order of a map is nobody's promise.
        assert json.dumps(item["value"], sort_keys=True) == json.dumps(value, sort_keys=True)


@on_every_store
async def test_values_are_copies(backend: Backend) -> None:
    """What a caller does to its own lists and dictionaries later does not reach the store."""
    mine: dict[str, Any] = {"list": [1]}
    await write(backend, Put(K, {"value": mine}))
    mine["list"].append(2)
    assert await get(backend) == {"value": {"list": [1]}}
    read: Any = await get(backend)
    read["value"]["list"].append(3)
    assert await get(backend) == {"value": {"list": [1]}}


@on_every_store
async def test_writes_of_one_call_are_independent(backend: Backend) -> None:
    """A refused write does not stop the others, and outcomes come in order."""
    keys = [Key("p", f"{i}") for i in range(5)]
    await write(backend, Put(keys[2], {"n": 1}))
    outcomes = await backend.write_each([Put(key, {"n": 7}, (Absent(),)) for key in keys])
    assert [o.applied for o in outcomes] == [True, True, False, True, True]
    assert outcomes[2] == Outcome(False, {"n": 1}, held=False)
    assert [item and item["n"] for item in await backend.batch_get(keys)] == [7, 7, 1, 7, 7]


@on_every_store
async def test_nothing_to_do(backend: Backend) -> None:
    """Empty calls have empty answers."""
    assert await backend.write_each([]) == []
    assert await backend.transact_write([]) == []
    assert await backend.batch_get([]) == []


@on_every_store
async def test_transaction_applies_all(backend: Backend) -> None:
    """Every kind of write in one transaction."""
    a, b, c, d = (Key("p", name) for name in "abcd")
    await backend.write_each([Put(b, {"n": 1}), Put(c, {"n": 1}), Put(d, {"n": 1})])
    outcomes = await backend.transact_write(
        [Put(a, {"n": 9}, (Absent(),)), Update(b, add={"n": 1}), Delete(c), Check(d, (Equal("n", 1),))]
    )
    assert [(o.applied, o.held, o.failure) for o in outcomes] == [(True, True, None)] * 4
    assert await backend.batch_get([a, b, c, d]) == [{"n": 9}, {"n": 2}, None, {"n": 1}]


@pytest.mark.parametrize("refused", range(4), ids=["put", "update", "delete", "check"])
@on_every_store
async def test_transaction_applies_none(backend: Backend, refused: int) -> None:
    """One refused write refuses all; ``held`` and the old image tell which one it was."""
    keys = [Key("p", name) for name in "abcd"]
    images: list[Item] = [{"n": i} for i in range(4)]
    await backend.write_each([Put(key, image) for key, image in zip(keys, images, strict=True)])
    whens = [(AtMost("n", -1),) if i == refused else (Exists(),) for i in range(4)]
    outcomes = await backend.transact_write(
        [
            Put(keys[0], {"n": 100}, whens[0]),
            Update(keys[1], add={"n": 100}, when=whens[1]),
            Delete(keys[2], whens[2]),
            Check(keys[3], whens[3]),
        ]
    )
    assert [o.applied for o in outcomes] == [False] * 4
    assert [o.held for o in outcomes] == [i != refused for i in range(4)]
    assert outcomes[refused].item == images[refused]
    assert all(o.item in (None, image) for o, image in zip(outcomes, images, strict=True))
    assert await backend.batch_get(keys) == images


@on_every_store
async def test_transaction_with_an_impossible_add(backend: Backend) -> None:
    """Adding to something that is no number refuses a transaction as well."""
    await write(backend, Put(K, {"s": "x"}))
    outcomes = await backend.transact_write([Put(OTHER, {"n": 1}), Update(K, add={"s": 1})])
    assert [(o.applied, o.held) for o in outcomes] == [(False, True), (False, False)]
    assert await backend.batch_get([K, OTHER]) == [{"s": "x"}, None]


@on_every_store
async def test_transaction_of_the_largest_size(backend: Backend) -> None:
    """A hundred writes are one transaction."""
    keys = [Key(f"p{i}", "s") for i in range(100)]
    outcomes = await backend.transact_write([Update(key, add={"n": 1}) for key in keys])
    assert all(o.applied for o in outcomes)
    assert await backend.batch_get(keys) == [{"n": 1}] * 100


@on_every_store
async def test_batch_get_of_many_keys(backend: Backend) -> None:
    """250 keys, some missing, one of them twice, come back in order."""
    keys = [Key(f"p{i % 7}", f"{i}") for i in range(250)]
    present = [key for i, key in enumerate(keys) if i % 3]
    for start in range(0, len(present), 25):
        await backend.write_each([Put(key, {"at": key.sort}) for key in present[start : start + 25]])
    expected = [{"at": key.sort} if i % 3 else None for i, key in enumerate(keys)]
    assert await backend.batch_get([*keys, keys[1]]) == [*expected, {"at": "1"}]


ODD_KEYS = [
    Key("ns/ENTITY#user@example.com", "#CONFIG#_default_"),
    Key("it's", '"; DROP TABLE items; --'),
    Key("ns%", "_%"),
    Key("naïve", "漢字"),
    Key("🙂", "\U0010fffe"),
    Key(" ", "\n\t"),
    Key("a" * 1000, "b" * 1000),
    Key("case", "S"),
    Key("case", "s"),
    Key("Case", "s"),
    Key("e\u0301", "s"),
    Key("\u00e9", "s"),
]


@on_every_store
async def test_odd_keys(backend: Backend) -> None:
    """Keys are compared character by character; nothing in them has a meaning."""
    for i, key in enumerate(ODD_KEYS):
        await write(backend, Put(key, {"i": i}))
    assert await backend.batch_get(ODD_KEYS) == [{"i": i} for i in range(len(ODD_KEYS))]
    for i, key in enumerate(ODD_KEYS):
        page = await backend.query(Query(key.partition, first=key.sort, last=key.sort))
        assert page.rows == (Row(key, {"i": i}),)


SORTS = sorted(["A", "B#1", "B#10", "B#2", "B#\uffff", "B#🙂", "C", "a", "é", "漢"])
RANGES = [
    ("everything", "", LAST, SORTS),
    ("a prefix", "B#", "B#" + LAST, ["B#1", "B#10", "B#2", "B#\uffff", "B#🙂"]),
    ("a longer prefix", "B#1", "B#1" + LAST, ["B#1", "B#10"]),
    ("both ends included", "B#10", "C", ["B#10", "B#2", "B#\uffff", "B#🙂", "C"]),
    ("from", "a", LAST, ["a", "é", "漢"]),
    ("up to", "", "B#1", ["A", "B#1"]),
    ("exactly", "C", "C", ["C"]),
    ("a gap", "D", "Z", []),
    ("reversed ends", "C", "A", []),
]


async def fill(backend: Backend) -> None:
    """The same sort keys in two partitions of the table and, with index places, of GSI1."""
    for partition in ("p", "q"):
        await backend.write_each(
            [
                Put(Key(partition, s), {"at": s, "GSI1PK": f"i{partition}", "GSI1SK": f"x{s}"})
                for s in reversed(SORTS)
            ]
        )


@pytest.mark.parametrize(("first", "last", "sorts"), [r[1:] for r in RANGES], ids=[r[0] for r in RANGES])
@on_every_store
async def test_ranges(backend: Backend, first: str, last: str, sorts: list[str]) -> None:
    """A range of the table or an index, in order, in either direction, in pages of any size."""
    await fill(backend)
    for backwards, rows_max in itertools.product((False, True), (1, 2, 3, 100)):
        expected = list(reversed(sorts)) if backwards else sorts
        query = Query("p", first, last, backwards=backwards, rows_max=rows_max)
        rows = await pages(backend, query)
        assert [row.key for row in rows] == [Key("p", sort) for sort in expected]
        assert [row.item["at"] for row in rows] == expected
        index = query._replace(partition="ip", index="GSI1", first=f"x{first}", last=f"x{last}")
        assert await pages(backend, index) == [Row(Key("p", sort), {}) for sort in expected]


@on_every_store
async def test_missing_partition(backend: Backend) -> None:
    """A partition that is not there has one empty page."""
    for query in (Query("nobody"), Query("nobody", index="GSI4")):
        page = await backend.query(query)
        assert (page.rows, page.after) == ((), None)


@on_every_store
async def test_cursor_of_a_deleted_row(backend: Backend) -> None:
    """A cursor is a place, not a row: it works when the row has gone."""
    await fill(backend)
    page = await backend.query(Query("p", rows_max=4))
    assert page.after == Cursor(Key("p", SORTS[3]), SORTS[3])
    await write(backend, Delete(page.after.key))
    rest = await backend.query(Query("p", after=page.after))
    assert [row.key.sort for row in rest.rows] == SORTS[4:]


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@on_every_store
async def test_index_with_ties(backend: Backend, backwards: bool) -> None:
    """Rows at the same place of an index are each found once, across pages that end between them."""
    keys = [Key(f"p{i % 3}", f"s{i // 3}") for i in range(12)]
    places = {key: f"place{i // 5}" for i, key in enumerate(keys)}
    await backend.write_each(
        [Put(key, {"GSI3PK": "i", "GSI3SK": place, "x": 1}) for key, place in places.items()]
    )
    for rows_max in (1, 2, 5, 12):
        rows = await pages(backend, Query("i", index="GSI3", backwards=backwards, rows_max=rows_max))
        assert sorted(row.key for row in rows) == sorted(keys)
        assert [places[row.key] for row in rows] == sorted(places.values(), reverse=backwards)
        assert all(row.item == {} for row in rows)


@on_every_store
async def test_index_follows_its_attributes(backend: Backend) -> None:
    """Updates move a row in and out of an index; half a place is none."""

    async def places(index: str) -> list[str]:
        return [row.key.sort for row in await pages(backend, Query("i", index=index))]

    await write(backend, Put(K, {"GSI1PK": "i", "GSI1SK": "a", "n": 1}))
    await write(backend, Put(OTHER, {"GSI1PK": "i", "GSI1SK": "b", "n": 1}))
    assert await places("GSI1") == ["sort", "sort2"]
    await write(backend, Update(K, add={"n": 1}))
    assert await places("GSI1") == ["sort", "sort2"]
    await write(backend, Update(K, set={"GSI1SK": "c", "GSI2PK": "i", "GSI2SK": "a"}))
    assert await places("GSI1") == ["sort2", "sort"]
    assert await places("GSI2") == ["sort"]
    await write(backend, Update(K, set={"GSI2SK": None}))
    assert await places("GSI2") == []
    await write(backend, Put(K, {"n": 1}))
    assert await places("GSI1") == ["sort2"]
    await write(backend, Delete(OTHER))
    assert await places("GSI1") == []


@on_every_store
async def test_refused_writes_leave_indexes(backend: Backend) -> None:
    """What is refused does not show in an index either."""
    await write(backend, Put(K, {"GSI1PK": "i", "GSI1SK": "a"}))
    refused = (Equal("n", 1),)
    move = Update(K, set={"GSI1PK": "j"}, when=refused)
    await backend.write_each([move, Put(OTHER, {"GSI1PK": "i", "GSI1SK": "a"}, refused), Delete(K, refused)])
    await backend.transact_write([Delete(K), Put(OTHER, {"GSI1PK": "i", "GSI1SK": "a"}, refused)])
    assert await pages(backend, Query("i", index="GSI1")) == [Row(K, {})]
    assert await pages(backend, Query("j", index="GSI1")) == []


@pytest.mark.parametrize("rows_max", [1, 3, 100])
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@on_every_store
async def test_filter(backend: Backend, backwards: bool, rows_max: int) -> None:
    """``when`` keeps the rows for which every condition holds."""
    keys = [Key("p", f"{i:02}") for i in range(30)]
    await backend.write_each([Put(key, {"n": i, "odd": bool(i % 2)}) for i, key in enumerate(keys)])
    query = Query("p", when=(AtLeast("n", 10), Equal("odd", True)), rows_max=rows_max, backwards=backwards)
    found = [row.item["n"] for row in await pages(backend, query)]
    assert found == sorted(range(11, 30, 2), reverse=backwards)
    assert await pages(backend, query._replace(when=(Equal("n", -1),))) == []


@on_every_store
async def test_setup_again(backend: Backend) -> None:
    """Setting up a store that is in use changes nothing."""
    await write(backend, Put(K, ITEM))
    await backend.setup()
    assert await get(backend) == ITEM
