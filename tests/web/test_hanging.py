"""A store that hangs stops nothing but the requests that wait for it, and these only until its deadline."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.patience import growing_ms
from tests.web.calls import OK, call, get, http_scope
from tests.web.servers import PATIENCE_S
from zae_limiter import Limit, RateLimiter, Repository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.sqlite.backend import THREADS_MAX, SqliteBackend
from zae_limiter.backends.sqlite.database import Busy, Database
from zae_limiter.repository_protocol import Put
from zae_limiter.runtime.colour import Colour
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.runtime.world import World
from zae_limiter.schema import bucket_key
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Wrapper
from zae_limiter.web import RateLimitMiddleware, Rule

LIMITS = [Limit.per_day("rpm", 100)]
RULES = [
    Rule("/health", exempt=True),
    Rule("/block", "api", {"rpm": 1}, entity="key-1", limits=LIMITS, on_unavailable="block"),
    Rule("/allow", "api", {"rpm": 1}, entity="key-1", limits=LIMITS, on_unavailable="allow"),
]
TURNS = 1_000


class Gated(Wrapper):
    """Answers as long as its gate is open."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemoryBackend(clock.world))
        self.gate, self.asked = asyncio.Event(), 0
        self.gate.set()

    @property
    def colour(self) -> Colour:
        return Asyncio()

    async def _ask(self, verb: str, ask: Callable[[Any], Awaitable[Any]], given: Any) -> Any:
        del verb
        self.asked += 1
        await self.gate.wait()
        return await ask(given)


async def test_the_loop_goes_on(clock: ManualClock) -> None:
    """A thousand turns of the loop, and requests that are not limited, while twenty wait for the store."""
    store = Gated(clock)
    async with RateLimiter(await Repository.over(store, world=clock.world)) as limiter:
        app = RateLimitMiddleware(OK, limiter=limiter, rules=RULES)
        assert (await get(app, "/block")).left() == 99
        store.gate.clear()
        before = store.asked
        waiting = [asyncio.ensure_future(get(app, "/block")) for _ in range(20)]
        turns = 0
        for _ in range(TURNS):
            await asyncio.sleep(0)
            turns += not any(task.done() for task in waiting)
        assert (turns, store.asked > before) == (TURNS, True)
        assert (await get(app, "/health")).status == 200
        store.gate.set()
        replies = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
        assert {reply.status for reply in replies} == {200}
        assert await limiter.available("key-1", "api", LIMITS) == {"rpm": 79}


async def test_a_client_that_leaves_while_the_store_hangs(clock: ManualClock) -> None:
    """Its request never reached the application, so nothing is charged, whenever the store answers."""
    store, reached = Gated(clock), list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await OK(scope, receive, send)

    async with RateLimiter(await Repository.over(store, world=clock.world)) as limiter:
        middleware = RateLimitMiddleware(app, limiter=limiter, rules=RULES)
        await get(middleware, "/block")
        store.gate.clear()
        request = asyncio.ensure_future(call(middleware, http_scope("/block")))
        for _ in range(10):
            await asyncio.sleep(0)
        request.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        store.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(request, PATIENCE_S)
        assert await limiter.available("key-1", "api", LIMITS) == {"rpm": 99}
        assert (reached, limiter.refunds_lost) == (["/block"], 0)


async def test_the_deadline_decides(tmp_path: Path) -> None:
    """A real store that somebody else holds: each rule's policy, and the loop turns until then."""
    path = tmp_path / "limits.db"
    async with RateLimiter.open(f"sqlite:///{path}?timeout_ms=300") as limiter:
        app = RateLimitMiddleware(OK, limiter=limiter, rules=RULES)
        for _ in growing_ms(300):  # a slow machine may need more than one try
            if (await get(app, "/block")).status == 200:
                break
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            turns = {"/block": 0, "/allow": 0}
            replies = {}
            for rule in turns:
                waiting = asyncio.ensure_future(get(app, rule))
                while not waiting.done():
                    await asyncio.sleep(0)
                    turns[rule] += 1
                replies[rule] = waiting.result()
            other.execute("ROLLBACK")
        assert {rule: reply.status for rule, reply in replies.items()} == {"/block": 503, "/allow": 200}
        assert "ratelimit" not in replies["/allow"].headers
        assert min(turns.values()) > 10
        assert limiter.degraded == 1


async def test_nobody_waits_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While somebody else holds the file its lock is only tried there; who waits and sleeps is a thread."""
    path, loop = tmp_path / "limits.db", threading.get_ident()
    tried, attempt, sleep = list[float | None](), Database.attempt, time.sleep
    busy_ms = set[int]()

    def attempted(self: Database, work: Any, argument: Any, wait_seconds: float | None = None) -> Any:
        def looked_at(connection: sqlite3.Connection, argument: Any) -> Any:
            busy_ms.update(*connection.execute("PRAGMA busy_timeout"))
            return work(connection, argument)

        if threading.get_ident() == loop:
            tried.append(wait_seconds)
        return attempt(self, looked_at, argument, wait_seconds)

    def slept(seconds: float) -> None:
        assert threading.get_ident() != loop, f"the loop sleeps for {seconds} s"
        sleep(seconds)

    async with RateLimiter.open(f"sqlite:///{path}?timeout_ms=60000") as limiter:
        app = RateLimitMiddleware(OK, limiter=limiter, rules=RULES)
        assert (await get(app, "/block")).status == 200
        monkeypatch.setattr(Database, "attempt", attempted)
        monkeypatch.setattr(time, "sleep", slept)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            waiting = [asyncio.ensure_future(get(app, "/block")) for _ in range(20)]
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            other.execute("ROLLBACK")
        replies = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
    assert {reply.status for reply in replies} == {200}
    assert (set(tried), busy_ms) == ({None}, {0})


async def test_who_reads_does_not_stand_behind_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for the lock of the file, by which no reader is held up; so it is answered before them."""
    path, attempt = tmp_path / "limits.db", Database.attempt

    def not_at_once(self: Database, work: Any, argument: Any, wait_seconds: float | None = None) -> Any:
        if wait_seconds is None:
            raise Busy("as if another thread had the connection")
        return attempt(self, work, argument, wait_seconds)

    monkeypatch.setattr(Database, "attempt", not_at_once)
    backend = SqliteBackend(path, sync=False, timeout_ms=20_000, world=World())
    await backend.setup()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        writes = [Put(bucket_key("ns", f"key-{n}", "api"), {"n": n}) for n in range(THREADS_MAX)]
        writers = [asyncio.ensure_future(backend.write_each([write])) for write in writes]
        await asyncio.sleep(0)
        assert await backend.batch_get([write.key for write in writes]) == [None] * THREADS_MAX
        assert not any(writer.done() for writer in writers)
        other.execute("ROLLBACK")
    await asyncio.gather(*writers)
    await backend.close()
