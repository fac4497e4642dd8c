"""Transactions of a process on one bucket go one after another, and nobody waits for ever."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, Repository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.models import BackendCapabilities
from zae_limiter.repository_protocol import Key, Outcome, Write
from zae_limiter.runtime.colour import Colour
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Wrapper

LIMITS = [Limit("rpm", 1_000, 1_000, 1)]
"""Full again by the next millisecond, so that every write moves the origin of a bucket."""


class Slow(Wrapper):
    """A store with transactions, whose time passes while one is on its way."""

    def __init__(self, clock: ManualClock, timeout_ms: int = 60_000) -> None:
        super().__init__(MemoryBackend(clock.world))
        self._clock, self._colour = clock, Asyncio()
        self._capabilities = BackendCapabilities("slow", timeout_ms=timeout_ms, atomic_batches=True)
        self.transactions = 0
        self.under_way, self.most = Counter[Key](), Counter[Key]()
        self.gate: asyncio.Future[None] | None = None
        """What the next transaction waits for."""

    @property
    def colour(self) -> Colour:
        return self._colour

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        self.transactions += 1
        keys = [write.key for write in writes]
        self.under_way.update(keys)
        self.most |= self.under_way
        gate, self.gate = self.gate, None
        try:
            await (gate or asyncio.sleep(0))
            self._clock.advance(0.001)
            return await super().transact_write(writes)
        finally:
            self.under_way.subtract(keys)


async def family(store: Slow, clock: ManualClock) -> RateLimiter:
    """Two children of one parent, whose buckets are there."""
    limiter = RateLimiter(await Repository.over(store, world=clock.world))
    await limiter.set_resource_defaults("api", LIMITS)
    await limiter.create_entity("team")
    for child in ("ann", "bob"):
        await limiter.create_entity(child, parent_id="team", cascade=True)
        await take(limiter, child)
    store.transactions = 0
    return limiter


async def take(limiter: RateLimiter, child: str) -> None:
    async with limiter.acquire(child, "api", {"rpm": 1}):
        pass


async def consumed(limiter: RateLimiter, entity_id: str) -> int:
    (state,) = await limiter.repository.get_bucket(entity_id, "api")
    return (state.total_consumed_milli or 0) // 1000


def test_whoever_comes_together_is_sent_once() -> None:
    """Else all would be shaped for what the first has changed, and all but one sent again, and again."""

    async def story() -> None:
        clock = ManualClock()
        store = Slow(clock)
        limiter = await family(store, clock)
        await asyncio.gather(*(take(limiter, child) for child in ("ann", "bob") * 20))
        assert store.transactions == 40
        assert set(store.most.values()) == {1}
        assert [await consumed(limiter, one) for one in ("team", "ann", "bob")] == [42, 21, 21]

    asyncio.run(story())


def test_who_leaves_the_line_takes_nothing_and_holds_nobody_up() -> None:
    async def story() -> None:
        clock = ManualClock()
        store = Slow(clock)
        limiter = await family(store, clock)
        gate = store.gate = asyncio.get_running_loop().create_future()
        tasks = [asyncio.create_task(take(limiter, "ann")) for _ in range(4)]
        await turns()
        assert store.transactions == 1
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        gate.set_result(None)
        await asyncio.gather(tasks[0], *tasks[2:])
        assert store.transactions == 3
        assert await consumed(limiter, "team") == 5

    asyncio.run(story())


def test_who_waits_too_long_is_told_and_takes_nothing() -> None:
    async def story() -> None:
        clock = ManualClock()
        store = Slow(clock, timeout_ms=20)
        limiter = await family(store, clock)
        gate = store.gate = asyncio.get_running_loop().create_future()
        first = asyncio.create_task(take(limiter, "ann"))
        await turns()
        with pytest.raises(RateLimiterUnavailable, match="waited 40 ms in line"):
            await take(limiter, "bob")
        gate.set_result(None)
        await first
        assert await consumed(limiter, "team") == 3

    asyncio.run(story())


def test_nobody_waits_for_a_loop_that_has_ended() -> None:
    clock = ManualClock()
    store = Slow(clock, timeout_ms=200)
    loop = asyncio.new_event_loop()
    limiter = loop.run_until_complete(family(store, clock))
    store.gate = loop.create_future()
    left = [loop.create_task(take(limiter, "ann")) for _ in range(2)]
    loop.run_until_complete(turns())
    loop.close()
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def story() -> None:
        await asyncio.gather(take(limiter, "ann"), take(limiter, "bob"))
        assert await consumed(limiter, "team") == 4

    asyncio.run(story())


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)
