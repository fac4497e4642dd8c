"""Stores full of old records, and what the new records say."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.dynamodb.tables import driver
from tests.migrations.older import NOW_MS, Old, Table, Truth
from tests.stores import STORES
from zae_limiter import RateLimiter, Repository
from zae_limiter.backends.dynamodb import DynamoDBBackend
from zae_limiter.backends.dynamodb.expressions import encode, encode_key
from zae_limiter.engine.law import Rate, balance
from zae_limiter.operate.migrations import Migration, MigrationReport, scan_of
from zae_limiter.operate.migrations.scanning import Scan
from zae_limiter.records.connection import Connection, Options
from zae_limiter.records.items import audit_event_of, bucket_states, config_of, entity_of, usage_snapshot_of
from zae_limiter.repository_protocol import Backend, Item, Key, Put, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import namespace_key, number, parse_bucket_pk
from zae_limiter.testing import ManualClock

INSTANTS_MS = (0, 1, 999, 60_000, 3_600_000, 86_400_000)
"""How long after the migration balances are compared."""


@dataclass
class OldStore:
    """A store of some kind under a clock that stands still."""

    name: str
    open_backend: Callable[[], Backend]
    clock: ManualClock

    def __post_init__(self) -> None:
        self.backend = self.open_backend()
        self.scan: Scan = scan_of(self.backend)

    def fill(self, table: Table) -> None:
        fill(self.backend, table.items)

    def migration(self, wrap: Callable[[Backend], Backend] = lambda it: it, **options: Any) -> Migration:
        return Migration(wrap(self.backend), self.clock.world, scan=self.scan, **options)

    def migrate(self, **options: Any) -> MigrationReport:
        return run_sync(self.migration(**options).run())

    def rows(self) -> dict[Key, Item]:
        return run_sync(_collected(self.scan))

    def repository(self) -> Repository:
        """The default namespace, opened as a client does that does not ask about versions."""
        (item,) = run_sync(self.backend.batch_get([namespace_key("default")]))
        assert item is not None
        connection = Connection(self.backend, self.clock.world, Options())
        return Repository(connection, "default", str(item["namespace_id"]))

    def limiter(self) -> RateLimiter:
        return RateLimiter(repository=self.repository())


def old_store(name: str, folder: Path, clock: ManualClock | None = None) -> OldStore:
    """A fresh store of a kind."""
    clock = clock or ManualClock(NOW_MS)
    return OldStore(name, functools.partial(STORES[name](folder, clock.world), sync=True), clock)


async def _collected(scan: Scan) -> dict[Key, Item]:
    return {row.key: row.item async for row in scan()}


def fill(backend: Backend, items: dict[Key, Item]) -> None:
    if isinstance(backend, DynamoDBBackend):
        batch_fill(backend.table_name, items)
        return
    writes: list[Write] = [Put(key, item) for key, item in items.items()]
    for at in range(0, len(writes), 100):
        assert all(outcome.applied for outcome in run_sync(backend.write_each(writes[at : at + 100])))


def batch_fill(table: str, items: dict[Key, Item]) -> None:
    """Fill a table in the way that costs the engine least."""
    requests = [
        {"PutRequest": {"Item": encode_key(key) | {name: encode(value) for name, value in item.items()}}}
        for key, item in items.items()
    ]
    for at in range(0, len(requests), 25):
        reply = driver().batch_write_item(RequestItems={table: requests[at : at + 25]})
        assert not reply["UnprocessedItems"]


def is_old(key: Key) -> bool:
    return "/" not in key.partition.partition("#")[0]


def old_rows(rows: Iterable[Key]) -> set[Key]:
    """What is left of the old table, but for the record that keeps older clients out."""
    return {key for key in rows if is_old(key)} - {Key("SYSTEM#", "#VERSION")}


def said_by(rows: dict[Key, Item]) -> Truth:
    """What the records of the present shape say, in the words of the generator."""
    truth = Truth()
    for key, item in rows.items():
        kind, _, name = key.partition.partition("/")[2].partition("#")
        match kind, key.sort.split("#")[1:]:
            case "ENTITY", ["META"]:
                truth.entities[name] = entity_of(item)
            case "ENTITY", ["CONFIG", resource]:
                truth.configs[name, resource] = config_of(item)
            case "RESOURCE", ["CONFIG"]:
                truth.configs["", name] = config_of(item)
            case "SYSTEM", ["CONFIG"]:
                truth.configs["", ""] = config_of(item)
            case "BUCKET", ["STATE"]:
                address = parse_bucket_pk(key.partition)
                truth.buckets[address.entity_id, address.resource] = {
                    state.limit_name: Old(
                        Rate(state.capacity_milli, state.refill_amount_milli, state.refill_period_ms),
                        state.tokens_milli,
                        state.last_refill_ms,
                        state.total_consumed_milli,
                    )
                    for state in bucket_states(item)
                }
            case "ENTITY", ["USAGE", _, _]:
                row = usage_snapshot_of(item)
                place = row.entity_id, row.resource, row.window_type, row.window_start
                truth.usage[place] = dict(row.counters), row.total_events
            case "AUDIT", ["AUDIT", _]:
                event = audit_event_of(item)
                told = event.action, event.resource, dict(event.details)
                truth.audit[event.entity_id, event.timestamp] = told
    return truth


def assert_same(rows: dict[Key, Item], expected: Truth, now_ms: int = NOW_MS) -> None:
    """The new records say what the old ones said, balances at every instant included."""
    found = said_by(rows)
    assert found.entities == expected.entities
    assert found.configs == expected.configs
    assert found.usage == expected.usage
    assert found.audit == expected.audit
    assert balances(found, now_ms) == balances(expected, now_ms)
    assert children(rows) == Counter(
        parent
        for entity in expected.entities.values()
        if (parent := entity.parent_id) is not None and parent in expected.entities
    )
    counts = {
        str(item["resource"]): item["entities"] for key, item in rows.items() if key.sort == "#ENTITY_CONFIGS"
    }
    assert counts == Counter(resource for owner, resource in expected.configs if owner)


def balances(truth: Truth, now_ms: int) -> dict[tuple[str, str, str], list[Any]]:
    """Of every limit its numbers, what was consumed, and what it holds at some instants."""
    return {
        (*bucket, name): [
            old.rate,
            old.consumed_milli,
            *(balance(old.rate, old.tokens_milli, old.origin_ms, now_ms + after) for after in INSTANTS_MS),
        ]
        for bucket, limits in truth.buckets.items()
        for name, old in limits.items()
    }


def children(rows: dict[Key, Item]) -> Counter[str]:
    counted = {
        entity_of(item).entity_id: number(item, "children") for key, item in rows.items() if _is_meta(key)
    }
    return Counter({name: count for name, count in counted.items() if count})


def _is_meta(key: Key) -> bool:
    return key.sort == "#META" and not is_old(key)
