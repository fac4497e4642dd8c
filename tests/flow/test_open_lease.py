"""Leases that no block holds: opened, passed around, committed or cancelled."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from functools import partial

import pytest

from tests.flow.clients import RESOURCE, Store
from tests.flow.opening import LIMIT, opened, sync_opened
from tests.odd_stores import Slow
from tests.patience import PATIENCE_SECONDS
from zae_limiter import (
    Lease,
    LeaseExpiredError,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncLease,
    SyncRateLimiter,
)
from zae_limiter.testing import Fault


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# Two ends.


@pytest.mark.parametrize("way", ["awaited", "opened"])
async def test_open_lease_is_committed(store: Store, way: str) -> None:
    """It holds what it took at once, and stores what was noted when it is told to."""
    client = await store.client()
    acquisition = client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT])
    lease = await acquisition if way == "awaited" else await acquisition.open()
    assert await store.used("key") == 100
    await lease.adjust(rpm=50)
    await lease.consume(rpm=7)
    assert await store.used("key") == 107
    await lease.commit()
    assert (await store.used("key"), await store.left("key")) == (157, 843)
    assert client.limiter.refunds_lost == 0


async def test_open_lease_is_cancelled(store: Store) -> None:
    client = await store.client()
    lease = await opened(client.limiter)
    await lease.consume(rpm=7)
    await lease.adjust(rpm=50)
    await lease.cancel()
    assert (await store.used("key"), await store.left("key")) == (0, 1_000)


async def test_commit_without_notes_asks_nothing_of_the_store(store: Store) -> None:
    client = await store.client()
    lease = await opened(client.limiter)
    client.forget()
    await lease.commit()
    assert (client.calls, await store.used("key")) == ([], 100)


async def test_refused_acquire_opens_nothing(store: Store) -> None:
    """Nothing is taken, and nothing is there that could be forgotten."""
    client = await store.client()
    with pytest.raises(RateLimitExceeded):
        await opened(client.limiter, 1_001)
    gc.collect()
    lease = await opened(client.limiter, 1_000)
    await lease.commit()


@pytest.mark.parametrize("ends", ["commit commit", "commit cancel", "cancel cancel"])
async def test_second_end_does_nothing(store: Store, ends: str) -> None:
    """So ``finally: await lease.cancel()`` gives back whatever was not committed."""
    client = await store.client()
    lease = await opened(client.limiter)
    await lease.adjust(rpm=20)
    for end in ends.split():
        await getattr(lease, end)()
    cost = 120 if ends.startswith("commit") else 0
    assert (await store.used("key"), await store.left("key")) == (cost, 1_000 - cost)


async def test_what_was_given_back_cannot_be_committed(store: Store) -> None:
    client = await store.client()
    lease = await opened(client.limiter)
    await lease.cancel()
    with pytest.raises(LeaseExpiredError, match="was given back; call acquire again") as caught:
        await lease.commit()
    assert (caught.value.entity_id, caught.value.resource) == ("key", RESOURCE)
    assert await store.used("key") == 0


@pytest.mark.parametrize("end", ["commit", "cancel"])
@pytest.mark.parametrize("method", ["consume", "adjust", "release", "settle", "keep"])
async def test_ended_lease_cannot_be_used(store: Store, end: str, method: str) -> None:
    client = await store.client()
    lease = await opened(client.limiter)
    await getattr(lease, end)()
    amounts = {} if method == "keep" else {"rpm": 1}
    with pytest.raises(LeaseExpiredError, match="has ended; consume, adjust, settle and release before that"):
        await getattr(lease, method)(**amounts)


@pytest.mark.parametrize("end", ["commit", "cancel"])
@pytest.mark.parametrize("then", ["well", "badly"])
async def test_block_may_end_its_lease_early(store: Store, end: str, then: str) -> None:
    """Leaving the block does nothing then, however it is left."""
    client = await store.client()
    try:
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
            await lease.adjust(rpm=20)
            await getattr(lease, end)()
            client.forget()
            if then == "badly":
                raise KeyError
    except KeyError:
        pass
    assert (client.calls, await store.used("key")) == ([], 120 if end == "commit" else 0)


async def test_lease_of_a_block_that_has_ended(store: Store) -> None:
    """It was committed by the block, or given back, and a verb that comes later is told which."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
        pass
    await lease.commit()
    await lease.cancel()
    assert await store.used("key") == 100
    with pytest.raises(KeyError):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
            raise KeyError
    await lease.cancel()
    with pytest.raises(LeaseExpiredError, match="was given back"):
        await lease.commit()
    assert await store.used("key") == 100


async def test_acquisition_is_opened_once(store: Store) -> None:
    client = await store.client()
    acquisition = client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT])
    lease = await acquisition
    with pytest.raises(LeaseExpiredError, match="was entered before"):
        await acquisition
    await lease.commit()
    assert await store.used("key") == 100


async def test_open_lease_is_no_block(store: Store) -> None:
    """There is one way to hold a lease in a block: entering the acquire."""
    client = await store.client()
    lease = await opened(client.limiter)
    assert not hasattr(lease, "__aenter__")
    assert not hasattr(lease, "__enter__")
    await lease.commit()


async def test_degraded_lease_can_be_open(store: Store) -> None:
    """Nothing was taken, so nothing is stored, given back or missed."""
    client = await store.client()
    with client.down():
        first, second, third = [await opened(client.limiter, on_unavailable="allow") for _ in range(3)]
    client.forget()
    await first.settle(rpm=7)
    await first.commit()
    await second.cancel()
    with pytest.raises(LeaseExpiredError):
        await second.commit()
    del third
    gc.collect()
    assert (client.calls, first.consumed) == ([], {"rpm": 7})


# What the store may do meanwhile.


@pytest.mark.parametrize("end", ["commit", "cancel"])
async def test_cancelled_while_it_ends(store: Store, end: str) -> None:
    """The settlement comes to its end, then the cancellation is obeyed."""
    client = await store.client(wrap=partial(Slow, turns=3))
    lease = await opened(client.limiter)
    await lease.adjust(rpm=50)
    ending = asyncio.ensure_future(getattr(lease, end)())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert (await store.used("key"), client.limiter.refunds_lost) == (150 if end == "commit" else 0, 0)


@pytest.mark.parametrize("policy", ["block", "allow"])
async def test_reply_to_a_commit_is_lost(store: Store, policy: str, caplog: pytest.LogCaptureFixture) -> None:
    """It may have been stored, so it is told once, never sent again, and the lease is over."""
    client = await store.client()
    lease = await opened(client.limiter, on_unavailable=policy)
    await lease.adjust(rpm=50)
    with client.down(Fault.LOST_REPLY):
        if policy == "allow":
            await lease.commit()
        else:
            with pytest.raises(RateLimiterUnavailable, match="is done, but not all it cost was stored"):
                await lease.commit()
    client.forget()
    await lease.commit()
    await lease.cancel()
    assert (client.calls, client.limiter.refunds_lost) == ([], 1)
    assert sum("may not have got" in message for message in caplog.messages) == 1
    assert await store.used("key") == 150


async def test_reply_to_a_cancel_is_lost(store: Store) -> None:
    """Giving back is never an error of the caller's; what is not confirmed is counted."""
    client = await store.client()
    lease = await opened(client.limiter)
    with client.down(Fault.LOST_REPLY):
        await lease.cancel()
    assert (await store.used("key"), client.limiter.refunds_lost) == (0, 1)


# A streamed response.


async def respond(limiter: RateLimiter, chunks: int) -> tuple[Lease, AsyncIterator[int]]:
    """Admit first, so that a refusal has a status of its own; the body then has the lease."""
    lease = await opened(limiter)

    async def body() -> AsyncIterator[int]:
        try:
            for chunk in range(1, chunks + 1):
                await lease.settle(rpm=7 * chunk)
                yield chunk
        finally:
            await lease.commit()

    return lease, body()


@pytest.mark.parametrize("how", ["closed", "dropped"])
@pytest.mark.parametrize("read", range(1, 5))
async def test_streamed_response(store: Store, how: str, read: int) -> None:
    """Whenever the client hangs up, the balance is the total that was noted last."""
    client = await store.client()
    lease, body = await respond(client.limiter, 4)
    ended = asyncio.Event()

    async def passed_on() -> AsyncIterator[int]:
        try:
            async with aclosing(body):  # type: ignore[type-var]
                async for chunk in body:
                    yield chunk
        finally:
            ended.set()

    reader = passed_on()
    for _ in range(read):
        await anext(reader)
    if how == "closed":
        await reader.aclose()  # type: ignore[attr-defined]
    else:
        del reader
        await asyncio.wait_for(ended.wait(), PATIENCE_SECONDS)
    assert (await store.used("key"), await store.left("key")) == (7 * read, 1_000 - 7 * read)
    assert repr(lease).endswith(", committed>")
    assert client.limiter.refunds_lost == 0


def test_sync_streamed_response(store: Store, sync_limiter: SyncRateLimiter) -> None:
    for read in range(1, 5):
        lease = sync_opened(sync_limiter)
        before = 7 * sum(range(1, read))

        def body(lease: SyncLease = lease) -> Iterator[int]:
            try:
                for chunk in range(1, 5):
                    lease.settle(rpm=7 * chunk)
                    yield chunk
            finally:
                lease.commit()

        reader = body()
        for _ in range(read):
            next(reader)
        reader.close()  # type: ignore[attr-defined]
        assert store.run(store.used("key")) == before + 7 * read


# Passed to others.


async def test_lease_passed_to_another_task(store: Store) -> None:
    """A callback, a worker of a queue: whoever has it notes and ends it, whoever opened it goes home."""
    client = await store.client()
    leases: asyncio.Queue[Lease] = asyncio.Queue()

    async def work() -> None:
        for number in range(3):
            lease = await leases.get()
            await lease.settle(rpm=10 * number)
            await (lease.cancel() if number == 2 else lease.commit())

    worker = asyncio.create_task(work())
    for _ in range(3):
        await asyncio.create_task(_put(leases, client.limiter))
    await worker
    assert await store.used("key") == 10


async def _put(leases: asyncio.Queue[Lease], limiter: RateLimiter) -> None:
    leases.put_nowait(await opened(limiter))


def test_lease_passed_to_another_thread(store: Store, sync_limiter: SyncRateLimiter) -> None:
    leases = [sync_opened(sync_limiter) for _ in range(4)]

    def end(number: int) -> None:
        leases[number].adjust(rpm=number)
        (leases[number].cancel if number == 3 else leases[number].commit)()

    threads = [threading.Thread(target=end, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.run(store.used("key")) == 300 + 0 + 1 + 2


def test_lease_passed_to_another_loop(store: Store) -> None:
    """One that was opened on one event loop is committed on the loop of another thread."""
    client = store.run(store.client())
    lease = store.run(opened(client.limiter))

    async def end() -> None:
        await lease.adjust(rpm=50)
        await lease.commit()

    in_thread(lambda: asyncio.run(end()))
    assert store.run(store.used("key")) == 150


async def test_tasks_that_end_one_lease(store: Store) -> None:
    """Of many who commit or cancel at once one is the first, and it is settled once."""
    client = await store.client(wrap=partial(Slow, turns=2))
    for first, cost in (("commit", 120), ("cancel", 0)):
        before = await store.used("key")
        lease = await opened(client.limiter)
        await lease.adjust(rpm=20)
        ends = [getattr(lease, end)() for end in (first, "cancel", first, "cancel")]
        await asyncio.gather(*ends, return_exceptions=True)
        assert await store.used("key") == before + cost


# The sync side.


def test_sync_open_lease(store: Store, sync_limiter: SyncRateLimiter) -> None:
    """The same verbs and rules without an event loop."""
    first, second = sync_opened(sync_limiter), sync_opened(sync_limiter)
    assert repr(first) == "<SyncLease of 'key' on 'api', consumed={'rpm': 100}, open>"
    first.settle(rpm=120)
    first.commit()
    first.commit()
    first.cancel()
    second.cancel()
    with pytest.raises(LeaseExpiredError, match="was given back"):
        second.commit()
    with pytest.raises(LeaseExpiredError, match="has ended"):
        first.adjust(rpm=1)
    assert (repr(first)[-11:], repr(second)[-11:]) == (" committed>", " cancelled>")
    assert store.run(store.used("key")) == 120
    acquisition = sync_limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT])
    acquisition.open().commit()
    with pytest.raises(LeaseExpiredError, match="was entered before"):
        acquisition.open()
    with sync_limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT]) as lease:
        lease.cancel()
    assert store.run(store.used("key")) == 121
    assert sync_limiter.refunds_lost == 0


# What it says of itself.


async def test_repr_tells_the_state(store: Store) -> None:
    client = await store.client()
    lease = await opened(client.limiter)
    head = "<Lease of 'key' on 'api', consumed={'rpm': 100}"
    assert repr(lease) == f"{head}, open>"
    await lease.commit()
    assert repr(lease) == f"{head}, committed>"
    lease = await opened(client.limiter)
    await lease.cancel()
    assert repr(lease) == f"{head}, cancelled>"
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
        assert repr(lease) == f"{head}>"
    assert repr(lease) == f"{head}, ended>"
    with client.down():
        lease = await opened(client.limiter, on_unavailable="allow")
    assert repr(lease) == f"{head}, degraded, open>"


@pytest.mark.parametrize("name", ["remaining", "statuses", "settle", "keep", "commit", "cancel"])
def test_what_a_lease_has_is_not_asked_of_the_acquire(name: str) -> None:
    with SyncRateLimiter.open("memory://") as limiter:
        acquisition = limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT])
        with pytest.raises(AttributeError, match="enter it first"):
            getattr(acquisition, name)
        acquisition.open().cancel()
