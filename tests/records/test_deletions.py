"""What was deleted stays deleted, also for a process that remembers it. Time stands still in these tests."""

# Leases that outlive an entity hold more than one statement.
# ruff: noqa: PT012

import pytest

from tests.records.stage import Store, everything, take
from zae_limiter import (
    Limit,
    NamespaceNotFoundError,
    NamespaceStatus,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    ValidationError,
)
from zae_limiter.repository_protocol import Item
from zae_limiter.schema import bucket_key

OWN, SHARED = Limit("rpm", 100, 1, 10**6), Limit("rpm", 5, 1, 10**6)


async def stage(store: Store) -> tuple[Repository, RateLimiter]:
    """Somebody who deletes, and somebody else who is warm under limits that are the entity's own."""
    admin, user = await store.repository(), RateLimiter(await store.repository())
    await admin.set_resource_defaults("gpt-4", [SHARED])
    await admin.create_entity("key-1")
    await admin.set_limits("key-1", [OWN])
    for _ in range(3):
        await take(user, "key-1", "gpt-4", rpm=1)
    return admin, user


async def bucket(repository: Repository, entity_id: str = "key-1") -> Item | None:
    (image,) = await repository._backend.batch_get([bucket_key(repository.namespace_id, entity_id, "gpt-4")])
    return image


@pytest.mark.parametrize("resource", ["_default_", "gpt-4"])
async def test_nobody_is_admitted_on_the_limits_of_a_deleted_entity(store: Store, resource: str) -> None:
    """The bucket that comes back has the limits that are left, is listed, and goes by itself."""
    admin, user = await stage(store)
    await admin.set_limits("key-1", [OWN], resource)
    await take(user, "key-1", "gpt-4", rpm=1)
    await admin.delete_entity("key-1")
    for _ in range(2):
        with pytest.raises(RateLimitExceeded) as caught:
            await take(user, "key-1", "gpt-4", rpm=6)
        assert caught.value.primary_violation.limit == SHARED
    await take(user, "key-1", "gpt-4", rpm=5)
    image = await bucket(admin)
    assert image is not None
    assert (image["b_rpm_cp"], "ttl" in image) == (5000, True)
    assert [key async for keys in admin._bucket_keys("key-1") for key in keys]
    await admin.delete_entity("key-1")


async def test_without_other_limits_a_deleted_entity_has_none(store: Store) -> None:
    admin, user = await stage(store)
    await admin.delete_resource_defaults("gpt-4")
    await admin.delete_entity("key-1")
    with pytest.raises(ValidationError, match="none are stored"):
        await take(user, "key-1", "gpt-4", rpm=1)


async def test_a_bucket_that_was_never_used_is_not_made_under_deleted_limits(store: Store) -> None:
    """Who has only looked so far must look again."""
    admin, user = await stage(store)
    await admin.set_limits("key-2", [OWN], "gpt-4")
    assert await user.available("key-2", "gpt-4") == {"rpm": 100}
    await admin.delete_entity("key-2")
    with pytest.raises(RateLimitExceeded):
        await take(user, "key-2", "gpt-4", rpm=6)


@pytest.mark.parametrize("change", [500, -1], ids=["debt", "refund"])
async def test_an_entity_made_again_inherits_nothing(store: Store, change: int) -> None:
    """A lease that outlives its entity neither leaves debt to the next of that name nor tokens."""
    admin, user = await stage(store)
    async with user.acquire("key-1", "gpt-4", {"rpm": 10}) as lease:
        await admin.delete_entity("key-1")
        await lease.adjust(rpm=change)
    await admin.create_entity("key-1")
    await admin.set_limits("key-1", [OWN])
    for repository in (admin, user.repository):
        assert await RateLimiter(repository).available("key-1", "gpt-4") == {"rpm": 100}
    await take(user, "key-1", "gpt-4", rpm=100)
    assert await RateLimiter(admin).available("key-1", "gpt-4") == {"rpm": 0}


async def test_a_lease_that_fails_after_the_deletion_gives_nothing_to_anybody(store: Store) -> None:
    admin, user = await stage(store)
    with pytest.raises(KeyError):
        async with user.acquire("key-1", "gpt-4", {"rpm": 10}):
            await admin.delete_entity("key-1")
            raise KeyError
    image = await bucket(admin)
    assert image is not None
    assert image["status"] == "deleted"
    assert user.refunds_lost == 0


async def test_the_mark_of_a_deletion_is_no_bucket(store: Store) -> None:
    """It goes by itself within days, belongs to its namespace, and no list shows it."""
    admin, _ = await stage(store)
    await admin.delete_entity("key-1")
    mark = await bucket(admin)
    assert mark is not None
    assert mark["ttl"] == store.clock.now_ms // 1000 + 2 * 86_400
    assert await admin.get_bucket("key-1", "gpt-4") == []
    assert [key async for keys in admin._bucket_keys("key-1") for key in keys] == []
    assert (await admin.get_resource_capacity("gpt-4", "rpm")).entities == ()
    assert bucket_key(admin.namespace_id, "key-1", "gpt-4") in await everything(admin)
    assert await admin.delete_entity("key-1") is False


async def test_an_entity_made_again_pays_with_its_new_family(store: Store) -> None:
    admin, user = await stage(store)
    await admin.create_entity("org")
    await admin.delete_entity("key-1")
    await admin.create_entity("key-1", parent_id="org", cascade=True)
    await take(user, "key-1", "gpt-4", rpm=2)
    assert await user.available("org", "gpt-4") == {"rpm": 3}


async def purged(store: Store) -> tuple[Repository, RateLimiter, str]:
    """A namespace that is purged while somebody else is warm in it."""
    admin, user = await store.repository(), RateLimiter(await store.repository("tenant"))
    await user.set_resource_defaults("gpt-4", [SHARED])
    for _ in range(2):
        await take(user, "key-1", "gpt-4", rpm=1)
    gone = await admin.delete_namespace("tenant")
    await admin.purge_namespace(gone.namespace_id)
    return admin, user, gone.namespace_id


async def test_a_purged_namespace_stays_empty(store: Store) -> None:
    """Whoever goes by stored limits, or stores any, is told that the namespace is gone."""
    admin, user, namespace_id = await purged(store)
    for _ in range(2):
        with pytest.raises(NamespaceNotFoundError, match="'tenant' was deleted"):
            await take(user, "key-1", "gpt-4", rpm=1)
    if store.name == "dynamodb":
        store.clock.advance(60)
    for change in (
        user.set_limits("key-1", [OWN]),
        user.set_system_defaults([OWN]),
        user.create_entity("key-3"),
    ):
        with pytest.raises(NamespaceNotFoundError):
            await change
    assert await everything(user.repository) == {}
    assert await admin.list_orphan_namespaces() == []
    with pytest.raises(NamespaceNotFoundError):
        await admin.purge_namespace(namespace_id)


async def test_what_comes_back_to_a_purged_namespace_is_listed_and_expires(store: Store) -> None:
    """On a store that tells nobody, limits brought along make buckets until the cache expires."""
    admin, user, namespace_id = await purged(store)
    if store.name == "dynamodb":
        async with user.acquire("key-2", "gpt-4", {"rpm": 1}, [SHARED]):
            pass
        (orphan,) = await admin.list_orphan_namespaces()
        assert (orphan.namespace_id, orphan.status) == (namespace_id, NamespaceStatus.PURGED)
        assert all("ttl" in item for item in (await everything(user.repository)).values())
        assert await admin.purge_namespace(namespace_id) == 1
        assert await admin.list_orphan_namespaces() == []
        store.clock.advance(60)
    with pytest.raises(NamespaceNotFoundError):
        async with user.acquire("key-2", "gpt-4", {"rpm": 1}, [SHARED]):
            pass


async def test_a_deleted_namespace_serves_nobody_until_it_recovers(store: Store) -> None:
    admin, user = await store.repository(), RateLimiter(await store.repository("tenant"))
    await user.set_resource_defaults("gpt-4", [SHARED])
    await take(user, "key-1", "gpt-4", rpm=1)
    gone = await admin.delete_namespace("tenant")
    store.clock.advance(60)
    with pytest.raises(NamespaceNotFoundError):
        await take(user, "key-1", "gpt-4", rpm=1)
    await admin.recover_namespace(gone.namespace_id)
    store.clock.advance(60)
    await take(user, "key-1", "gpt-4", rpm=1)
    assert await user.available("key-1", "gpt-4") == {"rpm": 3}
