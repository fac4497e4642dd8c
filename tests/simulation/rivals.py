"""Nothing that fits is refused, across processes: families whose members are charged from several places.

Here nothing refills, nobody gives anything back and nothing goes wrong, so what a bucket has given for
good only grows. Whoever was refused, and would still fit when everything is over, fitted all the time: the
tokens that were missing were only held by somebody, or in a shard that was not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from unittest import mock

from tests.simulation.ideal import WatchedWriter
from tests.simulation.parking import pause
from tests.simulation.simulation import Network, Process, Simulation
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.split import doubled, split
from zae_limiter.exceptions import RateLimitExceeded
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key

RESOURCE = "api"
PARENT, CHILDREN = "parent", ("child-1", "child-2")
NEVER_SECONDS = 10**7
PATIENT_SECONDS = 2.0
"""Longer than anybody holds anything here; in real life a pause is as short as it can be."""

TIMEOUT_MS = 60_000


class Rivals:
    """One seed's world: who was refused what, and what was left in the end."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        self.simulation.in_flight = 1  # no idle minutes: they would outlast every deadline
        rng = self.simulation.rng
        self.store = MemoryBackend(Process(self.simulation).world)
        self.sharded = rng.random() < 0.4
        local = not self.sharded and rng.random() < 0.2
        self.store.capabilities = replace(
            self.store.capabilities,
            hot_partitions=self.sharded,
            atomic_batches=local,
            timeout_ms=TIMEOUT_MS,
        )
        self.setup = run_sync(Repository.over(self.store, world=Process(self.simulation).world))
        size = 98 if self.sharded else rng.choice((1, 2, 5))
        run_sync(self._prepare(size))
        self.refused: list[tuple[str, Mapping[str, int]]] = []
        self.admitted = 0
        unit = max(1, size // 7)
        for _ in range(rng.choice((2, 2, 3))):
            process = Process(self.simulation)
            limiter = RateLimiter(self._open(process))
            for _ in range(rng.choice((1, 1, 2))):
                process.spawn(self._client(limiter, unit), interruptible=True)
        if self.sharded:
            splitter = Process(self.simulation)
            splitter.spawn(self._split(splitter))

    async def _prepare(self, size: int) -> None:
        await self.setup.set_resource_defaults(RESOURCE, [Limit("rpm", size, 1, NEVER_SECONDS)])
        await self.setup.create_entity(PARENT)
        for child in CHILDREN:
            await self.setup.create_entity(child, parent_id=PARENT, cascade=True)
        if self.simulation.rng.random() < 0.5:
            await self.setup.set_limits(CHILDREN[0], [Limit("rpm", 10 * size, 1, NEVER_SECONDS)])

    def _open(self, process: Process) -> Repository:
        network = Network(process, self.store, 0.0, lambda *_: None)
        connection = Connection(network, process.world, Options(self.simulation.rng.choice((0.0, 60.0))))
        connection.writer = WatchedWriter(process, network, {})
        return Repository(connection, self.setup.namespace_name, self.setup.namespace_id)

    async def _client(self, limiter: RateLimiter, unit: int) -> None:
        rng = self.simulation.rng
        for _ in range(rng.choice((1, 2, 4))):
            entity_id = rng.choice((*CHILDREN, *CHILDREN, PARENT))
            amounts = {"rpm": rng.choice((1, unit, unit, 2 * unit, 5 * unit, 20 * unit))}
            try:
                async with limiter.acquire(entity_id, RESOURCE, amounts):
                    self.admitted += 1
                    await pause()
            except RateLimitExceeded:
                self.refused.append((entity_id, amounts))

    async def _split(self, process: Process) -> None:
        """Somebody whose writes are many spreads a bucket, and tells nobody."""
        for _ in range(self.simulation.rng.choice((1, 2))):
            for _ in range(self.simulation.rng.randrange(60)):
                await pause()
            entity_id = self.simulation.rng.choice((PARENT, CHILDREN[0]))
            key = bucket_key(self.setup.namespace_id, entity_id, RESOURCE)
            account = Account(key, self.setup.namespace_id, entity_id, RESOURCE, Terms({}))
            (first,) = await self.store.batch_get([key])
            if first is not None and (target := doubled(first)) is not None:
                writes = split(account, 0, first, target, process.world.now_ms())
                await self.store.transact_write(writes)
                self.simulation.faults["splits"] += 1

    def run(self) -> None:
        with mock.patch("zae_limiter.engine.take.LOOK_AGAIN_SECONDS", PATIENT_SECONDS):
            self.simulation.run()
        limiter = RateLimiter(self.setup)
        for entity_id, amounts in self.refused:
            left = run_sync(limiter.available(entity_id, RESOURCE))
            assert left["rpm"] < amounts["rpm"], (
                f"{entity_id} was refused {amounts['rpm']}, and in the end {left['rpm']} are left"
            )
