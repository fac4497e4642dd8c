"""Switches and soft limits among clients, judged by who gets in: nobody for whom a switch binds.

An admin throws and lifts switches of a resource and of entities while others acquire, on a store that tells
of changes: a switch binds whoever begins to ask after it was thrown. A soft limit beside the hard one never
refuses.
"""

from __future__ import annotations

import math
from typing import Any

from tests.simulation.ideal import WatchedWriter
from tests.simulation.parking import Nap
from tests.simulation.simulation import Network, Process, Simulation
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.shelf import Shelf
from zae_limiter.exceptions import RateLimiterUnavailable, RateLimitExceeded, SwitchedOff
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.runtime.colour import run_sync

RESOURCE, ENTITIES = "api", ("key-1", "key-2")
TTL_SECONDS = 60.0
NEVER_SECONDS = 10**7
PLACES: tuple[dict[str, Any], ...] = (
    {"resource": RESOURCE},
    *({"entity_id": one, "resource": RESOURCE} for one in ENTITIES),
)


class Switching:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        rng = self.simulation.rng
        self.shelf, world = Shelf(), Process(self.simulation).world
        self.setup = run_sync(Repository.over(MemoryBackend(world, self.shelf), world=world))
        self.limits = [Limit("rpm", 20, 1, NEVER_SECONDS)]
        if rng.random() < 0.5:
            self.limits.append(Limit("tpm", 3, 1, NEVER_SECONDS, soft=True))
        run_sync(self.setup.set_resource_defaults(RESOURCE, self.limits))
        self.off_since_ms = dict.fromkeys(range(len(PLACES)), math.inf)
        self.admitted = dict.fromkeys(ENTITIES, 0)
        Process(self.simulation).spawn(self._administer())
        for _ in range(rng.choice((1, 2, 3))):
            self._hire()

    def _hire(self) -> None:
        process = Process(self.simulation)
        store = MemoryBackend(process.world, self.shelf)  # of its own, for it tells what others have changed
        network = Network(process, store, 0.0, lambda *_: None, swaps=True)
        connection = Connection(network, process.world, Options(TTL_SECONDS))
        connection.writer = WatchedWriter(process, network, {})
        limiter = RateLimiter(Repository(connection, self.setup.namespace_name, self.setup.namespace_id))
        for _ in range(2):
            process.spawn(self._work(limiter), interruptible=True)

    async def _administer(self) -> None:
        rng = self.simulation.rng
        for _ in range(8):
            await Nap().wait(rng.choice((0.01, 1, 40)))
            at = rng.randrange(len(PLACES))
            if self.off_since_ms[at] < math.inf:
                run_sync(self.setup.enable(**PLACES[at]))
                self.off_since_ms[at] = math.inf
            else:
                run_sync(self.setup.disable(**PLACES[at], reason="maintenance"))
                self.off_since_ms[at] = self.simulation.now_ms
                self.simulation.faults["switched off"] += 1

    async def _work(self, limiter: RateLimiter) -> None:
        rng, simulation = self.simulation.rng, self.simulation
        for _ in range(12):
            await Nap().wait(rng.choice((0, 0.01, 5)))
            entity_id, began_ms = rng.choice(ENTITIES), simulation.now_ms
            needs = {limit.name: 1 for limit in self.limits}
            try:
                async with limiter.acquire(entity_id, RESOURCE, needs):
                    self.admitted[entity_id] += 1
                    self._check_admitted(entity_id, began_ms)
            except SwitchedOff:
                simulation.faults["refused by a switch"] += 1
            except RateLimitExceeded as refusal:
                blamed = [one.limit_name for one in refusal.violations]
                assert blamed == ["rpm"], f"{blamed} refused"
            except RateLimiterUnavailable:
                continue

    def _check_admitted(self, entity_id: str, began_ms: int) -> None:
        """No switch is off that was thrown before it was asked."""
        for at, place in enumerate(PLACES):
            if place.get("entity_id", entity_id) == entity_id:
                assert self.off_since_ms[at] >= began_ms, f"{entity_id} got in, and {place} was off"

    def run(self) -> None:
        self.simulation.run()
        for entity_id, admitted in self.admitted.items():
            for state in run_sync(self.setup.get_bucket(entity_id, RESOURCE)):
                used = state.total_consumed_milli // 1000
                assert used == admitted, f"{used} {state.limit_name} were taken for {admitted}"
