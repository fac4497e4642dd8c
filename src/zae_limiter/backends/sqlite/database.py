"""The one connection of a process to one file, which its threads use one at a time.

No connection survives a fork: it is closed before, in a quiet moment, and both sides open a new one when
they need it. A child could not even close one that it inherited, and any new one of its own would share
bookkeeping of locks that the child does not hold.

A file that is deleted or replaced while it is in use goes on to exist for this process alone, and its tokens
would be given out beside those of the new one. So the path is looked at before a call that comes a
millisecond or more after the last look, and when it names another file or none, every call is refused.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

from ...exceptions import RateLimiterUnavailable
from ...runtime.colour import at_fork, taken
from ...runtime.world import World
from .file import DAY_MS, EPOCH_DAY, FileId, file_id, make_file, open_file
from .statements import LostCommit

A = TypeVar("A")
T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection, A], T]
"""What is done with the connection while nobody else has it."""

FORK_WAIT_SECONDS = 1.0
LOOK_EVERY_MS = 1  # how long after a look a call still trusts that the path names the file that is open
BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
UNUSABLE_CODES = {  # what the file or its place is not, and will not be by waiting
    *(sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB),
}


class Busy(Exception):
    """Somebody else has the connection or the file; nothing happened, and trying again is right."""


class Database:
    """A connection that is opened on demand, and the lock around it."""

    def __init__(self, path: Path, world: World) -> None:
        self.path = path
        self._world, self._ticks_ms = world, world.ticks_ms
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: FileId | None = None  # which file is the store
        self._replaced, self._looked_ms = False, 0.0
        self._held_for_fork = False
        with _registering:
            _databases.add(self)

    def attempt(self, work: Work[A, T], argument: A, wait_seconds: float | None = None) -> T:
        """Do it now, or raise ``Busy``; other processes are not waited for.

        Only with ``wait_seconds`` other threads are, and the file is opened if need be.
        """
        for _ in taken(self._lock, wait_seconds or 0):
            try:
                if self._connection is None:
                    if wait_seconds is None:
                        raise Busy("the file is not open")
                    self._connection = self._open()
                return self._do(self._connection, work, argument)
            finally:
                self._lock.release()
        raise Busy("another thread has the connection")

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _open(self) -> sqlite3.Connection:
        if self._file is not None and self.path.parent.is_dir():
            self._look()
        try:
            make_file(self.path)
            file = file_id(self.path)
            connection = open_file(self.path)
            if self._world.now_ms != World().now_ms:
                # Triggers take the machine's time by themselves, which costs less than to ask for it.
                connection.execute("PRAGMA trusted_schema = ON")  # some builds let triggers call nobody
                now_days = lambda _: EPOCH_DAY + self._world.now_ms() / DAY_MS  # noqa: E731
                connection.create_function("julianday", 1, now_days)
        except sqlite3.Error as error:
            raise self._failure(error) from error
        # Looked at before its first use: it may have been replaced while it was opened.
        self._file, self._looked_ms = self._file or file, -math.inf
        return connection

    def _look(self) -> None:
        self._looked_ms = self._ticks_ms()
        self._replaced = file_id(self.path) != self._file
        if self._replaced:
            raise RateLimiterUnavailable(
                f"sqlite store {str(self.path)!r} was deleted or replaced while it was in use; "
                "start again, or open the limiter again, to use what is there now",
                misconfigured="file",
            )

    def _do(self, connection: sqlite3.Connection, work: Work[A, T], argument: A) -> T:
        if self._replaced or self._ticks_ms() - self._looked_ms >= LOOK_EVERY_MS:
            self._look()
        try:
            return work(connection, argument)
        except BaseException as error:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            except BaseException as trouble:  # a connection that is closed is rolled back, too
                self._drop()
                if not isinstance(trouble, sqlite3.Error):  # out of a signal handler
                    raise
            if isinstance(error, LostCommit):
                raise self._failure(error.__cause__ or error, ambiguous=True) from error
            if isinstance(error, sqlite3.Error):
                raise self._failure(error) from error
            raise

    def _failure(self, error: BaseException, *, ambiguous: bool = False) -> Busy | RateLimiterUnavailable:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in BUSY_CODES and not ambiguous:
            return Busy(str(error))
        self._drop()  # whatever is wrong may be over when the file is next opened
        text, wrong = f"sqlite store {str(self.path)!r} failed: {error}", code in UNUSABLE_CODES
        return RateLimiterUnavailable(text, ambiguous=ambiguous, misconfigured="file" if wrong else "")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def before_fork(self) -> None:
        for _ in taken(self._lock, FORK_WAIT_SECONDS):
            self._held_for_fork = True
            self._drop()

    def after_fork(self, *, child: bool) -> None:
        if self._held_for_fork:
            self._held_for_fork = False
            self._lock.release()
        elif child:
            # A thread of the parent was in the middle of something: what it holds is left alone for good.
            _inherited.append(self._connection)
            self._connection, self._lock = None, threading.Lock()


_registering = threading.Lock()
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: list[sqlite3.Connection | None] = []


def _before_fork() -> None:
    _registering.acquire()
    for database in _databases:
        database.before_fork()


def _after_fork(*, child: bool) -> None:
    for database in _databases:
        database.after_fork(child=child)
    _registering.release()


at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(child=False),
    after_in_child=lambda: _after_fork(child=True),
)
