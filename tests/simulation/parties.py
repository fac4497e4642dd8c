"""Several demands under one lease whose parts end differently, judged to the token by each bucket.

Nobody is in the way and nothing fails, so the books are exact: what a part says it consumed is what its
entity has paid, and a common parent the sum. A part that answers for another one's tokens shows at once.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from random import Random

from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.exceptions import RateLimitExceeded
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit
from zae_limiter.models.demand import Demand
from zae_limiter.repository import Repository
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

RESOURCE, TEAM, CAPACITY = "api", "team", 100
CHILDREN, OTHERS = ("child-1", "child-2"), ("other-1", "other-2")
NEVER_SECONDS = 10**7
ROUNDS = 4


class PartyAborted(Exception):
    """The work under the lease failed."""


class Parties:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"parties {seed}")
        world = World(lambda: 1_800_000_000_000, lambda: 0.0, Random(seed))
        self._repository = run_sync(Repository.over(MemoryBackend(world), world=world))
        self._limiter = RateLimiter(self._repository)
        self._paid: Counter[str] = Counter()

    def run(self) -> None:
        run_sync(self._run())

    async def _run(self) -> None:
        repository = self._repository
        await repository.set_resource_defaults(RESOURCE, [Limit("rpm", CAPACITY, 1, NEVER_SECONDS)])
        await repository.create_entity(TEAM)
        for child in CHILDREN:
            await repository.create_entity(child, parent_id=TEAM, cascade=True)
        for _ in range(ROUNDS):
            with contextlib.suppress(PartyAborted, RateLimitExceeded):
                await self._round()
            await self._check()

    async def _round(self) -> None:
        rng = self._rng
        asked = rng.sample((*CHILDREN, *OTHERS), rng.choice((2, 3, 4)))
        demands = [Demand(one, RESOURCE, {"rpm": rng.choice((1, 2, 5))}) for one in asked]
        aborted = rng.random() < 0.3
        async with self._limiter.acquire(demands) as lease:
            for part in lease.parts:
                if rng.random() < 0.5:
                    await part.adjust(rpm=rng.choice((-1, 3, 7)))
            if aborted:
                raise PartyAborted
            for entity_id in asked:
                consumed = lease.part(entity_id=entity_id).consumed["rpm"]
                self._paid[entity_id] += consumed
                if entity_id in CHILDREN:
                    self._paid[TEAM] += consumed

    async def _check(self) -> None:
        for entity_id in (TEAM, *CHILDREN, *OTHERS):
            left = (await self._limiter.available(entity_id, RESOURCE))["rpm"]
            own = CAPACITY - self._paid[entity_id]
            # What a child can have is also bounded by its parent.
            due = min(own, CAPACITY - self._paid[TEAM]) if entity_id in CHILDREN else own
            assert left == due, f"{entity_id} has {left} tokens left and {due} by the books"
