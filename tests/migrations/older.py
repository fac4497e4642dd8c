"""Tables as older versions left them, and what they mean: drawn from a seed, written from the documents.

``Truth`` is what the records say, worked out without the code under test. The two shapes write the same
truth in their own way, except that the oldest one knows no defaults and no cascading entities.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from zae_limiter import AuditAction, Entity, Limit, OnUnavailable
from zae_limiter.engine.law import Rate
from zae_limiter.models import LimiterConfig, UsageWindow
from zae_limiter.repository_protocol import Item, Key

NOW_MS = 1_700_000_000_000
RESOURCES = ("gpt-4", "gpt-4-turbo", "openai/o1")

Level = tuple[str, str]
"""An entity and a resource; an empty entity stands for defaults, and an empty resource for the system."""


@dataclass(frozen=True)
class Old:
    """One limit of an old bucket, and how much its bucket can hold."""

    rate: Rate
    tokens_milli: int
    origin_ms: int
    consumed_milli: int


@dataclass
class Truth:
    entities: dict[str, Entity] = field(default_factory=dict)
    configs: dict[Level, LimiterConfig] = field(default_factory=dict)
    buckets: dict[tuple[str, str], dict[str, Old]] = field(default_factory=dict)
    usage: dict[tuple[str, str, UsageWindow, str], tuple[dict[str, int], int]] = field(default_factory=dict)
    audit: dict[tuple[str, str], tuple[AuditAction, str | None, dict[str, object]]] = field(
        default_factory=dict
    )
    """By whom it is about and the time."""


@dataclass
class Table:
    """The items of an old table, and what they mean."""

    items: dict[Key, Item]
    truth: Truth


def composite_table(entities: int, seed: int = 1) -> Table:
    """One item for all limits of a level or a bucket; defaults for the system and for resources."""
    return Drawn(entities, seed, is_composite=True).table()


def single_table(entities: int, seed: int = 1) -> Table:
    """One item for each limit; some of the records keep their attributes in a map."""
    return Drawn(entities, seed, is_composite=False).table()


SHAPES: dict[str, Callable[..., Table]] = {"composite": composite_table, "single": single_table}


class Drawn:
    def __init__(self, entities: int, seed: int, *, is_composite: bool) -> None:
        self.count, self.is_composite = entities, is_composite
        self.random = random.Random(seed)
        self.items: dict[Key, Item] = {}
        self.truth = Truth()

    def table(self) -> Table:
        version = {"schema_version": "0.8.0", "client_min_version": "0.0.0", "lambda_version": "0.8.1"}
        self.put("SYSTEM#", "#VERSION", version, nested=not self.is_composite)
        if self.is_composite:
            self.defaults()
        teams = [f"team-{number}" for number in range(max(1, self.count // 50))]
        for team in teams:
            self.entity(team, self.random.choice([None, "company"]))
        self.entity("company", None)
        for number in range(self.count):
            name = f"user-{number}@example.com"
            parent = self.random.choice([None, self.random.choice(teams)])
            if self.random.random() < 0.9:  # buckets may belong to nobody
                self.entity(name, parent)
            self.belongings(name)
        self.entity("child-of-nobody", "nobody")
        return Table(self.items, self.truth)

    def belongings(self, name: str) -> None:
        resource = self.random.choice(RESOURCES)
        if self.random.random() < 0.3:
            self.limits(name, resource, [self.limit("rpm"), self.limit("tpm")])
        if self.random.random() < 0.1:
            self.limits(name, "_default_", [self.limit("rpm")])
        for used in self.random.sample(RESOURCES, self.random.randint(0, 2)):
            self.bucket(name, used)
        for window in self.random.sample([UsageWindow.HOURLY, UsageWindow.DAILY], self.random.randint(0, 2)):
            self.usage(name, resource, window)
        if self.random.random() < 0.5:
            self.event(name, AuditAction.LIMITS_SET, resource)

    def defaults(self) -> None:
        self.config(Key("SYSTEM#", "#CONFIG"), ("", ""), [self.limit("rpm")], {"strict_version": False})
        for resource in RESOURCES[:2]:
            self.config(Key(f"RESOURCE#{resource}", "#CONFIG"), ("", resource), [self.limit("rpm")])
            self.event(f"$RESOURCE:{resource}", AuditAction.LIMITS_SET, resource)
        self.event("$SYSTEM", AuditAction.LIMITS_SET, None)

    # Records.

    def entity(self, name: str, parent: str | None) -> None:
        made_at, version = "2023-01-01T00:00:00Z", self.random.randint(1, 9)
        cascade = self.is_composite and parent is not None and self.random.random() < 0.5
        metadata = {"tier": self.random.choice(["free", "paid"]), "seats": 3}
        self.truth.entities[name] = Entity(name, name.title(), parent, cascade, metadata, made_at, version)
        item: dict[str, object] = {"entity_id": name, "name": name.title(), "parent_id": parent}
        item |= {"metadata": metadata, "created_at": made_at, "version": version}
        if self.is_composite:
            item["cascade"] = cascade
        index = {} if parent is None else {"GSI1PK": f"PARENT#{parent}", "GSI1SK": f"CHILD#{name}"}
        self.put(f"ENTITY#{name}", "#META", item, index, nested=self.coin())

    def limits(self, name: str, resource: str, limits: list[tuple[Limit, int]]) -> None:
        if self.is_composite:
            self.config(Key(f"ENTITY#{name}", f"#CONFIG#{resource}"), (name, resource), limits)
            return
        self.truth.configs[name, resource] = LimiterConfig(
            tuple(sorted((limit for limit, _ in limits), key=lambda limit: limit.name)), config_version=1
        )
        nested = self.coin()
        for limit, capacity in limits:
            item = {"capacity": capacity, "burst": limit.capacity, "refill_amount": limit.refill_amount}
            item |= {"refill_period_seconds": limit.refill_period_seconds}
            self.put(f"ENTITY#{name}", f"#LIMIT#{resource}#{limit.name}", item, nested=nested)

    def config(
        self, key: Key, level: Level, limits: list[tuple[Limit, int]], said: dict[str, bool] | None = None
    ) -> None:
        policy = self.random.choice([None, OnUnavailable.ALLOW, OnUnavailable.BLOCK])
        version = self.random.randint(1, 5)
        self.truth.configs[level] = LimiterConfig(
            tuple(sorted((limit for limit, _ in limits), key=lambda limit: limit.name)),
            policy,
            config_version=version,
            **(said or {}),
        )
        item: dict[str, object] = {"config_version": version, **(said or {})}
        if policy is not None:
            item["on_unavailable"] = policy.value
        for limit, capacity in limits:
            item |= {f"l_{limit.name}_cp": capacity, f"l_{limit.name}_ra": limit.refill_amount}
            item[f"l_{limit.name}_rp"] = limit.refill_period_seconds
            if limit.capacity != capacity or self.coin():
                item[f"l_{limit.name}_bx"] = limit.capacity
        self.put(*key, item)

    def bucket(self, name: str, resource: str) -> None:
        names = self.random.sample(["rpm", "tpm", "tpd"], self.random.randint(1, 3))
        ttl = 2**31 if self.coin() else None  # not over by any clock, for commands use that of the machine
        shared_ms = NOW_MS - self.random.randint(0, 100_000)
        index = {"GSI2PK": f"RESOURCE#{resource}"}
        whole: dict[str, object] = {"entity_id": name, "resource": resource, "rf": shared_ms, "ttl": ttl}
        limits: dict[str, Old] = {}
        for limit_name in names:
            limit, capacity = self.limit(limit_name)
            origin_ms = shared_ms if self.is_composite else NOW_MS - self.random.randint(0, 100_000)
            rate = Rate.of(limit)
            tokens = self.random.randint(-rate.capacity_milli, rate.capacity_milli)
            consumed = self.random.randint(0, 10**9)
            limits[limit_name] = Old(rate, tokens, origin_ms, consumed)
            if self.is_composite:
                numbers = {"tk": tokens, "cp": capacity * 1000, "bx": rate.capacity_milli, "tc": consumed}
                numbers |= {"ra": rate.refill_amount_milli, "rp": rate.refill_period_ms}
                whole |= {f"b_{limit_name}_{field}": number for field, number in numbers.items()}
                continue
            numbers = {"tokens_milli": tokens, "last_refill_ms": origin_ms, "capacity_milli": capacity * 1000}
            numbers |= {"burst_milli": rate.capacity_milli, "refill_amount_milli": rate.refill_amount_milli}
            numbers["refill_period_ms"] = rate.refill_period_ms
            flat = {"total_consumed_milli": consumed, "ttl": ttl, **index}
            self.put(f"ENTITY#{name}", f"#BUCKET#{resource}#{limit_name}", numbers, flat, nested=self.coin())
        if self.is_composite:
            self.put(f"ENTITY#{name}", f"#BUCKET#{resource}", whole, index)
        self.truth.buckets[name, resource] = limits

    def usage(self, name: str, resource: str, window: UsageWindow) -> None:
        start = datetime(2023, 11, 14, 22, tzinfo=UTC) - timedelta(hours=self.random.randint(1, 500))
        if window is UsageWindow.DAILY:
            start = start.replace(hour=0)
        text = f"{start:%Y-%m-%dT%H:%M:%SZ}"
        key = Key(f"ENTITY#{name}", f"#USAGE#{resource}#{text}")
        if key in self.items:  # the old keys of an hour and a day were the same
            return
        counters, events = {"rpm": self.random.randint(1, 99), "tpm": 12_345}, self.random.randint(1, 99)
        self.truth.usage[name, resource, window, text] = counters, events
        item = {"entity_id": name, "resource": resource, "window": window.value, "window_start": text}
        self.put(
            *key,
            {**item, **counters, "total_events": events},
            {"ttl": 2**31, "GSI2PK": f"RESOURCE#{resource}"},
        )

    def event(self, about: str, action: AuditAction, resource: str | None) -> None:
        at = datetime(2023, 11, 1, tzinfo=UTC) + timedelta(milliseconds=self.random.randint(0, 10**9))
        text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        details = {"limits": [{"name": "rpm", "capacity": 5}]}
        self.truth.audit[about, text] = action, resource, details
        item: dict[str, object] = {"timestamp": text, "action": action.value, "entity_id": about}
        item |= {"principal": "admin", "resource": resource, "details": details, "event_id": text}
        self.put(f"AUDIT#{about}", f"#AUDIT#{text}", item, {"ttl": 2**31}, nested=self.coin())

    # What they are made of.

    def limit(self, name: str) -> tuple[Limit, int]:
        """A limit, and what the older versions called its capacity: the limit's own is the burst."""
        rate, period = self.random.randint(1, 10_000), self.random.choice([1, 60, 3600, 86_400])
        burst = rate * self.random.choice([1, 1, 2, 3])
        return Limit(name, burst, rate, period), rate

    def coin(self) -> bool:
        return self.random.random() < 0.5

    def put(
        self,
        partition: str,
        sort: str,
        item: dict[str, object],
        flat: dict[str, object] | None = None,
        *,
        nested: bool = False,
    ) -> None:
        """Write a record, with its attributes in a map if it is a very old one."""
        kept = {name: value for name, value in item.items() if value is not None}
        whole = {"data": kept} if nested and not self.is_composite else kept
        beside = {name: value for name, value in (flat or {}).items() if value is not None}
        self.items[Key(partition, sort)] = {**whole, **beside}  # type: ignore[dict-item]
