"""Transactions of a process that disturb each other go one after another, and nobody waits for ever."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.patience import PATIENCE_SECONDS
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, Repository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine import take as taking
from zae_limiter.engine.waiting_room import Comer
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
        self.timeout_ms = timeout_ms
        self.transactions = 0
        self.under_way, self.most = Counter[Key](), Counter[Key]()
        self.gate: asyncio.Future[None] | None = None
        """What the next transaction waits for."""

    @property
    def colour(self) -> Colour:
        return self._colour

    @property
    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities("slow", timeout_ms=self.timeout_ms, atomic_batches=True)

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


async def family(store: Slow, clock: ManualClock, limits: Sequence[Limit] = LIMITS) -> RateLimiter:
    """Two children of one parent, whose buckets are there."""
    limiter = RateLimiter(await Repository.over(store, world=clock.world))
    await limiter.set_resource_defaults("api", limits)
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


def test_who_disturbs_nobody_does_not_wait() -> None:
    """What is taken from a bucket that is not full fits together, so all of it is under way at once."""

    async def story() -> None:
        clock = ManualClock()
        store = Slow(clock)
        limiter = await family(store, clock, [Limit.per_hour("rpm", 1_000)])
        await asyncio.gather(*(take(limiter, child) for child in ("ann", "bob") * 20))
        assert store.transactions == 40
        assert store.most[team(limiter)] == 40
        assert [await consumed(limiter, one) for one in ("team", "ann", "bob")] == [42, 21, 21]

    asyncio.run(story())


def test_who_has_lost_its_races_is_sent_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all would be shaped for what the first has changed, and all but one sent again, and again."""
    monkeypatch.setattr(taking, "RACES_MAX", 2)

    async def story() -> None:
        clock = ManualClock()
        store = Slow(clock)
        limiter = await family(store, clock)
        await asyncio.gather(*(take(limiter, child) for child in ("ann", "bob") * 20))
        assert store.transactions <= 3 * 40
        assert [await consumed(limiter, one) for one in ("team", "ann", "bob")] == [42, 21, 21]
        assert not limiter.repository._connection.writer._transactions.by_key

    asyncio.run(story())


def test_who_leaves_the_line_takes_nothing_and_holds_nobody_up() -> None:
    async def story() -> None:
        clock = ManualClock()
        store = Slow(clock)
        limiter = await family(store, clock)
        first = comer(limiter)
        tasks = [asyncio.create_task(take(limiter, "ann")) for _ in range(3)]
        await turns()
        assert store.transactions == 0
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        first.leave()
        await asyncio.gather(*tasks[1:])
        assert store.transactions == 2
        assert await consumed(limiter, "team") == 4

    asyncio.run(story())


def test_who_does_not_move_for_as_long_as_a_call_takes_is_passed_by() -> None:
    """And holds up nobody who comes then; somebody who comes back late is not in the way either."""

    async def story() -> None:
        clock = ManualClock()
        store = Slow(clock, timeout_ms=20)
        limiter = await family(store, clock)
        stuck = comer(limiter)
        await take(limiter, "bob")
        store.timeout_ms = 3_600_000
        await take(limiter, "ann")
        assert store.transactions == 2
        stuck.leave()
        assert await consumed(limiter, "team") == 4
        assert not limiter.repository._connection.writer._transactions.by_key

    asyncio.run(story())


def test_who_is_woken_again_and_again_has_waited_all_the_same() -> None:
    """Each who comes and goes at another of its buckets wakes it; what counts is how long it has waited."""

    async def story() -> None:
        clock = ManualClock()
        store = Slow(clock, timeout_ms=60_000)
        limiter = await family(store, clock)
        first = comer(limiter)
        waiting = asyncio.create_task(take(limiter, "bob"))
        for _ in range(6):
            await turns()
            assert store.transactions == 0
            (me,) = [it for it in standing(limiter) if it is not first]
            clock.advance(10.0)
            me.signal.give()
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        assert store.transactions == 1
        first.leave()

    asyncio.run(story())


def test_nobody_is_refused_by_what_was_there_before_its_turn() -> None:
    """Who was overtaken after half a second in line is judged by the bucket of its turn, which was full."""

    async def story() -> None:
        clock = ManualClock()
        store = Rivalled(clock)
        limiter = await family(store, clock, [Limit("rpm", 1_000, 1_000, 1)])
        clock.advance(5.0)
        store.rival = RateLimiter(await Repository.over(store, world=clock.world))
        first = comer(limiter)
        asked = asyncio.create_task(acquired(limiter, 600))
        for _ in range(4):
            await turns()
            clock.advance(0.5)
            first, before = comer(limiter), first
            before.leave()
        store.rival = None
        first.leave()
        await asked

    asyncio.run(story())


class Rivalled(Slow):
    """Somebody else is faster with each transaction."""

    rival: RateLimiter | None = None

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        rival, self.rival = self.rival, None
        if rival is not None:
            self._clock.advance(0.002)
            await take(rival, "ann")
            self.rival = rival
        return await super().transact_write(writes)


async def acquired(limiter: RateLimiter, amount: int) -> None:
    async with limiter.acquire("bob", "api", {"rpm": amount}):
        pass


def test_who_is_interrupted_while_it_is_told_that_it_failed_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may raise wherever something is called; those behind must not wait for such a one."""

    async def story() -> None:
        clock = ManualClock()
        store = Slow(clock)
        limiter = await family(store, clock)
        writer, first = limiter.repository._connection.writer, comer(limiter)
        waiting = asyncio.create_task(take(limiter, "bob"))
        await turns()
        (me,) = [it for it in standing(limiter) if it is not first]
        store.gate = asyncio.get_running_loop().create_future()
        store.gate.set_exception(RateLimiterUnavailable("no reply", ambiguous=True))

        def interrupted(*_: object) -> None:
            raise KeyError("a handler")

        monkeypatch.setattr(writer, "count_unsure", interrupted)
        first.leave()
        with pytest.raises(KeyError):
            await waiting
        assert me.is_gone

    asyncio.run(story())


def test_nobody_waits_for_a_loop_that_has_ended() -> None:
    clock = ManualClock()
    store = Slow(clock, timeout_ms=3_600_000)
    loop = asyncio.new_event_loop()
    limiter = loop.run_until_complete(family(store, clock))

    async def stand() -> None:
        comer(limiter)

    loop.run_until_complete(stand())
    loop.close()

    async def story() -> None:
        await asyncio.gather(take(limiter, "ann"), take(limiter, "bob"))
        assert await consumed(limiter, "team") == 4

    asyncio.run(story())


def team(limiter: RateLimiter) -> Key:
    """The bucket that all children are charged to."""
    return next(key for key in limiter.repository._connection.writer.images if "team" in key.partition)


def standing(limiter: RateLimiter) -> Sequence[Comer]:
    return limiter.repository._connection.writer._transactions.by_key[team(limiter)]


def comer(limiter: RateLimiter) -> Comer:
    """Somebody who stands in line at that bucket."""
    writer = limiter.repository._connection.writer
    somebody = Comer(writer._transactions, [team(limiter)], writer.colour)
    somebody.join()
    return somebody


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)
