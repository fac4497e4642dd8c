"""The log of a SQLite store: the diary in the same file, read over a connection of its own."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ...backends.sqlite import diary
from ...backends.sqlite.file import FileId, file_id, make_file, open_file
from ...backends.sqlite.statements import read_body
from ...exceptions import InfrastructureError, RateLimiterUnavailable
from ...repository_protocol import Key
from . import Entry

WAIT_MS = 5_000


class SqliteLog:
    """The store's own connections are busy with other things."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file: FileId | None = None
        """Which file is followed. One that is deleted goes on to exist for those who have it open."""

    def read(self, entries_max: int) -> list[Entry]:
        with self._told():
            connection = self._open()
            rows = connection.execute(diary.READ, (entries_max,)).fetchall()
            # Marks need not tell of anything: of a bucket that only expired there is nothing to count.
            while not rows and diary.work_out(connection):
                rows = connection.execute(diary.READ, (entries_max,)).fetchall()
        return [
            Entry(position, Key(pk, sk), None if old is None else read_body(old), read_body(new), at_ms)
            for position, pk, sk, old, new, at_ms in rows
        ]

    def waits(self) -> bool:
        with self._told():
            ((waits,),) = self._open().execute(diary.WAITS).fetchall()
        return bool(waits)

    def trim(self, position: int) -> None:
        with self._told():
            self._open().execute(diary.TRIM, (position,))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            make_file(self._path)
            self._file = file_id(self._path)
            self._connection = open_file(self._path)
            self._connection.execute(f"PRAGMA busy_timeout = {WAIT_MS}")
        if file_id(self._path) != self._file:
            raise InfrastructureError(
                f"sqlite store {str(self._path)!r} was deleted or replaced while it was followed; "
                "start again to follow what is there now"
            )
        return self._connection

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RateLimiterUnavailable(f"the diary of {str(self._path)!r} failed: {error}") from error
