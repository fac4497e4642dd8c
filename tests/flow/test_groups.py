"""Orders that arrive while a write to their bucket is in flight travel together."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.flow.hot import (
    RESOURCE,
    SERVERS,
    SLOW,
    all_bucket_writes,
    bucket_writes,
    held_up,
    on_server,
    opened_on,
    settled,
    turns,
)
from tests.odd_stores import HeldUp
from zae_limiter import (
    Limit,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine import group_commit, line, take
from zae_limiter.repository_protocol import Outcome, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock, RecordingBackend

on_every_server = pytest.mark.parametrize("kind", SERVERS)
PLENTY = [Limit.custom("rpm", 1_000_000, 1, 86_400)]


async def attempt(limiter: RateLimiter, amount: int = 1, entity_id: str = "key") -> bool:
    try:
        async with limiter.acquire(entity_id, RESOURCE, {"rpm": amount}):
            return True
    except RateLimitExceeded:
        return False


@on_every_server
def test_a_thousand_tasks_on_one_key_take_a_few_writes_in_their_order(kind: str) -> None:
    """1,000 concurrent acquires cost at most 30 writes; the 100 that fit are the first 100."""

    async def run() -> None:
        async with on_server(kind) as (limiter, record):
            answers = await asyncio.gather(*(attempt(limiter) for _ in range(1_000)))
            assert answers == [True] * 100 + [False] * 900
            assert all_bucket_writes(record) <= 30

    asyncio.run(run())


@on_every_server
def test_fifty_threads_on_one_key_share_writes_and_admit_what_fits(kind: str) -> None:
    """The same over the sync API: 1,000 acquires by 50 threads take a tenth as many writes at most."""

    async def run() -> None:
        async with opened_on(kind, sync=True) as backend:
            record = RecordingBackend(backend)
            repository = SyncRepository.over(record)
            repository.set_resource_defaults(RESOURCE, SLOW)
            limiter = SyncRateLimiter(repository)
            record.forget()

            def attempt_sync(_: int) -> bool:
                try:
                    with limiter.acquire("key", RESOURCE, {"rpm": 1}):
                        return True
                except RateLimitExceeded:
                    return False

            with ThreadPoolExecutor(50) as threads:
                answers = list(threads.map(attempt_sync, range(1_000)))
            assert sum(answers) == 100
            assert all_bucket_writes(record) <= 100

    run_sync(run())


@on_every_server
def test_children_of_one_parent_share_the_writes_to_it(kind: str) -> None:
    """1,000 acquires over 100 children: the parent's bucket sees at most 30 writes, and 1,000 tokens go.

    Where child and parent are charged in one transaction nothing is shared; who has lost its races lines up.
    """
    most = 30 if kind == "dynamodb" else (take.RACES_MAX + 1) * 1_000

    async def run() -> None:
        async with on_server(kind, PLENTY) as (limiter, record):
            repository = limiter.repository
            await repository.create_entity("parent")
            for child in range(100):
                await repository.create_entity(f"child-{child}", parent_id="parent", cascade=True)
            record.forget()
            attempts = (attempt(limiter, entity_id=f"child-{i % 100}") for i in range(1_000))
            assert all(await asyncio.gather(*attempts))
            assert bucket_writes(record, repository.namespace_id, "parent") <= most
            assert await limiter.available("parent", RESOURCE) == {"rpm": 1_000_000 - 1_000}

    asyncio.run(run())


@on_every_server
def test_a_thousand_leases_with_adjustments_take_few_writes(kind: str) -> None:
    """acquire + adjust of 1,000 concurrent leases: at most 60 writes in all, and the sum is exact."""

    async def lease(limiter: RateLimiter, change: int) -> None:
        async with limiter.acquire("key", RESOURCE, {"rpm": 5}) as held:
            await asyncio.sleep(0)
            await held.adjust(rpm=change)

    async def run() -> None:
        async with on_server(kind, PLENTY) as (limiter, record):
            changes = [(i % 7) - 3 for i in range(1_000)]
            await asyncio.gather(*(lease(limiter, change) for change in changes))
            assert all_bucket_writes(record) <= 60
            assert await limiter.available("key", RESOURCE) == {"rpm": 1_000_000 - 5_000 - sum(changes)}

    asyncio.run(run())


def test_a_group_is_decided_in_the_order_of_arrival() -> None:
    """Each demand of a group is measured against what those before it left; a smaller one may still pass."""

    async def run() -> None:
        async with held_up() as (limiter, store, record):
            await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
            assert await attempt(limiter, 1)
            record.forget()
            store.hold()
            first = asyncio.create_task(attempt(limiter, 1))
            await settled(store, 1)
            amounts = [60, 50, 30, 20, 8]
            others = [asyncio.create_task(attempt(limiter, amount)) for amount in amounts]
            await turns()
            store.gate.set()
            assert await first
            assert await asyncio.gather(*others) == [True, False, True, False, True]
            assert record.writes == 2

    asyncio.run(run())


@on_every_server
def test_who_comes_again_at_once_shares_the_next_write(kind: str) -> None:
    """Ten tasks of ten acquires each: the first write is for the first task, then each is for all ten."""

    async def run() -> None:
        async with on_server(kind) as (limiter, record):

            async def work() -> None:
                for _ in range(10):
                    assert await attempt(limiter)

            async with limiter.acquire("key", RESOURCE, {"rpm": 1}) as lease:
                await lease.release(rpm=1)
            record.forget()
            await asyncio.gather(*(work() for _ in range(10)))
            assert all_bucket_writes(record) == 11

    asyncio.run(run())


def test_a_lone_caller_pays_nothing() -> None:
    """With nothing in flight an acquire is one write, sent at once."""

    async def run() -> None:
        async with held_up() as (limiter, _, record):
            await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
            await attempt(limiter)
            record.forget()
            for _ in range(5):
                await attempt(limiter)
            assert (record.round_trips, record.writes) == (5, 5)

    asyncio.run(run())


def test_a_cancelled_waiter_is_taken_out_of_line() -> None:
    """It ends at once, without waiting for the write in flight, and nothing is taken for it."""

    async def run() -> None:
        async with held_up() as (limiter, store, record):
            await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
            await attempt(limiter)
            record.forget()
            store.hold()
            leader = asyncio.create_task(attempt(limiter, 10))
            await settled(store, 1)
            waiters = [asyncio.create_task(attempt(limiter, 20)) for _ in range(3)]
            await turns()
            waiters[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiters[1]
            assert not leader.done()
            store.gate.set()
            assert await asyncio.gather(leader, waiters[0], waiters[2]) == [True] * 3
            assert record.writes == 2
            assert await limiter.available("key", RESOURCE) == {"rpm": 100 - 1 - 10 - 40}

    asyncio.run(run())


def test_a_waiter_cancelled_while_its_group_is_in_flight_is_refunded() -> None:
    """Its tokens are back when the cancellation has been obeyed."""

    async def run() -> None:
        async with held_up() as (limiter, store, _):
            await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
            await attempt(limiter)
            store.hold()
            leader = asyncio.create_task(attempt(limiter, 10))
            await settled(store, 1)
            waiters = [asyncio.create_task(attempt(limiter, 20)) for _ in range(2)]
            await turns()
            store.let_pass()
            await settled(store, 1)
            waiters[1].cancel()
            await turns()
            assert not waiters[1].done()
            store.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await waiters[1]
            assert await asyncio.gather(leader, waiters[0]) == [True, True]
            assert await limiter.available("key", RESOURCE) == {"rpm": 100 - 1 - 10 - 20}

    asyncio.run(run())


def test_a_waiter_does_not_wait_for_a_write_that_never_returns() -> None:
    """Somebody behind one that is overdue writes by itself, and nothing is applied twice."""

    async def run() -> None:
        async with held_up(timeout_ms=5) as (limiter, store, _):
            await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
            await attempt(limiter)
            store.hold()
            leader = asyncio.create_task(attempt(limiter, 10))
            await settled(store, 1)
            waiter = asyncio.create_task(attempt(limiter, 20))
            await settled(store, 2)
            store.gate.set()
            assert await asyncio.gather(leader, waiter) == [True, True]
            assert await limiter.available("key", RESOURCE) == {"rpm": 100 - 1 - 10 - 20}

    asyncio.run(run())


def test_a_group_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than so many orders travel in one write."""
    monkeypatch.setattr(line, "GROUP_MAX", 10)

    async def run() -> None:
        async with held_up() as (limiter, store, record):
            await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
            await attempt(limiter)
            record.forget()
            store.hold()
            tasks = [asyncio.create_task(attempt(limiter)) for _ in range(41)]
            await settled(store, 1)
            await turns()
            store.gate.set()
            assert all(await asyncio.gather(*tasks))
            assert record.writes == 5

    asyncio.run(run())


def test_refunds_and_adjustments_travel_with_demands() -> None:
    """What leases give back and settle while a write is in flight goes out with the next group."""

    async def lease(limiter: RateLimiter, leave: asyncio.Event, *, fail: bool) -> None:
        async with limiter.acquire("key", RESOURCE, {"rpm": 10}) as held:
            await leave.wait()
            if fail:
                raise ZeroDivisionError
            await held.adjust(rpm=5)

    async def run() -> None:
        async with held_up() as (limiter, store, record):
            await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
            leave = asyncio.Event()
            leases = [asyncio.create_task(lease(limiter, leave, fail=i == 0)) for i in range(3)]
            await turns()
            record.forget()
            store.hold()
            leader = asyncio.create_task(attempt(limiter, 1))
            await settled(store, 1)
            leave.set()
            demand = asyncio.create_task(attempt(limiter, 20))
            await turns()
            store.gate.set()
            results = await asyncio.gather(*leases, leader, demand, return_exceptions=True)
            assert isinstance(results[0], ZeroDivisionError)
            assert results[1:] == [None, None, True, True]
            assert record.writes == 2
            assert await limiter.available("key", RESOURCE) == {"rpm": 100 - 2 * 15 - 1 - 20}

    asyncio.run(run())


def test_a_bucket_that_never_holds_still_ends_in_an_error_and_frees_the_line() -> None:
    """Attempts are bounded, all in line are told, and the next one is served as ever."""

    class Restless(HeldUp):
        restless = False

        async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
            if not self.restless:
                return await super().write_each(writes)
            self.at_gate += 1
            images = await self.batch_get([write.key for write in writes])
            return [Outcome(False, image, held=False) for image in images]

    async def run() -> None:
        clock = ManualClock()
        store = Restless(MemoryBackend(clock.world))
        limiter = RateLimiter(await Repository.over(store, world=clock.world))
        await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
        assert await attempt(limiter)
        store.restless, store.at_gate = True, 0
        answers = await asyncio.gather(*(attempt(limiter) for _ in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [take.Contended] * 3
        # Each tries once alone before it stands in line.
        assert store.at_gate <= 3 * (1 + take.ATTEMPTS_MAX * (1 + group_commit.WRITE_ATTEMPTS_MAX))
        store.restless = False
        assert await attempt(limiter)
        assert await limiter.available("key", RESOURCE) == {"rpm": 98}

    asyncio.run(run())


def test_a_cancellation_is_obeyed_although_the_bucket_changed_under_the_write() -> None:
    """Somebody else was faster: there is nothing to give back, and no reason to go on."""

    class Contended(HeldUp):
        contended = False

        async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
            if not self.contended:
                return await super().write_each(writes)
            self.at_gate += 1
            await self.gate.wait()
            self.contended = False
            images = await self.batch_get([write.key for write in writes])
            return [Outcome(False, image, held=False) for image in images]

    async def run() -> None:
        clock = ManualClock()
        store = Contended(MemoryBackend(clock.world))
        limiter = RateLimiter(await Repository.over(store, world=clock.world))
        await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
        assert await attempt(limiter)
        store.contended = True
        store.hold()
        victim = asyncio.create_task(attempt(limiter))
        await settled(store, 1)
        victim.cancel()
        store.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await victim
        assert await limiter.available("key", RESOURCE) == {"rpm": 99}

    asyncio.run(run())
