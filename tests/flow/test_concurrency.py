"""Limits of concurrency: who is at work holds a seat, and whatever ends its lease gives the seat back."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm
from tests.patience import PATIENCE_SECONDS
from tests.stores import STORES, url_of
from zae_limiter import (
    Demand,
    Lease,
    Limit,
    RateLimiter,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from zae_limiter.engine.seats import held
from zae_limiter.repository_protocol import Item
from zae_limiter.runtime.kept import _running
from zae_limiter.schema import bucket_key

HOLD_SECONDS = 80
SEATS = Limit.concurrent("parallel", 3, hold="80s")
LIMITS = [SEATS, rpm(100)]
NEED = {"parallel": 1, "rpm": 1}


async def free(client: Client, entity_id: str = "key") -> int:
    return (await client.limiter.available(entity_id, RESOURCE, LIMITS))["parallel"]


async def seated(client: Client, entity_id: str = "key", **more: Any) -> Lease:
    return await client.limiter.acquire(entity_id, RESOURCE, NEED, LIMITS, **more)


async def stored(store: Store, client: Client, entity_id: str = "key") -> Item | None:
    key = bucket_key(client.repository.namespace_id, entity_id, RESOURCE)
    (image,) = await store.open_backend().batch_get([key])
    return image


async def test_as_many_at_work_as_there_are_seats(store: Store) -> None:
    """The next is refused, by which limit and until when; and whoever leaves makes room."""
    client = await store.client()
    leases = [await seated(client) for _ in range(3)]
    assert [lease.remaining["parallel"] for lease in leases] == [2, 1, 0]
    refusal = await client.refused("key", NEED, *LIMITS)
    assert [status.limit_name for status in refusal.violations] == ["parallel"]
    assert HOLD_SECONDS <= refusal.retry_after_seconds <= HOLD_SECONDS * 9 / 8
    await leases.pop().commit()
    assert await free(client) == 1
    leases.append(await seated(client))
    assert await free(client) == 0
    for lease in leases:
        await lease.commit()
    assert await free(client) == 3


async def leave_by_error(client: Client, **more: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        async with client.limiter.acquire("key", RESOURCE, NEED, LIMITS, **more):
            raise ZeroDivisionError


async def leave_by_cancellation(client: Client, **more: Any) -> None:
    async def work() -> None:
        async with client.limiter.acquire("key", RESOURCE, NEED, LIMITS, **more):
            began.set()
            await asyncio.sleep(PATIENCE_SECONDS)

    began = asyncio.Event()
    task = asyncio.create_task(work())
    await began.wait()
    task.cancel()
    await asyncio.wait([task])


async def leave_a_stream(client: Client, **more: Any) -> None:
    async def stream() -> AsyncIterator[int]:
        async with client.limiter.acquire("key", RESOURCE, NEED, LIMITS, **more):
            yield 1
            yield 2

    reader = stream()
    assert await anext(reader) == 1
    await reader.aclose()  # type: ignore[attr-defined]


async def leave_the_block(client: Client, **more: Any) -> None:
    async with client.limiter.acquire("key", RESOURCE, NEED, LIMITS, **more) as lease:
        assert lease.consumed == NEED


async def leave_by_commit(client: Client, **more: Any) -> None:
    lease = await seated(client, **more)
    await lease.adjust(rpm=2)
    await lease.commit()
    await lease.commit()


async def leave_by_cancel(client: Client, **more: Any) -> None:
    lease = await seated(client, **more)
    await lease.cancel()
    await lease.cancel()


async def leave_after_keeping(client: Client, **more: Any) -> None:
    async def work() -> None:
        async with client.limiter.acquire("key", RESOURCE, NEED, LIMITS, **more) as lease:
            await lease.keep()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()


async def forget(client: Client, **more: Any) -> None:
    held_by = [await seated(client, **more)]
    with pytest.warns(ResourceWarning, match="was forgotten"):
        held_by.clear()
    gc.collect()
    while _running:
        await asyncio.wait(_running)


ENDS = [
    leave_the_block,
    leave_by_error,
    leave_by_cancellation,
    leave_a_stream,
    leave_by_commit,
    leave_by_cancel,
    leave_after_keeping,
    forget,
]


@pytest.mark.parametrize("on_error", [None, "refund", "keep", "settle"])
@pytest.mark.parametrize("end", ENDS)
async def test_whatever_ends_a_lease_gives_its_seat_back(
    store: Store, end: Any, on_error: str | None
) -> None:
    """Once, and whether the work counts or not."""
    client = await store.client()
    other = await seated(client)
    await end(client, on_error=on_error)
    assert await free(client) == 2
    image = await stored(store, client)
    assert image is not None
    assert held(image, "parallel", store.clock.now_ms) == 1
    await other.commit()
    assert (await free(client), client.limiter.refunds_lost, client.limiter.seats_lost) == (3, 0, 0)


async def test_a_refusal_by_another_limit_takes_no_seat(store: Store) -> None:
    """The bucket is as it was before, to the last number."""
    client = await store.client()
    lease = await seated(client)
    before = await stored(store, client)
    await client.refused("key", {"parallel": 1, "rpm": 200}, *LIMITS)
    assert await stored(store, client) == before
    await lease.commit()


async def test_one_write_takes_and_one_gives_back(store: Store) -> None:
    """Seats and tokens of a bucket travel together."""
    client = await store.client()
    await (await seated(client)).commit()
    client.forget()
    lease = await seated(client)
    assert client.recording.writes == 1
    await lease.adjust(rpm=5)
    await lease.commit()
    assert client.recording.writes == 2
    assert (await free(client), await store.left("key")) == (3, 93)


async def test_a_group_takes_seats_in_one_write(store: Store) -> None:
    """Those who arrive while a write is in flight are decided together: some sit, the others are told."""
    client = await store.client()
    await (await seated(client)).commit()
    client.forget()
    told = await asyncio.gather(*(seated(client) for _ in range(10)), return_exceptions=True)
    leases = [lease for lease in told if isinstance(lease, Lease)]
    assert len(leases) == 3
    assert sum(isinstance(refusal, RateLimitExceeded) for refusal in told) == 7
    await asyncio.gather(*(lease.commit() for lease in leases))
    assert await free(client) == 3


async def test_several_seats_for_one_lease(store: Store) -> None:
    """A lease may need more than one, and take more while it works; all come back with it."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"parallel": 2}, LIMITS) as lease:
        assert await free(client) == 1
        await lease.consume(parallel=1)
        assert await free(client) == 0
        with pytest.raises(RateLimitExceeded):
            await lease.consume(parallel=1)
    assert await free(client) == 3
    refusal = await client.refused("key", {"parallel": 4}, *LIMITS)
    assert refusal.retry_after_seconds == math.inf


@pytest.mark.parametrize("verb", ["adjust", "settle", "release"])
async def test_a_seat_is_no_cost(store: Store, verb: str) -> None:
    """What a seat costs cannot be corrected, and who tries is told what it is."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, NEED, LIMITS) as lease:
        with pytest.raises(ValidationError, match=r"counts who is at work.*given back when the lease ends"):
            await getattr(lease, verb)(parallel=1)
    assert await free(client) == 3


async def test_cascade_takes_a_seat_of_each_or_none(store: Store) -> None:
    """A parent has seats of its own; when it has none left, its child has lost none either."""
    client = await store.client()
    await client.repository.create_entity("team")
    await client.repository.create_entity("key", parent_id="team", cascade=True)
    await client.repository.create_entity("other", parent_id="team", cascade=True)
    await client.repository.set_limits("team", [Limit.concurrent("parallel", 2, hold="80s")], RESOURCE)
    for entity_id in ("key", "other"):
        await client.repository.set_limits(entity_id, [SEATS], RESOURCE)
    first = await client.limiter.acquire("key", RESOURCE, {"parallel": 1})
    second = await client.limiter.acquire("other", RESOURCE, {"parallel": 1})
    refusal = await client.refused("key", {"parallel": 1})
    assert {status.entity_id for status in refusal.violations} == {"team"}
    assert (await client.limiter.available("team", RESOURCE))["parallel"] == 0
    await second.commit()
    assert [state.tokens_milli for state in await client.repository.get_bucket("key", RESOURCE)] == [2000]
    assert (await client.limiter.available("key", RESOURCE))["parallel"] == 1
    await first.cancel()
    assert (await client.limiter.available("key", RESOURCE))["parallel"] == 2


async def test_several_demands_with_seats(store: Store) -> None:
    """Where demands meet at a bucket each has its own seats, and all are given back."""
    client = await store.client()
    await client.repository.set_resource_defaults("chat", [SEATS])
    await client.repository.set_resource_defaults("search", [Limit.concurrent("parallel", 1, hold="80s")])
    demands = [Demand("key", "chat", {"parallel": 2}), Demand("key", "search", {"parallel": 1})]
    async with client.limiter.acquire(demands):
        assert (await client.limiter.available("key", "chat"))["parallel"] == 1
        with pytest.raises(RateLimitExceeded):
            async with client.limiter.acquire([Demand("key", "chat", {"parallel": 1}), demands[1]]):
                pass
        assert (await client.limiter.available("key", "chat"))["parallel"] == 1
    for resource, count in (("chat", 3), ("search", 1)):
        assert (await client.limiter.available("key", resource))["parallel"] == count


async def test_seats_of_who_crashed_come_back(store: Store) -> None:
    """Not before ``hold`` is over, and an eighth of it later at most, to whoever asks."""
    client, other = await store.client(), await store.client()
    lost = [await seated(client) for _ in range(3)]
    client.repository.writer.renewals.close()
    store.clock.advance(HOLD_SECONDS - 0.001)
    assert await free(other) == 0
    refusal = await other.refused("key", NEED, *LIMITS)
    assert refusal.retry_after_seconds <= HOLD_SECONDS / 8 + 0.001
    store.clock.advance(refusal.retry_after_seconds)
    assert await free(other) == 3
    leases = [await seated(other) for _ in range(3)]
    for lease in lost:  # somebody wakes up and finds that it was given up
        await lease.commit()
    assert await free(other) == 0
    for lease in leases:
        await lease.commit()
    assert await free(other) == 3


async def test_long_work_keeps_its_seat(store: Store) -> None:
    """It is renewed again and again, all of a bucket by one write, and given back once."""
    client, other = await store.client(), await store.client()
    leases = [await seated(client) for _ in range(3)]
    client.forget()
    for _ in range(10):
        store.clock.advance(HOLD_SECONDS / 2)
        await client.repository.writer.renewals.renew()
        assert await free(other) == 0
    assert client.recording.writes == 10
    for lease in leases:
        await lease.commit()
    assert (await free(other), client.limiter.seats_lost) == (3, 0)


async def test_a_seat_that_was_not_renewed_in_time_is_told(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """The store was down for too long: logged and counted, and the lease gives nothing back."""
    client, other = await store.client(), await store.client()
    lease = await seated(client)
    store.clock.advance(HOLD_SECONDS / 2)
    with client.down():
        await client.repository.writer.renewals.renew()
        assert client.limiter.seats_lost == 0, "there is still time"
    store.clock.advance(HOLD_SECONDS)
    assert await free(other) == 3
    theirs = [await seated(other) for _ in range(3)]
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        await client.repository.writer.renewals.renew()
    assert client.limiter.seats_lost == 1
    assert re.search(r"1 of parallel could not be renewed in time", caplog.text)
    await lease.commit()
    assert await free(other) == 0
    for one in theirs:
        await one.commit()


async def test_a_late_renewal_of_a_seat_that_nobody_took(store: Store) -> None:
    """Somebody slept for longer than a ``hold``, and nobody wanted its seat meanwhile: it is still its."""
    client = await store.client()
    lease = await seated(client)
    store.clock.advance(10 * HOLD_SECONDS)
    await client.repository.writer.renewals.renew()
    assert (await free(client), client.limiter.seats_lost) == (2, 0)
    await lease.commit()
    assert await free(client) == 3


async def test_another_capacity_while_seats_are_held(store: Store) -> None:
    """Who is at work goes on; nobody comes before fewer are left than the limit says now."""
    client = await store.client()
    await client.repository.set_limits("key", [Limit.concurrent("parallel", 5, hold="80s")], RESOURCE)
    leases = [await client.limiter.acquire("key", RESOURCE, {"parallel": 1}) for _ in range(4)]
    await client.repository.set_limits("key", [Limit.concurrent("parallel", 2, hold="60s")], RESOURCE)
    await client.refused("key", {"parallel": 1})
    assert (await client.limiter.available("key", RESOURCE))["parallel"] == -2
    for _ in range(2):
        await leases.pop().commit()
        await client.refused("key", {"parallel": 1})
    await leases.pop().commit()
    leases.append(await client.limiter.acquire("key", RESOURCE, {"parallel": 1}))
    await client.repository.set_limits("key", [Limit.concurrent("parallel", 3, hold="60s")], RESOURCE)
    leases.append(await client.limiter.acquire("key", RESOURCE, {"parallel": 1}))
    for lease in leases:
        await lease.commit()
    assert (await client.limiter.available("key", RESOURCE))["parallel"] == 3


async def test_an_entity_that_is_deleted_while_a_seat_is_held(store: Store) -> None:
    """Its next bucket has all seats, and gets none from the leases of the one before."""
    client = await store.client()
    await client.repository.create_entity("key")
    lease = await seated(client)
    await client.repository.delete_entity("key")
    assert await free(client) == 3
    theirs = [await seated(client) for _ in range(3)]
    await lease.commit()
    assert await free(client) == 0
    for one in theirs:
        await one.commit()
    assert await free(client) == 3


async def test_usage_counts_leases(store: Store) -> None:
    """A seat that was used counts once, however often it was renewed; one that was refunded does not."""
    client = await store.client()
    await leave_by_commit(client)
    await leave_by_error(client)
    lease = await seated(client)
    store.clock.advance(HOLD_SECONDS / 2)
    await client.repository.writer.renewals.renew()
    await lease.commit()
    assert await store.used("key", "parallel") == 2


async def test_one_conditional_write_takes_a_seat_too(store: Store) -> None:
    """What ``speculative_consume`` takes is its caller's: a seat comes back by itself."""
    client = await store.client()
    outcome = await client.repository.speculative_consume("key", RESOURCE, NEED, LIMITS)
    assert outcome.applied
    assert await free(client) == 2
    store.clock.advance(HOLD_SECONDS * 9 / 8)
    assert await free(client) == 3


async def test_how_many_are_held_is_told(store: Store) -> None:
    """By the bucket's state, as the next write finds it."""
    client = await store.client()
    leases = [await seated(client) for _ in range(2)]
    state = await client.repository.get_bucket("key", RESOURCE, "parallel")
    assert state is not None
    assert (state.held, state.limit) == (2, SEATS)
    store.clock.advance(2 * HOLD_SECONDS)
    state = await client.repository.get_bucket("key", RESOURCE, "parallel")
    assert state is not None
    assert (state.held, state.tokens_milli) == (0, 3000)
    other = await client.repository.get_bucket("key", RESOURCE, "rpm")
    assert other is not None
    assert other.held is None
    for lease in leases:
        await lease.commit()


def test_sync_twin(sync_limiter: SyncRateLimiter) -> None:
    """The same without an event loop."""
    with sync_limiter.acquire("key", RESOURCE, NEED, LIMITS) as lease:
        assert sync_limiter.available("key", RESOURCE, LIMITS)["parallel"] == 2
        lease.consume(parallel=2)
        with pytest.raises(RateLimitExceeded), sync_limiter.acquire("key", RESOURCE, NEED, LIMITS):
            pass
    open_lease = sync_limiter.acquire("key", RESOURCE, NEED, LIMITS).open()
    open_lease.cancel()
    assert sync_limiter.available("key", RESOURCE, LIMITS)["parallel"] == 3
    assert sync_limiter.seats_lost == 0


SHORT = Limit.concurrent("parallel", 1, hold="1s")


@pytest.mark.parametrize("kind", list(STORES))
def test_renewed_by_itself(kind: str, tmp_path: Any) -> None:
    """Work that takes three times as long as ``hold`` keeps its seat without a word, async and sync."""

    async def work() -> None:
        async with RateLimiter.open(url_of(kind, tmp_path)) as limiter:
            async with limiter.acquire("key", RESOURCE, {"parallel": 1}, [SHORT]):
                until = time.monotonic() + 3
                while time.monotonic() < until:
                    assert await limiter.available("key", RESOURCE, [SHORT]) == {"parallel": 0}
                    await asyncio.sleep(0.05)
            assert await limiter.available("key", RESOURCE, [SHORT]) == {"parallel": 1}
            assert limiter.seats_lost == 0

    asyncio.run(work())
    with SyncRateLimiter.open(url_of(kind, tmp_path)) as limiter:
        with limiter.acquire("other", RESOURCE, {"parallel": 1}, [SHORT]):
            until = time.monotonic() + 3
            while time.monotonic() < until:
                assert limiter.available("other", RESOURCE, [SHORT]) == {"parallel": 0}
                time.sleep(0.05)
        assert limiter.available("other", RESOURCE, [SHORT]) == {"parallel": 1}
        assert limiter.seats_lost == 0
