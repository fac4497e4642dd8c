"""The log of a SQLite store: a table in the same file that triggers fill.

A change and its entry are one transaction, whoever wrote it and with whichever version, so nothing is
missing and nothing is there that did not happen. A file without the table has no triggers and costs
nothing. Positions start at the time in microseconds, so that those of a log that is begun again are
larger than all before.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ..backends.sqlite.file import open_file
from ..backends.sqlite.statements import read_body
from ..exceptions import RateLimiterUnavailable
from ..repository_protocol import Key
from ..schema import sk_state
from . import ENTRIES_MAX, Entry

WAIT_MS = 5_000
TRIM_EVERY = 1_000

NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
NOTE = f"INSERT INTO changes (pk, sk, old, new, at_ms) VALUES (NEW.pk, NEW.sk, %s, NEW.body, {NOW_MS})"
START = (
    "CREATE TABLE IF NOT EXISTS changes (position INTEGER PRIMARY KEY AUTOINCREMENT, "
    "pk TEXT NOT NULL, sk TEXT NOT NULL, old TEXT, new TEXT NOT NULL, at_ms INTEGER NOT NULL)",
    f"INSERT INTO sqlite_sequence (name, seq) SELECT 'changes', {NOW_MS} * 1000 "
    "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'changes')",
    f"CREATE TRIGGER IF NOT EXISTS changes_insert AFTER INSERT ON items WHEN NEW.sk = '{sk_state()}' "
    f"BEGIN {NOTE % 'NULL'}; END",
    f"CREATE TRIGGER IF NOT EXISTS changes_update AFTER UPDATE OF body ON items WHEN NEW.sk = '{sk_state()}' "
    f"BEGIN {NOTE % 'OLD.body'}; END",
    f"CREATE TRIGGER IF NOT EXISTS changes_trim AFTER INSERT ON changes WHEN NEW.position % {TRIM_EVERY} = 0 "
    f"BEGIN DELETE FROM changes WHERE position <= NEW.position - {ENTRIES_MAX}; END",
)
STOP = (
    "DROP TRIGGER IF EXISTS changes_insert",
    "DROP TRIGGER IF EXISTS changes_update",
    "DROP TABLE IF EXISTS changes",
)
READ = "SELECT position, pk, sk, old, new, at_ms FROM changes ORDER BY position LIMIT ?"
TRIM = "DELETE FROM changes WHERE position <= ?"


class SqliteLog:
    """A connection of its own; the store's are busy with other things."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def start(self) -> None:
        self._change(*START)

    def read(self, entries_max: int) -> list[Entry]:
        with self._told():
            rows = self._open().execute(READ, (entries_max,)).fetchall()
        return [
            Entry(position, Key(pk, sk), None if old is None else read_body(old), read_body(new), at_ms)
            for position, pk, sk, old, new, at_ms in rows
        ]

    def trim(self, position: int) -> None:
        with self._told():
            self._open().execute(TRIM, (position,))

    def stop(self) -> None:
        self._change(*STOP)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _change(self, *statements: str) -> None:
        with self._told():
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement in statements:
                    connection.execute(statement)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_file(self._path)
            self._connection.execute(f"PRAGMA busy_timeout = {WAIT_MS}")
        return self._connection

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RateLimiterUnavailable(f"the log of {str(self._path)!r} failed: {error}") from error
