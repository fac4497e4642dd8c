"""A store in a journal: one file, to which every write appends a line of JSON, the new images of its items.

Whoever holds the lock of the file reads what others have appended, decides with ``apply``, and appends a line
of its own. What a process knows comes from lines alone, so all processes know the same. A line that was cut
off, because its writer was killed, never happened. ``tail -f`` shows a limiter at work.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from zae_limiter import RateLimiterUnavailable, ValidationError
from zae_limiter.models import BackendCapabilities
from zae_limiter.repository_protocol import (
    Check,
    Cursor,
    Item,
    Key,
    Outcome,
    Page,
    Query,
    Row,
    Write,
    apply,
    apply_all,
)
from zae_limiter.runtime.colour import ForkSafe, colour_of
from zae_limiter.runtime.world import World

T = TypeVar("T")

TIMEOUT_MS = 2_000
PAUSE_MS = 1
"""How long somebody who found the file locked lets others go on."""

SPARE_LINES = 10_000
"""How many lines, besides two for each item, a journal has before it is written anew."""


def open_backend(url: str, *, sync: bool, world: World, timeout_ms: int | None = None) -> JournalBackend:
    """Open ``journal:///var/lib/limits.jsonl``; this is what the entry point names."""
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or parts.path in ("", "/"):
        raise ValidationError("store", url, "write journal:///absolute/path/limits.jsonl, without options")
    return JournalBackend(unquote(parts.path), sync=sync, world=world, timeout_ms=timeout_ms or TIMEOUT_MS)


class Journal:
    """The file, and what one process has read of it."""

    def __init__(self, path: str, world: World) -> None:
        self._path, self._world = path, world
        self._lock = threading.Lock()  # threads share the file's lock, for it belongs to the descriptor
        self._file = -1
        self._forget()

    def _forget(self) -> None:
        self.items: dict[Key, Item] = {}
        self._bytes_read = self._lines = 0

    def attempt(self, work: Callable[[Journal], T]) -> T:
        """Do something with the file as it is now, alone; ``BlockingIOError`` if somebody else is at it."""
        if not self._lock.acquire(blocking=False):
            raise BlockingIOError
        try:
            while True:
                if self._file < 0:
                    self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    if os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                        self._catch_up()
                        return work(self)
                finally:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
                self._close()  # the journal was written anew: open that one
        finally:
            self._lock.release()

    def _catch_up(self) -> None:
        """Read what was appended since; whoever has the lock finds no line that is still being written."""
        if os.fstat(self._file).st_size == self._bytes_read:
            return
        with open(self._file, "rb", closefd=False) as lines:
            lines.seek(self._bytes_read)
            for line in lines:
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, self._bytes_read)
                    break
                for partition, sort, item in json.loads(line):
                    if item is None:
                        self.items.pop(Key(partition, sort), None)
                    else:
                        self.items[Key(partition, sort)] = item
                self._bytes_read += len(line)
                self._lines += 1

    def image(self, key: Key) -> Item | None:
        """The item, safe from whoever changes a list or dictionary in it."""
        item = self.items.get(key)
        nested = item is not None and any(isinstance(value, (dict, list)) for value in item.values())
        return copy.deepcopy(item) if nested else item

    def append(self, images: Mapping[Key, Item | None]) -> None:
        """Write one line, or nothing."""
        if not images:
            return
        line = _line(images.items())
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(f"there is no room for {len(line)} bytes")
        except OSError:
            os.ftruncate(self._file, self._bytes_read)
            raise
        self._catch_up()
        if self._lines > SPARE_LINES + 2 * len(self.items):
            with contextlib.suppress(OSError):  # what was asked for is done, and the next one tries again
                self._write_anew()

    def _write_anew(self) -> None:
        """Replace the file by one with the present images alone; who waits for its lock will notice."""
        now = self._world.now_ms() / 1000
        with open(f"{self._path}.new", "wb", opener=_private) as file:
            for key, item in self.items.items():
                ttl = item.get("ttl")
                if type(ttl) is not int or ttl >= now:
                    file.write(_line([(key, item)]))
        os.replace(file.name, self._path)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, -1
        self._forget()
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self._close()  # a forked child has no use for its parent's descriptor, and must not hold its lock


class JournalBackend:
    """Items in one journal, safe for processes, threads and tasks at once."""

    swap = changes = news = None  # a store need not have these: see the page

    def __init__(self, path: str, *, sync: bool, world: World, timeout_ms: int) -> None:
        self.colour = colour_of(sync=sync)
        self.capabilities = BackendCapabilities("journal", atomic_batches=True, timeout_ms=timeout_ms)
        self._path, self._world, self._timeout_ms = path, world, timeout_ms
        self._journal = ForkSafe(lambda: Journal(path, world))

    async def setup(self) -> None:
        """Make the file if it is missing: here and nowhere else, for a new file has forgotten everything."""
        try:
            os.close(_private(self._path, os.O_CREAT))
        except OSError as error:
            raise self._failed(error) from error
        await self.batch_get(())

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        return await self._ask(lambda journal: [journal.image(key) for key in keys])

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        def work(journal: Journal) -> list[Outcome]:
            outcomes: list[Outcome] = []
            images: dict[Key, Item | None] = {}
            for write in writes:
                key = write.key
                outcome = apply(write, images[key] if key in images else journal.image(key))
                outcomes.append(outcome)
                if outcome.applied and not isinstance(write, Check):
                    images[key] = outcome.item
            journal.append(images)
            return outcomes

        try:
            return await self._ask(work)
        except RateLimiterUnavailable as failure:
            return [Outcome(False, None, failure=failure) for _ in writes]

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        def work(journal: Journal) -> list[Outcome]:
            outcomes = apply_all(writes, [journal.image(write.key) for write in writes])
            decided = zip(writes, outcomes, strict=True)
            journal.append({w.key: o.item for w, o in decided if o.applied and not isinstance(w, Check)})
            return outcomes

        return await self._ask(work)

    async def query(self, query: Query) -> Page:
        def work(journal: Journal) -> Page:
            found = sorted(_matching(journal.items, query), reverse=query.backwards)
            page = found[: query.rows_max]
            rows = tuple(Row(key, {} if query.index else journal.image(key) or {}) for _, key in page)
            return Page(rows, Cursor(page[-1][1], page[-1][0]) if len(found) > query.rows_max else None)

        return await self._ask(work)

    async def close(self) -> None:
        if (journal := self._journal.peek()) is not None:
            journal.close()

    async def _ask(self, work: Callable[[Journal], T]) -> T:
        """Try until it works or the time is over. Between two attempts a coroutine lets others run."""
        for _ in range(max(1, self._timeout_ms // PAUSE_MS)):
            try:
                return self._journal.get().attempt(work)
            except BlockingIOError:
                await self.colour.sleep(PAUSE_MS / 1000 * self._world.random.uniform(0.5, 1.5))
            except (OSError, ValueError, TypeError) as error:
                raise self._failed(error) from error
        raise RateLimiterUnavailable(f"journal {self._path!r} was locked for {self._timeout_ms} ms")

    def _failed(self, error: Exception) -> RateLimiterUnavailable:
        """What the limiter is told: ambiguous unless it is certain that no line was written."""
        certain = isinstance(error, FileNotFoundError)
        told = f"journal {self._path!r}: {error}"
        return RateLimiterUnavailable(told, ambiguous=not certain, misconfigured="file")


def _matching(items: Mapping[Key, Item], query: Query) -> Iterator[tuple[str, Key]]:
    """The place and the key of every row that is asked for."""
    index = query.index
    for key, item in items.items():
        partition, sort = (item.get(f"{index}PK"), item.get(f"{index}SK")) if index else key
        if partition != query.partition or not isinstance(sort, str) or not query.accepts(sort, key):
            continue
        if all(condition.holds(item) for condition in query.when):
            yield sort, key


def _line(images: Iterable[tuple[Key, Item | None]]) -> bytes:
    return json.dumps([[*key, item] for key, item in images], separators=(",", ":")).encode() + b"\n"


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: it says who uses what."""
    return os.open(path, flags, 0o600)
