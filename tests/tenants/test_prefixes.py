"""Namespaces whose ids begin with one another's: each sees, counts and purges its own rows and no others."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.dynamodb.tables import driver, make_table, open_table
from tests.engines import redis_server
from tests.fuzz.files import stored
from tests.fuzz.tenants import ENTITIES, LIMITS, RESOURCES, furnish
from tests.postgres.schemas import make_schema, open_schema, owner
from tests.tenants.places import of_tenant, registered, view_of
from zae_limiter import NamespaceStateError, SyncRateLimiter, SyncRepository
from zae_limiter.backends.dynamodb.expressions import decode_key
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.redis import open_backend as open_redis
from zae_limiter.backends.redis.encoding import key_of
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.repository_protocol import Backend, Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator import AggregatorSettings, Change
from zae_limiter_aggregator.changes import numbered
from zae_limiter_aggregator.processor import process_changes

IDS = ("a", "ab", "a-", "a.b", "A", "_a", "aa")
FEW = ("a", "ab", "a-")


class Shared:
    """A store of some kind, and all that is in it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.clock = ManualClock()
        self.ids = FEW if kind == "dynamodb" else IDS
        self.backend: Backend
        self.contents: Callable[[], dict[Any, Any]]
        if kind == "memory":
            memory = MemoryBackend(self.clock.world)
            self.backend, self.contents = memory, memory.snapshot
        elif kind == "sqlite":
            path = folder / "limits.db"
            self.backend = SqliteBackend(path, sync=True, timeout_ms=10_000, world=self.clock.world)
            self.contents = lambda: stored(path)
        elif kind == "dynamodb":
            table = make_table()
            self.backend = open_table(True, table, self.clock.world)
            self.contents = lambda: scanned(table)
        elif kind == "postgres":
            schema = make_schema()  # nobody else has used it: all that is in it is ours
            self.backend = open_schema(True, schema, self.clock.world)
            self.contents = lambda: in_schema(schema)
        else:
            prefix = redis_server.fresh_prefix()
            self.backend = open_redis(
                redis_server.url(prefix, timeout_ms=60_000), sync=True, world=self.clock.world
            )
            self.contents = lambda: under_prefix(prefix)
        run_sync(self.backend.setup())
        run_sync(self.backend.write_each(registered(self.ids)))
        self.registry = SyncRepository.over(self.backend, "first", world=self.clock.world)
        self.views = {one: view_of(self.registry, one) for one in self.ids}
        for view in self.views.values():
            furnish(view, self.clock.now_ms)


def scanned(table: str) -> dict[Any, Any]:
    pages = driver().get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    return {decode_key(item): item for page in pages for item in page["Items"]}


def in_schema(schema: str) -> dict[Any, Any]:
    rows = owner().execute(f"SELECT pk, sk, body FROM {schema}.items".encode()).fetchall()
    return {Key(pk, sk): body for pk, sk, body in rows}


def under_prefix(prefix: str) -> dict[Any, Any]:
    """Items, as the server has them; what it keeps beside them is its own."""
    with redis.Redis(redis_server.HOST, redis_server.SERVER.port()) as client:
        names = client.scan_iter(f"{{{prefix}:*}}i*", 1_000)
        return {key_of(name.partition(b"}")[2]): client.hgetall(name) for name in names}


@pytest.fixture(params=["memory", "sqlite", "dynamodb", "postgres", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shared]:
    it = Shared(request.param, tmp_path)
    yield it
    run_sync(it.backend.close())


def told(repository: SyncRepository) -> list[Any]:
    """All that a tenant's lists say."""
    return [
        sorted(one.entity_id for one in repository.list_entities()[0]),
        sorted(one.entity_id for one in repository.get_children("org-1")),
        repository.list_resources_with_defaults(),
        repository.list_resources_with_entity_configs(),
        repository.list_entities_with_custom_limits("other")[0],
        len(repository.get_resource_buckets("gpt-4", "rpm")),
        repository.get_resource_capacity("gpt-4", "rpm").total_capacity,
        len(repository.get_usage_snapshots(resource="gpt-4")[0]),
        len(repository.get_audit_events("user-1")),
    ]


def test_each_sees_its_own(shared: Shared) -> None:
    """The lists of all are alike, as their contents are; none has anything of the others."""
    for view in shared.views.values():
        assert told(view) == [
            sorted(ENTITIES),
            ["user-1", "user-2"],
            ["gpt-4"],
            ["_default_", "other"],
            ["user-1"],
            len(ENTITIES),
            LIMITS[0].capacity * len(ENTITIES),
            len(ENTITIES) * 3,
            2,
        ]


def test_a_purge_takes_its_own_rows_and_no_others(shared: Shared) -> None:
    """One after another they go, each with exactly what begins with its id."""
    for namespace_id in shared.ids:
        before = shared.contents()
        mine = of_tenant(before, namespace_id)
        with pytest.raises(NamespaceStateError):
            shared.registry.purge_namespace(namespace_id)
        shared.registry.delete_namespace(f"name-{namespace_id}")
        assert shared.registry.purge_namespace(namespace_id) == len(mine)
        after = shared.contents()
        gone = before.keys() - after.keys()
        assert {key for key in gone if not key.partition.startswith("_/")} == mine.keys()
        kept = [key for key in after if not key.partition.startswith("_/")]
        assert {key: after[key] for key in kept} == {key: before[key] for key in kept}


def test_usage_is_counted_where_it_was_used() -> None:
    """The same entity and resource in all of them, and each has used something else."""
    clock = ManualClock()
    backend = MemoryBackend(clock.world)
    seen: list[Change] = []

    def watch(key: Any, old: Any, new: Any) -> None:
        if key.sort == "#STATE":
            seen.append(Change(key, old, new, clock.now_ms, numbered(len(seen) + 1), str(len(seen) + 1)))

    run_sync(backend.write_each(registered(IDS)))
    registry = SyncRepository.over(backend, "first", world=clock.world)
    backend.watchers.append(watch)
    for amount, namespace_id in enumerate(IDS, 1):
        for resource in RESOURCES:
            limiter = SyncRateLimiter(view_of(registry, namespace_id))
            with limiter.acquire("user-1", resource, {"rpm": amount}, LIMITS[:1]):
                pass
    run_sync(process_changes(seen, backend, clock.world, AggregatorSettings(tend_buckets=False)))
    for amount, namespace_id in enumerate(IDS, 1):
        view = view_of(registry, namespace_id)
        assert view.get_usage_summary("user-1").total == {"rpm": amount * len(RESOURCES)}
        assert view.get_usage_summary(resource="gpt-4").total == {"rpm": amount}
