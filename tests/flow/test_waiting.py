"""Waiting one's turn: who begins when, what it costs, and what is left of a wait that ends in another way."""

# Blocks that fail under a lease are what is tested here, and they hold more than one statement.
# ruff: noqa: PT012

import asyncio
import dataclasses
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.flow.clients import RESOURCE, Store, rpm
from tests.flow.opening import rest
from tests.flow.waiting_room import LIMIT, Room, on_a_loop, stored
from tests.stores import STORES
from zae_limiter import (
    Limit,
    RateLimiter,
    RateLimitExceeded,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.repository_protocol import Backend, Item, Key
from zae_limiter.testing import ManualClock, RecordingBackend
from zae_limiter.testing.stores import Wrapper

JOBS = 100
TWENTY = Limit.per_second("rps", 20)
IDEAL_SECONDS = (JOBS - 20) / 20
"""Twenty begin at once, the others at twenty a second."""


# A hundred jobs.


async def test_hundred_jobs(store: Store) -> None:
    """A hundred jobs at twenty a second take as long as the rate says, and at most about a write each."""
    client, began_ms = await store.client(), store.clock.now_ms

    async def job() -> int:
        async with client.limiter.acquire("vendor", RESOURCE, {"rps": 1}, [TWENTY], wait=math.inf):
            return store.clock.now_ms - began_ms

    starts_ms = await asyncio.gather(*(job() for _ in range(JOBS)))
    assert all(at_ms >= 50 * (number - 19) for number, at_ms in enumerate(starts_ms))
    assert store.clock.now_ms - began_ms == IDEAL_SECONDS * 1000
    assert await store.used("vendor", "rps") == JOBS
    assert client.recording.writes <= 1.1 * JOBS


async def test_hundred_jobs_one_after_another(store: Store) -> None:
    """A loop that waits before each job costs a write for each, and no read."""
    client, began_ms = await store.client(), store.clock.now_ms
    await client.take("vendor", {"rps": 1}, TWENTY)
    client.forget()
    waited_ms = 0
    for _ in range(JOBS - 1):
        async with client.limiter.acquire("vendor", RESOURCE, {"rps": 1}, [TWENTY], wait=5) as lease:
            waited_ms += lease.waited_ms
    assert store.clock.now_ms - began_ms == waited_ms == IDEAL_SECONDS * 1000
    assert client.recording.verbs.keys() == {"write_each"}
    assert client.recording.writes <= 1.1 * JOBS


def test_hundred_jobs_in_threads() -> None:
    """Threads that wait are never ahead of the rate; how late a machine lets them begin is its affair."""
    limit = Limit("rps", 20, 200, 1)
    recording = RecordingBackend(MemoryBackend())
    with SyncRateLimiter(SyncRepository.over(recording)) as limiter:
        recording.forget()
        began = time.time()

        def job(_: int) -> float:
            with limiter.acquire("vendor", RESOURCE, {"rps": 1}, [limit], wait=math.inf):
                return time.time() - began

        with ThreadPoolExecutor(20) as threads:
            starts = sorted(threads.map(job, range(JOBS)))
        assert limiter.refunds_lost == 0
    assert len(starts) == JOBS
    # A millisecond is what the clock of the buckets is cut to.
    assert all(number <= 20 + 200 * (at + 0.001) for number, at in enumerate(starts, 1))
    assert recording.writes <= 1.1 * JOBS


# Turns.


async def test_first_come_first_served(store: Store) -> None:
    """Everybody begins at its turn, in the order of asking, whichever process it is in."""
    room = Room(store)
    clients = [await room.client(), await room.client()]
    waiters = [await room.join(clients[number % 2]) for number in range(6)]
    assert await store.left("key") == -4
    for second in range(5):
        await room.until(second + 0.999)
        assert sum(waiter.task.done() for waiter in waiters) == 2 + second
    await room.until(5)
    assert [waiter.waited_ms for waiter in waiters] == [0, 0, 1000, 2000, 3000, 4000]


async def test_turns_are_exact(store: Store) -> None:
    """A turn comes when all that was booked before has accrued, to the millisecond."""
    room = Room(store)
    client = await room.client()
    limit = rpm(10, 3, 1)
    await client.take("key", {"rpm": 10}, limit)
    first, second = [await room.join(client, amount, limits=[limit]) for amount in (4, 1)]
    for at in (1.333, 1.334, 1.666, 1.667):
        await room.until(at)
    assert (first.began_seconds, second.began_seconds) == (1.334, 1.667)


async def test_nobody_gets_in_between(store: Store) -> None:
    """Who does not wait, or not for long enough, is refused while somebody waits, and told its own turn."""
    room = Room(store)
    client, other = await room.client(), await room.client()
    waiters = [await room.join(client) for _ in range(4)]
    await room.until(0.5)
    refusal = await other.refused("key", {"rpm": 1}, LIMIT)
    assert refusal.retry_after_seconds == 2.5
    for at in (1, 2, 3):
        await room.until(at)
    await other.take("key", {"rpm": 1}, LIMIT)
    assert [waiter.began_seconds for waiter in waiters] == [0, 0, 1, 2]


@pytest.mark.parametrize("seconds", [0, 0.25, 2.999])
async def test_wait_that_does_not_fit(store: Store, seconds: float) -> None:
    """It is refused at once, with the exact time, and leaves nothing behind: not a byte."""
    room = Room(store)
    client = await room.client()
    for _ in range(4):
        await room.join(client)
    before = await stored(store)
    with pytest.raises(RateLimitExceeded) as caught:
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT], wait=seconds):
            raise AssertionError("it began")
    assert caught.value.retry_after_seconds == 3
    assert await stored(store) == before
    waiter = await room.join(client, wait=3)
    for at in (1, 2, 2.999, 3):
        await room.until(at)
    assert waiter.began_seconds == 3


async def test_wait_that_can_never_fit(store: Store) -> None:
    """More than the capacity is never there, so nobody waits for it."""
    client = await Room(store).client()
    await client.take("key", {"rpm": 1}, LIMIT)
    before = await stored(store)
    with pytest.raises(RateLimitExceeded) as caught:
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 3}, [LIMIT], wait=math.inf):
            raise AssertionError("it began")
    assert caught.value.retry_after_seconds == math.inf
    assert await stored(store) == before


async def test_several_limits(store: Store) -> None:
    """A turn is when all limits of the bucket are there."""
    room = Room(store)
    client = await room.client()
    limits = [rpm(1, 1, 1), Limit("tpm", 100, 10, 1)]
    await client.take("key", {"rpm": 1, "tpm": 100}, *limits)
    waiter = await room.join(client, limits=limits, consume={"rpm": 1, "tpm": 40})
    for at in (1, 3.999, 4):
        await room.until(at)
    assert waiter.began_seconds == 4


# Families.


async def test_parent_is_left_alone(store: Store) -> None:
    """Who waits for its own limit takes from its parent only when its turn has come."""
    room = Room(store)
    client = await room.client()
    await client.limiter.create_entity("team")
    await client.limiter.create_entity("key", parent_id="team", cascade=True)
    await client.limiter.set_limits("team", [rpm(100)], RESOURCE)
    await client.limiter.set_limits("key", [LIMIT], RESOURCE)
    await client.take("key", {"rpm": 2})
    assert await store.used("team") == 2
    before = await stored(store, "team")
    waiter = await room.join(client, limits=None)
    await room.until(0.999)
    assert (await stored(store, "team"), await store.used("key")) == (before, 3)
    await room.until(1)
    await waiter.task
    assert (waiter.began_seconds, await store.used("team")) == (1, 3)


async def test_waiting_for_a_parent(store: Store) -> None:
    """Who waits for its parent takes nothing from its own bucket meanwhile, and begins at that turn."""
    room = Room(store)
    client = await room.client()
    await client.limiter.create_entity("team")
    await client.limiter.create_entity("key", parent_id="team", cascade=True)
    await client.limiter.set_limits("team", [LIMIT], RESOURCE)
    await client.limiter.set_limits("key", [rpm(100)], RESOURCE)
    await client.take("team", {"rpm": 2})
    waiter = await room.join(client, limits=None)
    assert (await store.used("key"), await store.used("team")) == (0, 3)
    await room.until(1)
    await waiter.task
    assert (waiter.waited_ms, await store.used("key"), await store.used("team")) == (1000, 1, 3)


# Waits that end in another way.


async def test_cancelled_place_goes_to_the_next(store: Store) -> None:
    """Whoever asks after the last one was cancelled begins when that one would have."""
    room = Room(store)
    client = await room.client()
    for _ in range(3):
        await room.join(client)
    before, used = await stored(store), await store.used("key")
    cancelled = await room.join(client)
    await cancelled.cancel()
    assert cancelled.task.cancelled()
    now = await stored(store)
    assert before is not None
    assert now is not None
    assert (now["b_rpm_tk"], now["b_rpm_tc"], await store.used("key")) == (
        before["b_rpm_tk"],
        used * 1000,
        used,
    )
    following = await room.join(client)
    for at in (1, 1.999, 2):
        await room.until(at)
    assert following.began_seconds == 2
    assert client.limiter.refunds_lost == 0


async def test_cancelled_in_the_middle(store: Store) -> None:
    """Who had booked behind it keeps its turn; who asks next has what was set aside, and overtakes nobody."""
    room, limit = Room(store), rpm(10, 1, 1)
    client = await room.client()
    await client.take("key", {"rpm": 10}, limit)
    first, middle, last = [await room.join(client, limits=[limit]) for _ in range(3)]
    await middle.cancel()
    following = await room.join(client, limits=[limit])
    for at in (1, 2, 2.999, 3, 3.001):
        await room.until(at)
    assert [waiter.began_seconds for waiter in (first, last)] == [1, 3]
    assert following.began_seconds in (
        3,
        3.001,
    )  # a turn is seen in the tokens, so it costs a thousandth at least
    assert await store.used("key") == 13


async def test_all_are_cancelled(store: Store) -> None:
    """A process that ends cancels all who wait in it at once, and in the end nothing is missing.

    The first may give their places back before the others, who had booked later, do: these are set aside
    until all would have had their turns.
    """
    room, limit = Room(store), rpm(10, 1, 1)
    client = await room.client()
    await client.take("key", {"rpm": 10}, limit)
    waiters = [await room.join(client, limits=[limit]) for _ in range(5)]
    await asyncio.gather(*(waiter.cancel() for waiter in waiters))
    assert await store.used("key") == 10
    await room.until(5.5)
    assert await store.left("key") == 5
    assert client.limiter.refunds_lost == 0


async def test_cancelled_with_a_limit_that_flows_over(store: Store) -> None:
    """Who waited for a slow limit and needs a fast one besides has taken nothing of either if it gives up."""
    room = Room(store)
    client, limits = await room.client(), [rpm(100, 5, 1), Limit("slow", 1, 1, 60)]
    await client.take("key", {"rpm": 90, "slow": 1}, *limits)
    both = {"limits": limits, "consume": {"rpm": 1, "slow": 1}}
    waiters = [await room.join(client, **both) for _ in range(4)]
    assert (await client.limiter.available("key", RESOURCE, limits))["slow"] == -4
    for waiter in (waiters[1], waiters[0], waiters[3], waiters[2]):
        await waiter.cancel()
    assert await client.limiter.available("key", RESOURCE, limits) == {"rpm": 10, "slow": 0}


async def test_limits_that_changed(store: Store) -> None:
    """Who waits for a bucket that still has other numbers gives it the new ones, and books: three writes."""
    room, made = Room(store), list[RecordingBackend]()
    world = dataclasses.replace(store.clock.world, nap=room._nap)

    def recorded(backend: Backend) -> Backend:
        made.append(RecordingBackend(on_a_loop(backend) if store.name == "memory" else backend))
        return made[-1]

    client = await store.client(world=world, wrap=recorded)
    await client.take("key", {"rpm": 2}, LIMIT)
    made[0].calls.clear()
    waiter = await room.join(client, limits=[rpm(3, 1, 1)], amount=2)
    await waiter.cancel()
    assert [verb for verb, _ in made[0].calls].count("write_each") <= 4


async def test_time_counts_from_the_call(store: Store) -> None:
    """What a slow store needs before anybody can book is part of the wait."""
    room, late = Room(store), 0.4

    class Slow(Wrapper):
        async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
            nonlocal late
            store.clock.advance(seconds=late)
            late = 0
            return await super().batch_get(keys)

    client = await store.client(world=store.clock.world, wrap=Slow)
    late = 0.4
    await (await room.client()).take("key", {"rpm": 2}, LIMIT)
    with pytest.raises(RateLimitExceeded) as refused:
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT], wait=0.8):
            pass
    assert refused.value.retry_after_seconds == 0.6


async def test_timeout(store: Store) -> None:
    """Giving up by a timeout of one's own is a cancellation."""
    client = await Room(store).client()
    await client.take("key", {"rpm": 2}, LIMIT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT], wait=math.inf):
                raise AssertionError("it began")
    assert (await store.used("key"), await store.left("key")) == (2, 0)


async def test_thrown_away(store: Store) -> None:
    """A coroutine that is dropped while it waits gives its place back as soon as the loop gets to it."""
    client = await Room(store).client()
    await client.take("key", {"rpm": 2}, LIMIT)
    work = take_once(client.limiter)
    while await store.used("key") == 2:
        work.send(None)
        await asyncio.sleep(0)
    work.close()
    await rest()
    assert (await store.used("key"), await store.left("key")) == (2, 0)


async def take_once(limiter: RateLimiter) -> None:
    async with limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT], wait=math.inf):
        raise AssertionError("it began")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_keyboard_interrupt(kind: str, tmp_path: Any) -> None:
    """Whoever is tired of waiting in a terminal has booked nothing, and the next one has its place."""
    clock = ManualClock()

    def press(seconds: float) -> None:
        raise KeyboardInterrupt(seconds)

    open_backend = STORES[kind](tmp_path, clock.world)
    impatient = dataclasses.replace(clock.world, nap=press)
    with SyncRateLimiter(SyncRepository.over(open_backend(sync=True), world=impatient)) as limiter:
        with limiter.acquire("key", RESOURCE, {"rpm": 2}, [LIMIT]):
            pass
        with pytest.raises(KeyboardInterrupt), limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT], wait=60):
            raise AssertionError("it began")
        assert limiter.available("key", RESOURCE, [LIMIT]) == {"rpm": 0}
        assert limiter.refunds_lost == 0
    began_ms = clock.now_ms
    with (
        SyncRateLimiter(SyncRepository.over(open_backend(sync=True), world=clock.world)) as limiter,
        limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT], wait=60) as lease,
    ):
        assert (lease.waited_ms, clock.now_ms - began_ms) == (1000, 1000)


async def test_failed_work_gives_back_to_who_asks_next(store: Store) -> None:
    """What comes back while others wait moves nobody before them: it is for those who ask from then on."""
    room = Room(store)
    client = await room.client()
    limit = rpm(10, 1, 1)
    with pytest.raises(LookupError):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 10}, [limit]):
            first = await room.join(client, 2, limits=[limit])
            raise LookupError
    following = await room.join(client, 5, limits=[limit])
    for at in (1.999, 2, 2.001):
        await room.until(at)
    assert first.began_seconds == 2
    assert following.began_seconds in (2, 2.001)


# What others see.


async def test_what_others_see(store: Store) -> None:
    """While somebody waits the bucket is in debt, and a wait is told with all who are in line."""
    room = Room(store)
    client, other = await room.client(), await room.client()
    for _ in range(5):
        await room.join(client)
    limiter = other.limiter
    assert await limiter.available("key", RESOURCE, [LIMIT]) == {"rpm": -3}
    assert await limiter.time_until_available("key", RESOURCE, {"rpm": 1}, [LIMIT]) == 4
    (status,) = (await limiter.check_availability("key", RESOURCE, {"rpm": 2}, [LIMIT])).statuses
    assert (status.exceeded, status.available, status.retry_after_seconds) == (True, -3, 5)
    await room.until(4)
    assert await limiter.available("key", RESOURCE, [LIMIT]) == {"rpm": 1}
    assert await limiter.time_until_available("key", RESOURCE, {"rpm": 1}, [LIMIT]) == 0


async def test_books_when_the_line_is_over(store: Store) -> None:
    """What came back while somebody waited is there for all afterwards, and everybody sees it."""
    room, limit = Room(store), rpm(10, 1, 1)
    client = await room.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 10}, [limit]) as lease:
        await room.join(client, limits=[limit])
        await lease.release(rpm=5)
    assert await store.left("key") == -1
    await room.until(5)
    there = (await client.limiter.available("key", RESOURCE, [limit]))["rpm"]
    assert there > 5
    assert await store.left("key") == there
    (state,) = await client.repository.get_buckets("key")
    assert state.tokens_milli == (await client.repository.get_bucket("key", RESOURCE))[0].tokens_milli
    capacity = await client.repository.get_resource_capacity(RESOURCE, "rpm")
    assert capacity.total_available == there
    await client.take("key", {"rpm": there}, limit)
    assert await store.left("key") == 0


async def test_time_without_a_wait(store: Store) -> None:
    """An acquire that finds what it needs does not wait, whatever it would."""
    client = await Room(store).client()
    for wait in (None, 0, 0.0, 10, math.inf):
        async with client.limiter.acquire(f"key-{wait}", RESOURCE, {"rpm": 1}, [LIMIT], wait=wait) as lease:
            assert lease.waited_ms == 0


# Input.


@pytest.mark.parametrize("wait", [-1, -0.001, math.nan, -math.inf, True, False, "5", [5], 1j])
async def test_bad_wait(store: Store, wait: Any) -> None:
    """What is no number of seconds is said at once, before anything is taken."""
    client = await store.client()
    with pytest.raises(ValidationError, match="wait"):
        client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT], wait=wait)
    assert client.calls == []


async def test_zero_is_refused_at_once(store: Store) -> None:
    client = await Room(store).client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, [LIMIT], wait=0):
        pass
    before = await stored(store)
    with pytest.raises(RateLimitExceeded):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [LIMIT], wait=0):
            raise AssertionError("it began")
    assert await stored(store) == before
