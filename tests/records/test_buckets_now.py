"""Buckets as somebody who only looks sees them, on every store."""

from __future__ import annotations

import pytest

from tests.records.store import RPM, TPM, Store, take
from zae_limiter import Limit, RateLimiter, ValidationError
from zae_limiter.records.buckets_now import PLACES_MAX, look_at, look_at_entity

KINDS = [
    Limit.per_minute("rpm", 100),
    Limit.per_minute("soft", 5).softly(),
    Limit.per_month("usd", 99_500_000, unit="usd_micro"),
    Limit.session("msgs", 50, "5h"),
    Limit.concurrent("jobs", 3),
    Limit.per_minute("tides", 60).during("* 0-22 * * *", 600),
]
USED = {"rpm": 100, "soft": 9, "usd": 1, "msgs": 50, "jobs": 2, "tides": 30}


async def test_a_look_sees_what_an_acquire_would_find(store: Store) -> None:
    """Of limits of every kind: what is available, what refuses, and when it is full again."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_resource_defaults("gpt-4", KINDS)
    lease = await limiter.acquire("key-1", "gpt-4", USED)
    store.clock.advance(30)
    (seen,) = await look_at(repository._scope, [("key-1", "gpt-4")])
    explained = (await limiter.explain("key-1", "gpt-4")).buckets[0]
    assert {one.limit.name: one.available for one in seen.levels} == dict(explained.available)
    refusing = {one.limit.name for one in explained.refusing}
    assert {one.limit.name for one in seen.levels if one.refuses} == refusing == {"msgs"}
    by_name = {one.limit.name: one for one in seen.levels}
    assert by_name["rpm"].full_in_ms == 30_000
    assert (by_name["rpm"].per_second, by_name["usd"].per_second) == (100 / 60, 0)
    assert (by_name["tides"].capacity, by_name["tides"].per_second) == (600, 10)
    assert (by_name["jobs"].held, by_name["rpm"].held) == (2, None)
    assert by_name["usd"].limit.unit == "usd_micro"
    assert seen.nearest is by_name["msgs"]
    await lease.cancel()


async def test_a_soft_limit_is_nearest_only_if_there_is_no_other(store: Store) -> None:
    """It is in debt and refuses nobody, so what is beside it matters more."""
    repository = await store.repository()
    await repository.set_resource_defaults("gpt-4", [RPM, TPM.softly()])
    await take(RateLimiter(repository), "key-1", "gpt-4", rpm=50, tpm=5000)
    (seen,) = await look_at(repository._scope, [("key-1", "gpt-4")])
    assert [(one.limit.name, one.ratio, one.refuses) for one in seen.levels] == [
        ("rpm", 0.5, False),
        ("tpm", -1, False),
    ]
    assert seen.nearest is seen.levels[0]


async def test_limits_that_have_changed_are_seen_before_the_bucket_knows(store: Store) -> None:
    """A raise gives the difference at once, in this process and in one that remembered the old limits."""
    repository, other = await store.repository(), await store.repository()
    await repository.set_resource_defaults("gpt-4", [RPM])
    await take(RateLimiter(repository), "key-1", "gpt-4", rpm=100)
    await look_at(other._scope, [("key-1", "gpt-4")])
    await repository.set_resource_defaults("gpt-4", [Limit.per_minute("rpm", 150)])
    (seen,) = await look_at(repository._scope, [("key-1", "gpt-4")])
    assert [(one.available, one.capacity) for one in seen.levels] == [(50, 150)]
    await take(RateLimiter(repository), "key-1", "gpt-4", rpm=1)
    (elsewhere,) = await look_at(other._scope, [("key-1", "gpt-4")])
    assert [(one.available, one.capacity) for one in elsewhere.levels] == [(49, 150)]


async def test_limits_that_callers_bring_along_are_those_of_the_bucket(store: Store) -> None:
    """Where no level says anything, the bucket does."""
    repository = await store.repository()
    async with RateLimiter(repository).acquire("key-1", "gpt-4", {"rpm": 30}, limits=[RPM]):
        pass
    (seen,) = await look_at(repository._scope, [("key-1", "gpt-4")])
    assert [(one.limit.name, one.available, one.capacity) for one in seen.levels] == [("rpm", 70, 100)]


async def test_a_bucket_that_was_never_used_is_full_and_has_no_shards(store: Store) -> None:
    """And one that was deleted is as if it had never been used."""
    repository = await store.repository()
    await repository.set_system_defaults([RPM])
    await take(RateLimiter(repository), "gone", "gpt-4", rpm=10)
    await repository.delete_entity("gone")
    seen = await look_at(repository._scope, [("gone", "gpt-4"), ("never", "gpt-4")])
    assert [(one.shards, one.levels[0].available) for one in seen] == [(0, 100), (0, 100)]


async def test_a_switch_is_told_and_a_bypass_refuses_nothing(store: Store) -> None:
    """What is empty lets everything pass while it is bypassed."""
    repository = await store.repository()
    await repository.set_system_defaults([RPM])
    await take(RateLimiter(repository), "key-1", "gpt-4", rpm=100)
    await repository.bypass(entity_id="key-1")
    (seen,) = await look_at(repository._scope, [("key-1", "gpt-4")])
    assert seen.switch is not None
    assert (seen.switch.bypass, seen.levels[0].refuses) == ("counted", False)


async def test_a_look_costs_a_few_reads_and_writes_nothing(store: Store) -> None:
    """However many buckets are looked at; and the process that looks remembers none of them."""
    used = await store.repository()
    await used.set_system_defaults([RPM])
    places = [(f"key-{n}", "gpt-4") for n in range(40)]
    for entity_id, _ in places:
        await take(RateLimiter(used), entity_id, "gpt-4", rpm=10)
    repository, recording = await store.recorded()
    seen = await look_at(repository._scope, places)
    assert [one.levels[0].available for one in seen] == [90] * 40
    assert recording.verbs.keys() == {"batch_get"}
    assert recording.round_trips <= 2
    assert not any(repository.writer.knows(key) for _, given in recording.calls for key in given)


async def test_an_entity_is_seen_with_the_buckets_it_has_used(store: Store) -> None:
    """In the order of the resources, no more than asked for; only its own, whatever begins like it."""
    repository = await store.repository()
    await repository.set_system_defaults([RPM])
    for entity_id, resource in [("a", "r2"), ("a", "r1"), ("a", "r10"), ("ab", "r1")]:
        async with RateLimiter(repository).acquire(entity_id, resource, {"rpm": 1}):
            pass
    seen = await look_at_entity(repository._scope, "a")
    assert [(one.entity_id, one.resource) for one in seen] == [("a", "r1"), ("a", "r10"), ("a", "r2")]
    assert len(await look_at_entity(repository._scope, "a", buckets_max=2)) == 2
    assert [one.resource for one in await look_at_entity(repository._scope, "a", "r1")] == ["r1"]


async def test_bad_names_and_too_many_are_refused(store: Store) -> None:
    """Before anything is read."""
    repository, recording = await store.recorded()
    with pytest.raises(ValidationError, match="reserved"):
        await look_at(repository._scope, [("a#b", "gpt-4")])
    with pytest.raises(ValidationError, match="places"):
        await look_at(repository._scope, [(f"key-{n}", "gpt-4") for n in range(PLACES_MAX + 1)])
    assert await look_at(repository._scope, []) == []
    assert recording.round_trips == 0
