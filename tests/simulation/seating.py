"""Seats, judged by who is at work: never more than there are, and none is lost for good.

Processes hold leases of a family with limits of concurrency, some for longer than a ``hold``, and crash with
them. Requests and replies get lost, clocks are wrong. After every write the bucket's seats add up; whenever
somebody begins, all who are at work are counted, as far as they can know that they still hold their seat. In
the end everybody has crashed, and an eighth of a ``hold`` after it all seats are there for whoever asks.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from functools import partial

from tests.simulation.ideal import WatchedWriter
from tests.simulation.parking import Cancelled, Nap
from tests.simulation.simulation import Network, Process, Simulation
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.demand import Seat, seats_of
from zae_limiter.engine.seats import TICK_MS, places
from zae_limiter.exceptions import RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.lease import Lease
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Item, Outcome, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import sk_state, stored_rate

RESOURCE = "api"
PARENT, CHILDREN = "parent", ("child-1", "child-2")
NAME = "parallel"
HOLDS_SECONDS = (8, 40)
NEVER_SECONDS = 10**7


class Worker:
    """A lease at work in a process."""

    def __init__(self, process: Process, entity_id: str, seats: list[Seat]) -> None:
        self.process, self.entity_id, self.seats = process, entity_id, seats

    def surely_holds(self, entity_id: str, now_ms: int) -> int:
        """How many seats of an entity's bucket it has, and can know that it has."""
        if self.process.crashed:
            return 0
        mine = [seat for seat in self.seats if seat.account.entity_id == entity_id and not seat.is_lost]
        # Where a renewal is under way, what it has is told by the seat as it was before.
        return sum(seat.count for seat in mine if seat.until * TICK_MS > now_ms)


class Seating:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        rng = self.simulation.rng = self._dice(seed)
        self.fault_rate = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.crash_rate = rng.choice((0.0, 0.002, 0.01))
        self.simulation.in_flight = 0 if self.fault_rate else 1  # who sleeps for a minute renews nothing
        self.coarse_ms = rng.choice((1, 1_000))
        self.hold_seconds = rng.choice(HOLDS_SECONDS)
        self.local = rng.random() < 0.3
        self.store = self._store_of(Process(self.simulation))
        self.store.capabilities = replace(
            self.store.capabilities, hot_partitions=rng.random() < 0.5, atomic_batches=self.local
        )
        self.setup = run_sync(Repository.over(self.store, world=Process(self.simulation).world))
        self.excess: Counter[str] = Counter()
        """How many more than there are seats may be at work, by who has them."""
        self.capacities = {PARENT: rng.choice((1, 2, 4)), CHILDREN[0]: 2, CHILDREN[1]: 3}
        run_sync(self._prepare())
        self.workers: list[Worker] = []
        self.admitted = self.refused = self.lost = 0
        self.limiters: list[RateLimiter] = []
        for _ in range(rng.choice((2, 3))):
            self._hire()
        self.simulation.before_step = self._strike

    def _dice(self, seed: int) -> random.Random:
        del seed
        return self.simulation.rng

    def _store_of(self, process: Process) -> MemoryBackend:
        """The way of one process to the one store."""
        return getattr(self, "store", None) or MemoryBackend(process.world)

    @property
    def is_troubled(self) -> bool:
        """Whether somebody may lose its seat without a fault of its own."""
        return self.fault_rate > 0

    async def _prepare(self) -> None:
        for entity_id in (PARENT, *CHILDREN):
            child = entity_id in CHILDREN
            await self.setup.create_entity(entity_id, parent_id=PARENT if child else None, cascade=child)
            await self._limit(entity_id, self.capacities[entity_id])

    async def _limit(self, entity_id: str, capacity: int) -> None:
        limits = [Limit.concurrent(NAME, capacity, self.hold_seconds), Limit("rpm", 40, 1, NEVER_SECONDS)]
        await self.setup.set_limits(entity_id, limits, RESOURCE)

    def _hire(self) -> None:
        rng = self.simulation.rng
        skew_ms = 0 if self.local else rng.choice((0, 0, -300, 300, 3_600_000))
        process = Process(self.simulation, skew_ms, 0 if self.local else self.coarse_ms)
        store = self._store_of(process)
        store.capabilities = self.store.capabilities
        network = Network(process, store, self.fault_rate, partial(self._see, store))
        connection = Connection(network, process.world, Options(60.0))
        connection.writer = WatchedWriter(process, network, {})
        limiter = RateLimiter(Repository(connection, self.setup.namespace_name, self.setup.namespace_id))
        self.limiters.append(limiter)
        for _ in range(rng.choice((1, 2, 4))):
            process.spawn(self._work(process, limiter), interruptible=True)

    def _see(self, store: MemoryBackend, write: Write, before: Item | None, outcome: Outcome) -> None:
        """In every image the seats that are free and those that are held are all there are."""
        del store, before
        if write.key.sort != sk_state() or outcome.item is None or not outcome.applied:
            return
        image, rate = outcome.item, stored_rate(outcome.item, NAME)
        if rate is not None:
            held = sum(place.taken for place in places(image, NAME))
            stored = image[f"b_{NAME}_tk"]
            assert stored == rate.capacity_milli - held * 1000, f"{stored} are free, {held} held: {write}"

    def _strike(self) -> None:
        rng = self.simulation.rng
        if rng.random() < self.crash_rate and self.limiters:
            alive = [task.process for task in self.simulation.interruptible() if task.process is not None]
            if alive:
                process = rng.choice(alive)
                process.crash()
                self.simulation.faults["holders crashed"] += 1

    async def _work(self, process: Process, limiter: RateLimiter) -> None:
        rng = self.simulation.rng
        for _ in range(rng.choice((1, 2, 4))):
            entity_id = rng.choice((*CHILDREN, *CHILDREN, PARENT))
            needs = {NAME: rng.choice((1, 1, 2)), "rpm": 1}
            wait = rng.choice((None, None, 5.0))
            try:
                async with limiter.acquire(entity_id, RESOURCE, needs, wait=wait) as lease:
                    await self._be_at_work(process, entity_id, lease)
            except RateLimitExceeded:
                self.refused += 1
                self.simulation.faults["no seat"] += 1
            except (RateLimiterUnavailable, Cancelled):
                continue

    async def _be_at_work(self, process: Process, entity_id: str, lease: Lease) -> None:
        rng, simulation = self.simulation.rng, self.simulation
        worker = Worker(process, entity_id, seats_of(lease._later))
        self.workers.append(worker)
        self.admitted += 1
        for whose, capacity in self.capacities.items():
            error_ms = 2 * simulation.clock_error_ms + 1_000 * self.coarse_ms // 1_000 + 1
            at_work = sum(one.surely_holds(whose, simulation.now_ms + error_ms) for one in self.workers)
            most = capacity + self.excess[whose]
            simulation.faults["more at work than seats"] += at_work > capacity
            assert at_work <= most, f"{at_work} are at work with {whose}, which has {most} seats"
        long = rng.random() < 0.3
        try:
            await Nap().wait(self.hold_seconds * rng.uniform(1, 3) if long else rng.uniform(0, 2))
            if long:
                simulation.faults["outlived a hold"] += 1
            keeps = worker.surely_holds(entity_id, simulation.now_ms) > 0
            assert keeps or self.is_troubled, f"somebody worked for {entity_id} without a seat"
        finally:
            self.workers.remove(worker)

    def run(self) -> None:
        self.simulation.run()
        lost = sum(limiter.seats_lost for limiter in self.limiters)
        assert not lost or self.is_troubled, f"{lost} seats were lost, and nothing had gone wrong"
        self.simulation.faults["seats lost"] += lost
        if not self.is_troubled and not self.simulation.faults["holders crashed"]:
            self._check_free()
        # Whoever is left has crashed. By an honest clock all seats are free once the last hold is over.
        error_ms = self.simulation.clock_error_ms + self.coarse_ms
        self.simulation.now_ms += math.ceil(self.hold_seconds * 1125 + 2 * error_ms + 1)
        self._check_free()

    def _check_free(self) -> None:
        limiter = RateLimiter(self.setup)
        for entity_id, capacity in self.capacities.items():
            free = min(capacity, self.capacities[PARENT]) if entity_id in CHILDREN else capacity
            there = run_sync(limiter.available(entity_id, RESOURCE))[NAME]
            assert there == free, f"{there} of {free} seats of {entity_id} came back"
