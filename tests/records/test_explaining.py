"""Why an acquire goes by which limits, on every store."""

from dataclasses import replace

from tests.records.store import RPM, TPM, Store
from zae_limiter import ConfigSource, Explanation, Limit, OnUnavailable, RateLimiter, SyncRateLimiter
from zae_limiter.records.connection import Options

SMALL = Limit.per_minute("rpm", 5)


def wins(explanation: Explanation) -> list[tuple[str, str | None]]:
    return [(one.entity_id, one.winner and one.winner.source) for one in explanation.buckets]


async def test_the_first_level_with_limits_wins(store: Store) -> None:
    """Each level is overruled by those before it, and is told all the same."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    set_at = {
        ConfigSource.SYSTEM: repository.set_system_defaults([RPM, TPM], on_unavailable="allow"),
        ConfigSource.RESOURCE: repository.set_resource_defaults("gpt-4", [TPM]),
        ConfigSource.ENTITY_DEFAULT: repository.set_limits("key-1", [RPM]),
        ConfigSource.ENTITY: repository.set_limits("key-1", [SMALL], "gpt-4", on_unavailable="block"),
    }
    for source, setting in set_at.items():
        await setting
        found = await limiter.explain("key-1", "gpt-4")
        assert wins(found) == [("key-1", source)]
        limits, policy, resolved = await limiter.resolve_limits("key-1", "gpt-4")
        winner = found.buckets[0].winner
        assert winner is not None
        assert (list(winner.limits), found.on_unavailable, winner.source) == (limits, policy, resolved)
        assert dict(found.buckets[0].available) == await limiter.available("key-1", "gpt-4")
    said = [(one.source, len(one.limits), one.on_unavailable) for one in found.buckets[0].levels]
    assert said == [
        ("entity", 1, "block"),
        ("entity_default", 1, None),
        ("resource", 1, None),
        ("system", 2, "allow"),
    ]
    assert found.on_unavailable_source is ConfigSource.ENTITY


async def test_nothing_is_stored(store: Store) -> None:
    """Then nothing wins, and the policy is the program's own."""
    repository = await store.repository(options=Options(on_unavailable=OnUnavailable.ALLOW))
    found = await repository.explain("key-1", "gpt-4")
    assert (wins(found), found.binding) == ([("key-1", None)], {})
    assert (found.on_unavailable, found.on_unavailable_source) == ("allow", None)


async def test_a_parent_is_asked_if_its_child_cascades(store: Store) -> None:
    """Whichever bucket has less of a limit binds; without cascade the parent has no say."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.create_entity("team")
    await repository.create_entity("key-1", parent_id="team", cascade=True)
    await repository.set_resource_defaults("gpt-4", [RPM, TPM])
    await repository.set_limits("team", [SMALL], "gpt-4")
    found = await limiter.explain("key-1", "gpt-4")
    assert wins(found) == [("key-1", "resource"), ("team", "entity")]
    assert found.binding == {"rpm": "team", "tpm": "key-1"}
    assert (found.parent_id, found.cascade) == ("team", True)
    async with limiter.acquire("key-1", "gpt-4", {"rpm": 2, "tpm": 300}):
        now = await limiter.explain("key-1", "gpt-4")
    assert [dict(one.available) for one in now.buckets] == [{"rpm": 98, "tpm": 700}, {"rpm": 3}]
    await repository.update_entity("key-1", cascade=False)
    alone = await limiter.explain("key-1", "gpt-4")
    assert (wins(alone), alone.parent_id) == ([("key-1", "resource")], "team")


async def test_the_whole_family_is_told(store: Store) -> None:
    """As far up as each cascades there, and by whose word: the entity's record or a level."""
    repository = await store.repository()
    await repository.set_system_defaults([RPM])
    await repository.create_entity("org")
    await repository.create_entity("team", parent_id="org")
    await repository.create_entity("key-1", parent_id="team", cascade=True)

    async def charged(resource: str = "gpt-4") -> list[str]:
        return [one.entity_id for one in (await repository.explain("key-1", resource)).buckets]

    assert await charged() == ["key-1", "team"]
    await repository.update_entity("team", cascade=True)
    assert await charged() == ["key-1", "team", "org"]
    await repository.set_entity_cascade("key-1", False, "gpt-4")
    assert (await charged(), await charged("other")) == (["key-1"], ["key-1", "team", "org"])
    (bucket,) = (await repository.explain("key-1", "gpt-4")).buckets
    assert (bucket.parent_id, bucket.cascade, bucket.cascade_source) == ("team", False, "entity")
    assert [one.cascade for one in bucket.levels] == [False, None, None, None]
    await repository.set_resource_cascade("gpt-4", True)
    assert await charged() == ["key-1"]
    await repository.set_entity_cascade("key-1", None, "gpt-4")
    assert await charged() == ["key-1", "team", "org"]
    assert (await repository.explain("key-1", "gpt-4")).buckets[0].cascade_source == "resource"


async def test_it_tells_when_a_change_binds(store: Store) -> None:
    """At the next acquire where the store tells of changes, and everywhere for an entity's own limits."""
    repository = await store.repository(options=Options(config_cache_ttl_seconds=30))
    await repository.set_system_defaults([RPM])
    found = await repository.explain("key-1", "gpt-4")
    tells = repository._connection.tells_changes
    assert found.buckets[0].change_binds_seconds == (0 if tells else 30)
    await repository.set_limits("key-1", [RPM])
    assert (await repository.explain("key-1", "gpt-4")).buckets[0].change_binds_seconds == 0


async def test_it_reads_what_others_have_stored_and_takes_nothing(store: Store) -> None:
    """Memory that is not over yet is not believed; no bucket is made."""
    here, there = await store.repository(), await store.repository()
    await here.set_system_defaults([RPM])
    await here.explain("key-1", "gpt-4")
    await there.set_system_defaults([SMALL])
    found = await here.explain("key-1", "gpt-4")
    assert dict(found.buckets[0].available) == {"rpm": 5}
    assert await here.get_buckets("key-1") == []


def test_in_sync_code() -> None:
    """The sync twins explain the same."""
    with SyncRateLimiter.open("memory://") as limiter:
        limiter.set_system_defaults([RPM])
        both = limiter.explain("key-1", "gpt-4"), limiter.repository.explain("key-1", "gpt-4")
        one, other = (replace(found, checked_at_ms=0) for found in both)
        assert one == other


async def test_a_bucket_whose_limits_callers_brought_along(store: Store) -> None:
    """No level has limits, and what is left in the bucket is told all the same."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    async with limiter.acquire("key-1", "gpt-4", {"rpm": 2, "tpm": 300}, [Limit("rpm", 5, 1, 86400), TPM]):
        found = await limiter.explain("key-1", "gpt-4")
    assert wins(found) == [("key-1", None)]
    assert (found.buckets[0].available["rpm"], found.binding["rpm"]) == (3, "key-1")
    await repository.delete_entity("key-1")
    assert dict((await limiter.explain("key-1", "gpt-4")).buckets[0].available) == {}


def refusals(explanation: Explanation) -> list[str]:
    return [str(one) for one in explanation.refusing]


async def test_each_limit_that_refuses_says_why_and_until_when(store: Store) -> None:
    """A rate to the millisecond, a quota in its zone and as money, debt as what is owed, seats as held."""
    store.clock.now_ms = 1_774_731_600_000  # 2026-03-28T21:00Z, hours before Berlin sets its clocks
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_limits(
        "key-1",
        [
            Limit.per_minute("rpm", 40),
            Limit.per_week("usd", 2_500_000, tz="Europe/Berlin", unit="usd_micro"),
            Limit.concurrent("parallel", 4, hold="8s"),
            Limit.session("msgs", 5, "5h"),
            Limit.per_minute("tpm", 10),
            Limit.per_day("fine", 10),
            Limit.per_day("counted", 1).softly(),
        ],
    )
    assert refusals(await limiter.explain("key-1", "gpt-4")) == []
    spent = {"rpm": 40, "usd": 2_500_000, "parallel": 4, "msgs": 5, "tpm": 1, "counted": 7}
    async with limiter.acquire("key-1", "gpt-4", spent) as lease:
        await lease.adjust(tpm=29)
        assert len(refusals(await limiter.explain("key-1", "gpt-4"))) == 4
    lease = await limiter.acquire("key-1", "gpt-4", {"parallel": 4})
    found = await limiter.explain("key-1", "gpt-4")
    assert found.checked_at_ms == store.clock.now_ms
    assert sorted(refusals(found)) == [
        "'msgs' of 'key-1' refuses: nothing of 5 is left; there is some again in 5 h, "
        "at 2026-03-29 02:00:00 UTC",
        "'parallel' of 'key-1' refuses: all 4 seats are held; one is free in 8 s, "
        "at 2026-03-28 21:00:08 UTC, or as soon as somebody ends",
        "'rpm' of 'key-1' refuses: nothing of 40 is left; there is some again in 1.5 s, "
        "at 2026-03-28 21:00:02 UTC",
        "'tpm' of 'key-1' refuses: it is 20 in debt; there is some again in 2 min 6 s, "
        "at 2026-03-28 21:02:06 UTC",
        "'usd' of 'key-1' refuses: nothing of $2.50 is left; there is some again in 1 d 1 h, "
        "at 2026-03-30 00:00:00 Europe/Berlin",
    ]
    for one in found.refusing:
        assert one.until_ms is not None
        store.clock.now_ms = one.until_ms - 1
        still = await limiter.explain("key-1", "gpt-4")
        assert one.limit.name in {each.limit.name for each in still.refusing}
        store.clock.now_ms += 1
        then = await limiter.explain("key-1", "gpt-4")
        assert one.limit.name not in {each.limit.name for each in then.refusing}
        store.clock.now_ms = found.checked_at_ms
    await lease.commit()


async def test_whoever_is_past_its_limits_is_refused_by_none(store: Store) -> None:
    """Its own say nothing and bind nothing; a parent's are past by the switch of whoever asks."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.create_entity("team")
    await repository.create_entity("key-1", parent_id="team", cascade=True)
    await repository.set_system_defaults([SMALL])
    async with limiter.acquire("key-1", "gpt-4", {"rpm": 5}):
        found = await limiter.explain("key-1", "gpt-4")
        assert [one.entity_id for one in found.refusing] == ["key-1", "team"]
        await repository.bypass(entity_id="team")
        found = await limiter.explain("key-1", "gpt-4")
        assert [one.entity_id for one in found.refusing] == ["key-1"]
        assert found.binding == {"rpm": "key-1"}
        await repository.bypass(entity_id="key-1")
        found = await limiter.explain("key-1", "gpt-4")
        assert (found.refusing, found.binding) == ((), {})
