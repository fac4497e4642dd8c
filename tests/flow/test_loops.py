"""One limiter in several event loops and threads: nobody waits for somebody who never comes back."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.stores import STORES, url_of
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, Repository
from zae_limiter.backends import open_backend
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.models import BackendCapabilities
from zae_limiter.repository_protocol import Backend, Item, Key, Outcome, Write
from zae_limiter.runtime.colour import Blocking, Colour
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.runtime.world import World
from zae_limiter.testing.stores import Wrapper

FOR_EVER_S = 60
"""How long a test waits for what must not take for ever."""

LIMITS = [Limit("rpm", 1_000_000, 1, 1_000_000)]


class Aside(threading.Thread):
    """An event loop in a thread of its own, for one coroutine."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        super().__init__(daemon=True)
        self._coroutine, self._error = coroutine, list[BaseException]()
        self.start()

    def run(self) -> None:
        try:
            asyncio.run(self._coroutine)
        except BaseException as error:
            self._error.append(error)

    def end(self) -> None:
        self.join(FOR_EVER_S)
        assert not self.is_alive(), "it waits for ever"
        if self._error:
            raise self._error[0]


@contextmanager
def opened(backend: Backend) -> Iterator[RateLimiter]:
    """A limiter that was opened on a loop which is closed by now."""
    yield RateLimiter(asyncio.run(Repository.over(backend)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "memory"])
def test_two_loops_in_two_threads_share_a_limiter(kind: str, tmp_path: Path) -> None:
    """On the same bucket and on others; every token is accounted for."""
    with opened(open_backend(url_of(kind, tmp_path), sync=False, world=World())) as limiter:

        async def work(entity_id: str) -> None:
            for _ in range(10):
                async with limiter.acquire(entity_id, "api", {"rpm": 2}, LIMITS) as lease:
                    await lease.adjust(rpm=-1)

        async def load() -> None:
            await asyncio.gather(*(work(entity_id) for entity_id in ("shared", "shared", "a", "b") * 2))

        loops = [Aside(load()), Aside(load())]
        for loop in loops:
            loop.end()

        async def spent() -> list[int]:
            left = [await limiter.available(entity_id, "api", LIMITS) for entity_id in ("shared", "a", "b")]
            await limiter.close()
            return [1_000_000 - each["rpm"] for each in left]

        assert asyncio.run(spent()) == [80, 40, 40]
        assert limiter.refunds_lost == 0


class Gated(Wrapper):
    """A store on an event loop in which a test holds calls up."""

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(MemoryBackend())
        self._colour, self._capabilities = Asyncio(), BackendCapabilities("gated", timeout_ms=timeout_ms)
        self.writes: list[asyncio.Future[None] | None] = []
        self.reads: list[asyncio.Future[None] | None] = []
        """What the next calls wait for; after that they are answered at once."""
        self.calls = 0

    @property
    def colour(self) -> Colour:
        return self._colour

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        await self._pass(self.reads)
        return await super().batch_get(keys)

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        await self._pass(self.writes)
        return await super().write_each(writes)

    async def _pass(self, gates: list[asyncio.Future[None] | None]) -> None:
        self.calls += 1
        gate = gates.pop(0) if gates else None
        if gate is not None:
            await gate


async def take(limiter: RateLimiter, entity_id: str = "user") -> None:
    async with limiter.acquire(entity_id, "api", {"rpm": 1}, LIMITS):
        pass


def leave_behind(limiter: RateLimiter, gates: list[asyncio.Future[None] | None]) -> list[Any]:
    """Acquires on a loop that is closed while the first is in the middle of a call; they are kept alive."""
    loop = asyncio.new_event_loop()
    gates.append(loop.create_future())
    tasks = [loop.create_task(take(limiter)) for _ in range(3)]

    async def turns() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    loop.run_until_complete(turns())
    assert not any(task.done() for task in tasks)
    loop.close()
    for task in tasks:
        task._log_destroy_pending = False
    return tasks


@pytest.mark.parametrize("verb", ["writes", "reads"])
def test_a_loop_that_was_closed_in_the_middle_of_an_acquire_holds_nobody_up(verb: str) -> None:
    """Who comes next takes the lead, on the same bucket and on others; a read is made again."""
    store = Gated(timeout_ms=300)
    with opened(store) as limiter:
        if verb == "writes":
            asyncio.run(take(limiter))
        left = leave_behind(limiter, getattr(store, verb))
        for entity_id in ("user", "somebody-else"):
            Aside(take(limiter, entity_id)).end()
        assert not limiter.repository.writer._lines.get().by_key
        assert len(left) == 3


def test_who_waits_when_a_loop_is_closed_goes_on() -> None:
    """It was in line behind somebody whose reply never comes."""
    store = Gated(timeout_ms=300)
    with opened(store) as limiter:
        asyncio.run(take(limiter))
        first = asyncio.new_event_loop()
        store.writes.append(first.create_future())
        task = first.create_task(take(limiter))
        first.run_until_complete(asyncio.sleep(0))
        assert limiter.repository.writer._lines.get().by_key
        waiting = Aside(take(limiter))
        line = next(iter(limiter.repository.writer._lines.get().by_key.values()))
        while not line.waiting:
            pass
        first.close()
        waiting.end()
        assert not limiter.repository.writer._lines.get().by_key
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_who_went_out_with_a_loop_that_was_closed_is_told_that_nobody_knows() -> None:
    store = Gated(timeout_ms=300)
    with opened(store) as limiter:
        asyncio.run(take(limiter))
        first = asyncio.new_event_loop()
        busy, stuck = first.create_future(), first.create_future()
        store.writes += [busy, stuck]
        tasks = [first.create_task(take(limiter)) for _ in range(2)]

        async def until(condition: Callable[[], bool]) -> None:
            while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0)

        calls = store.calls
        first.run_until_complete(until(lambda: store.calls == calls + 1))
        (line,) = limiter.repository.writer._lines.get().by_key.values()
        third = Aside(take(limiter))
        first.run_until_complete(until(lambda: len(line.waiting) == 2))
        busy.set_result(None)
        first.run_until_complete(until(lambda: store.calls == calls + 2))
        first.close()
        with pytest.raises(RateLimiterUnavailable, match="did not come back") as caught:
            third.end()
        assert caught.value.ambiguous
        Aside(take(limiter)).end()
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_fault_while_a_group_is_shaped_leaves_nobody_waiting() -> None:
    """Who leads is told what happened, and the others are led by the next."""
    store, shape = Gated(timeout_ms=60_000), BucketWriter._shape
    shaped: list[int] = []

    def stumble(writer: BucketWriter, orders: Sequence[Any], now_ms: int) -> Any:
        shaped.append(len(orders))
        if len(shaped) == 2:
            raise MemoryError
        return shape(writer, orders, now_ms)

    async def story(limiter: RateLimiter) -> list[Any]:
        await take(limiter)
        gate = asyncio.get_running_loop().create_future()
        store.writes.append(gate)
        with mock.patch("zae_limiter.engine.group_commit.BucketWriter._shape", stumble):
            tasks = [asyncio.create_task(take(limiter)) for _ in range(4)]
            await asyncio.sleep(0.01)
            gate.set_result(None)
            done, waiting = await asyncio.wait(tasks, timeout=FOR_EVER_S)
        for task in waiting:
            task.cancel()
        assert not waiting, "they wait for ever"
        return [task.exception() for task in done]

    with opened(store) as limiter:
        ends = asyncio.run(story(limiter))
        assert shaped == [1, 3, 2]
        assert sorted(map(repr, ends)) == ["MemoryError()", "None", "None", "None"]


@pytest.mark.parametrize("colour", [Asyncio(), Blocking()])
def test_a_signal_is_heard_in_another_thread(colour: Colour) -> None:
    """Whatever that one waits on, by however many, and before or after it was given."""
    signal, waiting = colour.signal(), threading.Barrier(3)

    async def wait() -> None:
        waiting.wait()
        await signal.wait()
        await signal.wait(FOR_EVER_S)

    both = [Aside(wait()), Aside(wait())]
    waiting.wait()
    while len(getattr(signal, "_waiters", both)) < 2:
        pass  # both have begun to wait for what nobody has given
    signal.give()
    signal.give()
    for each in both:
        each.end()
    assert signal.given


def test_a_signal_for_a_loop_that_was_closed_is_not_missed() -> None:
    signal, loop = Asyncio().signal(), asyncio.new_event_loop()
    task = loop.create_task(signal.wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    signal.give()
    assert signal.given
    task._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is nothing to do without")
def test_it_can_be_imported_where_nothing_forks() -> None:
    """As on Windows: every module, and an acquire."""
    program = """
import os, pkgutil, importlib, tempfile
del os.register_at_fork, os.fork
import random, threading, logging, concurrent.futures.thread
import zae_limiter
for module in pkgutil.walk_packages(zae_limiter.__path__, "zae_limiter."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for url in ("memory://", f"sqlite:///{tempfile.mkdtemp()}/limits.db"):
    with zae_limiter.SyncRateLimiter.open(url) as limiter:
        with limiter.acquire("user", "api", {"rpm": 1}, [zae_limiter.Limit.per_minute("rpm", 1)]):
            print("admitted")
"""
    prelude = "import random, threading, logging, concurrent.futures.thread\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["admitted", "admitted"], done.stderr
