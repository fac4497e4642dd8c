"""Fills a table with an older release, through that release's public API alone, and says what it reads there.

Run by the Python of that release: ``python fill.py URL TABLE TASK FEATURE…``, where a task is one of those at
the end. It prints one JSON document. The tests import it too: then ``older`` is this project, asked the same.
"""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

warnings.simplefilter("ignore")

import zae_limiter as older  # noqa: E402

REGION = "us-east-1"
Limit = older.Limit
IS_NEWER = hasattr(older, "ScheduleEntry")


class Table:
    """One table, as the older release sees it."""

    def __init__(self, url: str, name: str) -> None:
        self.name, self.where = name, {"region": REGION, "endpoint_url": url}
        self.drivers = {"region_name": REGION, "endpoint_url": url}
        self.opened: list[Any] = []

    def make(self) -> None:
        older.SyncRepository(name=self.name, **self.where).create_table()

    def open(self) -> Any:
        repo = older.SyncRepository.open(stack=self.name, **self.where)
        self.opened.append(repo)
        return repo

    def limiter(self, namespace: str | None = None) -> Any:
        """A limiter that remembers nothing."""
        repo = older.SyncRepository.open(namespace=namespace, stack=self.name, **self.where)
        self.opened.append(repo)
        return older.SyncRateLimiter(repository=repo)

    def close(self) -> None:
        for repo in self.opened:
            repo.close()

    def aggregate(self) -> None:
        """Let the release's aggregator count all that happened so far."""
        import boto3

        from zae_limiter_aggregator import process_stream_records

        streams = boto3.client("dynamodbstreams", **self.drivers)
        table = boto3.client("dynamodb", **self.drivers).describe_table(TableName=self.name)["Table"]
        arn, records = table["LatestStreamArn"], []
        for shard in streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]:
            place = {"StreamArn": arn, "ShardId": shard["ShardId"]}
            at = streams.get_shard_iterator(**place, ShardIteratorType="TRIM_HORIZON")["ShardIterator"]
            while at:
                page = streams.get_records(ShardIterator=at)
                records += page["Records"]
                at = page.get("NextShardIterator") if page["Records"] else None
        for record in records:
            made_at = record["dynamodb"]["ApproximateCreationDateTime"]
            record["dynamodb"]["ApproximateCreationDateTime"] = made_at.timestamp()
        with redirect_stdout(io.StringIO()):
            result = process_stream_records(records, self.name, ["hourly", "daily"], 90)
        assert not result.errors, result.errors


def slow(name: str, capacity: int) -> Any:
    """A limit that gains nothing to speak of while a test runs."""
    return Limit.custom(name, capacity, 1, 86_400)


def use(limiter: Any, entity: str, resource: str, amounts: dict[str, int], then: dict[str, int]) -> None:
    with limiter.acquire(entity, resource, amounts) as lease:
        if then:
            lease.adjust(**then)


def fill(table: Table) -> None:
    """Entities, families, all four levels, debts, shards, namespaces, usage, audit, a file's levels."""
    table.make()
    repo = table.open()
    repo.register_namespaces(["team-a", "gone"])
    repo.delete_namespace("gone")
    repo.set_system_defaults([slow("rpd", 500)], on_unavailable="allow")
    repo.set_resource_defaults("gpt-4", [slow("rpd", 80), slow("tpd", 4000)])
    repo.set_resource_defaults("img/xl", [slow("rpd", 40)], principal="admin")
    repo.set_resource_defaults("old", [slow("rpd", 4)])
    repo.delete_resource_defaults("old")
    repo.create_entity("org", name="Organisation", metadata={"plan": "gold"}, principal="admin")
    for number in range(4):
        repo.create_entity(f"user-{number}", parent_id="org", cascade=number % 2 == 0)
    repo.create_entity("lonely")
    repo.create_entity("former")
    repo.delete_entity("former")
    repo.set_limits("user-0", [slow("rpd", 20)], resource="gpt-4")
    repo.set_limits("user-1", [slow("rpd", 30), slow("tpd", 900)])
    repo.set_limits("user-2", [slow("rpd", 25)], resource="gpt-4")
    repo.set_limits("lonely", [slow("rpd", 9)], resource="img/xl")
    repo.set_limits("lonely", [Limit.per_minute("rpm", 9, burst=12)], resource="unused")
    repo.set_limits("lonely", [slow("rpd", 9)])
    repo.delete_limits("lonely")
    repo.put_provisioner_state(
        {
            "managed_system": True,
            "managed_resources": ["gpt-4"],
            "managed_entities": {"user-0": ["gpt-4"], "user-1": ["_default_"]},
            "last_applied": "2026-01-01T00:00:00Z",
            "applied_hash": "abc",
        }
    )
    limiter = table.limiter()
    for number in range(4):
        use(limiter, f"user-{number}", "gpt-4", {"rpd": 2 + number}, {})
        use(limiter, f"user-{number}", "gpt-4", {"rpd": 1}, {})
    use(limiter, "user-0", "gpt-4", {"rpd": 1}, {"rpd": 70})  # a debt, of the parent too
    use(limiter, "lonely", "img/xl", {"rpd": 3}, {})
    use(limiter, "lonely", "elsewhere", {"rpd": 7}, {})
    spread(table, repo)
    team = table.limiter("team-a")
    team.create_entity("org", name="Another")
    team.set_resource_defaults("gpt-4", [slow("rpd", 11)])
    use(team, "org", "gpt-4", {"rpd": 5}, {})
    table.aggregate()


def spread(table: Table, repo: Any) -> None:
    """A bucket of several shards, one of them in debt."""
    repo.create_entity("hot")
    use(table.limiter(), "hot", "gpt-4", {"rpd": 0, "tpd": 100}, {})
    for count in (1, 2):
        repo.bump_shard_count("hot", "gpt-4", count)
    for _ in range(8):
        use(table.limiter(), "hot", "gpt-4", {"rpd": 1}, {})
    limiter = table.limiter()
    for _ in range(16):
        use(limiter, "hot", "gpt-4", {"tpd": 1}, {})
    if IS_NEWER:
        repo.reset_bucket("hot", "gpt-4")  # every shard has its share from now on, and no more
        repo.top_up("user-1", "gpt-4", {"rpd": 1}, idempotency_key="purchase-1")
    for _ in range(12):
        use(limiter, "hot", "gpt-4", {"tpd": 50, "rpd": 1}, {})
    use(limiter, "hot", "gpt-4", {"tpd": 10}, {"tpd": 3000})


def plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return getattr(value, "value", value)


def limits(found: list[Any]) -> list[list[Any]]:
    return sorted([one.name, one.capacity, one.refill_amount, one.refill_period_seconds] for one in found)


ENTITIES = ["org", *(f"user-{number}" for number in range(4)), "lonely", "hot"]
RESOURCES = ["gpt-4", "img/xl", "elsewhere", "unused"]


def read(table: Table) -> dict[str, Any]:
    """Every public read of one namespace and of the registry."""
    repo = table.open()
    return {
        "default": read_namespace(table.limiter(), ENTITIES),
        "team-a": read_namespace(table.limiter("team-a"), ["org"]),
        "namespaces": sorted(map(named, repo.list_namespaces())),
        "orphans": sorted(map(named, repo.list_orphan_namespaces())),
    }


def named(namespace: Any) -> str:
    if isinstance(namespace, dict):
        return namespace.get("name") or namespace["namespace"]
    return str(namespace.namespace_name)


def read_namespace(limiter: Any, entities: list[str]) -> dict[str, Any]:
    repo = limiter._repository
    return {
        "entities": {name: read_entity(limiter, name) for name in entities},
        "children": {name: sorted(map(id_of, limiter.get_children(name))) for name in entities},
        "system": [limits(repo.get_system_defaults()[0]), plain(repo.get_system_defaults()[1])],
        "resources": {name: limits(limiter.get_resource_defaults(name)) for name in RESOURCES},
        "with defaults": sorted(limiter.list_resources_with_defaults()),
        "with entities": sorted(limiter.list_resources_with_entity_configs()),
        "custom": {
            name: sorted(limiter.list_entities_with_custom_limits(name)[0])
            for name in [*RESOURCES, "_default_"]
        },
        "usage of resources": {
            name: usage(limiter.get_usage_snapshots(resource=name, window_type=window)[0])
            for name in RESOURCES
            for window in ("hourly", "daily")
        },
        "capacity": {
            name: sorted(
                [one.entity_id, one.capacity, one.available]
                for one in limiter.get_resource_capacity(name, "rpd").entities
            )
            for name in RESOURCES
        },
        "audit": {
            name: [
                [
                    one.event_id,
                    one.timestamp,
                    plain(one.action),
                    one.principal,
                    one.resource,
                    plain(one.details),
                ]
                for one in limiter.get_audit_events(name)
            ]
            for name in [*entities, "former", "$SYSTEM", "$RESOURCE:gpt-4", "$RESOURCE:img/xl"]
        },
    }


def id_of(entity: Any) -> str:
    return entity.id if hasattr(entity, "id") else entity.entity_id


def read_entity(limiter: Any, name: str) -> dict[str, Any]:
    repo = limiter._repository
    entity = limiter.get_entity(name)
    return {
        "entity": [
            id_of(entity),
            entity.name,
            entity.parent_id,
            entity.cascade,
            dict(entity.metadata),
            entity.created_at,
        ],
        "limits": {one: limits(limiter.get_limits(name, one)) for one in [*RESOURCES, "_default_"]},
        "resolved": {one: resolved(repo.resolve_limits(name, one)) for one in RESOURCES},
        # Here a child that cascades has no more than its parent, which those releases do not say.
        "available": {
            one: limiter.available(name, one)
            for one in RESOURCES
            if not entity.cascade and repo.resolve_limits(name, one)[0]
        },
        "usage": usage(limiter.get_usage_snapshots(entity_id=name)[0]),
    }


def resolved(found: tuple[Any, Any, Any]) -> list[Any]:
    return [limits(found[0] or []), plain(found[1]), plain(found[2])]


def usage(snapshots: list[Any]) -> list[Any]:
    return sorted(
        [
            one.entity_id,
            one.resource,
            plain(one.window_type),
            one.window_start,
            dict(one.counters),
            one.total_events,
        ]
        for one in snapshots
    )


FEATURES: dict[str, Callable[[Any], Any]] = {
    "schedule": lambda repo: repo.set_limits("who", [scheduled(10)], resource="gpt-4"),
    "half a token": lambda repo: repo.set_limits("who", [scheduled(5)], resource="gpt-4"),
    "scheduled quota": lambda repo: repo.set_limits("who", [scheduled_quota()], resource="gpt-4"),
    "two resets": lambda repo: repo.set_limits("who", [reset_twice()], resource="gpt-4"),
    "cascade policy": lambda repo: repo.set_entity_cascade("who", False, resource="gpt-4"),
    "cascade of a resource": lambda repo: repo.set_resource_cascade("gpt-4", True),
    "another parent": lambda repo: repo.set_parent("who", "org"),
    "lifted": lambda repo: (repo.disable_entity("who"), repo.clear_entity_disabled("who")),
    "enabled": lambda repo: (repo.disable_entity("who"), repo.enable_entity("who")),
}


def scheduled(rate: int) -> Any:
    entry = older.ScheduleEntry("* 9 * * *", scale=0.5)
    return Limit.per_day("rpd", rate).with_schedule((entry,))


def scheduled_quota() -> Any:
    return Limit.quota("rpd", 10, cron="0 0 * * *").with_schedule(scheduled(10).schedule)


def reset_twice() -> Any:
    rules = Limit.quota("rpd", 10, cron="0 0 * * *"), Limit.quota("rpd", 10, cron="30 12 * * 1")
    return rules[0].with_reset_schedule(rules[0].reset_schedule + rules[1].reset_schedule)


def fill_features(table: Table, features: tuple[str, ...]) -> None:
    """Each feature in a namespace of its own."""
    table.make()
    repo = table.open()
    repo.set_version_record(repo.get_version_record()["schema_version"], lambda_version=older.__version__)
    repo = table.open()
    repo.register_namespaces([space(feature) for feature in features])
    for feature in features:
        view = repo.namespace(space(feature))
        view.create_entity("org")
        view.create_entity("who")
        view.set_resource_defaults("gpt-4", [slow("rpd", 10)])
        use(older.SyncRateLimiter(repository=view), "who", "gpt-4", {"rpd": 1}, {})
        FEATURES[feature](view)


def works(table: Table, features: tuple[str, ...]) -> dict[str, str]:
    """What the release says of a request under each feature."""
    said, repo = {}, table.open()
    for feature in features:
        limiter = older.SyncRateLimiter(repository=repo.namespace(space(feature)))
        try:
            use(limiter, "who", "gpt-4", {"rpd": 1}, {})
            said[feature] = "admitted"
        except older.ZAELimiterError as error:
            said[feature] = type(error).__name__
    return said


def space(feature: str) -> str:
    return feature.replace(" ", "-")


def main(url: str, name: str, task: str, *features: str) -> None:
    table = Table(url, name)
    said: Any = None
    match task:
        case "fill":
            fill(table)
            said = read(table)
        case "read":
            said = read(table)
        case "features":
            fill_features(table, features)
        case "works":
            said = works(table, features)
        case "open":
            try:
                table.open()
                said = "admitted"
            except older.ZAELimiterError as error:
                said = type(error).__name__
    print(json.dumps(said, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
