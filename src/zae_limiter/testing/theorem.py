"""The theorem we sell, under attack.

In every interval a limit admits, net of refunds, at most its capacity plus what accrues; nothing that
fits is refused; no token is lost. One seed decides how many processes there are, how wrong their
clocks are, what they ask for, when somebody changes the limits, which requests and replies get lost,
who is cancelled and who crashes. After every write the store is compared with the ideal bucket, and
at the end its books with those of the clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from unittest import mock

from .._colour import run_sync
from ..backends.memory import MemoryBackend
from ..bucket import Rate
from ..exceptions import RateLimiterUnavailable, RateLimitExceeded
from ..limiter import RateLimiter
from ..models import Limit
from ..records.connection import Connection, Options
from ..repository import Repository
from ..repository_protocol import Item, Key, Outcome, Write
from ..schema import bucket_key, limit_attributes, number, parse_bucket_pk, sk_state
from ..sharding import SHARDS_MAX
from .ideal import Intent, Judge, WatchedTeller, Whole
from .simulation import Cancelled, Network, Process, Simulation, pause

RESOURCE = "api"
PARENT = "parent"
FAMILY = {"child-1": PARENT, "child-2": PARENT, "loner": None}
LIMITS = (
    (Limit("fast", 10, 35, 60), Limit("slow", 40, 100, 86_400)),
    (Limit("fast", 4, 50, 60), Limit("slow", 60, 100, 3_600)),
    (Limit("fast", 25, 7, 1), Limit("slow", 40, 100, 86_400)),
)


SLOW_WRITES = Rate(8_000, 8_000, 1_000)


class Aborted(Exception):
    """The work under a lease failed."""


@dataclass
class Books:
    """What the clients know they have consumed: at least ``low``, at most ``high``."""

    low: Counter[tuple[str, str]] = field(default_factory=Counter)
    high: Counter[tuple[str, str]] = field(default_factory=Counter)

    def enter(self, entity_id: str, low: Mapping[str, int], high: Mapping[str, int]) -> None:
        for payer in filter(None, (entity_id, FAMILY[entity_id])):
            for name, amount in low.items():
                self.low[payer, name] += amount
            for name, amount in high.items():
                self.high[payer, name] += amount


class Scenario:
    """One seed's world, run to its end."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        rng = self.simulation.rng
        self.fault_rate = rng.choice((0.0, 0.0, 0.03))
        self.cancel_rate = rng.choice((0.0, 0.02))
        self.crash_rate = rng.choice((0.0, 0.0, 0.002))
        self.changes = rng.choice((0, 0, 3))
        self.hot = rng.random() < 0.3
        self.sharded = rng.random() < 0.4
        self.store = MemoryBackend(Process(self.simulation).world)
        self.store.capabilities = replace(self.store.capabilities, hot_partitions=self.sharded)
        self.judges: dict[Key, Judge] = {}
        self.intents: dict[int, Intent] = {}
        self.books = Books()
        self.wholes: dict[str, Whole] = {}
        self.admitted = self.refused = 0
        self.setup = run_sync(Repository.over(self.store, world=Process(self.simulation).world))
        run_sync(self._prepare())
        self.processes = [self._process() for _ in range(rng.choice((1, 2, 3)))]
        self.simulation.before_step = self._strike

    async def _prepare(self) -> None:
        await self.setup.set_resource_defaults(RESOURCE, LIMITS[0])
        await self.setup.create_entity(PARENT)
        for entity_id, parent_id in FAMILY.items():
            await self.setup.create_entity(entity_id, parent_id=parent_id, cascade=parent_id is not None)

    def _process(self) -> Process:
        rng = self.simulation.rng
        process = Process(self.simulation, rng.choice((0, 0, -20, 20, 300)))
        network = Network(process, self.store, self.fault_rate, self._on_apply)
        connection = Connection(network, process.world, Options(rng.choice((0.0, 60.0))))
        connection.teller = WatchedTeller(process, network, self.intents)
        repository = Repository(connection, self.setup.namespace_name, self.setup.namespace_id)
        limiter = RateLimiter(repository, speculative_writes=rng.random() < 0.8)
        for _ in range(rng.choice((1, 2, 4, 8))):
            process.spawn(self._client(limiter), interruptible=True)
        if self.changes and not hasattr(self, "processes"):
            process.spawn(self._admin(repository))
        return process

    def run(self) -> None:
        # A partition that takes a few writes a second is soon a hot one.
        slow = {f"zae_limiter.{module}.WRITES": SLOW_WRITES for module in ("posting", "shards")}
        with ExitStack() as stack:
            for target, rate in slow.items():
                stack.enter_context(mock.patch(target, rate))
            self.simulation.run()
        self._compare_books()

    async def _client(self, limiter: RateLimiter) -> None:
        for _ in range(6):
            try:
                await self._attempt(limiter)
            except Cancelled:
                self.simulation.faults["cancelled"] += 1

    async def _attempt(self, limiter: RateLimiter) -> None:
        rng = self.simulation.rng
        entity_id = rng.choice(("loner",) if self.hot else (*FAMILY,))
        amounts = rng.choice(({"fast": 1, "slow": 1}, {"fast": 4}, {"slow": 7}, {"fast": 2, "slow": 10}))
        most = Counter(amounts)
        consumed: Mapping[str, int] = {}
        certain = True
        try:
            async with limiter.acquire(entity_id, RESOURCE, amounts) as lease:
                await pause()
                if rng.random() < 0.2:
                    most.update(fast=2)
                    await lease.consume(fast=2)
                if rng.random() < 0.3:
                    change = rng.choice((-1, 3, 20))
                    if lease.consumed.get("fast", 0) + change >= 0:
                        most.update(fast=max(0, change))
                        await lease.adjust(fast=change)
                if rng.random() < 0.2:
                    raise Aborted
                consumed = lease.consumed  # a cancellation from here on finds the work done
            self.admitted += 1
        except RateLimitExceeded:
            self.refused += 1
        except Aborted:
            pass
        except RateLimiterUnavailable:
            certain = False
        except (Cancelled, GeneratorExit) as error:
            certain = isinstance(error, Cancelled) and not self.fault_rate
            raise
        finally:
            if certain and (consumed or not self.fault_rate):
                self.books.enter(entity_id, consumed, consumed)
            else:
                self.books.enter(entity_id, {}, most)

    async def _admin(self, repository: Repository) -> None:
        rng = self.simulation.rng
        for _ in range(self.changes):
            for _ in range(rng.randrange(30)):
                await pause()
            try:
                await repository.set_resource_defaults(RESOURCE, rng.choice(LIMITS))
                self.simulation.faults["limits changed"] += 1
            except RateLimiterUnavailable:
                pass

    def _strike(self) -> None:
        rng = self.simulation.rng
        victims = self.simulation.interruptible()
        if victims and rng.random() < self.cancel_rate:
            rng.choice(victims).to_throw = Cancelled()
        if rng.random() < self.crash_rate:
            alive = [process for process in self.processes if not process.crashed]
            if len(alive) > 1:
                rng.choice(alive).crash()
                self.simulation.faults["crashed"] += 1

    def _on_apply(self, write: Write, before: Item | None, outcome: Outcome) -> None:
        key, now_ms = write.key, self.simulation.now_ms
        if key.sort != sk_state() or not outcome.applied or outcome.item is None:
            return
        assert number(outcome.item, "cv") >= number(before or {}, "cv"), f"{key.partition} was turned back"
        intent = self.intents.pop(id(write), Intent(write, {}, now_ms))
        judge = self.judges.setdefault(key, Judge(key.partition))
        judge.see(before, outcome.item, intent.needs, intent.client_ms, now_ms)
        address = parse_bucket_pk(key.partition)
        if before is not None and before.get("shard_count") != outcome.item.get("shard_count"):
            self.simulation.faults["splits"] += 1
        if self.sharded and not self.changes:
            whole = self.wholes.setdefault(address.entity_id, Whole(address.entity_id, LIMITS[0], now_ms))
            shards = self._shards(address.entity_id)
            whole.see(before, outcome.item, shards, intent.client_ms, now_ms)

    def _shards(self, entity_id: str) -> list[Item]:
        keys = [bucket_key(self.setup.namespace_id, entity_id, RESOURCE, i) for i in range(SHARDS_MAX)]
        return [image for image in run_sync(self.store.batch_get(keys)) if image is not None]

    def _compare_books(self) -> None:
        for entity_id in (*FAMILY, PARENT):
            images = self._shards(entity_id)
            for name in ("fast", "slow"):
                low, high = self.books.low[entity_id, name], self.books.high[entity_id, name]
                stored = sum(number(image, limit_attributes(name).tc) for image in images)
                assert low * 1000 <= stored <= high * 1000, (
                    f"{entity_id} has used {stored} of {name} by the store's books, "
                    f"{low} to {high} tokens by the clients'"
                )
