"""The cache of records: what it remembers, for how long, how misses share reads, what a fault leaves."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest

from tests.records.store import RPM, TPM, Store, take
from zae_limiter import (
    ConfigSource,
    Limit,
    OnUnavailable,
    RateLimiter,
    RateLimiterUnavailable,
    Repository,
    ValidationError,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.config_cache import ConfigCache
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository_protocol import Backend, Item, Key
from zae_limiter.runtime.colour import Colour
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.testing import Fault, FaultyBackend, ManualClock
from zae_limiter.testing.stores import Wrapper


class Gated(Wrapper):
    """Holds reads of several records back until the gate opens, as a slow network would."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.open = asyncio.Event()
        self.open.set()
        self.reached = asyncio.Event()
        """Set when an answer stands before the gate."""
        self.reads: list[tuple[Key, ...]] = []
        self.failure: RateLimiterUnavailable | None = None

    @property
    def colour(self) -> Colour:
        return Asyncio()

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        self.reads.append(tuple(keys))
        items = await super().batch_get(keys)
        if len(keys) > 1:
            self.reached.set()
            await self.open.wait()
        if self.failure is not None:
            raise self.failure
        return items

    def close_gate(self) -> None:
        self.open.clear()
        self.reached.clear()
        self.reads.clear()


async def gated(store: Store, options: Options | None = None) -> tuple[Repository, Gated]:
    gates: list[Gated] = []

    def wrap(backend: Backend) -> Backend:
        gates.append(Gated(backend))
        return gates[0]

    return await store.repository(options=options, wrap=wrap), gates[0]


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_thousand_cold_entities_read_at_once(store: Store) -> None:
    """One batch read each, all of them under way together, and what they share is read once."""
    repository, gate = await gated(store)
    await repository.set_resource_defaults("gpt-4", [RPM])
    repository.invalidate_config_cache()
    gate.close_gate()
    tasks = [asyncio.create_task(repository.resolve_limits(f"key-{n}", "gpt-4")) for n in range(1000)]
    await settle()
    assert len(gate.reads) == 1000
    shared = [key for read in gate.reads for key in read if "/ENTITY#" not in key.partition]
    assert len(shared) == len(set(shared)) == 2
    gate.open.set()
    found = await asyncio.gather(*tasks)
    assert found == [([RPM], None, ConfigSource.RESOURCE)] * 1000
    assert len(gate.reads) == 1000


async def test_a_cold_acquire_is_one_read_and_one_write(store: Store) -> None:
    """Config, entity and bucket come together; then nothing is read any more."""
    admin = await store.repository()
    await admin.set_resource_defaults("gpt-4", [RPM])
    repository, calls = await store.recorded()
    await take(RateLimiter(repository), "key-1", "gpt-4", rpm=1)
    assert [(verb, len(given)) for verb, given in calls.calls] == [("batch_get", 6), ("write_each", 1)]
    calls.forget()
    await take(RateLimiter(repository), "key-1", "gpt-4", rpm=1)
    assert [verb for verb, _ in calls.calls] == ["write_each"]


async def test_nobody_waits_for_records_it_did_not_ask_for(store: Store) -> None:
    """A read that hangs holds up only those who want the same."""
    repository, gate = await gated(store)
    await repository.set_resource_defaults("gpt-4", [RPM])
    await repository.set_resource_defaults("gpt-5", [TPM])
    await repository.resolve_limits("warm", "gpt-5")
    gate.close_gate()
    repository.invalidate_config_cache(resource="gpt-4")
    stuck = asyncio.create_task(repository.resolve_limits("key-1", "gpt-4"))
    await settle()
    assert await repository.resolve_limits("warm", "gpt-5") == ([TPM], None, ConfigSource.RESOURCE)
    assert not stuck.done()
    gate.open.set()
    assert (await stuck)[0] == [RPM]


async def test_a_cancelled_read_is_taken_over(store: Store) -> None:
    """Who waited for it reads for himself, all that is missing in one read."""
    repository, gate = await gated(store)
    await repository.set_resource_defaults("gpt-4", [RPM])
    repository.invalidate_config_cache()
    gate.close_gate()
    first = asyncio.create_task(repository.resolve_limits("key-1", "gpt-4"))
    await settle()
    second = asyncio.create_task(repository.resolve_limits("key-1", "gpt-4"))
    await settle()
    assert len(gate.reads) == 1
    first.cancel()
    await settle()
    assert [len(read) for read in gate.reads] == [4, 4]
    gate.open.set()
    assert (await second)[0] == [RPM]


async def test_a_failed_read_fails_for_all_who_shared_it(store: Store) -> None:
    """A store that is down is asked once, not once for each."""
    repository, gate = await gated(store)
    gate.close_gate()
    gate.failure = RateLimiterUnavailable("gone")
    tasks = [asyncio.create_task(repository.resolve_limits("key-1", "gpt-4")) for _ in range(5)]
    await settle()
    gate.open.set()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, RateLimiterUnavailable)
    assert len(gate.reads) == 1


async def test_a_slow_read_does_not_undo_a_change(store: Store) -> None:
    """What set out before the change arrives after it, and is not believed."""
    repository, gate = await gated(store)
    await repository.set_resource_defaults("gpt-4", [RPM])
    repository.invalidate_config_cache()
    gate.close_gate()
    slow = asyncio.create_task(repository.resolve_limits("key-1", "gpt-4"))
    await gate.reached.wait()
    await repository.set_resource_defaults("gpt-4", [TPM])
    gate.open.set()
    assert (await slow)[0] == [RPM]
    assert (await repository.resolve_limits("key-1", "gpt-4"))[0] == [TPM]


def test_a_change_comes_between_two_steps_of_another_thread() -> None:
    """What a read brought is not believed if the change came just before it was put in its place."""
    cache, key = ConfigCache(60_000), Key("p", "s")

    class Interrupted(OrderedDict[Key, Any]):
        def __setitem__(self, at: Key, entry: Any) -> None:
            cache.invalidate_keys([key])
            super().__setitem__(at, entry)

    read = cache.set_out()
    cache._entries = Interrupted()
    cache.put(key, {"v": "old"}, 0, read)
    assert cache.get(key, 1) is None


async def test_an_invalidation_reaches_reads_under_way(store: Store) -> None:
    """Who asks after it gets a read that set out after it."""
    repository, gate = await gated(store)
    await repository.set_resource_defaults("gpt-4", [RPM])
    repository.invalidate_config_cache()
    gate.close_gate()
    slow = asyncio.create_task(repository.resolve_limits("key-1", "gpt-4"))
    await settle()
    admin = await store.repository()
    await admin.set_resource_defaults("gpt-4", [TPM])
    repository.invalidate_config_cache()
    fresh = asyncio.create_task(repository.resolve_limits("key-1", "gpt-4"))
    await settle()
    assert len(gate.reads) == 2
    gate.open.set()
    assert (await slow)[0] == [RPM]
    assert (await fresh)[0] == [TPM]
    assert (await repository.resolve_limits("key-1", "gpt-4"))[0] == [TPM]


async def test_what_is_missing_is_remembered_too(store: Store) -> None:
    """An entity without limits of its own is not asked for again within the TTL."""
    repository, calls = await store.recorded()
    await repository.resolve_limits("key-1", "gpt-4")
    calls.forget()
    store.clock.advance(59)
    await repository.resolve_limits("key-1", "gpt-4")
    assert calls.round_trips == 0
    store.clock.advance(1)
    await repository.resolve_limits("key-1", "gpt-4")
    assert calls.round_trips == 1


async def test_statistics(store: Store) -> None:
    """Hits and misses are counted record by record, and invalidation keeps the size."""
    repository = await store.repository()
    await repository.resolve_limits("key-1", "gpt-4")
    await repository.resolve_limits("key-1", "gpt-4")
    stats = repository.get_cache_stats()
    assert (stats.hits, stats.misses, stats.size, stats.ttl_seconds) == (4, 4, 5, 60), "and its namespace"
    repository.invalidate_config_cache()
    assert repository.get_cache_stats().size == 5


@pytest.mark.parametrize(
    ("entity_id", "resource", "read"),
    [
        (None, None, {"e1", "e1_", "e2", "e2_", "r", "s"}),
        ("key-1", None, {"e1", "e1_"}),
        (None, "gpt-4", {"e1", "e2", "r"}),
        ("key-1", "gpt-4", {"e1", "e1_", "r", "s"}),
    ],
)
async def test_invalidation_is_as_wide_as_asked(
    store: Store, entity_id: str | None, resource: str | None, read: set[str]
) -> None:
    """All, what concerns an entity, a resource, or both; another namespace keeps what it knows."""
    repository, calls = await store.recorded()
    await repository.register_namespace("other")
    other = await repository.namespace("other")
    for view in (repository, other):
        for name in ("key-1", "key-2"):
            await view.resolve_limits(name, "gpt-4")
    calls.forget()
    repository.invalidate_config_cache(entity_id, resource)
    for view in (repository, other):
        for name in ("key-1", "key-2"):
            await view.resolve_limits(name, "gpt-4")
    short = {
        ("/ENTITY#key-1", "#CONFIG#gpt-4"): "e1",
        ("/ENTITY#key-1", "#CONFIG#_default_"): "e1_",
        ("/ENTITY#key-2", "#CONFIG#gpt-4"): "e2",
        ("/ENTITY#key-2", "#CONFIG#_default_"): "e2_",
        ("/RESOURCE#gpt-4", "#CONFIG"): "r",
        ("/SYSTEM#", "#CONFIG"): "s",
    }
    asked = [key for _, given in calls.calls for key in given if isinstance(key, Key)]
    assert {key.partition.partition("/")[0] for key in asked} <= {repository.namespace_id}
    found = [short["/" + key.partition.partition("/")[2], key.sort] for key in asked]
    assert sorted(found) == sorted(read)


async def test_invalidation_checks_names(store: Store) -> None:
    """A misspelt name is told instead of ignored."""
    repository = await store.repository()
    with pytest.raises(ValidationError):
        repository.invalidate_config_cache("a#b")
    with pytest.raises(ValidationError):
        repository.invalidate_config_cache(resource="a#b")


async def test_the_last_known_values_serve_while_the_store_is_down(store: Store) -> None:
    """Limits and policy, however old; what was never known is unavailable."""
    faulty: list[FaultyBackend] = []

    def wrap(backend: Backend) -> Backend:
        faulty.append(FaultyBackend(backend))
        return faulty[0]

    repository = await store.repository(wrap=wrap)
    await repository.set_resource_defaults("gpt-4", [RPM], on_unavailable="allow")
    await take(RateLimiter(repository), "key-1", "gpt-4", rpm=1)
    store.clock.advance(3600)
    faulty[0].always = Fault.UNREACHABLE
    assert await repository.resolve_limits("key-1", "gpt-4") == (
        [RPM],
        OnUnavailable.ALLOW,
        ConfigSource.RESOURCE,
    )
    async with RateLimiter(repository).acquire("key-1", "gpt-4", {"rpm": 1}) as lease:
        assert lease.degraded
    with pytest.raises(RateLimiterUnavailable):
        await repository.resolve_limits("key-2", "gpt-4")
    faulty[0].always = None
    await repository.set_resource_defaults("gpt-4", [TPM])
    assert (await repository.resolve_limits("key-1", "gpt-4"))[0] == [TPM]


async def test_the_cache_is_bounded(store: Store) -> None:
    """The oldest entries give way, and everything still resolves."""
    repository = await store.repository()
    await repository.set_resource_defaults("gpt-4", [RPM])
    repository._connection.cache = ConfigCache(60_000, entries_max=10)
    for n in range(50):
        assert (await repository.resolve_limits(f"key-{n}", "gpt-4"))[0] == [RPM]
        assert repository.get_cache_stats().size <= 10


def test_an_older_read_does_not_replace_a_newer_one() -> None:
    """Reads are numbered when they set out; of two the later one stays, whichever lands first."""
    cache, key = ConfigCache(1000), Key("p", "s")
    early, late = cache.set_out(), cache.set_out()
    cache.put(key, {"v": 2}, 0, late)
    cache.put(key, {"v": 1}, 0, early)
    entry = cache.get(key, 0)
    assert entry is not None
    assert entry.item == {"v": 2}


def test_what_was_read_before_an_invalidation_is_a_miss() -> None:
    """Also when there was no entry yet that could have been invalidated; it serves emergencies only."""
    cache, key = ConfigCache(1000), Key("p", "s")
    read = cache.set_out()
    cache.invalidate(lambda _: True)
    cache.put(key, {}, 0, read)
    assert cache.get(key, 0) is None
    assert cache.last_known(key) is not None


def test_an_invalidated_entry_is_out_of_date_at_any_time() -> None:
    """Who keeps one sees it, those that were not meant stay fresh, and a later read counts again."""
    cache, key, other = ConfigCache(1000), Key("p", "s"), Key("p", "t")
    for one in (key, other):
        cache.put(one, {}, 0, cache.set_out())
    kept = cache.get(key, 0)
    assert kept is not None
    cache.invalidate(lambda it: it == key)
    assert kept.expires_ms == 0
    assert cache.get(key, 0) is None
    assert cache.get(other, 0) is not None
    cache.put(key, {"v": 2}, 0, cache.set_out())
    assert cache.get(key, 999) is not None


def test_withdrawals_are_counted_one_by_one() -> None:
    """Replaced, invalidated and crowded out count; a read that comes too late changes nothing."""
    cache, keys = ConfigCache(1000, entries_max=2), [Key("p", f"{n}") for n in range(3)]
    assert cache.withdrawals == 0
    early = cache.set_out()
    cache.put(keys[0], {"v": 1}, 0, cache.set_out())
    assert cache.withdrawals == 0
    cache.put(keys[0], {"v": 0}, 0, early)
    assert cache.withdrawals == 0
    cache.put(keys[0], {"v": 2}, 0, cache.set_out())
    assert cache.withdrawals == 1
    cache.put(keys[1], {}, 0, cache.set_out())
    assert cache.withdrawals == 1
    crowded = cache.get(keys[0], 0)
    cache.put(keys[2], {}, 0, cache.set_out())
    assert cache.withdrawals == 2
    assert crowded is not None
    assert crowded.expires_ms == 0
    assert [cache.last_known(key) is not None for key in keys] == [False, True, True]
    cache.invalidate(lambda _: True)
    assert cache.withdrawals == 4


def test_an_entry_may_give_way_while_others_are_invalidated() -> None:
    """Another thread crowds out what is yet to be looked at; there is nothing left to do for it."""
    cache, keys = ConfigCache(1000, entries_max=2), [Key("p", f"{n}") for n in range(4)]
    for key in keys[:2]:
        cache.put(key, {}, 0, cache.set_out())

    def matches(key: Key) -> bool:
        if key == keys[0]:
            for late in keys[2:]:
                cache.put(late, {}, 0, cache.set_out())
        return True

    cache.invalidate(matches)
    assert [cache.last_known(key) is not None for key in keys] == [False, False, True, True]
    assert [cache.get(key, 0) is not None for key in keys[2:]] == [True, True]


async def test_a_write_looks_for_nothing_but_what_it_wrote(clock: ManualClock) -> None:
    """However much is remembered: else who makes a million entities looks through all of it each time."""

    class NotLookedThrough(OrderedDict[Key, Any]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("it was looked through")

    repository = await Repository.over(MemoryBackend(clock.world), world=clock.world)
    await repository.create_entity("team")
    cache = repository._connection.cache
    cache._entries = NotLookedThrough(cache._entries)
    await repository.create_entity("key", parent_id="team", cascade=True)
    await repository.set_limits("key", [RPM], "gpt-4")
    await repository.delete_entity("key")
    assert await repository.get_entity("key") is None


def test_an_entry_is_as_old_as_its_question() -> None:
    """The time to live counts from when a read set out, so slowness does not prolong it."""
    cache, key = ConfigCache(1000), Key("p", "s")
    cache.put(key, {}, 500, cache.set_out())
    assert cache.get(key, 1499) is not None
    assert cache.get(key, 1500) is None
    assert cache.last_known(key) is not None


def test_event_ids_rise_within_a_millisecond() -> None:
    """Also when the clock stands still, runs backwards or the last letters overflow."""
    clock = ManualClock()
    connection = Connection(MemoryBackend(clock.world), clock.world, Options())
    made = [connection.next_event_id() for _ in range(100)]
    clock.advance(-5)
    made += [connection.next_event_id() for _ in range(100)]
    assert made == sorted(set(made))
    connection._last_event_id = "01HF7YAT00ZZZZZZZZZZZZZZZZ"
    assert connection.next_event_id() > "01HF7YAT00ZZZZZZZZZZZZZZZZ"


async def test_a_plan_is_not_worked_out_twice(store: Store) -> None:
    """The same records give the same account, and a change of any gives another."""
    repository = await store.repository()
    await repository.set_resource_defaults("gpt-4", [RPM])
    await repository.create_entity("org")
    await repository.create_entity("key-1")
    first = (await repository.plan("key-1", "gpt-4", None)).accounts[0]
    assert (await repository.plan("key-1", "gpt-4", None)).accounts[0] is first
    await repository.set_limits("key-1", [Limit.per_hour("rpm", 7)])
    second = (await repository.plan("key-1", "gpt-4", None)).accounts[0]
    assert second.terms != first.terms
    await repository.update_entity("key-1", parent_id="org", cascade=True)
    third = (await repository.plan("key-1", "gpt-4", None)).accounts
    assert [account.entity_id for account in third] == ["key-1", "org"]
