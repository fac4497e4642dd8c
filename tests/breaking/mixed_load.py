"""A little of everything that a limiter can be asked, for as long as one likes.

Regulars come again and again, visitors come once, families are charged twice. Work fails, is corrected or is
cancelled; some is refused, some waits. Now and then somebody changes the limits or looks at what is there.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from zae_limiter import Limit, RateLimiter, RateLimitExceeded
from zae_limiter.runtime.loops import Asyncio

RESOURCES = ("chat", "embed")
LIMITS = (
    (Limit("rpm", 50, 50, 60), Limit("tpm", 5_000, 5_000, 60)),
    (Limit("rpm", 80, 60, 60), Limit("tpm", 4_000, 6_000, 60)),
)
SLOW = Limit("slow", 1, 100, 1)
REGULARS = tuple(f"regular-{n}" for n in range(60))
FAMILY = {f"child-{n}": f"parent-{n % 2}" for n in range(6)}
GREEDY = tuple(f"greedy-{n}" for n in range(5))


class Failed(Exception):
    """The work under a lease failed."""


class MixedLoad:
    """Operations on one limiter, whose colour decides whether they are tasks or threads."""

    def __init__(self, limiter: RateLimiter, rng: random.Random) -> None:
        self._limiter, self._rng = limiter, rng
        self._visitors = 0
        self.done: Counter[str] = Counter()
        self._chores: list[tuple[str, int, Callable[[], Awaitable[None]]]] = [
            ("regular", 40, lambda: self._work(rng.choice(REGULARS))),
            ("visitor", 30, self._visit),
            ("cascade", 12, lambda: self._work(rng.choice([*FAMILY]))),
            ("greedy", 6, self._be_greedy),
            ("waiting", 4, self._wait),
            ("cancelled", 4, self._be_cancelled),
            ("change", 3, self._change),
            ("look", 5, self._look),
        ]

    async def furnish(self) -> None:
        for resource in RESOURCES:
            await self._limiter.set_resource_defaults(resource, LIMITS[0])
        for parent_id in sorted(set(FAMILY.values())):
            await self._limiter.create_entity(parent_id)
        for entity_id, parent_id in FAMILY.items():
            await self._limiter.create_entity(entity_id, parent_id=parent_id, cascade=True)

    async def run(self, operations: int, at_once: int) -> None:
        for _ in range(operations // at_once):
            await self._limiter.repository.colour.together([self._chore() for _ in range(at_once)])

    async def _chore(self) -> None:
        ((name, _, chore),) = self._rng.choices(self._chores, [weight for _, weight, _ in self._chores])
        await chore()
        self.done[name] += 1

    async def _work(self, entity_id: str) -> None:
        rng = self._rng
        with suppress(RateLimitExceeded, Failed):
            async with self._limiter.acquire(
                entity_id, rng.choice(RESOURCES), {"rpm": 1, "tpm": rng.randint(1, 50)}
            ) as lease:
                if rng.random() < 0.3:
                    await lease.adjust(tpm=rng.randint(0, 100))
                if rng.random() < 0.1:
                    await lease.consume(rpm=1)
                if rng.random() < 0.15:
                    raise Failed

    async def _visit(self) -> None:
        self._visitors += 1
        await self._work(f"visitor-{self._visitors}")

    async def _be_greedy(self) -> None:
        """Ask until it is refused; a refusal is remembered, and a second one costs nothing."""
        entity_id = self._rng.choice(GREEDY)
        with suppress(RateLimitExceeded):
            for _ in range(4):
                async with self._limiter.acquire(entity_id, "chat", {"rpm": 25}):
                    pass
            self.done["never refused"] += 1

    async def _wait(self) -> None:
        """Two ask at once for what comes one by one; now and then the second gives up."""
        with suppress(RateLimitExceeded):
            for wait in (1.0, self._rng.choice((0.0, 1.0))):
                async with self._limiter.acquire("patient", "chat", {"slow": 1}, [SLOW], wait=wait):
                    pass

    async def _be_cancelled(self) -> None:
        work = self._work(self._rng.choice(REGULARS)) if self._rng.random() < 0.7 else self._wait()
        if not isinstance(self._limiter.repository.colour, Asyncio):
            await work
            return
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _change(self) -> None:
        limiter, rng = self._limiter, self._rng
        entity_id, resource, limits = rng.choice(REGULARS), rng.choice(RESOURCES), rng.choice(LIMITS)
        match rng.randrange(4):
            case 0:
                await limiter.set_resource_defaults(resource, limits)
            case 1:
                await limiter.set_limits(entity_id, limits, resource)
            case 2:
                await limiter.delete_limits(entity_id, resource)
            case 3:
                await limiter.update_entity(rng.choice([*FAMILY]), metadata={"n": str(rng.randrange(99))})

    async def _look(self) -> None:
        limiter, rng = self._limiter, self._rng
        entity_id, resource = rng.choice(REGULARS), rng.choice(RESOURCES)
        match rng.randrange(6):
            case 0:
                await limiter.available(entity_id, resource)
            case 1:
                await limiter.list_entities()
            case 2:
                await limiter.get_usage_snapshots(entity_id, limit=20)
            case 3:
                await limiter.get_audit_events(entity_id, limit=20)
            case 4:
                await limiter.list_entities_with_custom_limits(resource, limit=20)
            case 5:
                await limiter.get_children("parent-0")
