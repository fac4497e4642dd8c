"""Changes of configuration take effect: at the next acquire, for everybody, once."""

from contextlib import suppress
from typing import Any

import pytest

from tests.records.store import RPM, Store, take
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository, ValidationError
from zae_limiter.engine.seen_changes import stamp_of, version_of
from zae_limiter.records import levels
from zae_limiter.records.buckets import BucketRecords
from zae_limiter.records.connection import Options
from zae_limiter.repository_protocol import Equal, Put, Update
from zae_limiter.schema import bucket_key, resource_config_key


def rpm(capacity: int) -> Limit:
    return Limit.per_minute("rpm", capacity)


async def stored(repository: Repository, entity_id: str = "key-1") -> tuple[int, int]:
    """The capacity and the config version that a bucket carries."""
    key = bucket_key(repository.namespace_id, entity_id, "gpt-4")
    (image,) = await repository._backend.batch_get([key])
    assert image is not None
    return int(str(image["b_rpm_cp"])) // 1000, int(str(image["cv"]))


async def test_a_cut_binds_every_client_at_its_next_acquire(store: Store) -> None:
    """From 100 to 5: whoever uses the bucket after somebody who knows is refused, within the TTL."""
    admin, first, second = [await store.repository() for _ in range(3)]
    clients = [RateLimiter(first), RateLimiter(second)]
    await admin.set_resource_defaults("gpt-4", [rpm(100)])
    for client in clients:
        await take(client, "key-1", "gpt-4", rpm=1)
    await admin.set_resource_defaults("gpt-4", [rpm(5)])
    await take(RateLimiter(admin), "key-1", "gpt-4", rpm=1)  # now the bucket tells
    for client in clients:
        with pytest.raises(RateLimitExceeded) as caught:
            await take(client, "key-1", "gpt-4", rpm=3)
        assert caught.value.primary_violation.limit == rpm(5)


async def test_a_client_learns_for_all_its_entities(store: Store) -> None:
    """The resource's record is shared, so one bucket that tells is enough."""
    admin, user = await store.repository(), await store.repository()
    await admin.set_resource_defaults("gpt-4", [rpm(100)])
    for entity_id in ("key-1", "key-2"):
        await take(RateLimiter(user), entity_id, "gpt-4", rpm=1)
    await admin.set_resource_defaults("gpt-4", [rpm(5)])
    await take(RateLimiter(admin), "key-1", "gpt-4", rpm=1)
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    with pytest.raises(RateLimitExceeded):
        await take(RateLimiter(user), "key-2", "gpt-4", rpm=6)


async def forget_to_tell(repository: Repository) -> None:
    """Take the store's word for changes away, as on a store that has none."""
    repository._connection._changes, repository._connection.writer.swap = None, None
    repository._connection._news = None


async def test_a_cut_binds_at_the_latest_when_the_cache_expires(store: Store) -> None:
    """Nobody told this client, but its memory lasts 60 seconds."""
    admin, user = await store.repository(), await store.repository()
    await forget_to_tell(user)
    await admin.set_resource_defaults("gpt-4", [rpm(100)])
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    await admin.set_resource_defaults("gpt-4", [rpm(5)])
    store.clock.advance(59.9)
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=50)
    store.clock.advance(0.1)
    with pytest.raises(RateLimitExceeded):
        await take(RateLimiter(user), "key-1", "gpt-4", rpm=6)


async def test_the_changer_itself_is_bound_at_once(store: Store) -> None:
    """Its own cache holds what it wrote."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_resource_defaults("gpt-4", [rpm(100)])
    await take(limiter, "key-1", "gpt-4", rpm=1)
    await repository.set_resource_defaults("gpt-4", [rpm(5)])
    with pytest.raises(RateLimitExceeded):
        await take(limiter, "key-1", "gpt-4", rpm=5)


async def test_without_a_cache_a_change_binds_at_once(store: Store) -> None:
    """A TTL of 0 reads each time."""
    admin, user = await store.repository(), await store.repository(options=Options(0))
    await admin.set_resource_defaults("gpt-4", [rpm(100)])
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    await admin.set_resource_defaults("gpt-4", [rpm(5)])
    with pytest.raises(RateLimitExceeded):
        await take(RateLimiter(user), "key-1", "gpt-4", rpm=5)


@pytest.mark.parametrize(("capacity", "left"), [(150, 80), (100, 30), (50, 0)])
async def test_what_was_consumed_stays_consumed(store: Store, capacity: int, left: int) -> None:
    """Raising gives the difference at once; a cut leaves nothing, but no debt either."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_resource_defaults("gpt-4", [rpm(100)])
    await take(limiter, "key-1", "gpt-4", rpm=70)
    await repository.set_resource_defaults("gpt-4", [rpm(capacity)])
    assert await limiter.available("key-1", "gpt-4") == {"rpm": left}
    if left > 0:
        await take(limiter, "key-1", "gpt-4", rpm=left)
        assert await limiter.available("key-1", "gpt-4") == {"rpm": 0}


async def test_a_client_that_is_behind_does_not_turn_a_bucket_back(store: Store) -> None:
    """It remembers the old limits of the resource, meets the bucket for the first time, and believes it."""
    admin, user = await store.repository(), await store.repository()
    await admin.set_resource_defaults("gpt-4", [rpm(100)])
    await take(RateLimiter(user), "key-2", "gpt-4", rpm=1)
    await admin.set_resource_defaults("gpt-4", [rpm(5)])
    await take(RateLimiter(admin), "key-1", "gpt-4", rpm=1)
    before = await stored(admin)
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    assert await stored(admin) == before == (5, before[1])


async def test_views_read_piece_by_piece_converge(store: Store) -> None:
    """Two clients that each saw one of two changes agree on both after one acquire each, and stay so."""
    admin, first, second = [await store.repository() for _ in range(3)]
    await admin.set_system_defaults([rpm(100)])
    await admin.set_resource_defaults("gpt-4", [rpm(100)])
    for client in (first, second):
        await take(RateLimiter(client), "key-1", "gpt-4", rpm=1)
    await admin.set_resource_defaults("gpt-4", [rpm(50)])
    await admin.set_system_defaults([rpm(70)])
    first.invalidate_config_cache(resource="gpt-4")  # sees the resource's change, not the system's
    await first.resolve_limits("key-9", "gpt-4")
    second._connection.invalidate(lambda key: key.partition.endswith("/SYSTEM#"))  # the other way round
    await second.resolve_limits("key-9", "gpt-4")
    seen = []
    for client in (first, second, first, second, first, second):
        await take(RateLimiter(client), "key-1", "gpt-4", rpm=1)
        seen.append(await stored(admin))
    assert set(seen[2:]) == {(50, version_of([0, 0, 2, 2]))}


@pytest.mark.parametrize("changes", [1, 2, 3])
async def test_no_change_of_one_level_hides_another(store: Store, changes: int) -> None:
    """A bucket that was used under a resource's cut tells of it, however often the system's was changed."""
    admin, other, user = [await store.repository() for _ in range(3)]
    await forget_to_tell(user)
    await admin.set_system_defaults([rpm(100)])
    await admin.set_resource_defaults("gpt-4", [rpm(100)])
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    await admin.set_resource_defaults("gpt-4", [rpm(5)])
    await take(RateLimiter(other), "key-1", "gpt-4", rpm=1)
    for _ in range(changes):
        await admin.set_system_defaults([rpm(70)])
    user._connection.invalidate(lambda key: key.partition.endswith("/SYSTEM#"))
    with pytest.raises(RateLimitExceeded):
        await take(RateLimiter(user), "key-1", "gpt-4", rpm=6)
    assert await stored(admin) == (5, version_of([0, 0, 2, 1 + changes]))


async def test_a_plan_is_not_kept_beside_records_that_say_something_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else of the process learns of a change while a plan is made: the next acquire goes by that."""
    admin, user = await store.repository(), await store.repository()
    await forget_to_tell(user)
    await admin.set_resource_defaults("gpt-4", [rpm(100)])
    charged, overtaken = BucketRecords._charged, list[bool]()

    async def overtake(records: BucketRecords, *asked: Any, **how: Any) -> Any:
        found = await charged(records, *asked, **how)
        if not overtaken:
            overtaken.append(True)
            await admin.set_resource_defaults("gpt-4", [rpm(5)])
            await user._connection.fetch([resource_config_key(admin.namespace_id, "gpt-4")], fresh=True)
        return found

    monkeypatch.setattr(BucketRecords, "_charged", overtake)
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    assert overtaken
    with pytest.raises(RateLimitExceeded):
        await take(RateLimiter(user), "key-1", "gpt-4", rpm=6)


async def test_a_stamp_forgets_nothing(store: Store) -> None:
    """After a change of the entity's own a bucket has still seen what it had of the resource."""
    admin, other = await store.repository(), await store.repository()
    for repository in (admin, other):
        await forget_to_tell(repository)
    key = bucket_key(admin.namespace_id, "key-1", "gpt-4")
    await admin.set_resource_defaults("gpt-4", [rpm(100)])
    await take(RateLimiter(admin), "key-1", "gpt-4", rpm=1)
    ahead = Update(key, set={"cv": version_of([0, 0, 3, 0])})  # by somebody who read after the stamp was made
    assert (await admin.write_each([ahead]))[0].applied
    await other.set_limits("key-1", [rpm(5)], "gpt-4")
    (image,) = await admin._backend.batch_get([key])
    assert image is not None
    assert image["cv"] == stamp_of(version_of([1, 0, 3, 0]))


async def test_a_stamp_forgets_nothing_of_a_bucket_that_was_not_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was made since, by somebody who has seen a later change of the system's level, keeps that."""
    admin, other = await store.repository(), await store.repository()
    for repository in (admin, other):
        await forget_to_tell(repository)
    key, read = bucket_key(admin.namespace_id, "key-1", "gpt-4"), levels.stored_levels
    await admin.set_resource_defaults("gpt-4", [rpm(100)])

    async def made_since(*given: Any, **more: Any) -> Any:
        found = await read(*given, **more)
        await take(RateLimiter(admin), "key-1", "gpt-4", rpm=1)
        made = Update(key, set={"cv": version_of([0, 0, 1, 3])})
        assert (await admin.write_each([made]))[0].applied
        return found

    monkeypatch.setattr(levels, "stored_levels", made_since)
    await other.set_limits("key-1", [rpm(5)], "gpt-4")
    (image,) = await admin._backend.batch_get([key])
    assert image is not None
    assert image["cv"] == stamp_of(version_of([1, 0, 1, 3]))


async def test_a_deleted_level_gives_way_at_once(store: Store) -> None:
    """An entity that loses its own limits falls back to the resource's, for clients that remember too."""
    admin, user = await store.repository(), await store.repository()
    await admin.set_resource_defaults("gpt-4", [rpm(5)])
    await admin.set_limits("key-1", [rpm(100)])
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    await admin.delete_limits("key-1")
    await take(RateLimiter(admin), "key-1", "gpt-4", rpm=1)
    with pytest.raises(RateLimitExceeded):
        await take(RateLimiter(user), "key-1", "gpt-4", rpm=4)


async def test_a_deleted_entity_is_not_revived_by_memory(store: Store) -> None:
    """A client that remembers its own limits gives them up when it meets the new bucket."""
    admin, user = await store.repository(), await store.repository()
    await admin.set_resource_defaults("gpt-4", [rpm(5)])
    await admin.create_entity("key-1")
    await admin.set_limits("key-1", [rpm(100)])
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    await admin.delete_entity("key-1")
    store.clock.advance(0.001)
    await take(RateLimiter(admin), "key-1", "gpt-4", rpm=1)
    seen = await stored(admin)
    for client in (user, admin):
        await take(RateLimiter(client), "key-1", "gpt-4", rpm=1)
        assert await stored(admin) == seen
    assert seen[0] == 5


async def test_a_bucket_ahead_of_its_configuration_is_put_right_once(store: Store) -> None:
    """A restored table may know less than its buckets; the truth is adopted, and then nobody reads again."""
    admin = await store.repository()
    await admin.set_resource_defaults("gpt-4", [rpm(100)])
    await admin.set_resource_defaults("gpt-4", [rpm(50)])
    await take(RateLimiter(admin), "key-1", "gpt-4", rpm=1)
    key = resource_config_key(admin.namespace_id, "gpt-4")
    (outcome,) = await admin.write_each(
        [Update(key, set={"config_version": 1}, when=(Equal("config_version", 2),))]
    )
    assert outcome.applied
    user, calls = await store.recorded()
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    assert await stored(admin) == (50, version_of([0, 0, 1, 0]))
    calls.forget()
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    assert [verb for verb, _ in calls.calls] == ["write_each"]


async def test_limits_that_the_store_has_lost_make_no_tokens(store: Store) -> None:
    """Who remembers a raise that a failover undid, and who does not, do not turn a bucket to and fro."""
    admin, late, early = [await store.repository() for _ in range(3)]
    for repository in (admin, late, early):
        await forget_to_tell(repository)
    keys = [
        resource_config_key(admin.namespace_id, "gpt-4"),
        bucket_key(admin.namespace_id, "key-1", "gpt-4"),
    ]
    await admin.set_resource_defaults("gpt-4", [Limit("rpm", 10, 1, 10**7)])
    await take(RateLimiter(early), "key-1", "gpt-4", rpm=1)
    before = await admin._backend.batch_get(keys)
    await admin.set_resource_defaults("gpt-4", [Limit("rpm", 20, 1, 10**7)])
    await take(RateLimiter(late), "key-1", "gpt-4", rpm=1)
    await admin.write_each([Put(key, item) for key, item in zip(keys, before, strict=True) if item])
    admitted = []
    for _ in range(5):
        for client, amount in ((late, 10), (early, 1)):
            store.clock.advance(2)
            with suppress(RateLimitExceeded):
                await take(RateLimiter(client), "key-1", "gpt-4", rpm=amount)
                admitted.append(amount)
    assert admitted == [10], "the raise was given more than once"
    assert (await stored(admin))[0] == 10
    store.clock.advance(2)
    await admin.set_resource_defaults("gpt-4", [Limit("rpm", 15, 1, 10**7)])  # the second change once more
    await take(RateLimiter(admin), "key-1", "gpt-4", rpm=1)
    for client in (late, early):
        await take(RateLimiter(client), "key-1", "gpt-4", rpm=1)
        assert (await stored(admin))[0] == 15


async def test_limits_given_along_are_honoured_on_a_bucket_that_exists(store: Store) -> None:
    """Both ways, with what was consumed kept."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_resource_defaults("gpt-4", [RPM])
    await take(limiter, "key-1", "gpt-4", rpm=10)
    assert await limiter.available("key-1", "gpt-4", [rpm(20)]) == {"rpm": 10}
    async with limiter.acquire("key-1", "gpt-4", {"rpm": 10}, [rpm(20)]):
        pass
    with pytest.raises(RateLimitExceeded):
        async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, [rpm(20)]):
            pass
    assert await limiter.available("key-1", "gpt-4") == {"rpm": 80}


async def test_first_limits_are_found_by_those_who_missed_them(store: Store) -> None:
    """That nothing was stored is not believed for a minute."""
    admin, user = await store.repository(), await store.repository()
    with pytest.raises(ValidationError, match="no limits are stored"):
        await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    await admin.set_system_defaults([rpm(5)])
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)


async def test_a_new_limit_is_found_by_those_who_missed_it(store: Store) -> None:
    """A name that this process does not know is looked up before it is refused."""
    admin, user = await store.repository(), await store.repository()
    limiter = RateLimiter(user)
    await admin.set_resource_defaults("gpt-4", [rpm(5)])
    await take(limiter, "key-1", "gpt-4", rpm=1)
    with pytest.raises(ValidationError, match="'key-1' has no such limit on 'gpt-4'; it has rpm"):
        await take(limiter, "key-1", "gpt-4", tpm=1)
    await admin.set_resource_defaults("gpt-4", [rpm(5), Limit.per_minute("tpm", 9)])
    assert await limiter.time_until_available("key-1", "gpt-4", {"tpm": 9}) == 0
    await take(limiter, "key-1", "gpt-4", tpm=1)
    assert await limiter.available("key-1", "gpt-4") == {"rpm": 4, "tpm": 8}
