"""One namespace of one opened store: what the functions of every kind of record are given.

Whoever may write items of one namespace can give them index entries of any other, as many as they like. A
list passes them over, and how much of that it does is bounded: a page ends after some queries with a
cursor to go on from, and what has to read a whole index gives up and says why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

from ..engine.door import write_each, write_together
from ..exceptions import ClosedError, DamagedRecordError, NamespaceNotFoundError, ValidationError
from ..models import NamespaceStatus, check_count
from ..repository_protocol import PAGE_ROWS_MAX, Backend, Cursor, Item, Key, Outcome, Query, Row, Write
from ..runtime.logs import logger
from ..runtime.world import World
from ..schema import is_remembered, nsid_key
from .connection import Connection

R = TypeVar("R")
T = TypeVar("T")

PAGE_MAX = 1000
QUERIES_MAX = 10
"""How often the store is asked for one page of a list, while others' rows stand between ours."""
FOREIGN_ROWS_MAX = 100_000
"""How many rows of others are passed over by what reads a whole index."""
DAY_SECONDS = 86_400
TOMBSTONE_DAYS = 2
"""How long what was deleted leaves a stamp or a mark behind: longer than any cache remembers."""
GONE = tuple(status for status in NamespaceStatus if status is not NamespaceStatus.ACTIVE)
CURSOR_LENGTH_MAX = 8192
"""Longer than three keys of the longest names, in hexadecimal."""


class Scope:
    """A namespace of a connection. Scopes are cheap, share everything, and own nothing."""

    def __init__(self, connection: Connection, namespace_name: str, namespace_id: str) -> None:
        self.connection = connection
        self.namespace_name = namespace_name
        self.namespace_id = namespace_id
        self.is_closed = False

    @property
    def backend(self) -> Backend:
        self.check_open()
        return self.connection.backend

    def check_open(self) -> None:
        if self.is_closed or self.connection.is_closed:
            raise ClosedError("it was closed before; open another one, or close it later")

    @property
    def world(self) -> World:
        return self.connection.world

    @property
    def table_name(self) -> str | None:
        """The table, if the store is one of DynamoDB's."""
        parts = urlsplit(self.connection.url)
        return (
            parts.netloc
            if parts.scheme == "dynamodb"
            else getattr(self.connection.backend, "table_name", None)
        )

    def seconds_in(self, days: int) -> int:
        """The instant in so many days, as a ``ttl``."""
        return self.world.now_ms() // 1000 + days * DAY_SECONDS

    async def check_namespace(self) -> None:
        """Refuse to write to a namespace that somebody deleted, as far as this process knows."""
        check_alive(self.namespace_name, *await self.connection.fetch([nsid_key(self.namespace_id)]))

    async def notice_changes(self) -> None:
        """See whether somebody else changed a record, where the store can tell."""
        self.check_open()
        await self.connection.notice_changes()

    async def get(self, key: Key) -> Item | None:
        (item,) = await self.backend.batch_get([key])
        return item

    async def get_all(self, keys: Sequence[Key]) -> dict[Key, Item]:
        """The items of keys, each once and in order, without those that are not there."""
        items = await self.backend.batch_get(keys) if keys else []
        return {key: item for key, item in zip(keys, items, strict=True) if item is not None}

    async def write(self, writes: Sequence[Write]) -> list[Outcome]:
        """Writes to any records, buckets too, each on its own."""
        try:
            return await write_each(self.backend, self.connection.writer, writes) if writes else []
        finally:
            self._outdate(writes)

    async def write_together(self, writes: Sequence[Write]) -> list[Outcome]:
        """Writes to any records, buckets too, all or none."""
        try:
            return await write_together(self.backend, self.connection.writer, writes) if writes else []
        finally:
            self._outdate(writes)

    def _outdate(self, writes: Sequence[Write]) -> None:
        """Whatever this process remembers of records that it has written is read again."""
        if keys := {write.key for write in writes if is_remembered(write.key)}:
            self.connection.invalidate_keys(keys)

    async def must_write(self, writes: Sequence[Write]) -> list[Outcome]:
        """Writes, each on its own; a store that fails is told at once."""
        outcomes = await self.write(writes)
        for outcome in outcomes:
            if outcome.failure is not None:
                raise outcome.failure
        return outcomes

    async def pages(self, query: Query) -> AsyncIterator[tuple[Row, ...]]:
        """All rows of a query, at most ``rows_max`` at a time."""
        part, foreign = query.rows_max, 0
        if query.index is not None:
            query = query._replace(rows_max=PAGE_ROWS_MAX)
        while True:
            page = await self.backend.query(query)
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

    async def rows(self, query: Query) -> AsyncIterator[Row]:
        """All rows of a query, page after page."""
        async for page in self.pages(query):
            for row in page:
                yield row

    async def first_rows(
        self, query: Query, queries_max: int = QUERIES_MAX
    ) -> tuple[list[Row], Cursor | None]:
        """As many rows as the query asks for, if so many are found, and where to go on."""
        rows: list[Row] = []
        after = query.after
        for _ in range(queries_max):
            left = query.rows_max - len(rows)
            page = await self.backend.query(query._replace(rows_max=left, after=after))
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
        if space.get("status") == NamespaceStatus.COPYING:
            message = f"namespace {name!r} is being copied to here; wait until zae-limiter copy has ended"
        raise NamespaceNotFoundError(message, namespace_name=name)


def readable(read: Callable[[R], T], items: Iterable[R]) -> list[T]:
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


def paged(query: Query, limit: int, cursor: str | None) -> Query:
    """A page of a query, behind the cursor of the page before."""
    query = query._replace(rows_max=check_page_size(limit))
    return query if cursor is None else query._replace(after=_read_cursor(cursor, query))


def cursor_text(cursor: Cursor | None, query: Query) -> str | None:
    """A cursor as one opaque word that a caller may keep; it goes with the list that it is from."""
    if cursor is None:
        return None
    return "\n".join((query.partition, *cursor.key, cursor.sort)).encode().hex()


def _read_cursor(text: str, query: Query) -> Cursor:
    """The place in a list that a word means, which must be from that list."""
    if isinstance(text, str) and len(text) <= CURSOR_LENGTH_MAX:
        with suppress(TypeError, ValueError):
            partition, *key, place = bytes.fromhex(text).decode().split("\n")
            after = Cursor(Key(*key), place)
            is_of_list = partition == query.partition and all(key) and query.first <= place <= query.last
            if is_of_list and (query.index is not None or after.key == (partition, place)):
                return after
    raise ValidationError("cursor", text, "pass on what the previous page of this list returned")
