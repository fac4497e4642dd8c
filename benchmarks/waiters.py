"""One process of a fleet that waits for a bucket, and what it saw: ``python -m benchmarks.waiters ORDERS``.

The order of bookings is the store's own: each write to the bucket also adds one to a number that is kept on
the item, so the image that a booking returns says which write it was. Of several bookings in one write each
left less of the limit than the one before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from zae_limiter import Limit, RateLimiter, Repository
from zae_limiter.backends import open_backend, store_world
from zae_limiter.engine import take
from zae_limiter.engine.booking import Booked, slot_of
from zae_limiter.engine.demand import BucketDemand, taken_from
from zae_limiter.records.connection import Options
from zae_limiter.repository_protocol import Outcome, Put, Update, Write
from zae_limiter.runtime.world import World
from zae_limiter.schema import booking_attributes, limit_attributes, number, sk_state
from zae_limiter.testing.stores import Wrapper

A = TypeVar("A")
T = TypeVar("T")

ENTITY, RESOURCE, LIMIT = "fleet", "somebody-elses-api", "calls"
NAMES, BOOKING = limit_attributes(LIMIT), booking_attributes(LIMIT)
SERIAL = "serial"
"""Where the bucket keeps how often it was written."""

GO, COUNT, ENOUGH = "go", "count", "enough"
"""What a process is told: to begin, to say how many have begun, and to end."""

PLAIN, HALF_BACK, CANCELLED = "plain", "half back", "a tenth cancelled"
SMALL, SECOND = "half back, small", "a second limit"
CANCELLED_SHARE = 0.1
BEAT_SECONDS = 0.01


class Orders(NamedTuple):
    """What a process is to do."""

    url: str
    variant: str
    waiters: int
    capacity: int
    refill: int
    seed: int

    @property
    def limits(self) -> list[Limit]:
        """What is waited for, and in one variant what is full again by every turn."""
        capacity = self.capacity // (10 if self.variant == SMALL else 1)
        first = Limit(LIMIT, capacity, self.refill, 1)
        return [first, Limit("tokens", capacity, 10 * self.refill, 1)] if self.variant == SECOND else [first]

    @property
    def need(self) -> int:
        return 2 if self.variant in (HALF_BACK, SMALL) else 1

    @property
    def back(self) -> int:
        return self.need - 1

    @property
    def amounts(self) -> dict[str, int]:
        return {limit.name: self.need for limit in self.limits}


class Numbering(Wrapper):
    """A store that numbers the writes to buckets, and counts those that take and those that were refused."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.counts = Counter[str]()
        self.blamed = Counter[str]()
        """The conditions that did not hold."""
        self._consumed = 0

    async def _ask(self, verb: str, ask: Callable[[A], Awaitable[T]], given: Any) -> Any:
        if verb not in ("write_each", "transact_write"):
            return await ask(given)
        outcomes: Any = await ask([numbered(write) for write in given])  # type: ignore[arg-type]
        for write, outcome in zip(given, outcomes, strict=True):
            if write.key.sort == sk_state():
                self._count(write, outcome)
        return outcomes

    def _count(self, write: Write, outcome: Outcome) -> None:
        self.counts["writes"] += 1
        kind = "returns" if isinstance(write, Update) and self._gives_back(write) else "takes"
        self.counts[kind] += 1
        if outcome.item is not None:
            self._consumed = number(outcome.item, NAMES.tc)
        if kind == "returns" and outcome.applied and isinstance(write, Update) and NAMES.tc in write.add:
            self.counts["came back, milli"] -= write.add[NAMES.tc]
            kept = write.add.get(BOOKING.back, 0) + write.add.get(NAMES.tk, 0)
            self.counts["kept of that, milli"] += kept if NAMES.tk not in write.set else -write.add[NAMES.tc]
        if not outcome.applied:
            self.counts[f"{kind} refused"] += 1
            for condition in write.when:
                if not condition.holds(outcome.item):
                    self.blamed[
                        f"{kind}: {type(condition).__name__} {getattr(condition, 'attribute', '')}"
                    ] += 1

    def _gives_back(self, write: Update) -> bool:
        if NAMES.tc in write.set:
            return number(write.set, NAMES.tc) < self._consumed
        return write.add.get(NAMES.tc, 0) < 0


def numbered(write: Write) -> Write:
    """A write to a bucket that adds one to the bucket's number."""
    if write.key.sort != sk_state():
        return write
    if isinstance(write, Put):
        return write._replace(item={**write.item, SERIAL: 1})
    return write._replace(add={**write.add, SERIAL: 1}) if isinstance(write, Update) else write


class Start(NamedTuple):
    """One admitted waiter."""

    serial: int
    """Which write booked it."""
    left: int
    """What it left of the limit, in millitokens. Several of one write are in the order of its fall."""
    free_ms: int
    """When nothing was owed any more of what it and those before it had booked, by the image alone."""
    turn_ms: int
    """Its turn: the same, but not before it asked, by its own clock."""
    start_ms: int
    process: int = 0
    """Which of the processes it is in."""


_booked: ContextVar[list[tuple[int, int, int, int]]] = ContextVar("booked")


class Process:
    """Some waiters that share a limiter."""

    def __init__(self, orders: Orders) -> None:
        self.orders, self.random = orders, random.Random(orders.seed)
        self.starts: list[Start] = []
        self.booked = self.cancelled = self.overslept_ms = 0

    def noted(self, demand: BucketDemand, outcome: Outcome) -> BucketDemand:
        """Note how the waiter was booked in whose task this happens."""
        if isinstance(outcome, Booked) and outcome.item is not None:
            image, turn_ms = outcome.item, outcome.booking.latest_ms
            free_ms = slot_of({LIMIT: 1}, image, number(image, "rf"))
            _booked.get().append((number(image, SERIAL), number(image, NAMES.tk), free_ms, turn_ms))
            self.booked += 1
        return taken_from(demand, outcome)

    async def run(self) -> None:
        """Get ready, wait for a word, work until there is another one, and tell what was seen."""
        take.taken_from = self.noted  # type: ignore[attr-defined]
        orders, world = self.orders, store_world(self.orders.url, World())
        backend = Numbering(open_backend(orders.url, sync=False, world=world, timeout_ms=60_000))
        repository = await Repository.over(backend, options=Options(bucket_ttl_multiplier=0), world=world)
        async with RateLimiter(repository) as limiter:
            await limiter.available(ENTITY, RESOURCE, orders.limits)
            tell("ready")
            await asyncio.to_thread(sys.stdin.readline)
            waiting = [
                asyncio.create_task(self._wait_again_and_again(limiter, world)) for _ in range(orders.waiters)
            ]
            waiting.append(asyncio.create_task(self._watch_timers()))
            while await asyncio.to_thread(sys.stdin.readline) == f"{COUNT}\n":
                tell(len(self.starts))
            counts = {**backend.counts, "booked": self.booked}
            blamed, ended_ms = dict(backend.blamed), world.now_ms()
            starts, cancelled = len(self.starts), self.cancelled
            for task in waiting:
                task.cancel()
            failures = [
                e for e in await asyncio.gather(*waiting, return_exceptions=True) if isinstance(e, Exception)
            ]
            tell(
                {
                    "starts": self.starts[:starts],
                    "cancelled": cancelled,
                    "counts": counts,
                    "blamed": blamed,
                    "ended_ms": ended_ms,
                    "failures": [repr(failure) for failure in failures],
                    "lost": limiter.refunds_lost,
                    "overslept_ms": self.overslept_ms,
                }
            )

    async def _watch_timers(self) -> None:
        """See how late the machine lets this process run."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            self.overslept_ms = max(self.overslept_ms, math.ceil(1000 * (loop.time() - due)))

    async def _wait_again_and_again(self, limiter: RateLimiter, world: World) -> None:
        # They come one by one: those of one process, if they had booked together, would go on to do so.
        await asyncio.sleep(self.random.uniform(0, 1))
        while True:
            with contextlib.suppress(TimeoutError):
                await self._wait_once(limiter, world)

    async def _wait_once(self, limiter: RateLimiter, world: World) -> None:
        orders, booked = self.orders, list[tuple[int, int, int, int]]()
        _booked.set(booked)
        patience = None
        if orders.variant == CANCELLED and self.random.random() < CANCELLED_SHARE:
            patience = self.random.uniform(0, orders.waiters * 8 * orders.need / orders.refill)
        try:
            async with asyncio.timeout(patience) as timer:
                wanted = limiter.acquire(ENTITY, RESOURCE, orders.amounts, orders.limits, wait=math.inf)
                async with wanted as lease:
                    timer.reschedule(None)
                    self.starts.append(Start(*booked[-1], world.now_ms()))
                    if orders.back:
                        await lease.release({LIMIT: orders.back})
        except TimeoutError:
            self.cancelled += 1
            raise


def tell(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(Process(Orders(*json.loads(sys.argv[1]))).run())
