"""Hearing of changed limits at once: one more connection of a process, which only listens.

A daemon thread has it, whatever the colour, from the first question on until the store is closed. Where it
cannot be, or is lost, the counter in every answer tells the same a little later; so its failures are
nobody's, and it tries again ever more slowly. A pooler that gives each statement to another server process
cannot listen: it is recognised by that, and left alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable

import psycopg

from ...runtime.colour import ForkSafe
from .layout import channel_of

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.1, 30.0
LOOK_SECONDS = 60.0
"""How often a silent connection is asked whether it is still there."""


class Listening:
    """What a store listens with; nothing happens before it is asked to ``begin``."""

    def __init__(self, conninfo: str | None, schema: str, hear: Callable[[int], None]) -> None:
        self._conninfo, self._schema, self._hear = conninfo, schema, hear
        self._ear = ForkSafe(lambda: Ear(self._conninfo or "", self._schema, self._hear))

    def begin(self) -> None:
        """Listen from now on, if anybody is to; costs nothing once it is done."""
        if self._conninfo is not None:
            self._ear.get().begin()

    @property
    def is_listening(self) -> bool:
        """Whether changes are heard of at once at this moment."""
        ear = self._ear.peek()
        return ear is not None and ear.is_listening

    def end(self) -> None:
        if (ear := self._ear.forget()) is not None:
            ear.end()


class Ear:
    """The thread of one process that listens."""

    def __init__(self, conninfo: str, schema: str, hear: Callable[[int], None]) -> None:
        self._conninfo, self._schema, self._hear = conninfo, schema, hear
        self._begun = threading.Lock()
        self._woken, self._wake = os.pipe()
        self._ended = False
        self.is_listening: bool = False
        self.has_ended: bool = False

    def begin(self) -> None:
        if self._begun.acquire(blocking=False):
            with contextlib.suppress(RuntimeError):  # the interpreter is going down
                threading.Thread(target=self._run, name="zae-limiter-listen", daemon=True).start()

    def end(self) -> None:
        self._ended = True
        with contextlib.suppress(OSError):  # the thread has ended before
            os.write(self._wake, b".")
        if self._begun.acquire(blocking=False):  # nobody ever listened
            self._forget()

    def _run(self) -> None:
        pause_s = PAUSE_SECONDS_MIN
        while not self._ended:
            try:
                if not self._listen():
                    break
                pause_s = PAUSE_SECONDS_MIN
            except (psycopg.Error, OSError, ValueError):
                pass
            self.is_listening = False
            if self._is_woken(pause_s):
                break
            pause_s = min(2 * pause_s, PAUSE_SECONDS_MAX)
        self._forget()

    def _listen(self) -> bool:
        """Listen until the connection is lost; false if there is nobody to listen to."""
        with psycopg.connect(self._conninfo, autocommit=True, connect_timeout=5) as connection:
            connection.execute(f"LISTEN {channel_of(self._schema)}")
            process = connection.execute("SELECT pg_backend_pid()").fetchone()
            if process is None or process[0] != connection.info.backend_pid:
                return False
            self._look(connection)  # for what was told before somebody listened
            self.is_listening = True
            while not self._is_woken(LOOK_SECONDS, connection.fileno()):
                connection.pgconn.consume_input()
                while (told := connection.pgconn.notifies()) is not None:
                    self._hear(int(told.extra))
        return False

    def _look(self, connection: psycopg.Connection[tuple[str]]) -> None:
        row = connection.execute(f"SELECT {self._schema}.look()").fetchone()
        if row is not None:
            from .encoding import answer_from

            self._hear(answer_from(str(row[0]).encode()).counter)

    def _is_woken(self, seconds: float, *descriptors: int) -> bool:
        """Wait for something to arrive; whether that is the end."""
        ready, _, _ = select.select([self._woken, *descriptors], [], [], seconds)
        return self._woken in ready

    def _forget(self) -> None:
        self.is_listening, self.has_ended = False, True
        os.close(self._woken)
        os.close(self._wake)
