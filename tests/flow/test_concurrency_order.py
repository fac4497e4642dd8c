"""Who waits for a seat goes before those who asked later, of whatever process, and is announced meanwhile."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest

from tests.flow.clients import RESOURCE, Client, Store
from tests.flow.test_concurrency import LIMITS, NEED
from tests.flow.test_concurrency_waiting import waiting_limiter
from tests.flow.waiting_room import on_a_loop
from tests.patience import PATIENCE_SECONDS
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.engine.announced import waiters_attribute
from zae_limiter.repository_protocol import Backend, Item, Outcome, Update, Write
from zae_limiter.schema import bucket_key
from zae_limiter.testing.stores import Wrapper

SEAT = [Limit.concurrent("parallel", 1, hold="60s")]
WAITS = waiters_attribute("parallel")


async def bucket(store: Store, limiter: RateLimiter) -> Item:
    key = bucket_key(limiter._repository.namespace_id, "key", RESOURCE)
    (image,) = await store.open_backend().batch_get([key])
    return image or {}


async def until_announced(store: Store, limiter: RateLimiter, count: int = 1) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(str((await bucket(store, limiter)).get(WAITS) or "").split()) != count:  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.01)


async def test_who_asked_first_is_first(store: Store) -> None:
    """Of three processes: whoever is behind steps back, and so does who does not wait at all."""
    first, second, third = [await waiting_limiter(store) for _ in range(3)]
    lease = await first.acquire("key", RESOURCE, {"parallel": 1}, SEAT)
    assert WAITS not in await bucket(store, first)
    began: list[str] = []

    async def work(limiter: RateLimiter, name: str) -> None:
        async with limiter.acquire("key", RESOURCE, {"parallel": 1}, SEAT, wait=math.inf):
            began.append(name)

    tasks = [asyncio.create_task(work(second, "second"))]
    await until_announced(store, first)
    tasks.append(asyncio.create_task(work(third, "third")))
    await until_announced(store, first, 2)
    await lease.commit()
    if "second" not in began:  # the seat is free, and not for who comes now
        with pytest.raises(RateLimitExceeded) as caught:
            await first.acquire("key", RESOURCE, {"parallel": 1}, SEAT)
        assert caught.value.retry_after_seconds > 0
    tasks.append(asyncio.create_task(work(first, "first")))
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_SECONDS)
    assert began == ["second", "third", "first"]
    assert WAITS not in await bucket(store, first)
    assert await first.available("key", RESOURCE, SEAT) == {"parallel": 1}


@pytest.mark.parametrize("ends", ["refused", "cancelled"])
async def test_who_gives_up_is_in_nobodys_way(store: Store, ends: str) -> None:
    """It takes its announcement off."""
    limiter, other = await waiting_limiter(store), await waiting_limiter(store)
    lease = await other.acquire("key", RESOURCE, {"parallel": 1}, SEAT)
    wait = 0.5 if ends == "refused" else math.inf
    waiting = asyncio.create_task(limiter.acquire("key", RESOURCE, {"parallel": 1}, SEAT, wait=wait).open())
    await until_announced(store, other)
    if ends == "cancelled":
        waiting.cancel()
    with pytest.raises(RateLimitExceeded if ends == "refused" else asyncio.CancelledError):
        await waiting
    assert WAITS not in await bucket(store, other)
    await lease.commit()
    await (await other.acquire("key", RESOURCE, {"parallel": 1}, SEAT)).commit()


async def test_more_seats_than_are_waited_for(store: Store) -> None:
    """Who waits for two seats keeps two, and no more."""
    limiter, other = await waiting_limiter(store), await waiting_limiter(store)
    leases = [await other.acquire("key", RESOURCE, NEED, LIMITS) for _ in range(2)]
    waiting = asyncio.create_task(
        limiter.acquire("key", RESOURCE, {"parallel": 2}, LIMITS, wait=math.inf).open()
    )
    await until_announced(store, other)
    with pytest.raises(RateLimitExceeded):  # one is free, and waited for
        await other.acquire("key", RESOURCE, NEED, LIMITS)
    await leases.pop().commit()
    leases.append(await asyncio.wait_for(waiting, PATIENCE_SECONDS))
    for lease in leases:
        await lease.commit()


async def test_a_seat_and_a_rate_among_those_who_want_the_rate(store: Store) -> None:
    """It books the rate as they do: so many may go before it as there are in line, however often they ask."""
    limiter = await waiting_limiter(store)
    limits = [*SEAT, Limit("rps", 1, 10, 1)]
    turns, is_over = 0, False

    async def use_the_rate() -> None:
        nonlocal turns
        while not is_over:
            async with limiter.acquire("key", RESOURCE, {"rps": 1}, limits, wait=math.inf):
                turns += 1

    tasks = [asyncio.create_task(use_the_rate()) for _ in range(3)]
    while turns < 4:  # noqa: ASYNC110 - it is counted
        await asyncio.sleep(0.01)
    before = turns
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with limiter.acquire("key", RESOURCE, {"parallel": 1, "rps": 1}, limits, wait=3.0):
            assert turns - before <= 6
    is_over = True
    await asyncio.gather(*tasks)
    assert await limiter.available("key", RESOURCE, limits) is not None


class SlowToTell(Wrapper):
    """A store whose replies to whatever is said of those who wait are held back, while that is wanted."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.held, self.gate = asyncio.Event(), asyncio.Event()

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        outcomes = await super().write_each(writes)
        if any(isinstance(write, Update) and set(write.set) == {WAITS} for write in writes):
            self.held.set()
            await self.gate.wait()
        return outcomes


async def slow_to_tell(store: Store) -> tuple[RateLimiter, SlowToTell]:
    backend = SlowToTell(on_a_loop(store.open_backend()) if store.name == "memory" else store.open_backend())
    limiter = RateLimiter(await Repository.over(backend))
    store.clients.append(Client(limiter, None, None))  # type: ignore[arg-type]
    return limiter, backend


async def test_who_is_cancelled_while_it_announces_itself_is_in_nobodys_way(store: Store) -> None:
    """It knows what it has said before it goes, and takes it back."""
    (limiter, backend), other = await slow_to_tell(store), await waiting_limiter(store)
    lease = await other.acquire("key", RESOURCE, {"parallel": 1}, SEAT)
    waiting = asyncio.create_task(limiter.acquire("key", RESOURCE, {"parallel": 1}, SEAT, wait=600).open())
    await asyncio.wait_for(backend.held.wait(), PATIENCE_SECONDS)
    waiting.cancel()
    await asyncio.sleep(0)
    backend.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert WAITS not in await bucket(store, other)
    await lease.commit()
    await (await other.acquire("key", RESOURCE, {"parallel": 1}, SEAT)).commit()


async def test_a_cancellation_is_obeyed_though_the_time_to_wait_is_over(store: Store) -> None:
    """Who takes its announcement back because it is refused, and is cancelled meanwhile, is cancelled."""
    (limiter, backend), other = await slow_to_tell(store), await waiting_limiter(store)
    lease = await other.acquire("key", RESOURCE, {"parallel": 1}, SEAT)
    backend.gate.set()
    waiting = asyncio.create_task(limiter.acquire("key", RESOURCE, {"parallel": 1}, SEAT, wait=0.5).open())
    await until_announced(store, other)
    backend.gate.clear()
    backend.held.clear()
    await asyncio.wait_for(backend.held.wait(), PATIENCE_SECONDS)
    waiting.cancel()
    await asyncio.sleep(0)
    backend.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert WAITS not in await bucket(store, other)
    await lease.commit()
