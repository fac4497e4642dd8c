"""Every row of a store, which the waist has no verb for: nothing but a migration needs to see them all.

Rows of one partition come one after another, in the order of their sort keys. Rows that are written
meanwhile may or may not be among them.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, TypeAlias

from ...backends.memory import MemoryBackend
from ...backends.sqlite import SqliteBackend
from ...backends.sqlite.file import open_file
from ...exceptions import RateLimiterUnavailable, ValidationError
from ...repository_protocol import Backend, Key, Row

if TYPE_CHECKING:
    from ...backends.dynamodb import DynamoDBBackend

PAGE_ROWS = 500
SELECT = "SELECT pk, sk, body FROM items WHERE (pk, sk) > (?, ?) ORDER BY pk, sk LIMIT ?"

Scan: TypeAlias = Callable[[], AsyncIterator[Row]]
"""Begins to read a store from its first row, each time it is called."""


def scan_of(backend: Backend) -> Scan:
    """How to read all of a store."""
    if isinstance(backend, MemoryBackend):
        return lambda: _memory_rows(backend)
    if isinstance(backend, SqliteBackend):
        return lambda: _sqlite_rows(backend)
    if backend.capabilities.name == "dynamodb":
        from ...backends.dynamodb import DynamoDBBackend

        if isinstance(backend, DynamoDBBackend):
            return lambda: _dynamodb_rows(backend)
    raise ValidationError("store", backend.capabilities.name, "it cannot be read as a whole")


async def _memory_rows(backend: MemoryBackend) -> AsyncIterator[Row]:
    for key, item in sorted(backend.snapshot().items()):
        yield Row(key, item)


async def _sqlite_rows(backend: SqliteBackend) -> AsyncIterator[Row]:
    """Over a connection of its own: a page is read in milliseconds and holds nobody up."""
    try:
        with contextlib.closing(open_file(backend.path)) as connection:
            connection.execute("PRAGMA busy_timeout = 5000")
            after = Key("", "")
            while page := connection.execute(SELECT, (*after, PAGE_ROWS)).fetchall():
                for pk, sk, body in page:
                    after = Key(pk, sk)
                    yield Row(after, json.loads(body))
    except sqlite3.Error as error:
        raise RateLimiterUnavailable(f"sqlite store {str(backend.path)!r} failed: {error}") from error


async def _dynamodb_rows(backend: DynamoDBBackend) -> AsyncIterator[Row]:
    from ...backends.dynamodb.expressions import read_rows

    calls = backend.calls
    request = {"TableName": backend.table_name, "ConsistentRead": True, "Limit": PAGE_ROWS}
    while True:
        rows, last = await calls.ask("Scan", request, read_rows, calls.deadline(30_000))
        for row in rows:
            yield row
        if last is None:
            return
        request = request | {"ExclusiveStartKey": last}
