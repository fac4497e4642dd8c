"""What work costs that does not end well: ``on_error``, for every way to end, noted or not."""

import asyncio
import contextlib
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest

from tests.flow.clients import RESOURCE, Client, Store
from tests.flow.opening import LIMIT, rest
from tests.simulation.readers import Steps
from zae_limiter import Lease, LeaseExpiredError, OnError, RateLimiter, SyncRateLimiter, ValidationError
from zae_limiter.testing import Fault

CHOICES = [None, "refund", "keep", "settle"]


class Failed(Exception):
    """The work went wrong."""


@types.coroutine
def never() -> Generator[None, None, None]:
    """Suspends whoever awaits it, for good."""
    while True:
        yield


NOTES = {"more": 50, "less": -30, "nothing": 0}
COSTS = {
    ("refund", "more"): 0,
    ("refund", "less"): 0,
    ("refund", "nothing"): 0,
    ("keep", "more"): 150,
    ("keep", "less"): 100,
    ("keep", "nothing"): 100,
    ("settle", "more"): 150,
    ("settle", "less"): 70,
    ("settle", "nothing"): 100,
}
"""Of a lease of 100, by what ``on_error`` says and what was noted."""

DEFAULT = {"exception": "refund", "cancellation": "refund", "reader": "settle"}


def cost_of(on_error: str | None, ending: str, noted: str) -> int:
    return COSTS[on_error or DEFAULT[ending], noted]


async def stream(limiter: RateLimiter, on_error: str | None, noted: str) -> AsyncIterator[Lease]:
    acquisition = limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT], on_error=on_error)
    async with acquisition as lease:
        if NOTES[noted]:
            await lease.adjust(rpm=NOTES[noted])
        yield lease
        await asyncio.sleep(3600)


async def fail(reader: Any) -> None:
    with pytest.raises(Failed):
        await reader.athrow(Failed())


async def cancel(reader: Any) -> None:
    task = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def close(reader: Any) -> None:
    await reader.aclose()


ENDINGS: dict[str, Callable[[Any], Coroutine[Any, Any, None]]] = {
    "exception": fail,
    "cancellation": cancel,
    "reader": close,
}


@pytest.mark.parametrize("on_error", CHOICES)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("noted", NOTES)
async def test_what_work_costs_that_does_not_end_well(
    store: Store, on_error: str | None, ending: str, noted: str
) -> None:
    client = await store.client()
    reader = stream(client.limiter, on_error, noted)
    lease = await anext(reader)
    await ENDINGS[ending](reader)
    cost = cost_of(on_error, ending, noted)
    assert (await store.used("key"), await store.left("key")) == (cost, 1_000 - cost)
    assert client.limiter.refunds_lost == 0
    with pytest.raises(LeaseExpiredError, match="has ended"):
        await lease.adjust(rpm=1)


@pytest.mark.parametrize("on_error", CHOICES)
@pytest.mark.parametrize("noted", NOTES)
async def test_work_that_ends_well_costs_what_was_noted(
    store: Store, on_error: str | None, noted: str
) -> None:
    """Whatever would have become of it."""
    client = await store.client()
    acquisition = client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT], on_error=on_error)
    async with acquisition as lease:
        if NOTES[noted]:
            await lease.adjust(rpm=NOTES[noted])
    assert await store.used("key") == 100 + NOTES[noted]


@pytest.mark.parametrize("on_error", CHOICES)
@pytest.mark.parametrize("noted", NOTES)
async def test_coroutine_that_is_thrown_away(store: Store, on_error: str | None, noted: str) -> None:
    """Somebody left who may not even wait: others carry it out."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, LIMIT)

    async def work() -> None:
        acquisition = client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT], on_error=on_error)
        async with acquisition as lease:
            if NOTES[noted]:
                await lease.adjust(rpm=NOTES[noted])
            await never()

    coroutine = work()
    await Steps(coroutine, 50)
    coroutine.close()
    await rest()
    assert await store.used("key") == 1 + cost_of(on_error, "reader", noted)


@pytest.mark.parametrize("on_error", CHOICES)
@pytest.mark.parametrize("ending", ["exception", "reader"])
@pytest.mark.parametrize("noted", NOTES)
def test_sync_work_that_does_not_end_well(
    store: Store, sync_limiter: SyncRateLimiter, on_error: str | None, ending: str, noted: str
) -> None:
    def work() -> Iterator[None]:
        acquisition = sync_limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT], on_error=on_error)
        with acquisition as lease:
            if NOTES[noted]:
                lease.adjust(rpm=NOTES[noted])
            yield
            raise Failed

    reader = work()
    next(reader)
    if ending == "reader":
        reader.close()  # type: ignore[attr-defined]
    else:
        with pytest.raises(Failed):
            next(reader)
    assert store.run(store.used("key")) == cost_of(on_error, ending, noted)
    assert sync_limiter.refunds_lost == 0


async def failing(client: Client, on_error: str | None, note: dict[str, int], fault: Fault) -> None:
    acquisition = client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT], on_error=on_error)
    async with acquisition as lease:
        await lease.adjust(note)
        client.faulty.always = fault
        raise Failed


@pytest.mark.parametrize("on_error", CHOICES)
async def test_store_that_is_gone_when_the_work_fails(store: Store, on_error: str | None) -> None:
    """The exception of the work is the one that goes on; what could not be confirmed is counted."""
    client = await store.client()
    with pytest.raises(Failed):
        await failing(client, on_error, {"rpm": 50}, Fault.LOST_REPLY)
    client.faulty.always = None
    assert client.limiter.refunds_lost == 1
    assert await store.used("key") == cost_of(on_error, "exception", "more")


async def test_nothing_to_store_asks_nothing(store: Store) -> None:
    """What was taken stays taken: that takes no write."""
    client = await store.client()
    for on_error in ("keep", "settle"):
        reader = stream(client.limiter, on_error, "nothing")
        await anext(reader)
        client.forget()
        await fail(reader)
        assert client.calls == []
    assert await store.used("key") == 200


@pytest.mark.parametrize("on_error", CHOICES)
async def test_keep_switches_from_inside(store: Store, on_error: str | None) -> None:
    """What happened before it does not matter, what was noted to be given back is kept too."""
    client = await store.client()
    reader = stream(client.limiter, on_error, "nothing")
    lease = await anext(reader)
    await lease.consume(rpm=10)
    await lease.release(rpm=5)
    await lease.keep()
    await fail(reader)
    assert (await store.used("key"), lease.consumed) == (110, {"rpm": 110})


def test_sync_keep(store: Store, sync_limiter: SyncRateLimiter) -> None:
    with contextlib.suppress(Failed), sync_limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
        lease.keep()
        raise Failed
    assert store.run(store.used("key")) == 100


async def test_keep_is_no_promise_to_whoever_cancels(store: Store) -> None:
    """``cancel`` gives everything back, and ``commit`` stores what was noted: somebody said so."""
    client = await store.client()
    for end, cost in (("cancel", 0), ("commit", 70)):
        lease = await client.limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT], on_error="keep")
        await lease.release(rpm=30)
        await getattr(lease, end)()
        assert await store.used("key") == cost


@pytest.mark.parametrize("value", ["", "Refund", "commit", True, 0, ["keep"], OnError])
def test_bad_values_are_told(value: Any) -> None:
    """At once, not when the work fails."""
    with SyncRateLimiter.open("memory://") as limiter:
        with pytest.raises(ValidationError, match="use 'refund', 'keep' or 'settle'") as caught:
            limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT], on_error=value)
        assert (caught.value.field, caught.value.value) == ("on_error", value)


def test_values_have_names() -> None:
    with SyncRateLimiter.open("memory://") as limiter:
        for value in OnError:
            limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT], on_error=value).open().cancel()
        assert limiter.available("key", RESOURCE, [LIMIT]) == {"rpm": 1_000}
