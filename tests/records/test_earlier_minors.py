"""Every version reads and writes what an earlier one with the same major schema left, on every store."""

from __future__ import annotations

import pytest

from tests.older import fill_1_0
from tests.older.fill_1_0 import MSGS, OFFICE, PARALLEL, RPM, SEEN, TPD, USD
from tests.records.store import Store, take
from zae_limiter import AuditAction, Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.models import UsageWindow
from zae_limiter.repository_protocol import Put


async def opened(store: Store) -> Repository:
    """What version 1.0 left, opened as every client does that looks at versions."""
    store.clock.advance((fill_1_0.AT_MS - store.clock.now_ms) / 1000)
    backend = store.open_backend()
    await backend.setup()
    left = [Put(*row) for row in fill_1_0.left().items()]
    assert all(one.applied for one in await backend.write_each(left))
    await backend.close()
    return await store.repository()


async def test_what_was_stored_is_read(store: Store) -> None:
    """Entities with their parents, limits of every kind and level, switches, usage, the trail."""
    repository = await opened(store)
    entities, _ = await repository.list_entities()
    assert [(one.id, one.parent_id, one.cascade) for one in entities] == [
        ("key-1", "team", True),
        ("org", None, False),
        ("team", "org", True),
    ]
    assert [child.id for child in await repository.get_children("org")] == ["team"]
    assert await repository.get_system_defaults() == ([Limit.per_minute("rpm", 20)], "allow")
    assert await repository.get_resource_defaults("gpt-4") == [RPM, TPD]
    assert set(await repository.get_resource_defaults("plans")) == {USD, MSGS, PARALLEL}
    assert set(await repository.get_resource_defaults("office")) == {OFFICE, SEEN}
    assert await repository.get_limits("key-1", "gpt-4") == [Limit.per_minute("rpm", 10)]
    thrown, _ = await repository.list_switches()
    assert [(one.resource, one.entity_id) for one in thrown] == [("embeddings", None), (None, "batch")]
    usage, _ = await repository.get_usage_snapshots("lonely", "gpt-4", UsageWindow.HOURLY)
    assert [(one.counters, one.total_events) for one in usage] == [({"tpd": 11_000}, 1)]
    trail = await repository.get_audit_events("key-1")
    assert [(one.action, one.principal) for one in trail] == [
        (AuditAction.LIMITS_SET, None),
        (AuditAction.ENTITY_CREATED, "ann"),
    ]


async def test_buckets_go_on(store: Store) -> None:
    """Balances are what they were, debt and seats included; acquires go on from there."""
    limiter = RateLimiter(await opened(store))
    assert await limiter.available("key-1", "gpt-4") == {"rpm": 6, "tpd": 10_000}
    assert await limiter.available("org", "gpt-4") == {"rpm": 96, "tpd": 10_000}
    assert await limiter.available("lonely", "gpt-4") == {"rpm": 99, "tpd": -500}
    assert await limiter.available("lonely", "plans") == {"usd": 4_998_630, "msgs": 48, "parallel": 2}
    await take(limiter, "key-1", "gpt-4", rpm=6)
    assert await limiter.available("org", "gpt-4") == {"rpm": 90, "tpd": 10_000}
    for entity, resource, amounts in (
        ("key-1", "gpt-4", {"rpm": 1}),
        ("lonely", "gpt-4", {"tpd": 1}),
        ("lonely", "plans", {"parallel": 3}),
        ("lonely", "office", {"rpm": 101}),
    ):
        with pytest.raises(RateLimitExceeded):
            await take(limiter, entity, resource, **amounts)
    await take(limiter, "lonely", "office", rpm=100, seen=1)


async def test_a_key_of_then_still_counts_once(store: Store) -> None:
    """What was given under it is not given again."""
    repository = await opened(store)
    change = await repository.top_up("lonely", "gpt-4", {"tpd": 500}, "once")
    assert (change.before, change.after) == ({"tpd": -1_000}, {"tpd": -500})
    assert await RateLimiter(repository).available("lonely", "gpt-4") == {"rpm": 99, "tpd": -500}
