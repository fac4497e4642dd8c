"""Open leases that nobody ends: settled when they are collected, wherever that is, and told."""

import gc
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.flow.clients import RESOURCE, Store
from tests.flow.opening import LIMIT, opened, rest, sync_opened
from tests.patience import PATIENCE_SECONDS
from tests.stores import STORES
from zae_limiter import Lease, SyncRateLimiter

FORGOTTEN = r"<Lease of 'key' on 'api', consumed=.*, open> was forgotten: call its commit\(\) or cancel\(\)"
NOTES = [(50, 150), (-30, 70), (0, 100)]


def drop(held: list[Any], how: str) -> None:
    """Let go of what is held, by itself or as part of a cycle."""
    if how == "in a cycle":
        cycle = [held.pop()]
        cycle.append(cycle)
        del cycle
    held.clear()
    gc.collect()


@pytest.mark.parametrize("how", ["dropped", "in a cycle"])
@pytest.mark.parametrize(("change", "cost"), NOTES)
async def test_forgotten_lease_is_settled(store: Store, how: str, change: int, cost: int) -> None:
    """What was noted counts, what it took stays taken, and a warning names whose it was and the way out."""
    client = await store.client()
    held: list[Any] = [await opened(client.limiter)]
    if change:
        await held[0].adjust(rpm=change)
    with pytest.warns(ResourceWarning, match=FORGOTTEN):
        drop(held, how)
    await rest()
    assert (await store.used("key"), await store.left("key")) == (cost, 1_000 - cost)
    assert client.limiter.refunds_lost == 0


@pytest.mark.parametrize(("on_error", "cost"), [("refund", 0), ("keep", 100), ("settle", 70)])
async def test_forgotten_lease_goes_by_on_error(store: Store, on_error: str, cost: int) -> None:
    client = await store.client()
    lease = await opened(client.limiter, on_error=on_error)
    await lease.adjust(rpm=-30)
    with pytest.warns(ResourceWarning, match=FORGOTTEN):
        del lease
    await rest()
    assert (await store.used("key"), client.limiter.refunds_lost) == (cost, 0)


@pytest.mark.parametrize(("change", "cost"), NOTES)
def test_sync_forgotten_lease_is_settled(
    store: Store, sync_limiter: SyncRateLimiter, change: int, cost: int
) -> None:
    lease = sync_opened(sync_limiter)
    if change:
        lease.adjust(rpm=change)
    with pytest.warns(ResourceWarning, match=FORGOTTEN):
        del lease
    assert (store.run(store.used("key")), sync_limiter.refunds_lost) == (cost, 0)


def test_lease_forgotten_by_a_thread(store: Store) -> None:
    """No loop runs where it is dropped, so it gets one of its own."""
    client = store.run(store.client())
    held = [store.run(opened(client.limiter))]
    store.run(held[0].adjust(rpm=50))
    with pytest.warns(ResourceWarning, match=FORGOTTEN), ThreadPoolExecutor(1) as threads:
        threads.submit(held.clear)
    assert (store.run(store.used("key")), client.limiter.refunds_lost) == (150, 0)


async def test_body_that_nobody_reads(store: Store) -> None:
    """Its generator never ran, so nobody ends the lease: that is told, and what was taken stays taken."""
    client = await store.client()

    async def body(lease: Lease) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await lease.commit()

    with pytest.warns(ResourceWarning, match=FORGOTTEN):
        body(await opened(client.limiter))
    await rest()
    assert await store.used("key") == 100


@pytest.mark.parametrize("end", ["commit", "cancel"])
async def test_ended_lease_is_not_missed(store: Store, end: str) -> None:
    """Warnings are errors here."""
    client = await store.client()
    lease = await opened(client.limiter)
    await lease.adjust(rpm=50)
    await getattr(lease, end)()
    del lease
    gc.collect()
    assert await store.used("key") == (150 if end == "commit" else 0)


async def test_lease_that_holds_nothing_is_not_missed(store: Store) -> None:
    """Nothing was asked for, and nothing noted: nothing is lost, and nobody is told."""
    client = await store.client()
    lease = await client.limiter.acquire("key", RESOURCE, {}, [LIMIT], on_error="refund")
    client.forget()
    del lease
    await rest()
    assert (client.calls, client.limiter.refunds_lost) == ([], 0)


ENDS = """
import asyncio, sys
from zae_limiter import Limit, RateLimiter, SyncRateLimiter
URL, HOW = sys.argv[1:]
LIMIT = [Limit("rpm", 1_000, 1, 86_400)]

if HOW == "sync":
    limiter = SyncRateLimiter.open(URL)
    lease = limiter.acquire("key", "api", {"rpm": 100}, LIMIT).open()
    lease.adjust(rpm=100)
else:
    async def main():
        global limiter, lease
        limiter = await RateLimiter.open(URL)
        lease = await limiter.acquire("key", "api", {"rpm": 100}, LIMIT)
        await lease.adjust(rpm=100)
    asyncio.run(main())
if HOW == "forked":
    import gc, os
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(lease.commit())
        except Exception as error:
            print(error, flush=True)
        del lease
        gc.collect()
        os._exit(limiter.refunds_lost)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize("url", [store for store in STORES if store != "memory"], indirect=True)
@pytest.mark.parametrize("how", ["sync", "async", "forked"])
def test_interpreter_that_ends_with_an_open_lease(url: str, how: str) -> None:
    """The process that took it settles it, or says that it is not, and tells; a forked child does neither."""
    command = [sys.executable, "-W", "default", "-c", ENDS, url, how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    with SyncRateLimiter.open(url) as limiter:
        left = limiter.available("key", RESOURCE, [LIMIT])
    assert left == {"rpm": 800} or (how != "sync" and "not settled" in ended.stderr), ended.stderr
    assert ended.stderr.count("was forgotten: call its commit() or cancel()") == 1, ended.stderr
    assert ended.stdout == (
        f"the lease of 'key' on '{RESOURCE}' belongs to the process that forked\n" if how == "forked" else ""
    )
