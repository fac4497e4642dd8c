"""Somebody who takes tokens one by one and keeps count of what was answered, whatever stands in the way."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.breaking.final_checks import buckets_of_file, consumed_milli
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, Repository
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.settings import Settings

CAPACITY = 1_000
LIMITS = [Limit("rpm", CAPACITY, 1, 10**6)]
"""Nothing accrues within a test, so that what is there and what was used is the capacity."""

WAYS = ("swap", "read first", "async")
"""At once, in one step; by reading and writing, as every cascade does; and on an event loop."""


class Caller:
    def __init__(self, limiter: RateLimiter, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.limiter, self.run = limiter, run
        self.admitted: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        """What was asked for and may have been taken."""

    @property
    def path(self) -> Path:
        return self._backend.path

    @property
    def connection(self) -> sqlite3.Connection | None:
        """The one connection of the limiter, while it has one."""
        return self._backend._database._connection

    @property
    def _backend(self) -> SqliteBackend:
        backend = self.limiter.repository._backend
        assert isinstance(backend, SqliteBackend)
        return backend

    def take(self, entity_id: str = "key", amount: int = 1, adjust: int = 0) -> RateLimiterUnavailable | None:
        """Take some, correct that, and tell whether the store was in the way."""

        async def acquire() -> int:
            async with self.limiter.acquire(entity_id, "api", {"rpm": amount}, LIMITS) as lease:
                if adjust:
                    await lease.adjust(rpm=adjust)
                return lease.consumed["rpm"]

        try:
            self.admitted[entity_id] += self.run(acquire())
        except RateLimiterUnavailable as failure:
            if failure.ambiguous:
                self.open[entity_id] += amount + max(0, adjust)
            return failure
        return None

    def available(self, entity_id: str = "key") -> int:
        left: dict[str, int] = self.run(self.limiter.available(entity_id, "api", LIMITS))
        return left["rpm"]

    @contextmanager
    def in_a_hurry(self, timeout_ms: int) -> Iterator[None]:
        """Wait no longer than that. Before and after, a busy machine may take its time."""
        backend = self._backend
        patient_ms, backend._timeout_ms = backend._timeout_ms, timeout_ms
        try:
            yield
        finally:
            backend._timeout_ms = patient_ms

    def let_go(self) -> None:
        """Have nothing open until the file is next needed, as after a failure or a fork."""
        self.run(self.limiter.repository._connection.backend.close())

    def close(self) -> None:
        self.run(self.limiter.close())


@contextmanager
def caller(path: Path, way: str, timeout_ms: int = 60_000) -> Iterator[Caller]:
    """A caller of a file, in one of the ways."""
    settings = Settings(store=f"sqlite:///{path}", timeout_ms=timeout_ms, bucket_ttl_multiplier=0)
    with asyncio.Runner() as runner:
        run = runner.run if way == "async" else run_sync
        repository = run(Repository._open(settings, None, sync=way != "async"))
        it = Caller(RateLimiter(repository, speculative_writes=way != "read first"), run)
        try:
            yield it
        finally:
            with suppress(RateLimiterUnavailable):
                it.close()


def check_books(path: Path, *callers: Caller) -> None:
    """The file is sound, and says of every bucket what the callers know."""
    admitted = sum((it.admitted for it in callers), Counter[str]())
    undecided = sum((it.open for it in callers), Counter[str]())
    buckets = buckets_of_file(path)
    used_milli = consumed_milli(buckets)
    for entity_id in admitted | undecided:
        used, low = used_milli[entity_id, "rpm"], admitted[entity_id] * 1000
        assert low <= used <= low + undecided[entity_id] * 1000, f"{entity_id}: {used} used, {low} admitted"
    for bucket in buckets:
        assert bucket["b_rpm_tk"] + bucket["b_rpm_tc"] == CAPACITY * 1000, bucket


@contextmanager
def stranger(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of another program to the same file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection
