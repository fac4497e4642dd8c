"""One lease that several threads or tasks use: each call counts, or says that the lease is over."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.flow.clients import RESOURCE, Store, rpm
from zae_limiter import LeaseExpiredError, Limit, SyncLease, SyncRateLimiter

LIMIT = Limit("rpm", 1_000, 1, 86_400)
"""Fills so slowly that a test in real time sees nothing of it."""


class Failed(Exception):
    """The work went wrong."""


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    gate = threading.Barrier(count)

    def begin(number: int) -> Any:
        gate.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def test_threads_that_adjust_one_lease(restless: None) -> None:
    """Eight threads note up and down: nothing is lost, by the lease's own count and by the store's."""
    del restless
    with SyncRateLimiter.open("memory://") as limiter:
        with limiter.acquire("key", RESOURCE, {"rpm": 500}, [LIMIT]) as lease:

            def note(number: int) -> None:
                for _ in range(2_000):
                    lease.adjust(rpm=2)
                    lease.release(rpm=1)
                    if number == 0:
                        assert lease.consumed["rpm"] >= 500

            in_threads(8, note)
            assert lease.consumed == {"rpm": 500 + 8 * 2_000}
        assert limiter.available("key", RESOURCE, [LIMIT]) == {"rpm": 500 - 8 * 2_000}


def test_threads_that_consume_from_one_lease(restless: None) -> None:
    """All that was taken is counted, and given back when the work fails."""
    del restless
    with SyncRateLimiter.open("memory://") as limiter:

        def work() -> None:
            with limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT]) as lease:
                in_threads(8, lambda _: [lease.consume(rpm=1) for _ in range(100)])
                assert lease.consumed == {"rpm": 801}
                raise Failed

        with pytest.raises(Failed):
            work()
        assert limiter.available("key", RESOURCE, [LIMIT]) == {"rpm": 1_000}


def test_lease_that_ends_while_threads_use_it(restless: None) -> None:
    """Each call either counts or says that the lease is over."""
    del restless
    with SyncRateLimiter.open("memory://") as limiter:
        limits = [Limit("rpm", 1_000_000, 1, 86_400)]
        for round_ in range(30):
            entity_id = f"key-{round_}"
            entered, acquisition = (
                threading.Barrier(5),
                limiter.acquire(entity_id, RESOURCE, {"rpm": 1}, limits),
            )
            lease = acquisition.__enter__()

            def use(_: int, lease: SyncLease = lease, entered: threading.Barrier = entered) -> int:
                counted = 0
                entered.wait()
                try:
                    while True:
                        lease.adjust(rpm=1)
                        counted += 1
                except LeaseExpiredError:
                    return counted

            with ThreadPoolExecutor(4) as pool:
                counting = [pool.submit(use, number) for number in range(4)]
                entered.wait()
                acquisition.__exit__(None, None, None)
                counted = sum(it.result() for it in counting)
            assert limiter.available(entity_id, RESOURCE, limits) == {"rpm": 1_000_000 - 1 - counted}


async def test_tasks_that_use_one_lease(store: Store) -> None:
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(1_000)]) as lease:

        async def use(number: int) -> None:
            await lease.consume(rpm=2)
            await lease.adjust(rpm=number)

        await asyncio.gather(*(use(number) for number in range(10)))
        assert lease.consumed == {"rpm": 1 + 20 + 45}
    assert await store.used("key") == 66
