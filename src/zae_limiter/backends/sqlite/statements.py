"""Reading and writing items over an open connection: constant SQL, JSON, and ``apply``; and the change log.

Every function takes the connection and one argument, runs as one transaction and does not wait. A
function that fails may leave its transaction open; the caller ends it.

The marks of the change log stand in the table ``diary``, and what is worked out of them in ``changes``.
"""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from ...repository_protocol import (
    PAGE_ROWS_MAX,
    Cursor,
    Item,
    Key,
    Outcome,
    Page,
    Query,
    Row,
    Update,
    Write,
    apply,
    apply_all,
)
from ...schema import INDEXES, changes_key, is_deleted, is_remembered
from ..change_log import LogEntry, says_other_things
from .file import COLUMNS, INDEXED, NOW_MS, OLDEST, STATE

SWEEP_ITEMS_MAX = 200
SCAN_ROWS_MAX = 10_000  # the most rows that one page looks at when a filter drops most of them
SWAP = "UPDATE items SET body = ? WHERE pk = ? AND sk = ? AND body = ?"
_CHANGED = "SELECT body FROM items WHERE pk = '{}' AND sk = '{}'".format(*changes_key())
CHANGES = f"SELECT coalesce(({_CHANGED}), '0')"
SWAP_UNLESS_CHANGED = f"{SWAP} AND coalesce(({_CHANGED}), '0') = ?"
COUNT_CHANGE = (
    "INSERT INTO items (pk, sk, body) VALUES ('{}', '{}', '1') "
    "ON CONFLICT (pk, sk) DO UPDATE SET body = CAST(body AS INTEGER) + 1"
).format(*changes_key())
SELECT = "SELECT body FROM items WHERE pk = ? AND sk = ?"
UPDATE_BODY = "UPDATE items SET body = ? WHERE pk = ? AND sk = ?"
DELETE = "DELETE FROM items WHERE pk = ? AND sk = ?"
UPSERT = (
    f"INSERT INTO items (pk, sk, body, {', '.join(COLUMNS)}, ttl) "
    f"VALUES (?, ?, ?, {', '.join('?' for _ in COLUMNS)}, ?) ON CONFLICT (pk, sk) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in ("body", *COLUMNS, "ttl"))
)
_EXPIRED = f"SELECT pk, sk FROM items WHERE ttl < ? ORDER BY ttl LIMIT {SWEEP_ITEMS_MAX}"
SWEEP = f"DELETE FROM items WHERE (pk, sk) IN ({_EXPIRED})"

# What triggers cannot note in the change log: what expires, other limits or another family, what is deleted.
MARK_SWEPT = (
    f"INSERT INTO diary (pk, image, at_ms, gone) SELECT pk, body, {NOW_MS}, 1 FROM items "
    f"WHERE sk = '{STATE}' AND (pk, sk) IN ({_EXPIRED}) AND body NOT LIKE '%\"status\":\"deleted\"%'"
)
MARK = f"INSERT INTO diary (pk, image, at_ms) SELECT pk, body, {NOW_MS} FROM items WHERE pk = ? AND sk = ?"
UNMARK = ("DELETE FROM diary WHERE pk = ?", "DELETE FROM marked WHERE pk = ?")
FORGET = (*UNMARK, "DELETE FROM changes WHERE pk = ?")  # there are few at a time, so they need no index

MARKS_AT_ONCE = 200
"""The buckets of so many marks are worked out in one transaction, so that nobody waits long for it."""
MARKED = f"SELECT DISTINCT pk FROM ({OLDEST.format('pk', '?')})"
_BECAME = f"""
SELECT position, pk, image, after, at_ms FROM (
    SELECT position, pk, image, at_ms, gone,
        CASE WHEN lead(position) OVER marks IS NOT NULL THEN lead(image) OVER marks
        ELSE (SELECT body FROM items WHERE items.pk = diary.pk AND sk = '{STATE}') END AS after
    FROM diary {{}} WINDOW marks AS (PARTITION BY pk ORDER BY position)
) WHERE NOT gone AND after IS NOT NULL AND after IS NOT image
"""
WORK_OUT = f"""
INSERT INTO changes (pk, sk, old, new, at_ms)
SELECT pk, '{STATE}', image, after, at_ms FROM ({_BECAME.format("WHERE pk = ?")}) ORDER BY position
"""
LOG_WAITS = f"SELECT EXISTS (SELECT 1 FROM changes) OR EXISTS ({_BECAME.format('')})"
READ_LOG = "SELECT position, pk, sk, old, new, at_ms FROM changes ORDER BY position LIMIT ?"

IN_COLUMNS = frozenset((*INDEXED, "ttl"))  # the attributes that have a column of their own beside the body
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).raw_decode

HARMLESS_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
"""Errors of a statement on its own after which nothing has happened."""


class StoredItem(dict[str, Any]):
    """An item together with the text that it was read from or written as."""

    __slots__ = ("body",)
    body: str


def stored(item: Item, body: str) -> StoredItem:
    """An item that was just read, or written."""
    kept = StoredItem(item)
    kept.body = body
    return kept


class LostCommit(Exception):
    """``COMMIT`` failed in a way that does not tell whether the transaction happened."""


def swap(connection: sqlite3.Connection, swapped: tuple[str, ...]) -> bool:
    """Replace the body of an item, if it still is what it was: new body, key, old body.

    A fifth text is the count of changes, which must be what it was too.
    """
    try:
        statement = SWAP_UNLESS_CHANGED if len(swapped) == 5 else SWAP
        return connection.execute(statement, swapped).rowcount == 1
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in HARMLESS_CODES:
            raise
        raise LostCommit from error


def changed_body(image: StoredItem, changed: Mapping[str, int]) -> str | None:
    """The text of an item after some of its integers changed; ``None`` if all of it is to be encoded again.

    An attribute's name with its quotes and colon stands in the text of a flat item where its value is: inside
    a string the quotes would be escaped. Of a name that stands there twice the last one counts.
    """
    body = image.body
    if body.rfind("{") > 0:
        return None
    for name, value in changed.items():
        before, found, after = body.rpartition(f'"{name}":{image[name]}')
        if not found:
            return None
        body = f'{before}"{name}":{value}{after}'
    return body


def read_body(body: str) -> dict[str, Any]:
    """The item that a text stands for. Whatever is no object of JSON is an item that says nothing."""
    try:
        item = _decode(body.lstrip())[0]
    except (ValueError, RecursionError):
        return {}
    return item if isinstance(item, dict) else {}


def changes(connection: sqlite3.Connection, _: None) -> int:
    """How often a record was changed that clients remember, by whomever."""
    (counted,) = connection.execute(CHANGES).fetchone()
    try:
        return int(counted)
    except ValueError:  # not ours; any count will do that is told twice
        return 0


def is_change(writes: Sequence[Write], outcomes: Sequence[Outcome]) -> bool:
    """Whether what was done here changed a record that clients remember."""
    decided = zip(writes, outcomes, strict=True)
    return any(outcome.applied and is_remembered(write.key) for write, outcome in decided)


def write_each(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[Outcome]:
    connection.execute("BEGIN IMMEDIATE")
    outcomes = []
    for write in writes:
        item = _get(connection, write.key)
        outcomes.append(_keep(connection, write, item, apply(write, item)))
    return _committed(connection, writes, outcomes)


def transact_write(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[Outcome]:
    connection.execute("BEGIN IMMEDIATE")
    items = [_get(connection, write.key) for write in writes]
    decided = zip(writes, items, apply_all(writes, items), strict=True)
    return _committed(connection, writes, [_keep(connection, *one) for one in decided])


def batch_get(connection: sqlite3.Connection, keys: Sequence[Key]) -> list[Item | None]:
    if len(keys) == 1:
        return [_get(connection, keys[0])]
    connection.execute("BEGIN")
    items = [_get(connection, key) for key in keys]
    connection.execute("COMMIT")
    return items


def query(connection: sqlite3.Connection, query: Query) -> Page:
    assert 0 < query.rows_max <= PAGE_ROWS_MAX, f"{query.rows_max} rows in one page"
    assert query.index is None or query.index in INDEXES, f"there is no index {query.index!r}"
    assert not (query.index and query.when), "an index yields keys: there is nothing to filter"
    arguments = [query.partition, query.first, query.last]
    if query.after is not None:
        arguments += [query.after.sort, *query.after.key]
    rows: list[Row] = []
    behind: Cursor | None = None
    # One row more than needed tells whether there is another page.
    seen_max = SCAN_ROWS_MAX if query.when else query.rows_max
    sql = query_sql(query.index, query.backwards, query.after is not None)
    found = connection.execute(sql, (*arguments, seen_max + 1))
    for seen, (sort, pk, sk, body) in enumerate(found):
        if seen == seen_max or len(rows) == query.rows_max:
            found.close()
            return Page(tuple(rows), behind)
        key = Key(pk, sk)
        item: Item = {} if body is None else read_body(body)
        if all(condition.holds(item) for condition in query.when):
            rows.append(Row(key, item))
        behind = Cursor(key, sort)
    return Page(tuple(rows), None)


def sweep(connection: sqlite3.Connection, now_ms: int) -> bool:
    """Drop some expired items; whether there may be more."""
    connection.execute("BEGIN IMMEDIATE")
    # A ttl has passed when its second lies wholly in the past: ttl * 1000 < now_ms.
    before = (-(-now_ms // 1000),)
    connection.execute(MARK_SWEPT, before)
    swept = connection.execute(SWEEP, before).rowcount
    _commit(connection)
    return swept == SWEEP_ITEMS_MAX


def tidy(connection: sqlite3.Connection, now_ms: int) -> bool:
    """Sweep, and move the log back into the file so that no commit has to."""
    more = sweep(connection, now_ms)
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return more


def read_log(connection: sqlite3.Connection, entries_max: int) -> list[LogEntry]:
    rows = connection.execute(READ_LOG, (entries_max,)).fetchall()
    # Marks need not tell of anything: of a bucket that only expired there is nothing to count.
    while not rows and _work_out(connection):
        rows = connection.execute(READ_LOG, (entries_max,)).fetchall()
    return [
        LogEntry(position, Key(pk, sk), None if old is None else read_body(old), read_body(new), at_ms)
        for position, pk, sk, old, new, at_ms in rows
    ]


def log_waits(connection: sqlite3.Connection, _: None) -> bool:
    ((found,),) = connection.execute(LOG_WAITS).fetchall()
    return bool(found)


def trim_log(connection: sqlite3.Connection, position: int) -> None:
    connection.execute("DELETE FROM changes WHERE position <= ?", (position,))


def _work_out(connection: sqlite3.Connection) -> bool:
    """Turn the oldest marks, if any, into entries; the next write to each of their buckets marks it again."""
    connection.execute("BEGIN IMMEDIATE")
    buckets = connection.execute(MARKED, (MARKS_AT_ONCE,)).fetchall()
    for statement in (WORK_OUT, *UNMARK):
        connection.executemany(statement, buckets)
    connection.execute("COMMIT")
    return bool(buckets)


@functools.cache
def query_sql(index: str | None, backwards: bool, after: bool) -> str:
    partition, sort, body = "pk", "sk", "body"
    if index is not None:
        partition, sort, body = f"{index.lower()}pk", f"{index.lower()}sk", "NULL"
    order, direction = ("<", "DESC") if backwards else (">", "ASC")
    behind = f"AND ({sort}, pk, sk) {order} (?, ?, ?)" if after else ""
    return (
        f"SELECT {sort}, pk, sk, {body} FROM items "
        f"WHERE {partition} = ? AND {sort} >= ? AND {sort} <= ? {behind} "
        f"ORDER BY {sort} {direction}, pk {direction}, sk {direction} LIMIT ?"
    )


def _get(connection: sqlite3.Connection, key: Key) -> Item | None:
    row = connection.execute(SELECT, key).fetchone()
    return None if row is None else stored(read_body(row[0]), row[0])


def _keep(connection: sqlite3.Connection, write: Write, old: Item | None, outcome: Outcome) -> Outcome:
    """Store what a write decided, if it changes anything."""
    key, new = write.key, outcome.item
    if not outcome.applied or new is old:
        return outcome
    is_bucket = key.sort == STATE
    if is_bucket and old is not None and new is not None and says_other_things(old, new):
        connection.execute(MARK, key)
    if new is None:
        connection.execute(DELETE, key)
    else:
        body = _encode(new)
        if old is not None and _same_columns(write, old, new):
            connection.execute(UPDATE_BODY, (body, *key))
        else:
            connection.execute(UPSERT, (*key, body, *_columns(new)))
        outcome = Outcome(True, stored(new, body))
    if is_bucket and (new is None or is_deleted(new)):  # with what a trigger marked just now
        for statement in FORGET:
            connection.execute(statement, key[:1])
    return outcome


def _same_columns(write: Write, old: Item, new: Item) -> bool:
    """Whether the indexes can be left alone."""
    if type(write) is Update and IN_COLUMNS.isdisjoint(write.set) and IN_COLUMNS.isdisjoint(write.add):
        return True
    return _columns(old) == _columns(new)


def _columns(item: Item) -> list[str | int | None]:
    columns: list[str | int | None] = []
    for index in INDEXES:
        pk, sk = item.get(f"{index}PK"), item.get(f"{index}SK")
        columns += (pk, sk) if _is_text(pk) and _is_text(sk) else (None, None)
    ttl = item.get("ttl")
    columns.append(ttl if type(ttl) is int and abs(ttl) < 2**63 else None)
    return columns


def _is_text(value: object) -> TypeGuard[str]:
    """Whether SQLite can keep it: there are texts that JSON can write and nobody can encode."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _committed(
    connection: sqlite3.Connection, writes: Sequence[Write], outcomes: list[Outcome]
) -> list[Outcome]:
    if is_change(writes, outcomes):
        connection.execute(COUNT_CHANGE)
    _commit(connection)
    return outcomes


def _commit(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        # As long as the transaction is open it can be rolled back, and a full disk undoes it.
        if connection.in_transaction or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            raise
        raise LostCommit from error
