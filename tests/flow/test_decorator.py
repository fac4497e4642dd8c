"""Decorated functions on every store: what they cost, how they end, and whose lease is current."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm
from tests.simulation.readers import Steps
from zae_limiter import (
    Lease,
    LeaseExpiredError,
    RateLimitExceeded,
    SyncLease,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.runtime.within import is_within_ourselves
from zae_limiter.testing import Fault

LIMITS = [rpm(1_000)]
THREADS = 8


class Failed(Exception):
    """The work went wrong."""


@pytest.fixture
def limiter(store: Store) -> Iterator[SyncRateLimiter]:
    repository = SyncRepository.over(store.open_backend(sync=True), world=store.clock.world)
    with SyncRateLimiter(repository) as it:
        yield it


def by_key(limiter: Any, amount: int = 10) -> Any:
    """What most functions here are decorated with."""
    return limiter.limit(RESOURCE, {"rpm": amount}, entity=lambda key: key, limits=LIMITS)


# Coroutines.


async def test_a_coroutine_pays_for_its_work(store: Store) -> None:
    """What it notes counts when it returns; when it raises or is refused, it has cost nothing."""
    client = await store.client()

    @by_key(client.limiter)
    async def work(key: str, more: int) -> str:
        await Lease.current().adjust(rpm=more)
        if more > 500:
            raise Failed
        return key.upper()

    assert await work("key", more=7) == "KEY"
    assert await store.used("key") == 17
    with pytest.raises(Failed):
        await work("key", more=900)
    assert await store.used("key") == 17

    @by_key(client.limiter, 984)
    async def large(key: str) -> None:
        pytest.fail(f"{key} must not be admitted")

    with pytest.raises(RateLimitExceeded):
        await large("key")
    assert await store.used("key") == 17
    with pytest.raises(LookupError, match=r"Lease\.current\(\) is for what runs in a function under"):
        Lease.current()


async def test_a_cancelled_coroutine_gets_everything_back(store: Store) -> None:
    """As a block does."""
    client = await store.client()
    begun = asyncio.Event()

    @by_key(client.limiter)
    async def work(key: str) -> None:
        assert key == "key"
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(work("key"))
    await begun.wait()
    assert await store.used("key") == 10
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.used("key") == 0


async def test_a_coroutine_that_is_thrown_away_elsewhere(store: Store) -> None:
    """Whoever closes it runs in another context; nothing is raised, and what was noted is stored."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, *LIMITS)

    @by_key(client.limiter)
    async def work(key: str) -> None:
        await Lease.current().adjust(rpm=len(key))
        while True:  # noqa: ASYNC110 - for good
            await asyncio.sleep(0)

    coroutine = work("key")

    async def begin() -> None:
        await Steps(coroutine, 50)

    await asyncio.create_task(begin())
    coroutine.close()
    await others()
    assert (await store.used("key"), client.limiter.refunds_lost) == (14, 0)


async def test_tasks_find_their_own_lease(store: Store) -> None:
    """Many at once, each with a task of its own that inherits the lease, and none after the end."""
    client = await store.client()
    late: list[asyncio.Task[None]] = []
    done = asyncio.Event()

    async def note(amount: int) -> None:
        await asyncio.sleep(0)
        await Lease.current().adjust(rpm=amount)

    async def too_late() -> None:
        await done.wait()
        with pytest.raises(LeaseExpiredError):
            await Lease.current().adjust(rpm=100)

    @by_key(client.limiter)
    async def work(key: str, amount: int) -> None:
        late.append(asyncio.create_task(too_late()))
        await asyncio.gather(*(note(amount) for _ in range(3)))
        assert Lease.current().consumed == {"rpm": 10 + 3 * amount}
        del key

    await asyncio.gather(*(work(f"key-{number}", number) for number in range(20)))
    done.set()
    await asyncio.gather(*late)
    assert [await store.used(f"key-{n}") for n in range(20)] == [10 + 3 * n for n in range(20)]


async def test_nested_functions_have_each_their_lease(store: Store) -> None:
    """The innermost is current; when it is done, the outer one is again, also if it failed."""
    client = await store.client()

    @by_key(client.limiter, 1)
    async def inner(key: str, fails: bool) -> None:
        await Lease.current().adjust(rpm=1)
        if fails:
            raise Failed(key)

    @by_key(client.limiter, 100)
    async def outer(key: str) -> None:
        mine = Lease.current()
        await inner(f"{key}-inner", False)
        assert Lease.current() is mine
        with pytest.raises(Failed):
            await inner(f"{key}-inner", True)
        await Lease.current().adjust(rpm=10)

    await outer("key")
    assert (await store.used("key"), await store.used("key-inner")) == (110, 2)


async def test_both_colours_nest(store: Store, limiter: SyncRateLimiter) -> None:
    """A sync function within a coroutine has its own lease, and that of the coroutine is found as well."""
    client = await store.client()

    @by_key(limiter, 1)
    def inner(key: str) -> str:
        SyncLease.current().adjust(rpm=2)
        return f"{key} within {Lease.current()!r}"

    @by_key(client.limiter)
    async def outer(key: str) -> str:
        with pytest.raises(LookupError, match="SyncLease"):
            SyncLease.current()
        return inner(f"{key}-inner")

    assert "Lease of 'key'" in await outer("key")
    assert (await store.used("key"), await store.used("key-inner")) == (10, 3)


async def test_while_the_store_is_down(store: Store) -> None:
    """The policy is passed on, and the lease says that nothing is recorded."""
    client = await store.client()
    limit = client.limiter.limit(RESOURCE, {"rpm": 1}, entity="key", limits=LIMITS, on_unavailable="allow")

    @limit
    async def work() -> bool:
        return Lease.current().degraded

    with client.down(Fault.UNREACHABLE):
        assert await work()
    assert not await work()


# Async generators.


def stream_of(limiter: Any, seen: list[str]) -> Callable[[str], AsyncGenerator[int, Any]]:
    @by_key(limiter)
    async def stream(key: str) -> AsyncGenerator[int, Any]:
        try:
            for chunk in range(5):
                await Lease.current().adjust(rpm=1)
                try:
                    seen.append(f"{key} got {(yield chunk)}")
                except Failed:
                    seen.append(f"{key} goes on")
                    yield -1
        finally:
            await Lease.current().adjust(rpm=100)  # a step as any other

    return stream


async def test_a_stream_takes_when_it_is_read(store: Store) -> None:
    """Nothing for one that nobody reads; the lease ends with the last chunk, and is never the reader's."""
    client = await store.client()
    stream = stream_of(client.limiter, [])
    unread = stream("unread")
    chunks = []
    async for chunk in stream("key"):
        chunks.append(chunk)
        assert await store.used("key") == 10
        with pytest.raises(LookupError):
            Lease.current()
    assert chunks == [0, 1, 2, 3, 4]
    assert await store.used("key") == 115
    await unread.aclose()
    assert await store.bucket("unread") is None


async def others() -> None:
    """Wait for the tasks in which the loop closes what was dropped."""
    await asyncio.sleep(0)
    while rest := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(rest)


@pytest.mark.parametrize("how", ["closed", "closed elsewhere", "dropped"])
async def test_a_reader_who_leaves_a_stream(store: Store, how: str) -> None:
    """What was noted is stored, and what the function does on its way out is noted still."""
    client = await store.client()
    reader = stream_of(client.limiter, [])("key")
    assert [await anext(reader), await anext(reader)] == [0, 1]
    if how == "closed":
        await reader.aclose()
    elif how == "closed elsewhere":
        await asyncio.create_task(_close(reader))
    else:
        del reader
        await others()
    assert await store.used("key") == 112
    assert client.limiter.refunds_lost == 0


async def _close(reader: AsyncGenerator[Any, Any]) -> None:
    await reader.aclose()


async def test_each_step_of_a_stream_by_another_task(store: Store) -> None:
    """Contexts of their own, and the same lease in each; what is current there before is so afterwards."""
    client = await store.client()
    reader = stream_of(client.limiter, [])("key")

    @by_key(client.limiter)
    async def one(key: str) -> int:
        mine = Lease.current()
        chunk = await anext(reader)
        assert Lease.current() is mine
        assert key.startswith("reader")
        return chunk

    assert [await asyncio.create_task(one(f"reader-{n}")) for n in range(5)] == [0, 1, 2, 3, 4]
    assert [chunk async for chunk in reader] == []
    assert (await store.used("key"), await store.used("reader-0")) == (115, 10)


async def test_what_is_sent_and_thrown_arrives(store: Store) -> None:
    """A generator that goes on after an exception keeps its lease; one that does not gets all back."""
    client = await store.client()
    seen: list[str] = []
    reader = stream_of(client.limiter, seen)("key")
    assert await reader.asend(None) == 0
    assert await reader.asend("word") == 1
    assert await reader.athrow(Failed()) == -1
    assert seen == ["key got word", "key goes on"]
    with pytest.raises(KeyError):
        await reader.athrow(KeyError())
    assert await store.used("key") == 0
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


def test_a_loop_that_ends_before_a_stream(store: Store) -> None:
    """The loop closes both generators at once, the function's own and ours: it is settled all the same."""
    readers: list[AsyncGenerator[int, None]] = []
    clients: list[Client] = []

    async def main() -> None:
        clients.append(await store.client())

        @by_key(clients[0].limiter)
        async def stream(key: str) -> AsyncGenerator[int, None]:
            try:
                await Lease.current().adjust(rpm=1)
                yield len(key)
            finally:
                for _ in range(10):
                    await asyncio.sleep(0)  # still on its way when the other one is closed

        readers.extend(stream(f"key-{number}") for number in range(8))
        for reader in readers:
            await anext(reader)

    asyncio.run(main())
    assert [store.run(store.used(f"key-{number}")) for number in range(8)] == [11] * 8
    assert clients[0].limiter.refunds_lost == 0


# Sync functions.


def used(limiter: SyncRateLimiter, key: str = "key") -> int:
    (state,) = limiter.repository.get_bucket(key, RESOURCE)
    return state.total_consumed_milli // 1000


def test_a_function_pays_for_its_work(limiter: SyncRateLimiter) -> None:
    """The sync twin, without an event loop."""

    @by_key(limiter)
    def work(key: str, more: int) -> str:
        SyncLease.current().adjust(rpm=more)
        if more > 500:
            raise Failed
        return key.upper()

    assert work("key", 7) == "KEY"
    with pytest.raises(Failed):
        work("key", 900)
    assert used(limiter) == 17
    with pytest.raises(LookupError, match=r"SyncLease\.current\(\)"):
        SyncLease.current()


def test_threads_find_their_own_lease(limiter: SyncRateLimiter) -> None:
    """Calls in threads do not mix; a thread of one's own inherits a lease only with the context."""
    start = threading.Barrier(THREADS)

    @by_key(limiter)
    def work(key: str, amount: int) -> bool:
        start.wait()
        SyncLease.current().adjust(rpm=amount)
        with ThreadPoolExecutor(1) as threads:
            bare = threads.submit(SyncLease._place.get, None).result()
            context = contextvars.copy_context()
            threads.submit(context.run, lambda: SyncLease.current().adjust(rpm=amount)).result()
        start.wait()
        return bare is None and SyncLease.current().consumed == {"rpm": 10 + 2 * amount} and bool(key)

    with ThreadPoolExecutor(THREADS) as threads:
        calls = [threads.submit(work, f"key-{number}", number) for number in range(THREADS)]
        assert all(call.result() for call in calls)
    assert [used(limiter, f"key-{n}") for n in range(THREADS)] == [10 + 2 * n for n in range(THREADS)]


def test_a_generator_holds_its_lease(limiter: SyncRateLimiter) -> None:
    """What is sent, thrown and returned passes through; between two steps its lease is nobody's."""

    @by_key(limiter)
    def stream(key: str) -> Generator[str, str, str]:
        SyncLease.current().adjust(rpm=1)
        try:
            word = yield key
        except Failed:
            word = yield "again"
        SyncLease.current().adjust(rpm=2)
        return word

    reader = stream("key")
    assert next(reader) == "key"
    with pytest.raises(LookupError):
        SyncLease.current()
    assert reader.throw(Failed()) == "again"
    with pytest.raises(StopIteration) as done:
        reader.send("word")
    assert done.value.value == "word"
    assert used(limiter) == 13
    failing = stream("other")
    next(failing)
    with pytest.raises(KeyError):
        failing.throw(KeyError())
    assert used(limiter, "other") == 0


def test_a_generator_whose_reader_leaves(limiter: SyncRateLimiter) -> None:
    """Closed within a decorated function, it is settled when ``close`` returns."""

    @by_key(limiter)
    def stream(key: str) -> Generator[str, None, None]:
        try:
            SyncLease.current().adjust(rpm=5)
            yield key
        finally:
            SyncLease.current().adjust(rpm=100)

    @by_key(limiter, 1)
    def read(key: str) -> int:
        reader = stream(f"{key}-inner")
        next(reader)
        reader.close()
        assert not is_within_ourselves()  # else a thread would settle it some time
        return used(limiter, f"{key}-inner")

    assert read("key") == 115
    assert used(limiter) == 1
