"""A machine whose processors, scheduler and clock are played, to see who gets how much of one file.

Its processes are threads of which one runs at a time, in an order that depends on nothing but the seed. They
use real backends and real locks of a real file; only time is played. Work takes processor time, sleeping
gives the processor away, and who has used up its slice is put behind the others, locks in hand or not,
as a real scheduler does.
"""

import heapq
import itertools
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.patience import PATIENCE_SECONDS

HELD_MS = 0.008
"""How long the lock of the file is held for one write; as measured, and the rest of an acquire is as long."""


class Process:
    def __init__(self, machine: "Machine", work: Callable[[], None]) -> None:
        self.go, self.used_ms = threading.Semaphore(0), 0.0
        self.asks: tuple[str, float] = ("end", 0.0)
        """What it wants from the machine next: to work or to sleep so long, or to end."""
        self.error: BaseException | None = None

        def run() -> None:
            machine.current.process = self
            assert self.go.acquire(timeout=PATIENCE_SECONDS)
            try:
                work()
            except BaseException as error:  # told by the machine
                self.error = error
            self.asks = ("end", 0.0)
            machine.back.release()

        threading.Thread(target=run, daemon=True).start()


class Machine:
    def __init__(self, processors: int, slice_ms: float) -> None:
        self.now_ms = 1.0
        self.current = threading.local()
        self.back = threading.Semaphore(0)
        self._idle, self._slice_ms = processors, slice_ms
        self._ready: deque[Process] = deque()
        self._events: list[tuple[float, int, Callable[[Process], None], Process]] = []
        self._numbers = itertools.count()

    def run(self, *works: Callable[[], None]) -> None:
        """Run processes until all of them have ended."""
        processes = [Process(self, work) for work in works]
        self._ready.extend(processes)
        self._dispatch()
        while self._events:
            self.now_ms, _, happen, process = heapq.heappop(self._events)
            happen(process)
        for process in processes:
            if process.error is not None:
                raise process.error

    def work(self, ms: float) -> None:
        """Called by a process: use the processor."""
        self._ask("work", ms)

    def sleep(self, seconds: float) -> None:
        """Called by a process: let others use it."""
        self._ask("sleep", seconds * 1000)

    def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        """A connection that takes time, and while it writes, has the lock for so long."""
        machine = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                if not sql.startswith("UPDATE") or self.in_transaction:
                    if sql == "COMMIT":
                        machine.work(HELD_MS)
                    return super().execute(sql, *parameters)
                super().execute("BEGIN IMMEDIATE")
                cursor = super().execute(sql, *parameters)
                self.execute("COMMIT")
                return cursor

        return CONNECT(*arguments, factory=Connection, **options)

    def _ask(self, what: str, ms: float) -> None:
        process: Process | None = getattr(self.current, "process", None)
        if process is not None:
            process.asks = (what, ms)
            self.back.release()
            assert process.go.acquire(timeout=PATIENCE_SECONDS)

    def _dispatch(self) -> None:
        while self._idle and self._ready:
            self._idle -= 1
            self._resume(self._ready.popleft())

    def _resume(self, process: Process) -> None:
        """Let it do what takes no time, and note what it asks for then."""
        process.go.release()
        assert self.back.acquire(timeout=PATIENCE_SECONDS)
        what, ms = process.asks
        if what == "work":
            process.used_ms += ms
            self._later(ms, self._worked, process)
            return
        process.used_ms = 0.0
        if what == "sleep":
            self._later(ms, self._awake, process)
        self._idle += 1
        self._dispatch()

    def _later(self, ms: float, happen: Callable[[Process], None], process: Process) -> None:
        heapq.heappush(self._events, (self.now_ms + ms, next(self._numbers), happen, process))

    def _worked(self, process: Process) -> None:
        if process.used_ms < self._slice_ms or not self._ready:
            self._resume(process)
            return
        process.used_ms = 0.0
        self._ready.append(process)
        self._idle += 1
        self._dispatch()

    def _awake(self, process: Process) -> None:
        self._ready.append(process)
        self._dispatch()


CONNECT = sqlite3.connect
