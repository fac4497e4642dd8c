"""Renewals of seats whose replies get lost, and under another ``hold``."""

from __future__ import annotations

import asyncio

import pytest

from tests.flow.clients import RESOURCE, Store
from tests.flow.test_concurrency import HOLD_SECONDS, LIMITS, NEED, free, seated
from tests.patience import PATIENCE_SECONDS
from zae_limiter import Limit
from zae_limiter.engine.demand import seats_of
from zae_limiter.engine.seats import RENEWALS_MAX, RENEWED, TICK_MS
from zae_limiter.repository_protocol import Update
from zae_limiter.schema import bucket_key
from zae_limiter.testing import Fault

LOST = [Fault.LOST_REPLY, Fault.LOST_REQUEST]
"""The reply to a renewal gets lost after it was written, or before."""


@pytest.mark.parametrize("fault", LOST)
async def test_a_renewal_whose_reply_was_lost(store: Store, fault: Fault) -> None:
    """It is sent again until the bucket tells of it: the seat is held on, once, and comes back."""
    client, other = await store.client(), await store.client()
    leases = [await seated(client), await seated(client)]
    theirs = await seated(other)
    for _ in range(4):
        store.clock.advance(HOLD_SECONDS / 2)
        client.faulty.faults = [fault]
        await client.repository.writer.renewals.renew()
        await other.repository.writer.renewals.renew()
        await client.repository.writer.renewals.renew()
    assert (await free(other), client.limiter.seats_lost) == (0, 0)
    for lease in (*leases, theirs):
        await lease.commit()
    assert (await free(other), client.limiter.seats_lost, other.limiter.seats_lost) == (3, 0, 0)


@pytest.mark.parametrize("fault", LOST)
async def test_a_lease_that_ends_after_a_reply_was_lost(store: Store, fault: Fault) -> None:
    """Whoever ends it finds out first where the seat is, and gives nobody else's back."""
    client, other = await store.client(), await store.client()
    lease, long = await seated(client), await seated(client)
    theirs = await seated(other)
    store.clock.advance(HOLD_SECONDS / 2)
    client.faulty.faults = [fault]
    await client.repository.writer.renewals.renew()
    await lease.commit()
    assert (await free(other), client.limiter.seats_lost) == (1, 0)
    await other.repository.writer.renewals.renew()
    store.clock.advance(HOLD_SECONDS / 2)
    for one in (long, theirs):
        await one.commit()
    assert (await free(other), client.limiter.seats_lost, other.limiter.seats_lost) == (3, 0, 0)


@pytest.mark.parametrize("fault", LOST)
async def test_a_renewal_that_nobody_answers_any_more(store: Store, fault: Fault) -> None:
    """The lease ends before anybody found out where its seat is: it is told, and comes back by itself."""
    client = await store.client()
    lease = await seated(client)
    store.clock.advance(HOLD_SECONDS / 2)
    client.faulty.faults = [fault, Fault.LOST_REQUEST]
    await client.repository.writer.renewals.renew()
    await lease.commit()
    assert (await free(client), client.limiter.seats_lost) == (2, 1)
    store.clock.advance(HOLD_SECONDS * 9 / 8)
    assert await free(client) == 3


async def test_a_renewal_that_the_bucket_tells_of_no_more(store: Store) -> None:
    """After so many renewals of others nobody can tell whether it was written: the seat counts as lost."""
    client = await store.client()
    lease = await seated(client)
    store.clock.advance(HOLD_SECONDS / 2)
    client.faulty.faults = [Fault.LOST_REPLY]
    await client.repository.writer.renewals.renew()
    key = bucket_key(client.repository.namespace_id, "key", RESOURCE)
    others = " ".join(str(number) for number in range(RENEWALS_MAX))
    await store.open_backend().write_each([Update(key, set={RENEWED: others})])
    await client.repository.writer.renewals.renew()
    assert client.limiter.seats_lost == 1
    await lease.commit()
    store.clock.advance(HOLD_SECONDS * 9 / 8)
    assert await free(client) == 3


@pytest.mark.parametrize("hold_seconds", [HOLD_SECONDS // 4, HOLD_SECONDS * 4])
async def test_another_hold_while_a_seat_is_held(store: Store, hold_seconds: int) -> None:
    """Work that goes on goes by the new ``hold`` from the renewal on after its process has seen it."""
    client, other = await store.client(), await store.client()
    lease = await seated(client)
    limits = [Limit.concurrent("parallel", 3, hold=hold_seconds), *LIMITS[1:]]
    await (await client.limiter.acquire("key", RESOURCE, NEED, limits)).commit()
    store.clock.advance(HOLD_SECONDS - 2)
    await client.repository.writer.renewals.renew()
    (seat,) = seats_of(lease._later)
    late_ms = seat.until * TICK_MS - store.clock.now_ms - hold_seconds * 1000
    assert 0 <= late_ms <= hold_seconds * 125
    await lease.commit()
    assert (await other.limiter.available("key", RESOURCE, limits))["parallel"] == 3
    assert client.limiter.seats_lost == 0


@pytest.mark.parametrize("turns", [0, 1, 2, 4])
async def test_a_renewal_that_is_cancelled_with_all_tasks(store: Store, turns: int) -> None:
    """A program that cancels every task it finds, as many do to end, renews the seats of who goes on."""
    client = await store.client()
    lease = await seated(client)
    (seat,) = seats_of(lease._later)
    until, renewals, known = seat.until, client.repository.writer.renewals, asyncio.all_tasks()
    store.clock.advance(HOLD_SECONDS / 2)
    renewals._wake(renewals._watches.get(), 0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (begun := asyncio.all_tasks() - known) and seat.until == until:  # noqa: ASYNC110
            await asyncio.sleep(0)  # nobody tells of a timer
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in begun:
            task.cancel()
        while seat.until == until:  # noqa: ASYNC110 - nor of a renewal
            await asyncio.sleep(0.01)
    await lease.commit()
    assert (await free(client), client.limiter.seats_lost) == (3, 0)
