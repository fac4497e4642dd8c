"""Threads share the connections of a blocking driver: never too many, and nobody waits for an idle one."""

from __future__ import annotations

import itertools
import threading

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.threads.switching import together
from zae_limiter.backends.pool import Pool
from zae_limiter.runtime.colour import Blocking, run_sync

SIZE, THREADS, TIMES = 2, 5, 25
LATE_MS = PATIENCE_SECONDS * 1000


class Line:
    """A connection that knows whether it is in use, and by how many."""

    def __init__(self) -> None:
        self.idle_since_ms = 0.0
        self.is_open = True
        self.users = threading.Semaphore(1)

    def is_quiet(self) -> bool:
        return self.is_open

    def close(self) -> None:
        self.is_open = False

    async def closed(self) -> None:
        pass


class Busy(Exception):
    pass


class Lines(Pool[Line]):
    """A pool whose clock stands."""

    def __init__(self, size: int) -> None:
        self.made: list[Line] = []
        super().__init__(self._make, size, Blocking().signal, lambda: 0.0, Busy)

    async def _make(self, until_ms: float) -> Line:
        del until_ms
        self.made.append(Line())
        return self.made[-1]


class GivenBetween(Lines):
    """Another thread gives its connection back after this one has looked for one in vain."""

    taken: Line | None = None

    def take_idle(self, now_ms: float) -> Line | None:
        found = super().take_idle(now_ms)
        if self.taken is not None:
            given, self.taken = self.taken, None
            self.give(given, now_ms)
        return found


def test_what_is_given_back_between_two_looks_is_found() -> None:
    """Nobody waits while a connection is idle: there may be no other call that would end the wait."""
    pool = GivenBetween(1)
    line = pool.taken = run_sync(pool.take(0))
    assert run_sync(pool.take(0)) is line
    assert pool.made == [line]


@pytest.mark.parametrize("seed", range(3))
def test_each_connection_has_one_user(seed: int) -> None:
    """Threads take, give back and drop; each gets its turn, and nobody is told of a busy pool."""
    pool = Lines(SIZE)
    turns = itertools.count(seed)

    def task() -> None:
        for _ in range(TIMES):
            line = run_sync(pool.take(LATE_MS))
            assert line.users.acquire(blocking=False)
            assert sum(one.is_open for one in list(pool.made)) <= SIZE
            line.users.release()
            if next(turns) % 7:
                pool.give(line, 0)
            else:
                pool.drop(line)

    together([task] * THREADS, ("/pool.py",), seed)
    assert sum(one.is_open for one in pool.made) == len(pool._idle) <= SIZE
    assert len(pool._places) <= SIZE
    assert not pool._waiters
