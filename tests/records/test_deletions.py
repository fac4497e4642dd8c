"""What was deleted stays deleted, also for a process that remembers it. Time stands still in these tests."""

# Leases that outlive an entity hold more than one statement.
# ruff: noqa: PT012

import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.records.store import Store, everything, take
from zae_limiter import (
    Limit,
    NamespaceNotFoundError,
    NamespaceStatus,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    ValidationError,
)
from zae_limiter.records.belongings import bucket_keys
from zae_limiter.repository_protocol import Backend, Item, Key, Outcome, Page, Query, Update, Write
from zae_limiter.schema import bucket_key, sk_state
from zae_limiter.testing.stores import Wrapper

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
    assert [key async for keys in bucket_keys(admin._scope, "key-1") for key in keys]
    await admin.delete_entity("key-1")


async def test_without_other_limits_a_deleted_entity_has_none(store: Store) -> None:
    admin, user = await stage(store)
    await admin.delete_resource_defaults("gpt-4")
    await admin.delete_entity("key-1")
    with pytest.raises(ValidationError, match="no limits are stored"):
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


async def test_limits_brought_along_to_a_deleted_id_do_not_hide_the_deletion(store: Store) -> None:
    """A bucket that a caller makes with limits of its own keeps the version of the mark, so that whoever
    remembers the limits that the entity had is still told to read again."""
    admin, user = await stage(store)
    await admin.delete_entity("key-1")
    mark = await bucket(admin)
    assert mark is not None
    guest = RateLimiter(await store.repository())
    async with guest.acquire("key-1", "gpt-4", {"rpm": 1}, limits=[Limit("rpm", 50, 1, 10**6)]):
        pass
    made = await bucket(admin)
    assert made is not None
    assert (made["b_rpm_cp"], made["cv"]) == (50_000, mark["cv"])
    with pytest.raises(RateLimitExceeded) as caught:
        await take(user, "key-1", "gpt-4", rpm=6)
    assert caught.value.primary_violation.limit == SHARED


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


class Boom(Exception):
    """The work failed."""


@pytest.mark.parametrize("has_seen", [True, False], ids=["seen", "unseen"])
@pytest.mark.parametrize("ending", [0, 60, -4, "fails"])
async def test_a_lease_that_outlives_its_entity_owes_nothing_to_the_next(
    store: Store, ending: int | str, has_seen: bool
) -> None:
    """It answers to the bucket that it took from, which is gone, not to the one made under that id since."""
    admin, user = await stage(store)
    late = user if has_seen else RateLimiter(await store.repository())
    with contextlib.suppress(Boom):
        async with user.acquire("key-1", "gpt-4", {"rpm": 10}) as lease:
            await admin.delete_entity("key-1")
            await admin.create_entity("key-1")
            await admin.set_limits("key-1", [OWN])
            await take(late, "key-1", "gpt-4", rpm=20)
            if ending == "fails":
                raise Boom
            await lease.adjust(rpm=int(ending))
    image = await bucket(admin)
    assert image is not None
    assert (image["b_rpm_tk"], image["b_rpm_tc"], user.refunds_lost) == (80_000, 20_000, 0)


@pytest.mark.parametrize("given", [None, [OWN]], ids=["stored", "brought along"])
async def test_a_lease_of_an_entity_made_again_is_settled(store: Store, given: list[Limit] | None) -> None:
    """By a write and at once, up and down; and the next deletion ends that, too."""
    admin, user = await stage(store)
    await admin.delete_entity("key-1")
    await admin.create_entity("key-1")
    await admin.set_limits("key-1", [OWN])
    for change in (-4, 6, -4, 6):
        async with user.acquire("key-1", "gpt-4", {"rpm": 5}, limits=given) as lease:
            await lease.adjust(rpm=change)
    with pytest.raises(Boom):
        async with user.acquire("key-1", "gpt-4", {"rpm": 5}, limits=given):
            raise Boom
    image = await bucket(admin)
    assert image is not None
    assert (image["b_rpm_tk"], image["b_rpm_tc"]) == (76_000, 24_000)
    with pytest.raises(Boom):
        async with user.acquire("key-1", "gpt-4", {"rpm": 5}, limits=given):
            await admin.delete_entity("key-1")
            await take(user, "key-1", "gpt-4", rpm=3)
            raise Boom
    image = await bucket(admin)
    assert image is not None
    assert (image["b_rpm_tk"], image["b_rpm_tc"], user.refunds_lost) == (2_000, 3_000, 0)


async def test_the_mark_of_a_deletion_is_no_bucket(store: Store) -> None:
    """It goes by itself within days, belongs to its namespace, and no list shows it."""
    admin, _ = await stage(store)
    await admin.delete_entity("key-1")
    mark = await bucket(admin)
    assert mark is not None
    assert mark["ttl"] == store.clock.now_ms // 1000 + 2 * 86_400
    assert await admin.get_bucket("key-1", "gpt-4") == []
    assert [key async for keys in bucket_keys(admin._scope, "key-1") for key in keys] == []
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
    if store.name not in ("memory", "sqlite"):
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


class Paused(Wrapper):
    """Lets somebody else act before one of the calls that follow the mark of a deletion."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.at, self.calls, self.deciding = 0, -1, False
        self.act: Callable[[], Awaitable[object]] | None = None

    async def _pause(self, verb: str, keys: Sequence[Key]) -> None:
        if self.calls < 0 or self.act is None:
            return
        self.calls += 1
        if self.calls == self.at:
            act, self.act = self.act, None
            # It has looked whether the entity is still marked, and is about to mark buckets.
            self.deciding = len(keys) == 4 if verb == "batch_get" else keys[0].sort == sk_state()
            await act()

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        await self._pause("batch_get", keys)
        return await super().batch_get(keys)

    async def query(self, query: Query) -> Page:
        await self._pause("query", [Key("", "")])
        return await super().query(query)

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        await self._pause("write_each", [write.key for write in writes])
        return await super().write_each(writes)

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        await self._pause("transact_write", [write.key for write in writes])
        outcomes = await super().transact_write(writes)
        if any(isinstance(write, Update) and write.set.get("status") == "deleted" for write in writes):
            self.calls = 0
        return outcomes


async def test_a_deletion_that_somebody_else_has_finished_spares_what_is_made_again(store: Store) -> None:
    """Wherever it was held up, unless it had just looked: limits and buckets made since are not its own."""
    places: list[Paused] = []

    def wrap(backend: Backend) -> Backend:
        places.append(Paused(backend))
        return places[0]

    slow, other = await store.repository(wrap=wrap), await store.repository()
    user, (place,) = RateLimiter(other), places
    await other.set_resource_defaults("gpt-4", [SHARED])

    async def make(entity_id: str) -> None:
        await other.create_entity(entity_id)
        for resource in ("_default_", "gpt-4"):
            await other.set_limits(entity_id, [OWN], resource)
        await take(user, entity_id, "gpt-4", rpm=1)

    async def make_again(entity_id: str) -> None:
        await other.delete_entity(entity_id)
        await make(entity_id)

    places_held_up = 0
    while place.act is None:
        place.at, place.calls = place.at + 1, -1
        entity_id = f"key-{place.at}"
        place.act = functools.partial(make_again, entity_id)
        await make(entity_id)
        await slow.delete_entity(entity_id)
        if place.act is None and not place.deciding:
            places_held_up += 1
            image = await bucket(other, entity_id)
            assert image is not None, place.at
            assert image.get("b_rpm_cp") == OWN.capacity * 1000, place.at
            assert await other.get_limits(entity_id, "gpt-4") == [OWN], place.at
            assert await other.get_limits(entity_id) == [OWN], place.at
    assert places_held_up > 8
