"""One namespace of one opened store: what every kind of record builds upon.

Whoever may write items of one namespace can give them index entries of any other, as many as they like. A
list passes them over, and how much of that it does is bounded: a page ends after some queries with a
cursor to go on from, and what has to read a whole index gives up and says why.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from ..engine.door import write_each, write_together
from ..exceptions import ClosedError, DamagedRecordError, NamespaceNotFoundError, ValidationError
from ..models import NamespaceStatus, check_count
from ..repository_protocol import (
    PAGE_ROWS_MAX,
    Backend,
    Cursor,
    Item,
    Key,
    Outcome,
    Query,
    Row,
    Write,
)
from ..runtime.world import World
from ..schema import is_remembered, nsid_key
from .connection import Connection

logger = logging.getLogger("zae_limiter")

T = TypeVar("T")

PAGE_MAX = 1000
QUERIES_MAX = 10
"""How often the store is asked for one page of a list, while others' rows stand between ours."""
FOREIGN_ROWS_MAX = 100_000
"""How many rows of others are passed over by what reads a whole index."""
TOMBSTONE_DAYS = 2
"""How long what was deleted leaves a stamp or a mark behind: longer than any cache remembers."""

GONE = tuple(status for status in NamespaceStatus if status is not NamespaceStatus.ACTIVE)
CURSOR_LENGTH_MAX = 8192
"""Longer than three keys of the longest names, in hexadecimal."""


class View:
    """A namespace of a connection. Views are cheap, share everything, and own nothing."""

    def __init__(self, connection: Connection, namespace_name: str, namespace_id: str) -> None:
        self._connection = connection
        self._namespace_name, self._namespace_id = namespace_name, namespace_id
        self._is_closed = False

    @property
    def namespace_name(self) -> str:
        """The name of the namespace."""
        return self._namespace_name

    @property
    def namespace_id(self) -> str:
        """The opaque prefix of every key of this namespace."""
        return self._namespace_id

    @property
    def store(self) -> str:
        """The URL that was opened."""
        return self._connection.url

    @property
    def table_name(self) -> str | None:
        """The table, if the store is one of DynamoDB's."""
        parts = urlsplit(self.store)
        return (
            parts.netloc
            if parts.scheme == "dynamodb"
            else getattr(self._connection.backend, "table_name", None)
        )

    @property
    def stack_name(self) -> str | None:
        """The stack around the table, which has the table's name."""
        return self.table_name

    @property
    def _backend(self) -> Backend:
        self._check_open()
        return self._connection.backend

    def _check_open(self) -> None:
        if self._is_closed or self._connection.is_closed:
            raise ClosedError("it was closed before; open another one, or close it later")

    @property
    def _world(self) -> World:
        return self._connection.world

    async def _check_namespace(self) -> None:
        """Refuse to write to a namespace that somebody deleted, as far as this process knows."""
        check_alive(self._namespace_name, *await self._connection.fetch([nsid_key(self._namespace_id)]))

    def _paged(self, query: Query, limit: int, cursor: str | None) -> Query:
        """A page of a query, behind the cursor of the page before."""
        query = query._replace(rows_max=check_page_size(limit))
        if cursor is None:
            return query
        after = read_cursor(cursor, query)
        if after is None:
            raise ValidationError("cursor", cursor, "pass on what the previous page of this list returned")
        return query._replace(after=after)

    async def _get(self, key: Key) -> Item | None:
        (item,) = await self._backend.batch_get([key])
        return item

    async def _items(self, keys: Sequence[Key]) -> list[Item]:
        """The items of keys that an index named, without those that are gone since."""
        items = await self._backend.batch_get(keys) if keys else []
        return [item for item in items if item is not None]

    async def _write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        """Writes to any records, buckets too, each on its own."""
        try:
            return await write_each(self._backend, self._connection.writer, writes) if writes else []
        finally:
            self._outdate(writes)

    async def _write_together(self, writes: Sequence[Write]) -> list[Outcome]:
        """Writes to any records, buckets too, all or none."""
        try:
            return await write_together(self._backend, self._connection.writer, writes) if writes else []
        finally:
            self._outdate(writes)

    def _outdate(self, writes: Sequence[Write]) -> None:
        """Whatever this process remembers of records that it has written is read again."""
        if keys := {write.key for write in writes if is_remembered(write.key)}:
            self._connection.invalidate(keys.__contains__)

    async def _must_write(self, writes: Sequence[Write]) -> None:
        """Writes that nothing can refuse; a store that fails is told at once."""
        for outcome in await self._write_each(writes):
            if outcome.failure is not None:
                raise outcome.failure

    async def _pages(self, query: Query) -> AsyncIterator[tuple[Row, ...]]:
        """All rows of a query, at most ``rows_max`` at a time."""
        part, foreign = query.rows_max, 0
        if query.index is not None:
            query = query._replace(rows_max=PAGE_ROWS_MAX)
        while True:
            page = await self._backend.query(query)
            rows = _ours(query, page.rows)
            for at in range(0, len(rows), part):
                yield rows[at : at + part]
            if page.after is None:
                return
            foreign += len(page.rows) - len(rows)
            if foreign > FOREIGN_ROWS_MAX:
                raise DamagedRecordError(
                    f"index {query.index} of {query.partition!r}",
                    f"more than {FOREIGN_ROWS_MAX} entries in it belong to other namespaces; find out who "
                    "writes them, and take that right away",
                )
            query = query._replace(after=page.after)

    async def _rows(self, query: Query) -> AsyncIterator[Row]:
        """All rows of a query, page after page."""
        async for page in self._pages(query):
            for row in page:
                yield row

    async def _first_rows(
        self, query: Query, queries_max: int = QUERIES_MAX
    ) -> tuple[list[Row], Cursor | None]:
        """As many rows as the query asks for, if so many are found, and where to go on."""
        rows: list[Row] = []
        after = query.after
        for _ in range(queries_max):
            left = query.rows_max - len(rows)
            page = await self._backend.query(query._replace(rows_max=left, after=after))
            rows += _ours(query, page.rows)
            after = page.after
            if after is None or len(rows) >= query.rows_max:
                break
        return rows, after


def _ours(query: Query, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows of an index that lead to items of its own namespace."""
    if query.index is None:
        return rows
    ours = f"{query.partition.partition('/')[0]}/"
    return tuple(row for row in rows if row.key.partition.startswith(ours))


def check_alive(name: str, space: Item | None) -> None:
    """Refuse a namespace whose record says that it was deleted; one without a record was never registered."""
    if space is not None and space.get("status") in GONE:
        message = f"namespace {name!r} was deleted; recover it, or open another one"
        raise NamespaceNotFoundError(message, namespace_name=name)


def readable(read: Callable[[Item], T], items: Iterable[Item]) -> list[T]:
    """What a list shows: all records that can be read. The others are told to the log."""
    found = []
    for item in items:
        try:
            found.append(read(item))
        except DamagedRecordError as error:
            logger.warning("left out of a list: %s", error)
    return found


def check_page_size(limit: int) -> int:
    return check_count("limit", limit, PAGE_MAX)


def cursor_text(cursor: Cursor | None, query: Query) -> str | None:
    """A cursor as one opaque word that a caller may keep; it goes with the list that it is from."""
    if cursor is None:
        return None
    return "\n".join((query.partition, *cursor.key, cursor.sort)).encode().hex()


def read_cursor(text: str, query: Query) -> Cursor | None:
    """The place in a list that a word means; ``None`` if it is not from that list."""
    if not isinstance(text, str) or len(text) > CURSOR_LENGTH_MAX:
        return None
    try:
        partition, *key, place = bytes.fromhex(text).decode().split("\n")
        after = Cursor(Key(*key), place)
    except (TypeError, ValueError):
        return None
    if partition != query.partition or not all(key) or not query.first <= place <= query.last:
        return None
    return after if query.index is not None or after.key == (partition, place) else None
