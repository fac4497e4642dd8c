"""Whatever ends the work under a lease: a reader who leaves, a coroutine thrown away, garbage, a loop's end.

A reader who leaves a stream has had what was sent: what was taken stays taken, and what was noted until
then is stored, by whoever closes the generator, and if that may not wait, by the event loop or a thread.
"""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.flow.clients import RESOURCE, Store
from tests.odd_stores import Slow
from tests.simulation.readers import Steps
from zae_limiter import (
    Limit,
    RateLimiter,
    SyncLease,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.runtime.kept import _running
from zae_limiter.testing import Fault

LIMIT = Limit("rpm", 1_000, 1, 86_400)
"""Fills so slowly that a test in real time sees nothing of it."""


class Failed(Exception):
    """The work went wrong."""


async def rest() -> None:
    """Wait for what the loop carries out for those who could not wait."""
    while _running:
        await asyncio.wait(_running)


async def stream(limiter: RateLimiter, change: int, ended: asyncio.Event | None = None) -> AsyncIterator[int]:
    """A hundred taken at first, and more or less noted with every chunk."""
    try:
        async with limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
            for chunk in range(5):
                if change:
                    await lease.adjust(rpm=change)
                yield chunk
    finally:
        if ended is not None:
            ended.set()


# Async generators.


@pytest.mark.parametrize("how", ["closed", "dropped", "thrown into"])
@pytest.mark.parametrize(("change", "cost"), [(100, 600), (-20, 0), (0, 100)])
async def test_reader_who_leaves_a_stream(store: Store, how: str, change: int, cost: int) -> None:
    """At the last chunk everything that was noted is stored; who threw an exception in gets all back."""
    client = await store.client()
    ended = asyncio.Event()
    reader = stream(client.limiter, change, ended)
    for _ in range(5):
        await anext(reader)
    if how == "closed":
        await reader.aclose()  # type: ignore[attr-defined]
    elif how == "thrown into":
        with pytest.raises(Failed):
            await reader.athrow(Failed())  # type: ignore[attr-defined]
        cost = 0
    else:
        del reader
        await asyncio.wait_for(ended.wait(), 60)
    assert (await store.used("key"), await store.left("key")) == (cost, 1_000 - cost)
    assert client.limiter.refunds_lost == 0


@pytest.mark.parametrize("chunks", range(1, 6))
async def test_reader_who_leaves_at_any_chunk(store: Store, chunks: int) -> None:
    client = await store.client()
    async with aclosing(stream(client.limiter, 100)) as reader:  # type: ignore[type-var]
        async for chunk in reader:
            if chunk + 1 == chunks:
                break
    assert await store.used("key") == 100 + 100 * chunks


async def test_generator_without_notes_has_nothing_to_store(store: Store) -> None:
    """The debit stays, and the store is not asked again."""
    client = await store.client()
    reader = stream(client.limiter, 0)
    await anext(reader)
    client.forget()
    await reader.aclose()  # type: ignore[attr-defined]
    assert (client.calls, await store.used("key")) == ([], 100)


async def test_reader_who_leaves_while_the_store_is_down(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is left to be told: the generator ends in peace, what is lost is logged and counted."""
    client = await store.client()
    reader = stream(client.limiter, 100)
    await anext(reader)
    with client.down(Fault.LOST_REPLY):
        await reader.aclose()  # type: ignore[attr-defined]
    assert client.limiter.refunds_lost == 1
    assert sum("may not have got" in message for message in caplog.messages) == 1


async def test_lease_in_a_stack_of_a_generator(store: Store) -> None:
    """The block that is left need not be the lease's own."""
    client = await store.client()

    async def stacked() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            acquisition = client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT])
            lease = await stack.enter_async_context(acquisition)
            await lease.adjust(rpm=500)
            yield

    reader = stacked()
    await anext(reader)
    await reader.aclose()  # type: ignore[attr-defined]
    assert await store.used("key") == 600


async def test_cancelled_while_the_reader_leaves(store: Store) -> None:
    """The settlement comes to its end, then the cancellation is obeyed."""
    client = await store.client(wrap=partial(Slow, turns=3))
    reader = stream(client.limiter, 500)
    await anext(reader)
    leaving = asyncio.ensure_future(reader.aclose())  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert (await store.used("key"), client.limiter.refunds_lost) == (600, 0)


# Coroutines that are thrown away.


async def work(limiter: RateLimiter, change: int) -> None:
    async with limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
        await lease.adjust(rpm=change)
        await Never()


class Never:
    """Suspends whoever awaits it, for good."""

    def __await__(self) -> Generator[None, None, None]:
        while True:
            yield


@pytest.mark.parametrize("how", ["closed", "dropped"])
async def test_coroutine_that_is_thrown_away(store: Store, how: str) -> None:
    """It may not await; the loop stores what was noted, and whoever closes it sees nothing of that."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, LIMIT)
    coroutine = work(client.limiter, 500)
    await Steps(coroutine, 50)
    if how == "closed":
        coroutine.close()
    else:
        del coroutine
    await rest()
    assert (await store.used("key"), client.limiter.refunds_lost) == (601, 0)


async def test_coroutine_with_a_generator_that_is_thrown_away(store: Store) -> None:
    """Some versions of Python do not even close the generator then; its lease is settled all the same."""
    client = await store.client()

    async def endless() -> AsyncIterator[None]:
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
            await lease.adjust(rpm=500)
            await Never()
            yield

    async def read() -> None:
        async for _ in endless():
            pass

    coroutine = read()
    await Steps(coroutine, 50)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the loop tries to close it too
    coroutine.close()
    del coroutine
    gc.collect()
    for _ in range(3):
        await asyncio.sleep(0)
    await rest()
    assert (await store.used("key"), client.limiter.refunds_lost) == (600, 0)


async def test_task_that_settles_for_others_is_cancelled(store: Store) -> None:
    """As at the end of ``asyncio.run``: it does its work before it obeys."""
    client = await store.client(wrap=partial(Slow, turns=3))
    coroutine = work(client.limiter, 500)
    await Steps(coroutine, 50)
    coroutine.close()
    for task in _running:
        task.cancel()
    await rest()
    assert (await store.used("key"), client.limiter.refunds_lost) == (600, 0)


# The end of a loop, and no loop at all.


class Place:
    """A SQLite file, and what its only entity has used."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"

    def used(self) -> int:
        with SyncRateLimiter.open(self.url) as limiter:
            return 1_000 - limiter.available("key", RESOURCE, [LIMIT])["rpm"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "limits.db")


@pytest.mark.parametrize("held_by", ["generator", "task", "generator of a task"])
def test_loop_that_ends_while_a_lease_is_open(place: Place, held_by: str) -> None:
    """``asyncio.run`` closes generators, which is like a reader who leaves, and cancels tasks."""
    limiters = []

    async def main() -> None:
        limiter = await RateLimiter.open(place.url)
        limiters.append(limiter)
        reader = stream(limiter, 100)
        if held_by == "generator":
            await anext(reader)
            limiters.append(reader)  # type: ignore[arg-type]
            return

        async def read() -> None:
            async for _ in reader:
                await asyncio.sleep(3600)

        limiters.append(asyncio.ensure_future(work(limiter, 1) if held_by == "task" else read()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert place.used() == (0 if held_by == "task" else 200)
    assert limiters[0].refunds_lost == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("held_by", ["generator", "coroutine"])
def test_loop_that_is_closed_while_a_lease_is_open(place: Place, held_by: str) -> None:
    """Nobody closed the generators: when the garbage is collected, a loop is made for what is left to do."""
    loop = asyncio.new_event_loop()
    limiter = loop.run_until_complete(RateLimiter.open(place.url)._open())
    held: Any
    if held_by == "generator":
        held = stream(limiter, 100)
        loop.run_until_complete(anext(held))
    else:
        held = work(limiter, 100)
        held.send(None)
    loop.close()
    del held
    gc.collect()
    assert (place.used(), limiter.refunds_lost) == (200, 0)


def test_coroutine_that_waits_for_a_closed_loop(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """What was on its way in a loop that is no more cannot come to an end: it is told and counted."""
    loop = asyncio.new_event_loop()
    limiter = loop.run_until_complete(RateLimiter.open(place.url)._open())
    limiter.repository.writer.backend.write_each = lambda _: loop.create_future()  # type: ignore[method-assign]

    async def begin() -> Coroutine[Any, Any, None]:
        coroutine = work(limiter, 1)
        await asyncio.sleep(0)
        while True:
            coroutine.send(None)
            return coroutine

    coroutine = loop.run_until_complete(begin())
    loop.close()
    coroutine.close()
    assert limiter.refunds_lost == 1
    assert "thrown away" in caplog.text


# Sync generators.


def sync_stream(limiter: SyncRateLimiter, change: int) -> Iterator[SyncLease]:
    with limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
        while True:
            if change:
                lease.adjust(rpm=change)
            yield lease


def sync_limiter(store: Store) -> SyncRateLimiter:
    return SyncRateLimiter(SyncRepository.over(store.open_backend(sync=True), world=store.clock.world))


@pytest.mark.parametrize("how", ["closed", "dropped", "thrown into", "in a cycle"])
@pytest.mark.parametrize(("change", "cost"), [(250, 600), (-50, 0), (0, 100)])
def test_sync_reader_who_leaves(store: Store, how: str, change: int, cost: int) -> None:
    with sync_limiter(store) as limiter:
        reader = sync_stream(limiter, change)
        next(reader)
        next(reader)
        if how == "closed":
            reader.close()  # type: ignore[attr-defined]
        elif how == "thrown into":
            with pytest.raises(Failed):
                reader.throw(Failed())  # type: ignore[attr-defined]
            cost = 0
        elif how == "in a cycle":
            cycle = [reader]
            cycle.append(cycle)  # type: ignore[arg-type]
            del cycle, reader
            gc.collect()
        else:
            del reader
        assert limiter.refunds_lost == 0
    assert store.run(store.used("key")) == cost


def test_garbage_that_is_collected_within_the_limiter() -> None:
    """The frame below holds the lock of the store: the lease is settled when that is free again."""
    with SyncRateLimiter.open("memory://") as limiter:
        readers = [sync_stream(limiter, 250)]
        next(readers[0])
        threads: list[threading.Thread] = []

        def collect(*_: Any) -> None:
            if readers:
                readers.clear()
                threads.extend(t for t in threading.enumerate() if t.name == "zae-limiter-settling")

        limiter.repository._async.writer.backend.watchers.append(collect)  # type: ignore[attr-defined]
        with limiter.acquire("other", RESOURCE, {"rpm": 1}, [LIMIT]):
            pass
        for thread in threads:
            thread.join(60)
        assert limiter.available("key", RESOURCE, [LIMIT]) == {"rpm": 650}
        assert limiter.refunds_lost == 0


SHUTDOWN = """
import asyncio, logging, sys
from zae_limiter import Limit, RateLimiter, SyncRateLimiter
logging.basicConfig()
URL, HOW = sys.argv[1:]
LIMIT = [Limit("rpm", 1_000, 1, 86_400)]

def sync_stream():
    with limiter.acquire("key", "api", {"rpm": 100}, LIMIT) as lease:
        lease.adjust(rpm=100)
        yield

async def stream():
    async with limiter.acquire("key", "api", {"rpm": 100}, LIMIT) as lease:
        await lease.adjust(rpm=100)
        yield

if HOW == "sync":
    limiter = SyncRateLimiter.open(URL)
    reader = sync_stream()
    next(reader)
elif HOW == "a loop that runs on":
    loop = asyncio.new_event_loop()
    limiter = loop.run_until_complete(RateLimiter.open(URL)._open())
    reader = stream()
    loop.run_until_complete(anext(reader))
else:
    async def main():
        global limiter, reader
        limiter = await RateLimiter.open(URL)
        reader = stream()
        await anext(reader)
    asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["sync", "async", "a loop that runs on"])
def test_interpreter_that_ends_while_a_lease_is_open(place: Place, how: str) -> None:
    """What a process still holds when it ends is settled, or it says that it is not."""
    command = [sys.executable, "-c", SHUTDOWN, place.url, how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert place.used() == 200 or "not settled" in ended.stderr, ended.stderr
    assert how == "a loop that runs on" or place.used() == 200
