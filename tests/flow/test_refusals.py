"""A refusal answers for a moment, never an admission."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.flow.hot import RESOURCE, SLOW, all_bucket_writes
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine import seen_buckets
from zae_limiter.testing import ManualClock, RecordingBackend


@asynccontextmanager
async def refused_once() -> AsyncIterator[tuple[RateLimiter, RecordingBackend, ManualClock]]:
    """A limiter that has 10 tokens left and was just refused 20."""
    clock = ManualClock()
    record = RecordingBackend(MemoryBackend(clock.world))
    limiter = RateLimiter(await Repository.over(record, world=clock.world))
    await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
    assert await attempt(limiter, 90)
    assert not await attempt(limiter, 20)
    record.forget()
    yield limiter, record, clock


async def attempt(limiter: RateLimiter, amount: int) -> bool:
    try:
        async with limiter.acquire("key", RESOURCE, {"rpm": amount}):
            return True
    except RateLimitExceeded:
        return False


def test_a_refused_caller_in_a_tight_loop_costs_one_write_a_second() -> None:
    """Ten seconds of asking every millisecond: at most one write for each second."""

    async def run() -> None:
        async with refused_once() as (limiter, record, clock):
            for _ in range(10_000):
                clock.advance(0.001)
                assert not await attempt(limiter, 20)
            assert all_bucket_writes(record) <= 10

    asyncio.run(run())


def test_the_remembered_refusal_has_the_exact_wait() -> None:
    """What it says of the wait shrinks with the time that has passed."""

    async def run() -> None:
        async with refused_once() as (limiter, record, clock):
            waits = []
            for _ in range(2):
                clock.advance(0.4)
                with pytest.raises(RateLimitExceeded) as refused:
                    async with limiter.acquire("key", RESOURCE, {"rpm": 20}):
                        pass
                waits.append(round(refused.value.retry_after_seconds * 1000))
            assert waits[0] - waits[1] == 400
            assert all_bucket_writes(record) == 0

    asyncio.run(run())


def test_a_smaller_demand_still_goes_to_the_store_and_passes() -> None:
    """A refusal of 20 says nothing against 10."""

    async def run() -> None:
        async with refused_once() as (limiter, record, _):
            assert await attempt(limiter, 10)
            assert all_bucket_writes(record) == 1

    asyncio.run(run())


def test_a_refund_of_this_process_ends_it() -> None:
    """Tokens that came back can be had at once."""

    async def run() -> None:
        async with refused_once() as (limiter, _, _):
            async with limiter.acquire("key", RESOURCE, {"rpm": 10}) as lease:
                assert not await attempt(limiter, 5)
                await lease.release(rpm=10)
            assert await attempt(limiter, 5)

    asyncio.run(run())


def test_a_change_of_limits_by_this_process_ends_it() -> None:
    """Limits that were raised can be used at once."""

    async def run() -> None:
        async with refused_once() as (limiter, _, _):
            await limiter.repository.set_resource_defaults(RESOURCE, [Limit.custom("rpm", 200, 1, 86_400)])
            assert await attempt(limiter, 20)

    asyncio.run(run())


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals of many keys do not pile up."""
    monkeypatch.setattr(seen_buckets, "REFUSALS_MAX", 10)

    async def run() -> None:
        async with refused_once() as (limiter, _, _):
            for number in range(50):
                with pytest.raises(RateLimitExceeded):
                    async with limiter.acquire(f"key-{number}", RESOURCE, {"rpm": 101}):
                        pass
            assert len(limiter.repository.writer.refusals) == 10

    asyncio.run(run())


def test_after_a_second_the_store_is_asked_again() -> None:
    """Another process may have given tokens back."""

    async def run() -> None:
        async with refused_once() as (limiter, record, clock):
            clock.advance(1.001)
            assert not await attempt(limiter, 20)
            assert all_bucket_writes(record) == 1

    asyncio.run(run())
