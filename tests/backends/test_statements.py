"""Items as rows of SQLite: what is written where, what foreign texts are read as, what a page leaves open."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zae_limiter.backends.sqlite import statements
from zae_limiter.backends.sqlite.file import COLUMNS, LAYOUT, open_file
from zae_limiter.backends.sqlite.statements import LostCommit, StoredItem, changed_body, read_body, stored
from zae_limiter.repository_protocol import (
    Absent,
    AtLeast,
    Check,
    Cursor,
    Delete,
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

K, OTHER = Key("p", "s"), Key("p", "t")
PLACED: Item = {"n": 1, "GSI1PK": "i", "GSI1SK": "a", "ttl": 5}


class Connection(sqlite3.Connection):
    """Remembers what it was asked and what it answered with."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.asked: list[str] = []
        self.answers: list[sqlite3.Cursor] = []

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        self.asked.append(sql)
        self.answers.append(super().execute(sql, *parameters))
        return self.answers[-1]


@pytest.fixture
def connection() -> Iterator[Connection]:
    """A store in memory."""
    with contextlib.closing(sqlite3.connect(":memory:", factory=Connection, isolation_level=None)) as it:
        for statement in LAYOUT:
            it.execute(statement)
        it.asked.clear()
        it.answers.clear()
        yield it


def write(connection: sqlite3.Connection, *writes: Write) -> list[Outcome]:
    return statements.write_each(connection, writes)


def columns(connection: sqlite3.Connection, key: Key = K) -> dict[str, Any] | None:
    """The columns of a row that have a value, without its key."""
    names = ("body", *COLUMNS, "ttl")
    found = connection.execute(f"SELECT {', '.join(names)} FROM items WHERE pk = ? AND sk = ?", key)
    row = found.fetchone()
    return row and {name: value for name, value in zip(names, row, strict=True) if value is not None}


def test_an_item_is_a_body_and_its_places(connection: Connection) -> None:
    """Everything is in the body; what is looked for has a column besides, and follows every change."""
    assert write(connection, Put(K, PLACED)) == [Outcome(True, PLACED)]
    body = '{"n":1,"GSI1PK":"i","GSI1SK":"a","ttl":5}'
    assert columns(connection) == {"body": body, "gsi1pk": "i", "gsi1sk": "a", "ttl": 5}
    write(connection, Update(K, add={"ttl": 2}))
    body = '{"n":1,"GSI1PK":"i","GSI1SK":"a","ttl":7}'
    assert columns(connection) == {"body": body, "gsi1pk": "i", "gsi1sk": "a", "ttl": 7}
    write(connection, Update(K, set={"GSI1SK": "b"}))
    body = '{"n":1,"GSI1PK":"i","GSI1SK":"b","ttl":7}'
    assert columns(connection) == {"body": body, "gsi1pk": "i", "gsi1sk": "b", "ttl": 7}
    write(connection, Put(K, {"n": 2}))
    assert columns(connection) == {"body": '{"n":2}'}
    assert write(connection, Delete(K)) == [Outcome(True, None)]
    assert columns(connection) is None


@pytest.mark.parametrize(
    ("one", "sql"),
    [
        (Update(K, add={"n": 1}), [statements.UPDATE_BODY]),
        (Update(K, set={"m": 1}), [statements.UPDATE_BODY]),
        (Put(K, {**PLACED, "n": 7}), [statements.UPDATE_BODY]),
        (Update(K, add={"ttl": 1}), [statements.UPSERT]),
        (Update(K, set={"GSI1PK": "j"}), [statements.UPSERT]),
        (Put(K, {"n": 1}), [statements.UPSERT]),
        (Update(OTHER, add={"n": 1}), [statements.UPSERT]),
        (Put(OTHER, {"n": 1}), [statements.UPSERT]),
        (Put(K, {}, (Absent(),)), []),
        (Check(K), []),
        (Delete(K), [statements.DELETE]),
    ],
    ids=range(11),
)
@pytest.mark.parametrize("work", [statements.write_each, statements.transact_write])
def test_a_write_touches_no_more_than_it_must(
    connection: Connection, work: Any, one: Write, sql: list[str]
) -> None:
    """One look and at most one statement in a transaction; indexes are left alone if their places are."""
    write(connection, Put(K, PLACED))
    connection.asked.clear()
    work(connection, [one])
    assert connection.asked == ["BEGIN IMMEDIATE", statements.SELECT, *sql, "COMMIT"]


@pytest.mark.parametrize("work", [statements.write_each, statements.transact_write])
def test_an_outcome_has_the_text_of_its_image(connection: Connection, work: Any) -> None:
    """Whoever holds the image can swap it, whether the write made it, found it or was refused it."""
    outcomes = work(connection, [Put(K, {"n": 1}), Put(OTHER, {"n": 2})])
    assert [(o.applied, o.item, o.item.body) for o in outcomes] == [
        (True, {"n": 1}, '{"n":1}'),
        (True, {"n": 2}, '{"n":2}'),
    ]
    outcomes = work(connection, [Check(K), Update(OTHER, add={"n": 3})])
    assert [(o.applied, o.item.body) for o in outcomes] == [(True, '{"n":1}'), (True, '{"n":5}')]
    (refused,) = work(connection, [Put(K, {}, (Absent(),))])
    assert (refused.applied, refused.item, refused.item.body) == (False, {"n": 1}, '{"n":1}')


def test_reads(connection: Connection) -> None:
    """One item is read as it is, several in one transaction, each with the text it was read from."""
    write(connection, Put(K, {"n": 1}), Put(OTHER, {"n": 2}))
    connection.asked.clear()
    (item,) = statements.batch_get(connection, [K])
    assert connection.asked == [statements.SELECT]
    assert isinstance(item, StoredItem)
    assert (item, item.body) == ({"n": 1}, '{"n":1}')
    assert statements.batch_get(connection, [OTHER, Key("p", "x")]) == [{"n": 2}, None]
    assert connection.asked[1:] == ["BEGIN", statements.SELECT, statements.SELECT, "COMMIT"]
    assert statements.batch_get(connection, []) == []


@pytest.mark.parametrize(
    ("body", "item"),
    [
        ('{"n":1}', {"n": 1}),
        (' \n{"n": 1} ', {"n": 1}),
        ('{"n":1}{"n":2}', {"n": 1}),
        ("[1]", {}),
        ("", {}),
        ("n", {}),
        ('{"n":NaN}', {}),
        ('{"n":-Infinity}', {}),
        ('{"n":' + "[" * 100_000, {}),
    ],
    ids=range(9),
)
def test_what_others_wrote_is_read_as_far_as_it_is_an_object(body: str, item: Item) -> None:
    """A text that is no object of JSON says nothing, and spoils nothing."""
    assert read_body(body) == item


@pytest.mark.parametrize(
    ("body", "changed", "expected"),
    [
        ('{"n":1,"m":2}', {"n": 5}, '{"n":5,"m":2}'),
        ('{"n":1,"m":2}', {"m": -3, "n": 5}, '{"n":5,"m":-3}'),
        ('{"n":1,"n":1}', {"n": 5}, '{"n":1,"n":5}'),
        ('{"n": 1}', {"n": 5}, None),
        ('{"n":1,"m":{}}', {"n": 5}, None),
        (' {"n":1}', {"n": 5}, None),
    ],
)
def test_integers_change_in_the_text_itself(body: str, changed: dict[str, int], expected: str | None) -> None:
    """Where the text is one that we would write; any other is left to those who write all of it again."""
    assert changed_body(stored(read_body(body), body), changed) == expected


@pytest.mark.parametrize(
    ("item", "kept"),
    [
        ({"GSI1PK": "i", "GSI1SK": "a"}, {"gsi1pk": "i", "gsi1sk": "a"}),
        ({"GSI1PK": "i"}, {}),
        ({"GSI1SK": "a"}, {}),
        ({"GSI1PK": 1, "GSI1SK": "a"}, {}),
        ({"GSI1PK": "i", "GSI1SK": ["a"]}, {}),
        ({"GSI1PK": "\ud800", "GSI1SK": "a", "GSI2PK": "i", "GSI2SK": "b"}, {"gsi2pk": "i", "gsi2sk": "b"}),
        ({"GSI1PK": "i", "GSI1SK": "\ud800"}, {}),
        ({"ttl": 2**63 - 1}, {"ttl": 2**63 - 1}),
        ({"ttl": 1 - 2**63}, {"ttl": 1 - 2**63}),
        ({"ttl": 2**63}, {}),
        ({"ttl": 1.5}, {}),
        ({"ttl": "5"}, {}),
        ({"ttl": True}, {}),
    ],
    ids=ascii,
)
def test_only_a_whole_place_has_columns(connection: Connection, item: Item, kept: dict[str, Any]) -> None:
    """Two texts that SQLite can keep, or neither; a ttl that fits, or none. The body has it all."""
    write(connection, Put(K, item))
    row = columns(connection)
    assert row is not None
    assert read_body(row.pop("body")) == item
    assert row == kept


ROWS = [Row(Key("p", f"{i}"), {"n": i}) for i in range(4)]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("rows_max", "sizes"), [(1, [1, 1, 1, 1]), (2, [2, 2]), (3, [3, 1]), (4, [4]), (5, [4])]
)
@pytest.mark.parametrize("index", [None, "GSI1"])
def test_pages(
    connection: Connection, index: str | None, rows_max: int, sizes: list[int], backwards: bool
) -> None:
    """Each is as long as asked for, and the last may be just full."""
    write(connection, *(Put(row.key, {**row.item, "GSI1PK": "p", "GSI1SK": "same"}) for row in ROWS))
    query = Query("p", index=index, rows_max=rows_max, backwards=backwards)
    found, seen = list[Key](), list[int]()
    while True:
        page = statements.query(connection, query)
        found += [row.key for row in page.rows]
        seen.append(len(page.rows))
        assert [row.item == {} for row in page.rows] == [index is not None] * len(page.rows)
        if page.after is None:
            break
        assert page.after == Cursor(page.rows[-1].key, "same" if index else page.rows[-1].key.sort)
        query = query._replace(after=page.after)
    assert found == sorted((row.key for row in ROWS), reverse=backwards)
    assert seen == sizes


def test_a_filter_looks_at_so_many_rows(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that has seen as many as it may ends there, with a cursor behind the last row that it saw."""
    monkeypatch.setattr(statements, "SCAN_ROWS_MAX", 3)
    write(connection, *(Put(row.key, row.item) for row in ROWS))
    query = Query("p", when=(AtLeast("n", 1), AtLeast("n", 2)), rows_max=4)
    page = statements.query(connection, query)
    assert page == Page((ROWS[2],), Cursor(ROWS[2].key, "2"))
    assert statements.query(connection, query._replace(after=page.after)) == Page((ROWS[3],), None)
    monkeypatch.setattr(statements, "SCAN_ROWS_MAX", 4)
    assert statements.query(connection, query) == Page((ROWS[2], ROWS[3]), None)
    assert statements.query(connection, query._replace(rows_max=1)).after == Cursor(ROWS[2].key, "2")


def test_a_page_that_ends_early_leaves_nothing_open(connection: Connection) -> None:
    """A statement that still reads would keep the log of the file from being moved back."""
    write(connection, *(Put(row.key, row.item) for row in ROWS))
    page = statements.query(connection, Query("p", when=(AtLeast("n", 0),), rows_max=1))
    assert page == Page((ROWS[0],), Cursor(ROWS[0].key, "0"))
    # SQLite refuses this while a statement reads from the table.
    connection.execute("DROP TABLE items")


@pytest.mark.parametrize(
    ("count", "now_ms", "dropped", "more"),
    [
        (3, 5_000, 0, False),
        (3, 5_001, 3, False),
        (3, 5_999, 3, False),
        (199, 6_000, 199, False),
        (200, 6_000, 200, True),
        (201, 6_000, 200, True),
    ],
)
def test_a_sweep_tells_whether_there_may_be_more(
    connection: Connection, count: int, now_ms: int, dropped: int, more: bool
) -> None:
    """It drops no more than it may, of what lies in the past, and ends its transaction."""
    write(connection, Put(K, {"ttl": 6}), *(Put(Key("old", f"{i}"), {"ttl": 5}) for i in range(count)))
    assert statements.sweep(connection, now_ms) is more
    (left,) = connection.execute("SELECT count(*) FROM items").fetchone()
    assert left == count + 1 - dropped
    assert not connection.in_transaction


def test_tidying_up_moves_the_log_into_the_file(tmp_path: Path) -> None:
    """What was written stands in the file itself afterwards, and what has expired does not."""
    path = tmp_path / "limits.db"
    with contextlib.closing(open_file(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        write(connection, Put(K, {"mark": "kept for good"}), Put(OTHER, {"ttl": 1}))
        assert b"kept for good" not in path.read_bytes()
        assert not statements.tidy(connection, 5_000)
        assert b"kept for good" in path.read_bytes()
        assert statements.batch_get(connection, [K, OTHER]) == [{"mark": "kept for good"}, None]


class Failing:
    """A connection whose statements fail, inside a transaction or after it was lost."""

    def __init__(self, code: int | None, in_transaction: bool) -> None:
        self.in_transaction = in_transaction
        self.error = sqlite3.OperationalError("planned")
        if code is not None:
            self.error.sqlite_errorcode = code

    def execute(self, sql: str, *_: Any) -> Any:
        if sql in ("COMMIT", statements.SWAP):
            raise self.error


@pytest.mark.parametrize(
    ("code", "in_transaction", "lost"),
    [
        (sqlite3.SQLITE_IOERR, True, False),
        (sqlite3.SQLITE_IOERR, False, True),
        (sqlite3.SQLITE_FULL, False, False),
        (None, False, True),
        (None, True, False),
    ],
)
def test_a_commit_that_fails_is_lost_or_undone(code: int | None, in_transaction: bool, lost: bool) -> None:
    """What is still open can be rolled back, and a full disk undoes it; of anything else nobody knows."""
    connection: Any = Failing(code, in_transaction)
    with pytest.raises(LostCommit if lost else sqlite3.OperationalError) as caught:
        statements.write_each(connection, [])
    assert connection.error in (caught.value, caught.value.__cause__)


@pytest.mark.parametrize(
    ("code", "lost"),
    [
        (sqlite3.SQLITE_BUSY, False),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, False),
        (sqlite3.SQLITE_LOCKED, False),
        (sqlite3.SQLITE_FULL, False),
        (sqlite3.SQLITE_READONLY_DBMOVED, False),
        (sqlite3.SQLITE_IOERR, True),
        (None, True),
    ],
)
def test_a_swap_that_fails_tells_whether_it_may_have_happened(code: int | None, lost: bool) -> None:
    """Some errors come before anything is written; after the others nobody knows."""
    connection: Any = Failing(code, False)
    with pytest.raises(LostCommit if lost else sqlite3.OperationalError) as caught:
        statements.swap(connection, ("{}", "p", "s", "{}"))
    assert connection.error in (caught.value, caught.value.__cause__)


def test_a_swap_asks_for_the_text_that_was_there(connection: Connection) -> None:
    write(connection, Put(K, {"n": 1}))
    assert not statements.swap(connection, ('{"n":3}', *K, '{"n":2}'))
    assert not statements.swap(connection, ('{"n":3}', *OTHER, '{"n":1}'))
    assert statements.swap(connection, ('{"n":3}', *K, '{"n":1}'))
    assert columns(connection) == {"body": '{"n":3}'}
