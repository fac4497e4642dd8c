"""Buckets seen from outside: by entity, by resource, together; and the writes of those who build on us."""

from typing import Any

import pytest

from tests.records.store import RPM, TPM, Store, take
from zae_limiter import EntityCapacity, Limit, RateLimiter, ResourceCapacity, ValidationError
from zae_limiter.repository_protocol import Exists, Item, Put, Update
from zae_limiter.schema import (
    bucket_key,
    gsi2_pk_resource,
    gsi2_sk_bucket,
    gsi3_pk_entity,
    gsi3_sk_bucket,
    limit_attributes,
    within_namespace,
)


async def second_shard(repository: Any, entity_id: str, resource: str, **tokens: int) -> None:
    """A shard of a bucket as a split will make it, with these tokens at the brim of its limits."""
    namespace_id = repository.namespace_id
    key = bucket_key(namespace_id, entity_id, resource, 1)
    item: dict[str, Any] = {
        "entity_id": entity_id,
        "resource": resource,
        "rf": repository._world.now_ms(),
        "cascade": False,
        "GSI2PK": gsi2_pk_resource(namespace_id, resource),
        "GSI2SK": gsi2_sk_bucket(entity_id, 1),
        "GSI3PK": gsi3_pk_entity(namespace_id, entity_id),
        "GSI3SK": gsi3_sk_bucket(resource, 1),
        **within_namespace(namespace_id, key),
    }
    for name, amount in {**tokens, "wcu": 1000}.items():
        item |= zip(limit_attributes(name), (amount * 1000, amount * 1000, 1000, 60_000, 0), strict=True)
    await repository.write_each([Put(key, item)])


async def test_buckets_of_an_entity(store: Store) -> None:
    """All resources or one, all shards, the hidden limit left out."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_system_defaults([RPM, TPM])
    for resource in ("gpt-4", "gpt-4/mini", "gpt"):
        await take(limiter, "key-1", resource, rpm=1)
    await take(limiter, "key-11", "gpt-4", rpm=1)
    await second_shard(repository, "key-1", "gpt-4", rpm=50)
    every = await repository.get_buckets("key-1")
    assert [(s.resource, s.shard_id, s.limit_name) for s in every] == [
        ("gpt", 0, "rpm"),
        ("gpt", 0, "tpm"),
        ("gpt-4", 0, "rpm"),
        ("gpt-4", 0, "tpm"),
        ("gpt-4", 1, "rpm"),
        ("gpt-4/mini", 0, "rpm"),
        ("gpt-4/mini", 0, "tpm"),
    ]
    assert await repository.get_buckets("key-1", "gpt-4") == every[2:5]
    assert await repository.get_buckets("nobody") == []
    first = await repository.get_bucket("key-1", "gpt")
    assert first == every[:2]
    assert (first[0].tokens_milli, first[0].limit) == (99_000, RPM)


async def test_buckets_of_a_resource(store: Store) -> None:
    """More than one page of them, all limits or one."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_system_defaults([RPM, TPM])
    for n in range(120):
        await take(limiter, f"key-{n:03}", "gpt-4", rpm=1)
    await take(limiter, "key-000", "gpt-4/mini", rpm=1)
    states = await repository.get_resource_buckets("gpt-4", "rpm")
    assert [state.entity_id for state in states] == [f"key-{n:03}" for n in range(120)]
    assert len(await repository.get_resource_buckets("gpt-4")) == 240


async def test_several_buckets_in_one_read(store: Store) -> None:
    """By entity and resource; what is not there is empty; nothing is asked for nothing."""
    admin = await store.repository()
    await admin.set_system_defaults([RPM])
    for entity_id in ("a", "b"):
        await take(RateLimiter(admin), entity_id, "gpt-4", rpm=3)
    repository, calls = await store.recorded()
    wanted = [("a", "gpt-4"), ("b", "gpt-4"), ("c", "gpt-4"), ("a", "gpt-4")]
    found = await repository.batch_get_buckets(wanted)
    assert [(verb, len(given)) for verb, given in calls.calls] == [("batch_get", 3)]
    assert {key: [state.tokens_milli for state in states] for key, states in found.items()} == {
        ("a", "gpt-4"): [97_000],
        ("b", "gpt-4"): [97_000],
        ("c", "gpt-4"): [],
    }
    assert await repository.batch_get_buckets([]) == {}


async def test_the_capacity_of_a_resource(store: Store) -> None:
    """What all buckets could hold and what they hold now, refill included, shards together."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_resource_defaults("gpt-4", [RPM])
    await repository.create_entity("org")
    await repository.create_entity("key-1", parent_id="org", cascade=True)
    await take(limiter, "key-1", "gpt-4", rpm=60)
    await take(limiter, "key-2", "gpt-4", rpm=10)
    await second_shard(repository, "key-2", "gpt-4", rpm=50)
    store.clock.advance(6)  # brings ten of a hundred a minute
    capacity = await repository.get_resource_capacity("gpt-4", "rpm")
    assert capacity == ResourceCapacity(
        "gpt-4",
        "rpm",
        350,
        250,
        (EntityCapacity("key-1", 100, 50), EntityCapacity("key-2", 150, 150), EntityCapacity("org", 100, 50)),
    )
    assert (capacity.entities[0].utilization_pct, round(capacity.utilization_pct, 1)) == (50.0, 28.6)
    parents = await repository.get_resource_capacity("gpt-4", "rpm", parents_only=True)
    assert [one.entity_id for one in parents.entities] == ["key-2", "org"]
    nothing = await repository.get_resource_capacity("gpt-4", "tpm")
    assert (nothing, nothing.utilization_pct) == (ResourceCapacity("gpt-4", "tpm", 0, 0), 0.0)
    assert await limiter.get_resource_capacity("gpt-4", "rpm") == capacity


async def test_a_child_counts_beside_its_parent(store: Store) -> None:
    """A plain sum, of those who cascade and of those who do not; whoever used nothing is not counted."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_resource_defaults("gpt-4", [RPM])
    await repository.create_entity("org")
    await repository.create_entity("shares", parent_id="org", cascade=True)
    await repository.create_entity("apart", parent_id="org")
    await repository.create_entity("idle", parent_id="org", cascade=True)
    for entity_id in ("shares", "apart", "alone"):
        await take(limiter, entity_id, "gpt-4", rpm=60)
    every = await repository.get_resource_capacity("gpt-4", "rpm")
    assert [one.entity_id for one in every.entities] == ["alone", "apart", "org", "shares"]
    assert (every.total_capacity, every.total_available) == (400, 160)
    parents = await repository.get_resource_capacity("gpt-4", "rpm", parents_only=True)
    assert [one.entity_id for one in parents.entities] == ["alone", "org"]
    assert (parents.total_capacity, parents.total_available) == (200, 80)


async def test_capacity_is_read_in_batches(store: Store) -> None:
    """A call for each hundred buckets, and one for each thousand entries of the index."""
    admin = await store.repository()
    await admin.set_resource_defaults("gpt-4", [RPM])
    for n in range(150):
        await take(RateLimiter(admin), f"key-{n}", "gpt-4", rpm=1)
    repository, calls = await store.recorded()
    assert (await repository.get_resource_capacity("gpt-4", "rpm")).total_available == 150 * 99
    assert calls.verbs == {"query": 1, "batch_get": 2}


@pytest.mark.parametrize("limit_name", ["wcu", "a#b", ""])
async def test_names_are_checked(store: Store, limit_name: str) -> None:
    """The hidden limit is not for users."""
    repository, calls = await store.recorded()
    with pytest.raises(ValidationError):
        await repository.get_resource_capacity("gpt-4", limit_name)
    with pytest.raises(ValidationError):
        await repository.get_resource_buckets("gpt-4", limit_name)
    with pytest.raises(ValidationError):
        await repository.get_buckets("a#b")
    with pytest.raises(ValidationError):
        await repository.get_bucket("a", "a#b")
    assert calls.round_trips == 0


async def test_a_speculative_write_says_what_became_of_it(store: Store) -> None:
    """Applied with the new image, refused with the old one; the parent is not charged."""
    repository = await store.repository()
    await repository.set_system_defaults([RPM])
    await repository.create_entity("org")
    await repository.create_entity("key-1", parent_id="org", cascade=True)
    taken = await repository.speculative_consume("key-1", "gpt-4", {"rpm": 60})
    assert taken.applied
    assert taken.item is not None
    assert taken.item["b_rpm_tk"] == 40_000
    refused = await repository.speculative_consume("key-1", "gpt-4", {"rpm": 60})
    assert not refused.applied
    assert refused.item is not None
    assert refused.item["b_rpm_tk"] == 40_000
    assert await repository.get_buckets("org") == []
    given = await repository.speculative_consume("key-2", "gpt-4", {"x": 1}, [Limit.per_minute("x", 5)])
    assert given.applied


async def test_a_speculative_write_goes_by_the_limits_that_bind_now(store: Store) -> None:
    """Somebody else cut one limit of the entity and added another."""
    admin, user = await store.repository(), await store.repository()
    await admin.set_limits("key-1", [RPM], "gpt-4")
    assert (await user.speculative_consume("key-1", "gpt-4", {"rpm": 1})).applied
    await admin.set_limits("key-1", [Limit.per_minute("rpm", 10), Limit.per_minute("x", 5)], "gpt-4")
    assert (await user.speculative_consume("key-1", "gpt-4", {"x": 1})).applied
    assert not (await user.speculative_consume("key-1", "gpt-4", {"rpm": 50})).applied


async def test_raw_writes_are_seen_by_this_process(store: Store) -> None:
    """What it remembers of the items they touch is forgotten."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_resource_defaults("gpt-4", [RPM])
    await take(limiter, "key-1", "gpt-4", rpm=1)
    key = bucket_key(repository.namespace_id, "key-1", "gpt-4")
    (outcome,) = await repository.transact_write([Update(key, {"b_rpm_tk": -50_000}, when=(Exists(),))])
    assert outcome.applied
    assert await limiter.available("key-1", "gpt-4") == {"rpm": 49}
    assert await repository.write_each([]) == []
    assert await repository.transact_write([]) == []


async def test_transactions_are_checked(store: Store) -> None:
    """No key twice, no more writes than a store takes."""
    repository, calls = await store.recorded()
    item: Item = {}
    one = Put(bucket_key(repository.namespace_id, "a", "r"), item)
    with pytest.raises(ValidationError, match="no key twice"):
        await repository.transact_write([one, one])
    many = [Put(bucket_key(repository.namespace_id, f"a{n}", "r"), item) for n in range(101)]
    with pytest.raises(ValidationError, match="at most 100"):
        await repository.transact_write(many)
    assert calls.round_trips == 0
