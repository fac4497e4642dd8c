"""Switches and soft limits among clients, judged by who gets in: nobody for whom a switch binds.

An admin throws and lifts switches of all levels while others acquire. On a store that tells of changes a
switch binds whoever begins to ask after it was thrown. Where nobody tells that holds for an entity's own,
whatever else was changed; a broader one binds when memory expires. A soft limit beside the hard one never
refuses.
"""

from __future__ import annotations

import math
from typing import Any

from tests.simulation.ideal import WatchedWriter, check_seen
from tests.simulation.parking import Nap
from tests.simulation.simulation import Network, Process, Simulation
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.shelf import Shelf
from zae_limiter.exceptions import RateLimiterUnavailable, RateLimitExceeded, SwitchedOff
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Item, Outcome, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import sk_state

RESOURCE, ENTITIES = "api", ("key-1", "key-2")
TTL_SECONDS = 60.0
NEVER_SECONDS = 10**7
PLACES: tuple[dict[str, Any], ...] = (
    {},
    {"resource": RESOURCE},
    *({"entity_id": one} for one in ENTITIES),
    *({"entity_id": one, "resource": RESOURCE} for one in ENTITIES),
)
OWN = [at for at, place in enumerate(PLACES) if "entity_id" in place]
"""Those of an entity, which bind at once on every store."""


class Switching:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        rng = self.simulation.rng
        self.tells = rng.random() < 0.5
        self.shelf, world = Shelf(), Process(self.simulation).world
        self.setup = run_sync(Repository.over(MemoryBackend(world, self.shelf), world=world))
        self.limits = [Limit("rpm", 60, 1, NEVER_SECONDS)]
        if rng.random() < 0.5:
            self.limits.append(Limit("tpm", 3, 1, NEVER_SECONDS, soft=True))
        run_sync(self.setup.set_resource_defaults(RESOURCE, self.limits))
        self.off_since_ms = dict.fromkeys(range(len(PLACES)), math.inf)
        self.admitted = dict.fromkeys(ENTITIES, 0)
        for entity_id in ENTITIES:  # one that is made in the very moment of a change is not told
            run_sync(self._take(RateLimiter(self.setup), entity_id))
        admin, repository = self._hire()
        admin.spawn(self._administer(repository))
        for _ in range(rng.choice((1, 2, 3))):
            process, repository = self._hire()
            for _ in range(2):
                process.spawn(self._work(RateLimiter(repository)), interruptible=True)

    def _hire(self) -> tuple[Process, Repository]:
        process = Process(self.simulation)
        store = MemoryBackend(process.world, self.shelf)  # of its own, for it tells what others have changed
        network = Network(process, store, 0.0, _watch, swaps=self.tells)
        connection = Connection(network, process.world, Options(TTL_SECONDS))
        connection.writer = WatchedWriter(process, network, {})
        return process, Repository(connection, self.setup.namespace_name, self.setup.namespace_id)

    async def _administer(self, admin: Repository) -> None:
        rng = self.simulation.rng
        for _ in range(24):
            await Nap().wait(rng.choice((0, 0, 0.01, 1)))
            if rng.random() < 0.5:  # which changes nothing but the counts
                await admin.set_resource_defaults(RESOURCE, self.limits)
                await self._ask(RateLimiter(admin))  # so that one bucket tells of it
                continue
            off = [at for at, since_ms in self.off_since_ms.items() if since_ms < math.inf]
            if off and rng.random() < 0.7:
                at = rng.choice(off)
                self.off_since_ms[at] = math.inf
                await admin.enable(**PLACES[at])
            else:
                at = rng.choice((*range(len(PLACES)), *OWN, *OWN))
                await admin.disable(**PLACES[at], reason="maintenance")
                self.off_since_ms[at] = min(self.off_since_ms[at], self.simulation.now_ms)
                self.simulation.faults["switched off"] += 1

    async def _work(self, limiter: RateLimiter) -> None:
        for _ in range(16):
            await Nap().wait(self.simulation.rng.choice((0, 0, 0.01, 1)))
            await self._ask(limiter)

    async def _ask(self, limiter: RateLimiter) -> None:
        simulation = self.simulation
        entity_id, began_ms = simulation.rng.choice(ENTITIES), simulation.now_ms
        try:
            await self._take(limiter, entity_id)
            self._check_admitted(entity_id, began_ms)
        except SwitchedOff:
            simulation.faults["refused by a switch"] += 1
        except RateLimitExceeded as refusal:
            blamed = [one.limit_name for one in refusal.violations]
            assert blamed == ["rpm"], f"{blamed} refused"
        except RateLimiterUnavailable:
            return

    async def _take(self, limiter: RateLimiter, entity_id: str) -> None:
        async with limiter.acquire(entity_id, RESOURCE, {limit.name: 1 for limit in self.limits}):
            self.admitted[entity_id] += 1

    def _check_admitted(self, entity_id: str, began_ms: int) -> None:
        """No switch is off that was thrown before it was asked."""
        for at, place in enumerate(PLACES):
            if place.get("entity_id", entity_id) == entity_id:
                late_ms = 0 if self.tells or at in OWN else TTL_SECONDS * 1000
                told = f"{entity_id} got in, and {place} was off"
                assert self.off_since_ms[at] + late_ms >= began_ms, told

    def run(self) -> None:
        self.simulation.run()
        for entity_id, admitted in self.admitted.items():
            for state in run_sync(self.setup.get_bucket(entity_id, RESOURCE)):
                used = state.total_consumed_milli // 1000
                assert used == admitted, f"{used} {state.limit_name} were taken for {admitted}"


def _watch(write: Write, before: Item | None, outcome: Outcome) -> None:
    if write.key.sort == sk_state() and outcome.applied:
        check_seen(write.key, before, outcome.item)
