"""Every valid name works everywhere: in limits, config, buckets, usage rows, leases, lists, the trail."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import names as valid
from tests.names import PEOPLE
from tests.records.store import Store, count_usage
from zae_limiter import (
    InvalidIdentifierError,
    Limit,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    UsageWindow,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.records.items import usage_counter, usage_row, usage_snapshot_of
from zae_limiter.repository_protocol import Item, Update, apply
from zae_limiter.testing import ManualClock

LIMITS = [
    "tokens.in",
    "a-b",
    "ttl",
    "window",
    "window_start",
    "entity_id",
    "resource",
    "total_events",
    "PK",
    "SK",
    "GSI1PK",
    "GSI2PK",
    "GSI4SK",
    "rf",
    "cv",
    "shard_count",
    "config_version",
    "on_unavailable",
    "a_tk",
    "a_cp",
    "x" * 64,
]
ENTITIES = ["0", "user:a@b.c", "A.b_c-d", "e" * 256]
RESOURCES = ["r", "openai/gpt-4:turbo", "a.b_c-d", "r" * 64]


def pairs() -> list[tuple[str, str]]:
    """Every name once as an entity and once as a resource."""
    entities = [name for name in (*ENTITIES, *PEOPLE) if name[0] != "$"]
    resources = [*RESOURCES, *reversed(PEOPLE)]
    longest = max(len(entities), len(resources))
    return [(entities[n % len(entities)], resources[n % len(resources)]) for n in range(longest)]


async def test_names_of_entities_and_resources(store: Store) -> None:
    """From the first record to the last, what went in comes out."""
    whole = await store.repository()
    for n, (entity_id, resource) in enumerate(pairs()):
        await whole.register_namespace(f"n{n}")
        await live(await whole.namespace(f"n{n}"), entity_id, resource)


async def live(repository: Repository, entity_id: str, resource: str, parent_id: str = "org|1+x") -> None:
    """Every kind of record, written and read."""
    limiter = RateLimiter(repository)
    rpm = Limit.per_minute("rpm", 10)
    await repository.create_entity(parent_id)
    await repository.create_entity(entity_id, parent_id=parent_id, cascade=True, principal="a:b@c.d/e+f")
    await repository.set_resource_defaults(resource, [rpm])
    await repository.set_limits(entity_id, [rpm], resource)
    async with limiter.acquire(entity_id, resource, {"rpm": 3}) as lease:
        await lease.adjust(rpm=1)
    await count_usage(repository, entity_id, resource, "daily", 0, rpm=4)
    assert await limiter.available(entity_id, resource) == {"rpm": 6}
    of_resource = [state.entity_id for state in await repository.get_resource_buckets(resource)]
    assert of_resource == sorted([entity_id, parent_id])
    assert [s.resource for s in await repository.get_buckets(entity_id)] == [resource]
    capacity = await repository.get_resource_capacity(resource, "rpm")
    assert [one.entity_id for one in capacity.entities] == sorted([entity_id, parent_id])
    assert [one.entity_id for one in await repository.get_children(parent_id)] == [entity_id]
    assert await listed(repository) == sorted([entity_id, parent_id])
    assert await repository.list_entities_with_custom_limits(resource) == ([entity_id], None)
    assert await repository.list_resources_with_defaults() == [resource]
    assert await repository.list_resources_with_entity_configs() == [resource]
    for found in (
        await repository.get_usage_snapshots(entity_id, resource),
        await repository.get_usage_snapshots(resource=resource),
    ):
        assert [(s.entity_id, s.resource, s.counters) for s in found[0]] == [
            (entity_id, resource, {"rpm": 4})
        ]
    trail = await repository.get_audit_events(entity_id)
    assert [(event.entity_id, event.resource, event.principal) for event in trail] == [
        (entity_id, resource, None),
        (entity_id, None, "a:b@c.d/e+f"),
    ]
    assert len(await repository.get_audit_events(f"$RESOURCE:{resource}")) == 1
    await repository.delete_entity(entity_id)
    assert await repository.get_buckets(entity_id) == []


async def listed(repository: Repository) -> list[str]:
    """All entities, one on a page, so that every cursor is used."""
    found, cursor = [], None
    while True:
        page, cursor = await repository.list_entities(limit=1, cursor=cursor)
        found += [one.entity_id for one in page]
        if cursor is None:
            return found


@settings(max_examples=25)
@given(entity_id=valid.entities, resource=valid.resources, parent_id=valid.entities)
def test_any_names_of_the_alphabet(entity_id: str, resource: str, parent_id: str) -> None:
    """Not only those that somebody thought of."""
    if entity_id == parent_id:
        return

    async def run() -> None:
        clock = ManualClock()
        await live(
            await Repository.over(MemoryBackend(clock.world), world=clock.world),
            entity_id, resource, parent_id,
        )  # fmt: skip

    asyncio.run(run())


async def test_names_of_the_audit_trail_are_no_entities(store: Store) -> None:
    """What is audited under a name of its own cannot be reached, written or deleted by that name."""
    repository = await store.repository()
    for name in ("$SYSTEM", "$RESOURCE:gpt-4", "$", "$x"):
        with pytest.raises(InvalidIdentifierError, match="'\\$' at the start is reserved"):
            await repository.create_entity(name)
        with pytest.raises(InvalidIdentifierError):
            await repository.create_entity("child", parent_id=name)
        with pytest.raises(InvalidIdentifierError):
            await repository.set_limits(name, [Limit.per_minute("rpm", 1)])
    assert await repository.get_audit_events("$SYSTEM") == []
    assert await listed(repository) == []


async def test_names_of_limits_side_by_side(store: Store) -> None:
    """All of them in one bucket, one config record, one usage row, one lease."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_resource_defaults("gpt-4", [Limit.per_minute(name, 10) for name in LIMITS])
    assert {limit.name for limit in await repository.get_resource_defaults("gpt-4")} == set(LIMITS)
    async with limiter.acquire("key-1", "gpt-4", dict.fromkeys(LIMITS, 1)) as lease:
        await lease.consume(dict.fromkeys(LIMITS, 2))
        await lease.adjust({name: n for n, name in enumerate(LIMITS[:5])})
        await lease.release({"ttl": 1})
    expected = {name: 3 + (LIMITS.index(name) if name in LIMITS[:5] else 0) for name in LIMITS}
    expected["ttl"] -= 1
    assert lease.consumed == expected
    left = {name: 10 - used for name, used in expected.items()}
    assert await limiter.available("key-1", "gpt-4") == left
    states = {s.limit_name: s.total_consumed_milli // 1000 for s in await repository.get_buckets("key-1")}
    assert states == expected
    for name in LIMITS:
        capacity = await repository.get_resource_capacity("gpt-4", name)
        assert (capacity.total_capacity, capacity.total_available) == (10, left[name])
        with pytest.raises(RateLimitExceeded) as caught:
            async with limiter.acquire("key-1", "gpt-4", {name: 10}):
                pass
        assert caught.value.primary_violation.limit_name == name


async def test_names_of_limits_in_a_usage_row(store: Store) -> None:
    """Counters collide neither with each other nor with what the row says of itself."""
    repository = await store.repository()
    counters = {name: n + 1 for n, name in enumerate(LIMITS)}
    for _ in range(2):
        await count_usage(repository, "key-1", "gpt-4", "hourly", 0, **counters)
    ((snapshot,), _) = await repository.get_usage_snapshots("key-1")
    assert snapshot.counters == {name: 2 * n for name, n in counters.items()}
    assert (snapshot.entity_id, snapshot.resource, snapshot.total_events) == ("key-1", "gpt-4", 2)
    assert snapshot.window_start == "1970-01-01T00:00:00Z"
    assert (await repository.get_usage_summary("key-1")).total == snapshot.counters


names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.\-]{0,63}", fullmatch=True) | st.sampled_from(LIMITS)


@given(st.dictionaries(names, st.integers(-(10**15), 10**15), max_size=8), st.integers(0, 10**10))
def test_a_usage_row_gives_back_its_counters(counters: dict[str, int], at: int) -> None:
    """For all names and instants."""
    for window in UsageWindow:
        key, attributes = usage_row("ns", "key-1", "gpt-4", window, at * 1000)
        added = {usage_counter(name): amount for name, amount in counters.items()}
        assert len(added) == len(counters)
        item: Item | None = apply(
            Update(key, {**added, "total_events": 1}, {**attributes, "ttl": 5}), None
        ).item
        assert item is not None
        snapshot = usage_snapshot_of({**item, "PK": key.partition, "SK": key.sort, "_later": 7})
        assert (snapshot.counters, snapshot.total_events) == (counters, 1)
        assert (snapshot.window_type, snapshot.entity_id) == (window, "key-1")


def test_an_ordinary_name_is_its_own_counter() -> None:
    """An ordinary row is as it always was; only a name that would collide is marked."""
    assert [usage_counter(name) for name in ("tpm", "tokens.in", "ttl", "GSI2PK")] == [
        "tpm",
        "tokens.in",
        "#ttl",
        "#GSI2PK",
    ]
