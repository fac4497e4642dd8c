"""Waiting for a seat: in the order of asking within a process, and holding nothing meanwhile."""

from __future__ import annotations

import asyncio
import gc
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm
from tests.flow.test_concurrency import NEED, SEATS
from tests.flow.waiting_room import on_a_loop
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.stores import url_of
from zae_limiter import (
    ClosedError,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
)
from zae_limiter.engine import parts
from zae_limiter.engine import take as engine_take
from zae_limiter.engine.take import Contended

LIMITS = [SEATS, rpm(100, refill=1, seconds=86_400)]
"""Time is real here, and a test may take as long as it likes: nothing comes back meanwhile."""


async def waiting_limiter(store: Store) -> RateLimiter:
    """A client in real time, whose waiters wait for one another."""
    wrap = on_a_loop if store.name == "memory" else lambda backend: backend
    repository = await Repository.over(wrap(store.open_backend()))
    store.clients.append(Client(RateLimiter(repository), None, None))  # type: ignore[arg-type]
    return RateLimiter(repository)


async def test_waiting_for_a_seat(store: Store) -> None:
    """Whoever of a process asked first sits first, woken by who leaves, and all have had their turn."""
    limiter, began, at_work, most = await waiting_limiter(store), list[int](), 0, 0

    async def work(number: int) -> None:
        nonlocal at_work, most
        async with limiter.acquire("key", RESOURCE, NEED, LIMITS, wait=math.inf) as lease:
            began.append(number)
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0.01)
            at_work -= 1
        assert number < 3 or lease.waited_ms > 0

    await (await limiter.acquire("key", RESOURCE, NEED, LIMITS)).commit()
    tasks = []
    for number in range(12):
        tasks.append(asyncio.create_task(work(number)))
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_SECONDS)
    assert began == list(range(12))
    assert most <= 3
    assert await limiter.available("key", RESOURCE, LIMITS) == {"parallel": 3, "rpm": 87}


async def test_waiting_for_a_seat_that_does_not_come(store: Store) -> None:
    """Nothing is held meanwhile; when the time is over it is refused, and so is who can never have it."""
    limiter = await waiting_limiter(store)
    leases = [await limiter.acquire("key", RESOURCE, NEED, LIMITS) for _ in range(3)]
    with pytest.raises(RateLimitExceeded) as caught:
        await limiter.acquire("key", RESOURCE, NEED, LIMITS, wait=0.1)
    assert [status.limit_name for status in caught.value.violations] == ["parallel"]
    assert await limiter.available("key", RESOURCE, LIMITS) == {"parallel": 0, "rpm": 97}
    for need in ({"parallel": 4}, {"parallel": 1, "rpm": 101}):
        with pytest.raises(RateLimitExceeded):
            await limiter.acquire("key", RESOURCE, need, LIMITS, wait=math.inf)
    for lease in leases:
        await lease.commit()


async def test_what_can_never_be_had_behind_others_who_wait(store: Store) -> None:
    """It is refused at once, though it is not its turn: more seats than there are, or a rate too late."""
    limiter = await waiting_limiter(store)
    limits = [Limit.concurrent("parallel", 1, hold="60s"), Limit.per_day("rpd", 10)]

    async def refusal(need: dict[str, int], wait: float) -> float:
        asked = limiter.acquire("key", RESOURCE, need, limits, wait=wait).open()
        with pytest.raises(RateLimitExceeded) as caught:
            await asyncio.wait_for(asked, PATIENCE_SECONDS)
        return caught.value.retry_after_seconds

    lease = await limiter.acquire("key", RESOURCE, {"parallel": 1}, limits)
    first = asyncio.create_task(
        limiter.acquire("key", RESOURCE, {"parallel": 1}, limits, wait=math.inf).open()
    )
    await asyncio.sleep(0.05)
    assert await refusal({"parallel": 2}, math.inf) == math.inf
    assert await refusal({"parallel": 1, "rpd": 11}, math.inf) == math.inf
    await (await limiter.acquire("key", RESOURCE, {"rpd": 10}, limits)).commit()
    assert 8_000 < await refusal({"parallel": 1, "rpd": 1}, 8_000) <= 8_640
    assert not first.done()
    await lease.commit()
    await (await asyncio.wait_for(first, PATIENCE_SECONDS)).commit()


async def test_a_seat_behind_somebody_who_waits_for_a_rate(store: Store) -> None:
    """Whoever lacks only a rate is in the way of nobody who does not: seats do not lie idle meanwhile."""
    limiter = await waiting_limiter(store)
    limits = [Limit.concurrent("parallel", 2, hold="60s"), Limit("rpm", 10, 1, 3_600)]
    await (await limiter.acquire("key", RESOURCE, {"rpm": 10}, limits)).commit()
    both = {"parallel": 1, "rpm": 1}
    waiting = [
        asyncio.create_task(limiter.acquire("key", RESOURCE, both, limits, wait=math.inf).open())
        for _ in range(2)
    ]
    await asyncio.sleep(0.1)
    for _ in range(3):
        asked = limiter.acquire("key", RESOURCE, {"parallel": 1}, limits, wait=math.inf).open()
        lease = await asyncio.wait_for(asked, PATIENCE_SECONDS)
        assert await limiter.available("key", RESOURCE, limits) == {"parallel": 1, "rpm": -1}
        await lease.commit()
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert await limiter.available("key", RESOURCE, limits) == {"parallel": 2, "rpm": 0}


async def test_waiting_for_a_seat_of_another_process(store: Store) -> None:
    """Who waits looks again by itself: nobody in its process tells."""
    limiter, other = await waiting_limiter(store), await waiting_limiter(store)
    leases = [await other.acquire("key", RESOURCE, NEED, LIMITS) for _ in range(3)]
    waiting = asyncio.create_task(limiter.acquire("key", RESOURCE, NEED, LIMITS, wait=math.inf).open())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await leases.pop().commit()
    lease = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    for one in (*leases, lease):
        await one.commit()


async def test_closed_while_somebody_waits_for_a_seat(store: Store) -> None:
    """It is told at once; and whoever is cancelled leaves the line to the next."""
    limiter = await waiting_limiter(store)
    leases = [await limiter.acquire("key", RESOURCE, NEED, LIMITS) for _ in range(3)]
    first, second, third = (
        asyncio.create_task(limiter.acquire("key", RESOURCE, NEED, LIMITS, wait=math.inf).open())
        for _ in range(3)
    )
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.wait([first])
    await leases.pop().commit()
    await (await asyncio.wait_for(second, PATIENCE_SECONDS)).commit()
    await (await asyncio.wait_for(third, PATIENCE_SECONDS)).commit()
    leases.append(await limiter.acquire("key", RESOURCE, NEED, LIMITS))
    last = asyncio.create_task(limiter.acquire("key", RESOURCE, NEED, LIMITS, wait=math.inf).open())
    await asyncio.sleep(0.05)
    await limiter.close()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(last, PATIENCE_SECONDS)
    for lease in leases:
        lease._ended = True


@pytest.mark.parametrize("need", [{"parallel": 1}, {"rpm": 1}, NEED])
@pytest.mark.parametrize("wait", [math.inf, 0])
async def test_a_bucket_that_others_change_all_the_time(
    store: Store, need: dict[str, int], wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has time left asks anew, and is not told that the store is gone; who has none is told."""
    limiter, asked = await waiting_limiter(store), 0

    async def take(*args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise Contended("others were faster")
        return await engine_take.take(*args, **options)

    monkeypatch.setattr(parts, "take", take)
    if wait:
        asking = limiter.acquire("key", RESOURCE, need, LIMITS, wait=wait).open()
        await (await asyncio.wait_for(asking, PATIENCE_SECONDS)).cancel()
    else:
        with pytest.raises(RateLimiterUnavailable, match="others were faster"):
            await limiter.acquire("key", RESOURCE, need, LIMITS, wait=wait)
    assert asked == (4 if wait else 1)
    assert await limiter.available("key", RESOURCE, LIMITS) == {"parallel": 3, "rpm": 100}


@pytest.mark.parametrize(("before", "after", "begins"), [(1, 2, True), (2, 1, False)])
async def test_limits_that_change_while_somebody_waits(
    store: Store, before: int, after: int, begins: bool
) -> None:
    """Who waits goes by the seats that there are by then: a raise lets it in, after a cut it waits on."""
    limiter = await waiting_limiter(store)
    await limiter.set_limits("key", [Limit.concurrent("parallel", before, hold="60s")], RESOURCE)
    leases = [await limiter.acquire("key", RESOURCE, {"parallel": 1}) for _ in range(before)]
    patience_seconds = PATIENCE_SECONDS if begins else 1.5
    waiting = asyncio.ensure_future(
        limiter.acquire("key", RESOURCE, {"parallel": 1}, wait=patience_seconds).open()
    )
    await asyncio.sleep(0.1)
    await limiter.set_limits("key", [Limit.concurrent("parallel", after, hold="60s")], RESOURCE)
    if not begins:
        await leases.pop().commit()
    (answer,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(answer, RateLimitExceeded) is not begins
    for lease in leases if isinstance(answer, BaseException) else [*leases, answer]:
        await lease.commit()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_garbage_of_a_cycle_is_settled_beside_whoever_is_at_work(kind: str, tmp_path: Path) -> None:
    """An open lease may be collected at any allocation, also within an acquire, which then goes on."""
    with SyncRateLimiter.open(url_of(kind, tmp_path)) as limiter, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        limits = [Limit.concurrent("parallel", 100, hold="60s"), Limit.per_day("rpd", 1_000)]
        limiter.set_resource_defaults(RESOURCE, limits)
        need = {"parallel": 1, "rpd": 1}
        threshold = gc.get_threshold()
        try:
            for allocations in range(1, 120, 3):
                cycle: list[object] = [limiter.acquire("key", RESOURCE, need).open()]
                cycle.append(cycle)
                del cycle
                gc.set_threshold(allocations, 10**6, 10**6)
                with limiter.acquire("key", RESOURCE, need):
                    pass
                gc.set_threshold(*threshold)
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        wait_until(lambda: limiter.available("key", RESOURCE)["parallel"] == 100)
        assert limiter.refunds_lost == 0
