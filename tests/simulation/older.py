"""What an older version left in a simulated world, and admins who bring it up to date.

Either the present version has been at work in the table for long, and limits, entities and buckets are
moved under its hands. Or nobody is let in before these are there, and only usage and audit events follow
while clients work. Whatever befalls the admins, in the end everything that was there is there once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from tests.simulation.actors import SETTINGS, Timed, idle
from tests.simulation.parking import Cancelled
from tests.simulation.simulation import Process, Simulation
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.law import Rate, balance
from zae_limiter.exceptions import IncompatibleSchemaError, RateLimiterUnavailable
from zae_limiter.models import AuditAction, Limit, UsageWindow
from zae_limiter.operate.migrations import Kind, Migration, MigrationStage
from zae_limiter.operate.migrations.scanning import Scan
from zae_limiter.operate.migrations.shapes import OldRecord, recognise
from zae_limiter.records.versions import check_versions
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Backend, Delete, Item, Key, Put, Row, Value, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import MOVED, older_version_key, parse_bucket_pk, stored_rate, version_key

VETERAN = "veteran"
"""An entity that only the older version knew."""

AUDITED_AT = "2023-11-01T00:00:00.000Z"
USAGE = {"fast": 3, "slow": 5}
PAGE_ROWS = 7
ATTEMPTS_MAX = 4
VISITS_MAX = 60


class Part(NamedTuple):
    """One limit of an old bucket."""

    rate: Rate
    tokens_milli: int
    origin_ms: int
    consumed: int

    def missing_milli(self, at_ms: int) -> int:
        return self.rate.capacity_milli - balance(self.rate, self.tokens_milli, self.origin_ms, at_ms)


class Charge(NamedTuple):
    """What a move has to take out of a bucket, what it counts as consumed before, and by which clock."""

    missing_milli: Mapping[str, int]
    consumed: Mapping[str, int]
    at_ms: int


@dataclass(frozen=True)
class Estate:
    """What an older version is to leave behind."""

    family: Mapping[str, str | None]
    """Everybody, and whose child they are; the first has usage and events."""
    resource: str
    choices: Sequence[Sequence[Limit]]
    """The limits that buckets may have been made with; the first are those of the resource."""
    whole: bool
    """Whether its buckets hold all limits."""


class Heritage:
    """The old records of a store, what they say, and what has become of them."""

    def __init__(
        self, simulation: Simulation, store: MemoryBackend, namespace_id: str, estate: Estate, *, in_use: bool
    ) -> None:
        self._simulation, self._store, self._estate = simulation, store, estate
        self._namespace_id, self._composite = namespace_id, simulation.rng.random() < 0.5
        self.waiting = not in_use
        self._moved: set[str] = set()
        """Nobody is let in before there is everything that an acquire depends on."""
        self.buckets: dict[str, dict[str, Part]] = {}
        self.heir, *_ = estate.family
        self._lay()

    # What was left.

    def _lay(self) -> None:
        rng, estate = self._simulation.rng, self._estate
        self._put(*older_version_key(), {"schema_version": "0.8.0", "client_min_version": "0.0.0"})
        self._put_limits(f"RESOURCE#{estate.resource}", "", estate.choices[0])
        self._put_limits(f"ENTITY#{VETERAN}", estate.resource, estate.choices[-1])
        veterans_parent = next(filter(None, estate.family.values()))
        for entity_id, parent_id in [*estate.family.items(), (VETERAN, veterans_parent)]:
            item: dict[str, Value] = {"entity_id": entity_id, "name": f"old {entity_id}", "version": 3}
            item |= {"cascade": parent_id is not None, "created_at": "2023-01-01T00:00:00Z"}
            self._put(f"ENTITY#{entity_id}", "#META", item | ({"parent_id": parent_id} if parent_id else {}))
        for entity_id in estate.family:
            if entity_id == self.heir or rng.random() < 0.5:
                self._put_bucket(entity_id)
        now = datetime.fromtimestamp(self._simulation.now_ms / 1000, UTC)
        for window in SETTINGS.windows:
            start = now.replace(minute=0, second=0, microsecond=0)
            start = start if window is UsageWindow.HOURLY else start.replace(day=1, hour=0)
            began = f"{start:%Y-%m-%dT%H:%M:%SZ}"
            row: dict[str, Value] = {
                "window": window.value,
                "window_start": began,
                "total_events": 2,
                **USAGE,
            }
            self._put(f"ENTITY#{self.heir}", f"#USAGE#{estate.resource}#{began}", row)
        event: dict[str, Value] = {"timestamp": AUDITED_AT, "action": AuditAction.LIMITS_SET.value}
        self._put(f"AUDIT#{self.heir}", f"#AUDIT#{AUDITED_AT}", event)
        if self.waiting:
            run_sync(self._store.write_each([Delete(version_key())]))

    def _put_limits(self, partition: str, resource: str, limits: Sequence[Limit]) -> None:
        if self._composite:
            item: dict[str, Value] = {"config_version": 1}
            for limit in limits:
                numbers = (limit.capacity, limit.refill_amount, limit.refill_period_seconds)
                item |= {f"l_{limit.name}_{a}": n for a, n in zip(("cp", "ra", "rp"), numbers, strict=True)}
            self._put(partition, f"#CONFIG#{resource}".rstrip("#"), item)
            return
        for limit in limits:
            place = f"#LIMIT#{resource or self._estate.resource}#{limit.name}"
            single = {"capacity": limit.capacity, "refill_amount": limit.refill_amount}
            self._put(partition, place, {**single, "refill_period_seconds": limit.refill_period_seconds})

    def _put_bucket(self, entity_id: str) -> None:
        rng, resource = self._simulation.rng, self._estate.resource
        limits = rng.choice(self._estate.choices)
        parts = self.buckets[entity_id] = {}
        shared_ms = self._simulation.now_ms - rng.randrange(100_000)
        whole: dict[str, Value] = {"rf": shared_ms}
        for limit in limits if self._estate.whole or rng.random() < 0.7 else limits[:1]:
            rate = Rate.of(limit)
            tokens = rng.randrange(-rate.capacity_milli // 2, rate.capacity_milli + 1)
            own_ms = shared_ms if self._composite else self._simulation.now_ms - rng.randrange(100_000)
            part = parts[limit.name] = Part(rate, tokens, own_ms, rng.randrange(50))
            numbers = {"tk": tokens, "cp": rate.capacity_milli, "tc": part.consumed * 1000}
            numbers |= {"ra": rate.refill_amount_milli, "rp": rate.refill_period_ms}
            whole |= {f"b_{limit.name}_{field}": number for field, number in numbers.items()}
            if not self._composite:
                item = {"tokens_milli": tokens, "last_refill_ms": own_ms, "capacity_milli": numbers["cp"]}
                item |= {"refill_amount_milli": numbers["ra"], "refill_period_ms": numbers["rp"]}
                item["total_consumed_milli"] = numbers["tc"]
                self._put(f"ENTITY#{entity_id}", f"#BUCKET#{resource}#{limit.name}", {**item})
        if self._composite:
            self._put(f"ENTITY#{entity_id}", f"#BUCKET#{resource}", whole)

    def _put(self, partition: str, sort: str, item: Mapping[str, Value]) -> None:
        """Write an old record; the oldest keep their attributes in a map."""
        nested = not self._composite and self._simulation.rng.random() < 0.5
        kept: Item = {"data": dict(item)} if nested else dict(item)
        run_sync(self._store.write_each([Put(Key(partition, sort), kept)]))

    # What becomes of it.

    def charge(self, write: Write, before: Item | None, after: Item) -> Charge | None:
        """What a write has to take out of a bucket because it moves an old one there; else nothing."""
        said: Mapping[str, object] = write.item if isinstance(write, Put) else getattr(write, "set", {})
        at_ms = said.get(MOVED)
        if not isinstance(at_ms, int):
            return None
        entity_id = parse_bucket_pk(write.key.partition).entity_id
        assert MOVED not in (before or {}), f"the bucket of {entity_id} was moved twice"
        self._simulation.faults["bucket moved" if before is None else "bucket charged"] += 1
        self._moved.add(entity_id)
        parts, consumed = self.buckets[entity_id], {}
        for name, part in parts.items():
            if before is None:
                assert stored_rate(after, name) == part.rate, f"{entity_id} was moved as {after}"
                consumed[name] = part.consumed
        return Charge({name: part.missing_milli(at_ms) for name, part in parts.items()}, consumed, at_ms)

    async def enter(self, repository: Repository) -> bool:
        """Come again until one is let in; false for who loses patience."""
        for _ in range(VISITS_MAX):
            if not self.waiting:
                return True
            try:
                await check_versions(repository._scope, register=self._simulation.rng.random() < 0.5)
            except (IncompatibleSchemaError, RateLimiterUnavailable):
                await idle(self._simulation, 8)
                continue
            missing = [key for kind, key in self._unmoved() if kind not in (Kind.USAGE, Kind.AUDIT)]
            assert not missing, f"somebody was let in before {missing} were moved"
            self._simulation.faults["let in"] += 1
            return True
        return False

    def _unmoved(self) -> list[tuple[Kind, Key]]:
        found = [recognise(Row(key, item)) for key, item in self._store._shelf.items.items()]
        return [
            (source.kind, source.key)
            for source in found
            if isinstance(source, OldRecord) and source.kind is not Kind.VERSION and not source.is_moved
        ]

    def migration(self, process: Process, backend: Timed) -> Migration:
        async def scan() -> AsyncIterator[Row]:
            items = self._store._shelf.items
            keys = sorted(items)
            for at in range(0, len(keys), PAGE_ROWS):
                await backend.batch_get(keys[at : at + 1])  # a page travels like any other read
                for row in [Row(key, items[key]) for key in keys[at : at + PAGE_ROWS] if key in items]:
                    yield row

        return WatchedMigration(process, backend, scan)

    def check(self, setup: Repository) -> None:
        """Everything is there once, and the old records are gone."""
        items, estate = self._store._shelf.items, self._estate
        old = [key for key in items if "/" not in key.partition.partition("#")[0]]
        assert old == [older_version_key()], f"{old} were left"
        assert run_sync(Migration(self._store).state()).stage is MigrationStage.DONE
        run_sync(check_versions(setup._scope, register=False))
        for entity_id in (*estate.family, VETERAN):
            assert run_sync(setup.get_entity(entity_id)) is not None, f"{entity_id} is gone"
        veteran = run_sync(setup.get_entity(VETERAN))
        assert veteran is not None
        assert (veteran.name, veteran.version) == (f"old {VETERAN}", 3)
        assert run_sync(setup.get_limits(VETERAN, estate.resource)) == list(estate.choices[-1])
        events = run_sync(setup.get_audit_events(self.heir, limit=1000))
        assert [event.timestamp for event in events].count(AUDITED_AT) == 1
        # A bucket that was full and idle for long may be gone by now, and another one in its place.
        assert self._moved == self.buckets.keys(), f"{self._moved} were moved"


class WatchedMigration(Migration):
    """A migration during which the world stays awake: it looks at the clock before it writes."""

    def __init__(self, process: Process, backend: Backend, scan: Scan) -> None:
        super().__init__(backend, process.world, scan=scan)
        self._simulation = process.simulation

    async def _pass(self, what: str, kinds: frozenset[Kind], *, ways: int) -> None:
        self._simulation.in_flight += 1
        try:
            await super()._pass(what, kinds, ways=ways)
        finally:
            self._simulation.in_flight -= 1


async def migrate(simulation: Simulation, heritage: Heritage, process: Process, backend: Timed) -> None:
    """Bring the table up to date, as often as it takes."""
    for _ in range(ATTEMPTS_MAX):
        try:
            await idle(simulation, 20)
            await heritage.migration(process, backend).run()
            simulation.faults["migrated"] += 1
            return
        except (Cancelled, RateLimiterUnavailable):
            simulation.faults["migration interrupted"] += 1
