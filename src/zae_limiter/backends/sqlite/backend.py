"""The waist over one SQLite file, and how to wait for it.

A call is first tried at once, which takes microseconds. If another process or thread is in the way, a sync
call sleeps and tries again until its deadline; an async call does the same in a thread, so that the event
loop never waits. Processes that wait stand in line, and nobody writes often in a row while somebody does.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from ...exceptions import RateLimiterUnavailable, ValidationError, ZAELimiterError
from ...models import BackendCapabilities, check_count
from ...repository_protocol import Item, Key, Outcome, Page, Query, Write
from ...runtime.colour import ForkSafe, colour_of, in_thread, run_sync
from ...runtime.world import World
from ..change_log import LogEntry
from . import statements
from .database import Busy, Database, Work
from .line import WaitingLine

A = TypeVar("A")
T = TypeVar("T")

TIMEOUT_MS = 2_000
TIMEOUT_MS_MAX = 600_000
LOG_TIMEOUT_MS = 5_000
PAUSE_MS_MIN = 0.05
PAUSE_MS_MAX = 5.0
PAUSE_PART = 20  # who waits looks again after this part of what it has waited
AHEAD_MS = 0.3  # how long somebody in line takes, about
POLITE_MS = 50.0  # how long others are let go first, however many they are: then it is tried in any case
TURN_WRITES = 32  # in a row while others wait; handing over costs about as much as ten
THREADS_MAX = 4
TIDY_EVERY_WRITES = 1000
TIDY_AGAIN_WRITES = 100  # if something was left: twice as fast as writes could make new items


class SqliteBackend:
    """Items in one SQLite file, safe for processes, threads and tasks at once, also after a fork."""

    news = None  # ``changes`` tells more

    def __init__(self, path: str | os.PathLike[str], *, sync: bool, timeout_ms: int, world: World) -> None:
        text = os.fspath(path)
        if text == ":memory:":
            raise ValidationError("store", text, "use memory:// for a store that is not kept")
        if not text or "\0" in text:
            raise ValidationError("store", text, "it is not the path of a file")
        self.colour: Final = colour_of(sync=sync)
        self._sync = sync
        self._timeout_ms = check_count("timeout_ms", timeout_ms, TIMEOUT_MS_MAX)
        self.capabilities: BackendCapabilities = BackendCapabilities(
            "sqlite", timeout_ms=timeout_ms, atomic_batches=True
        )
        self._world = world
        # Absolute, so that the store stays the same when the process changes its directory.
        self._database = Database(Path(text).absolute(), world)
        self._writers = ForkSafe(lambda: ThreadPoolExecutor(THREADS_MAX, "zae-limiter-sqlite"))
        # Who only reads waits for no other process, and not behind those who do. It has no turn either.
        self._readers = ForkSafe(lambda: ThreadPoolExecutor(1, "zae-limiter-sqlite-reads"))
        self._line = WaitingLine(self._database.path, world)
        self._writes = self._turn_writes = 0
        self._turn_since_ms = 0.0  # since when this process had waited for the turn it has
        self._own_changes = 0  # how many of the file's changes were made here, while the connection was held

    @property
    def path(self) -> Path:
        return self._database.path

    async def setup(self) -> None:
        """Open the file, make it if it is missing, and drop some of what has expired."""
        await self._run(statements.sweep, self._world.now_ms(), is_turn_over=False)

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        return await self.ask(statements.batch_get, keys)

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        """All in one transaction, which costs as much as one write."""
        try:
            return await self._write(statements.write_each, writes)
        except RateLimiterUnavailable as failure:
            return [Outcome(False, None, failure=failure) for _ in writes]

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self._write(statements.transact_write, writes)

    def swap(
        self,
        key: Key,
        image: Item,
        changed: Mapping[str, int],
        changes: int | None = None,
        at_ms: int | None = None,  # noqa: ARG002 - the file's own triggers tell the time
    ) -> Item | None:
        if not isinstance(image, statements.StoredItem):
            return None
        body = statements.changed_body(image, changed)
        if body is None or self._is_turn_over():
            return None
        try:
            given: tuple[str, ...] = (body, *key, image.body)
            if changes is not None:
                # If a change of our own lands meanwhile the count is another one, and nothing happens.
                given = (*given, str(changes + self._own_changes))
            if not self._database.attempt(statements.swap, given):
                return None
        except Busy:
            return None
        self._count(1)
        new = statements.StoredItem(image)
        new.update(changed)
        new.body = body
        return new

    async def changes(self) -> int:
        return await self.ask(lambda file, _: statements.changes(file, None) - self._own_changes, None)

    async def query(self, query: Query) -> Page:
        return await self.ask(statements.query, query)

    async def close(self) -> None:
        """Close the connection; the store opens it again if it is used again."""
        if self._sync:
            self._database.close()
        else:
            await in_thread(self._writers.get(), self._database.close)

    def change_log(self) -> SqliteLog:
        """What became of the buckets, read over a connection of its own: this one is busy."""
        return SqliteLog(SqliteBackend(self.path, sync=True, timeout_ms=LOG_TIMEOUT_MS, world=self._world))

    async def _write(
        self, work: Work[Sequence[Write], list[Outcome]], writes: Sequence[Write]
    ) -> list[Outcome]:
        def and_count(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[Outcome]:
            outcomes = work(connection, writes)
            self._own_changes += statements.is_change(writes, outcomes)
            return outcomes

        outcomes = await self.ask(and_count, writes, is_turn_over=self._is_turn_over())
        self._count(len(writes))
        return outcomes

    async def ask(self, work: Work[A, T], argument: A, *, is_turn_over: bool | None = None) -> T:
        """Run it for a caller who expects nothing but an answer or ``RateLimiterUnavailable``."""
        try:
            return await self._run(work, argument, is_turn_over=is_turn_over)
        except RateLimiterUnavailable:
            raise
        except ZAELimiterError as error:
            raise RateLimiterUnavailable(str(error), misconfigured="file") from error

    async def _run(self, work: Work[A, T], argument: A, *, is_turn_over: bool | None = None) -> T:
        if not is_turn_over:
            with contextlib.suppress(Busy):
                return self._database.attempt(work, argument)
        since_ms = self._world.ticks_ms()
        if is_turn_over:
            self._turn_since_ms, self._turn_writes = since_ms, 0
        if self._sync:
            return self._wait(since_ms, work, argument, is_turn_over)
        threads = self._readers if is_turn_over is None else self._writers
        return await in_thread(threads.get(), self._wait, since_ms, work, argument, is_turn_over)

    def _is_turn_over(self) -> bool:
        """Whether this process has written some times in a row, and somebody waits."""
        if self._turn_writes >= TURN_WRITES and not self._line.is_anyone_waiting():
            self._turn_writes = 0
        return self._turn_writes >= TURN_WRITES

    def _wait(self, since_ms: float, work: Work[A, T], argument: A, is_turn_over: bool | None) -> T:
        """Try until it works or the time is over, and at least once."""
        place = self._line.stand(self._turn_since_ms) if is_turn_over else None
        slept_ms = polite_ms = 0.0
        try:
            while True:
                # What was slept counts too, for a world whose clock stands still.
                waited_ms = max(slept_ms, self._world.ticks_ms() - since_ms)
                left_ms = max(0.0, self._timeout_ms - waited_ms)
                ahead = 0 if place is None else place.ahead()
                if not ahead or not left_ms or polite_ms >= POLITE_MS:
                    polite_ms = 0.0
                    try:
                        return self._database.attempt(work, argument, left_ms / 1000)
                    except Busy as busy:
                        if not left_ms:
                            waited = f"was busy for {self._timeout_ms} ms: {busy}"
                            raise RateLimiterUnavailable(
                                f"sqlite store {str(self.path)!r} {waited}"
                            ) from busy
                place = place or self._line.stand(self._turn_since_ms)
                pause_ms = max(PAUSE_MS_MIN, AHEAD_MS * ahead, waited_ms / PAUSE_PART)
                # Unequal sleeps keep processes that wait for the same lock from meeting again.
                nap_ms = min(left_ms, min(PAUSE_MS_MAX, pause_ms) * self._world.random.uniform(0.5, 1.0))
                time.sleep(nap_ms / 1000)
                slept_ms += nap_ms
                polite_ms += nap_ms
        finally:
            if place is not None:
                place.leave()

    def _count(self, writes: int) -> None:
        self._turn_writes += 1
        self._writes += writes
        if self._writes >= TIDY_EVERY_WRITES:
            self._writes = 0
            if self._sync:
                self._tidy()
            else:
                self._writers.get().submit(self._tidy)

    def _tidy(self) -> None:
        """A favour to later calls: nobody waits for it, and its failure is theirs to find."""
        more = True
        with contextlib.suppress(Busy, ZAELimiterError):
            more = self._database.attempt(statements.tidy, self._world.now_ms())
        if more:
            self._writes = TIDY_EVERY_WRITES - TIDY_AGAIN_WRITES


class SqliteLog:
    """The change log of a file, through a store of its own."""

    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend

    def read(self, entries_max: int) -> list[LogEntry]:
        return run_sync(self._backend.ask(statements.read_log, entries_max))

    def waits(self) -> bool:
        return run_sync(self._backend.ask(statements.log_waits, None))

    def trim(self, position: int) -> None:
        run_sync(self._backend.ask(statements.trim_log, position))

    def close(self) -> None:
        run_sync(self._backend.close())
