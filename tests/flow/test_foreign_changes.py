"""When a change binds that somebody else made: at the very next acquire, where the docs say so.

The table of the docs is ``BOUNDS``. Time stands still in these tests, so that nothing expires.
"""

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.flow.clients import EMBEDDED, RESOURCE, Client, Store
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository, SyncRateLimiter
from zae_limiter.engine.seen_buckets import REFUSAL_MS_MAX

WORKER = Path(__file__).with_name("worker.py")
CUT, FULL = Limit("rpm", 5, 5, 3600), Limit("rpm", 1000, 1000, 3600)


async def system(repository: Repository, limit: Limit) -> None:
    await repository.set_system_defaults([limit])


async def resource(repository: Repository, limit: Limit) -> None:
    await repository.set_resource_defaults(RESOURCE, [limit])


async def entity(repository: Repository, limit: Limit) -> None:
    await repository.set_limits("key", [limit])


async def entity_on_resource(repository: Repository, limit: Limit) -> None:
    await repository.set_limits("key", [limit], RESOURCE)


Level = Callable[[Repository, Limit], Awaitable[None]]
LEVELS: list[Level] = [system, resource, entity, entity_on_resource]
OWN = (entity, entity_on_resource)


async def stage(store: Store, level: Level, limit: Limit) -> tuple[Repository, Client]:
    """Somebody who sets limits, and somebody else who is warm under them."""
    admin, user = (await store.client()).repository, await store.client()
    await level(admin, limit)
    for _ in range(3):
        await user.take("key", {"rpm": 1})
    return admin, user


def binds(store: Store, level: Level) -> bool:
    """Whether a change at this level binds at the next acquire although nobody has used the bucket since."""
    return store.name in EMBEDDED or level in OWN


@pytest.mark.parametrize("level", LEVELS)
async def test_a_cut_by_somebody_else_binds_at_the_next_acquire(store: Store, level: Level) -> None:
    """From 1,000 an hour to 5: more than 5 are never admitted again."""
    admin, user = await stage(store, level, FULL)
    await level(admin, CUT)
    if binds(store, level):
        refusal = await user.refused("key", {"rpm": 6})
        assert refusal.primary_violation.limit.capacity == 5
    else:
        await user.take("key", {"rpm": 6})


@pytest.mark.parametrize("broader", [system, resource])
@pytest.mark.parametrize("level", OWN)
async def test_no_other_change_hides_one_of_the_entity_itself(
    store: Store, level: Level, broader: Level
) -> None:
    """Who has learnt of a later change, of a broader level and through another entity, still learns of it."""
    admin, user, other = [await store.client() for _ in range(3)]
    for limits_of in (system, resource, level):
        await limits_of(admin.repository, FULL)
    for name in ("key", "neighbour"):
        await user.take(name, {"rpm": 1})
    await level(admin.repository, CUT)
    for _ in range(2):
        await broader(admin.repository, FULL)
        await other.take("neighbour", {"rpm": 1})
        other.repository.invalidate_config_cache()
    await other.take("neighbour", {"rpm": 1})
    await user.take("neighbour", {"rpm": 1})  # which tells of the broader change
    refusal = await user.refused("key", {"rpm": 6})
    assert refusal.primary_violation.limit.capacity == 5


@pytest.mark.parametrize("level", LEVELS)
async def test_a_raise_by_somebody_else_turns_a_remembered_refusal_around(store: Store, level: Level) -> None:
    """The refusal of a moment ago is no answer under other limits."""
    admin, user = await stage(store, level, CUT)
    await user.refused("key", {"rpm": 6})
    await user.refused("key", {"rpm": 6})
    await level(admin, FULL)
    if store.name not in EMBEDDED:  # where a refusal answers for a second without a request
        store.clock.advance(1.001)
    if binds(store, level):
        await user.take("key", {"rpm": 6})
        assert await store.used("key") == 9


@pytest.mark.parametrize("level", LEVELS)
async def test_a_level_that_somebody_else_deletes_binds_no_more(store: Store, level: Level) -> None:
    """The next level counts from the next acquire."""
    other = system if level is not system else entity
    admin, user = (await store.client()).repository, await store.client()
    await other(admin, CUT if other is system else FULL)
    await level(admin, FULL if other is system else CUT)
    await user.take("key", {"rpm": 1})
    await user.take("key", {"rpm": 1})
    await {
        system: admin.delete_system_defaults,
        resource: lambda: admin.delete_resource_defaults(RESOURCE),
        entity: lambda: admin.delete_limits("key"),
        entity_on_resource: lambda: admin.delete_limits("key", RESOURCE),
    }[level]()
    if level is not system and binds(store, level):
        await user.refused("key", {"rpm": 6})


async def test_what_is_asked_without_taking_is_up_to_date_too(store: Store) -> None:
    """``resolve_limits`` and ``available`` go by what somebody else has set."""
    admin, user = await stage(store, resource, FULL)
    await resource(admin, CUT)
    if store.name in EMBEDDED:
        assert (await user.repository.resolve_limits("key", RESOURCE))[0] == [CUT]
        assert (await user.limiter.available("key", RESOURCE))["rpm"] <= 5


async def test_nobody_is_disturbed_by_uses(store: Store) -> None:
    """Buckets and usage change all the time; that is no reason to read records again."""
    _, user = await stage(store, resource, FULL)
    other = await store.client()
    for _ in range(3):
        await other.take("key", {"rpm": 1})
        await user.take("key", {"rpm": 1})
    user.forget()
    await other.take("other", {"rpm": 1})
    await user.take("key", {"rpm": 1})
    assert [verb for verb, _ in user.calls] == ["write_each"]


async def test_own_changes_disturb_nobody_but_what_they_change(store: Store) -> None:
    """A process that keeps making entities stays warm for all others."""
    _, user = await stage(store, resource, FULL)
    await user.repository.create_entity("new")
    user.forget()
    await user.take("key", {"rpm": 1})
    assert [verb for verb, _ in user.calls] == ["write_each"]


# Real processes.


def in_another_process(url: str, *what: str) -> None:
    """Let another process change the limits, and wait until it has ended."""
    subprocess.run([sys.executable, str(WORKER), "change", url, *what], check=True, timeout=120)


shared = pytest.mark.parametrize("url", ["sqlite", "dynamodb", "postgres", "redis"], indirect=True)
"""Stores that another process can reach."""


@shared
def test_another_process_cuts_sync(url: str) -> None:
    """1,000 an hour, warm; cut to 5 by another process: the very next acquire goes by 5, and back."""
    with SyncRateLimiter.open(url) as limiter:
        limiter.set_limits("key", [FULL])
        for _ in range(20):
            with limiter.acquire("key", RESOURCE, {"rpm": 1}):
                pass
        in_another_process(url, "key", "5")
        with pytest.raises(RateLimitExceeded) as caught, limiter.acquire("key", RESOURCE, {"rpm": 6}):
            pass
        assert caught.value.primary_violation.limit == CUT
        in_another_process(url, "key", "1000")
        if not url.startswith("sqlite:"):  # where nobody is told, a refusal is remembered for so long
            time.sleep(REFUSAL_MS_MAX / 1000 + 0.1)
        with limiter.acquire("key", RESOURCE, {"rpm": 6}):
            pass


@shared
async def test_another_process_cuts(url: str) -> None:
    """The same for coroutines; on SQLite for a resource's limits as well."""
    async with RateLimiter.open(url) as limiter:
        await limiter.set_resource_defaults(RESOURCE, [FULL])
        await limiter.set_limits("key", [FULL])
        for _ in range(20):
            for entity_id in ("key", "other"):
                async with limiter.acquire(entity_id, RESOURCE, {"rpm": 1}):
                    pass
        in_another_process(url, "key", "5")
        with pytest.raises(RateLimitExceeded):
            async with limiter.acquire("key", RESOURCE, {"rpm": 6}):
                pass
        if url.startswith("sqlite:"):
            in_another_process(url, "", "5")
            with pytest.raises(RateLimitExceeded):
                async with limiter.acquire("other", RESOURCE, {"rpm": 6}):
                    pass


async def test_a_cut_and_a_raise_leave_the_same_everywhere(store: Store) -> None:
    """Where buckets are stamped the numbers become what they become where nobody is told anything."""
    admin, user = await stage(store, entity, FULL)
    await user.take("key", {"rpm": 497})
    await entity(admin, CUT)
    await user.refused("key", {"rpm": 1})
    await entity(admin, FULL)
    store.clock.advance(1.001)
    assert (await user.limiter.available("key", RESOURCE))["rpm"] == 995
    await user.take("key", {"rpm": 995})
