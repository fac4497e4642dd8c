"""The theorem's scenario with aggregators in it, which race the clients and see everything out of order.

Every write of theirs goes through the same judges as a client's: a refill that costs or makes a token, or
a split that does not conserve, fails the seed. At rest usage is what the buckets say was consumed.
"""

from collections import Counter
from collections.abc import Sequence
from unittest import mock

from zae_limiter._colour import run_sync
from zae_limiter.models import UsageWindow
from zae_limiter.repository_protocol import Item, Key, Outcome, Write
from zae_limiter.schema import bucket_limit_names, limit_attributes, number, parse_bucket_pk, sk_state
from zae_limiter.testing.ideal import Intent
from zae_limiter.testing.simulation import Network, Process, pause
from zae_limiter.testing.stores import Wrapper
from zae_limiter.testing.theorem import RESOURCE, Scenario
from zae_limiter_aggregator import Change, Settings, process_changes
from zae_limiter_aggregator.changes import numbered, span_of
from zae_limiter_aggregator.usage import REST

from .stage import usage_rows

SETTINGS = Settings((UsageWindow.HOURLY, UsageWindow.MONTHLY))
PEACE = Settings(SETTINGS.windows, tend_buckets=False)


class Watched(Wrapper):
    """Tells the judges by which clock a write was made, and keeps the world awake while it travels."""

    def __init__(self, scenario: "AggregatedScenario", process: Process) -> None:
        network = Network(process, scenario.store, scenario.fault_rate, scenario._on_apply)
        super().__init__(network)
        self._scenario, self._process = scenario, process

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self._travel(writes, super().write_each)

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self._travel(writes, super().transact_write)

    async def _travel(self, writes: Sequence[Write], perform: object) -> list[Outcome]:
        now_ms = self._process.world.now_ms()
        self._scenario.intents |= {id(write): Intent(write, {}, now_ms) for write in writes}
        self._scenario.simulation.in_flight += 1
        try:
            return await perform(writes)  # type: ignore[operator]
        finally:
            self._scenario.simulation.in_flight -= 1


class AggregatedScenario(Scenario):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.log: list[Change] = []
        self.lives: list[dict[str, int]] = []
        self.last: dict[Key, Item] = {}
        self.position = 0
        self.store.watchers.append(self._record)
        for _ in range(self.simulation.rng.choice((1, 1, 2))):
            process = Process(self.simulation, self.simulation.rng.choice((0, 0, -20, 20)))
            process.spawn(self._aggregate(process), interruptible=True)

    def _record(self, key: Key, old: Item | None, new: Item | None) -> None:
        if key.sort != sk_state():
            return
        position = str(len(self.log) + 1)
        span = span_of(old, new, position) if self.sharded else numbered(int(position))
        self.log.append(Change(key, old, new, self.simulation.now_ms, span, position))
        if old is None and key in self.last:
            self._bury(self.last.pop(key), key)
        if new is not None:
            self.last[key] = new

    def _bury(self, image: Item, key: Key) -> None:
        entity_id = parse_bucket_pk(key.partition).entity_id
        names = bucket_limit_names(image)
        self.lives.append({f"{entity_id}/{n}": number(image, limit_attributes(n).tc) for n in names})

    async def _aggregate(self, process: Process) -> None:
        rng, backend = self.simulation.rng, Watched(self, process)
        for _ in range(rng.randrange(5, 25)):
            for _ in range(rng.randrange(8)):
                await pause()
            batch = self._batch()
            tally = await process_changes(batch, backend, process.world, SETTINGS)
            if batch and not tally.failed:
                self.position = max(self.position, int(batch[-1].sequence))
            self.simulation.faults["refills"] += tally.refills_written
            self.simulation.faults["proactive splits"] += tally.splits

    def _batch(self) -> list[Change]:
        """Some changes that are new, and some that are not; in order if that is what the source promises."""
        rng = self.simulation.rng
        if not self.log:
            return []
        if self.sharded:
            fresh = self.log[-rng.randrange(1, 30) :]
            return rng.sample(fresh, len(fresh)) + rng.choices(self.log, k=rng.randrange(5))
        # A reader that was killed comes back to an earlier place, but it leaves out nothing.
        first = rng.randrange(self.position + 1)
        return self.log[first : rng.randrange(self.position, len(self.log) + 1)]

    def run(self) -> None:
        with mock.patch("zae_limiter_aggregator.buckets.REFILL_AFTER_MS", 500):
            super().run()
        self._compare_usage()

    def _compare_usage(self) -> None:
        """At rest everything has been delivered, and then some of it again."""
        rng, world = self.simulation.rng, Process(self.simulation).world
        log = self.log
        if self.sharded and log:
            log = rng.sample(log, len(log)) + rng.choices(log, k=20)
        for at in range(0, len(log), 37):
            tally = run_sync(process_changes(log[at : at + 37], self.store, world, PEACE))
            assert not tally.failed
        for key, image in self.last.items():
            self._bury(image, key)
        consumed: Counter[str] = Counter()
        for life in self.lives:
            consumed.update(life)
        entities = sorted({name.partition("/")[0] for name in consumed})
        for window in SETTINGS.windows:
            used: Counter[str] = Counter()
            for row in usage_rows(self.store, self.setup.namespace_id, entities).values():
                if row["window"] == window and row["resource"] == RESOURCE:
                    for name in ("fast", "slow"):
                        rest = row.get(REST, {})
                        assert isinstance(rest, dict)
                        milli = number(row, name) * 1000 + rest.get(name, 0)
                        used[f"{row['entity_id']}/{name}"] += milli
            assert +used == +consumed, f"{window}: {used} was counted, {consumed} was consumed"
