"""What the tenants of ``zae-limiter demo --ui`` do: requests to a gateway that nobody answers.

It is a gateway all the same: each request takes a lease for its estimate, streams for a while and settles
what it really cost. Some come in bursts and are refused, some wait for their turn. A day takes a minute and a
half, so that there is something to see.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence

from ..exceptions import (
    NoLimitsError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SwitchedOff,
    ValidationError,
)
from ..limiter import RateLimiter
from ..runtime.world import World
from .tenants import Habit, amounts_of, busy

DAY_SECONDS = 90
UNDER_WAY_MAX = 400
"""More requests than that are not made: the machine is too slow for them."""


class Traffic:
    """Some tenants at work on one limiter, until they are cancelled."""

    def __init__(self, limiter: RateLimiter, habits: Sequence[Habit], world: World | None = None) -> None:
        self._limiter, self._habits, self._world = limiter, habits, world or World()
        self._random = self._world.random
        self._begun_ms = self._world.ticks_ms()
        self._under_way: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        """How many requests were admitted, refused, made to wait, or could not be decided."""

    async def run(self) -> None:
        """Everybody does what they do, for ever."""
        async with asyncio.TaskGroup() as tenants:
            for habit in self._habits:
                if habit.per_minute:
                    tenants.create_task(self._steady(habit))
                if habit.burst[0]:
                    tenants.create_task(self._bursts(habit))
                for _ in range(habit.workers):
                    tenants.create_task(self._worker(habit))

    async def stop(self) -> None:
        """Give up what is under way; leases give back what they took."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _steady(self, habit: Habit) -> None:
        while True:
            part = (self._world.ticks_ms() - self._begun_ms) / 1000 / DAY_SECONDS + 0.5
            per_second = habit.per_minute * busy(part, habit.phase) / 60
            await asyncio.sleep(self._random.expovariate(per_second))
            self._begin(habit)

    async def _bursts(self, habit: Habit) -> None:
        size, every_seconds = habit.burst
        while True:
            await asyncio.sleep(1)
            for _ in range(size):
                self._begin(habit)
                await asyncio.sleep(0.02)
            await asyncio.sleep(every_seconds - 1)

    async def _worker(self, habit: Habit) -> None:
        while True:
            await self.request(habit)
            await asyncio.sleep(0.05)

    def _begin(self, habit: Habit) -> None:
        if len(self._under_way) < UNDER_WAY_MAX:
            task = asyncio.create_task(self.request(habit))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def request(self, habit: Habit) -> None:
        """One request: an estimate is taken, and what it really cost is settled."""
        entity_id, resource = habit.entity_id, habit.resource
        try:
            # Whoever looks at the demo may take limits away, and give others.
            known = (await self._limiter.available(entity_id, resource)).keys()
            estimate = self._amounts(habit, known, sum(habit.tokens) // 2)
            seats = {"parallel": 1} if "parallel" in known else {}
            wait = habit.wait_seconds or None
            async with self._limiter.acquire(entity_id, resource, estimate | seats, wait=wait) as lease:
                self.counts["waited" if lease.waited_ms else "admitted"] += 1
                await asyncio.sleep(self._random.uniform(*habit.seconds))
                await lease.settle(self._amounts(habit, known, self._random.randint(*habit.tokens)))
        except RateLimitExceeded:
            self.counts["refused"] += 1
            await asyncio.sleep(1 if habit.workers else 0)
        except (SwitchedOff, NoLimitsError, ValidationError, RateLimiterUnavailable):
            self.counts["undecided"] += 1
            await asyncio.sleep(1 if habit.workers else 0)

    @staticmethod
    def _amounts(habit: Habit, known: Collection[str], tokens: int) -> dict[str, int]:
        return {name: amount for name, amount in amounts_of(habit, tokens).items() if name in known}
