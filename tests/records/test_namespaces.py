"""Namespaces: the registry, soft deletion, purging, and that no method shows another's records."""

from dataclasses import replace
from typing import Any

import pytest

from tests.records.store import RPM, TPM, Store, count_usage, everything, take
from zae_limiter import (
    LimiterConfig,
    NamespaceNotFoundError,
    NamespaceStateError,
    NamespaceStatus,
    RateLimiter,
    Repository,
    ValidationError,
)
from zae_limiter.llm import LearnedEstimates
from zae_limiter.operate.manifest import LevelAddress, Manifest, StoredLimits
from zae_limiter.records import namespaces, providers, reports
from zae_limiter.records.leases import LeaseRow, LeaseState, PartRow, made
from zae_limiter.repository_protocol import Delete, Key


async def test_a_namespace_is_registered_once(store: Store) -> None:
    """The second time its first id comes back; ids are opaque and of eleven letters."""
    repository = await store.repository()
    made = await repository.register_namespace("team-a")
    assert await repository.register_namespace("team-a") == made
    assert await repository.get_namespace("team-a") == made
    assert len(made.namespace_id) == 11
    several = await repository.register_namespaces(["team-b", "team-a"])
    assert [one.namespace_name for one in several.values()] == list(several) == ["team-b", "team-a"]
    assert [one.namespace_name for one in await repository.list_namespaces()] == [
        "default",
        "team-a",
        "team-b",
    ]
    assert await repository.get_namespace("team-c") is None


async def test_more_namespaces_than_a_page(store: Store) -> None:
    """The list goes over pages."""
    repository = await store.repository()
    names = [f"team-{n:03}" for n in range(110)]
    await repository.register_namespaces(names)
    assert [one.namespace_name for one in await repository.list_namespaces()] == ["default", *names]


@pytest.mark.parametrize("name", ["_", "", "a#b", "a/b", "x" * 65, 5])
async def test_bad_names_are_refused(store: Store, name: Any) -> None:
    """The registry's own name among them."""
    repository, calls = await store.recorded()
    for method in (repository.register_namespace, repository.get_namespace, repository.namespace):
        with pytest.raises(ValidationError, match="namespace"):
            await method(name)
    assert calls.round_trips == 0


async def test_deleting_frees_the_name_and_keeps_the_data(store: Store) -> None:
    """A namespace made anew under the name is another one; the old one is an orphan."""
    repository = await store.repository("team-a")
    await repository.create_entity("key-1")
    gone = await repository.delete_namespace("team-a")
    assert gone is not None
    assert gone.status is NamespaceStatus.DELETED
    assert gone.deleted_at is not None
    assert await repository.get_namespace("team-a") is None
    assert await repository.list_orphan_namespaces() == [gone]
    assert await repository.delete_namespace("team-a") is None
    with pytest.raises(NamespaceNotFoundError):
        await repository.namespace("team-a")
    again = await store.repository("team-a")
    assert again.namespace_id != repository.namespace_id
    assert await again.get_entity("key-1") is None


async def test_recovering_gives_the_name_back(store: Store) -> None:
    """With all data; not if the name is taken, nor what is in use or unknown."""
    repository = await store.repository("team-a")
    await repository.create_entity("key-1")
    gone = await repository.delete_namespace("team-a")
    back = await repository.recover_namespace(gone.namespace_id)
    assert (back.namespace_id, back.status) == (gone.namespace_id, NamespaceStatus.ACTIVE)
    assert await (await store.repository("team-a")).get_entity("key-1") is not None
    assert await repository.list_orphan_namespaces() == []
    with pytest.raises(NamespaceStateError, match="only a deleted one recovers"):
        await repository.recover_namespace(gone.namespace_id)
    with pytest.raises(NamespaceNotFoundError, match="no namespace has the id 'nobody'"):
        await repository.recover_namespace("nobody")
    await repository.delete_namespace("team-a")
    await repository.register_namespace("team-a")
    with pytest.raises(NamespaceStateError, match="'team-a' is taken"):
        await repository.recover_namespace(gone.namespace_id)


@pytest.mark.parametrize("by_itself", [True, False], ids=["view", "owner"])
async def test_whoever_deletes_a_namespace_serves_it_no_more(store: Store, by_itself: bool) -> None:
    """At the next acquire, of a warm entity or a new one, until it is recovered."""
    repository = await store.repository()
    await repository.register_namespace("team-a")
    view = await repository.namespace("team-a")
    limiter = RateLimiter(view)
    for _ in range(2):
        async with limiter.acquire("warm", "gpt-4", {"rpm": 1}, [RPM]):
            pass
    gone = await (view if by_itself else repository).delete_namespace("team-a")
    assert gone is not None
    for entity in ("warm", "new"):
        with pytest.raises(NamespaceNotFoundError):
            async with limiter.acquire(entity, "gpt-4", {"rpm": 1}, [RPM]):
                pass
    await (view if by_itself else repository).recover_namespace(gone.namespace_id)
    for entity in ("warm", "new"):
        async with limiter.acquire(entity, "gpt-4", {"rpm": 1}, [RPM]):
            pass


async def fill(repository: Repository, tag: str) -> None:
    """Something of every kind of record, with names that all namespaces share."""
    await repository.set_system_defaults([RPM], "allow", f"admin-{tag}")
    await repository.set_resource_defaults("gpt-4", [RPM], principal=f"admin-{tag}")
    await repository.create_entity("org", f"org of {tag}")
    await repository.create_entity("key-1", f"key of {tag}", "org", True)
    own = {LevelAddress("entity", "key-1", "gpt-4"): LimiterConfig((RPM, TPM))}
    await StoredLimits(repository).apply(Manifest(own))
    await repository.set_limits("key-1", [RPM])
    await take(RateLimiter(repository), "key-1", "gpt-4", rpm=2)
    await repository.top_up("key-1", "gpt-4", {"rpm": 1}, "order-7")
    for window in ("hourly", "daily", "monthly"):
        await count_usage(repository, "key-1", "gpt-4", window, 0, rpm=1)
    await providers.declare(repository._scope, "vendor", "gpt-4", "rpm")
    told = reports.ProcessReport("host", "id", 0, repository._scope.world.now_ms(), 0, 0, 0, 0)
    await reports.write_report(repository._scope, 1, told, is_new=True)
    estimates = LearnedEstimates(repository)
    estimates.observe("gpt-4", 4_096, 300)
    await estimates.refresh()
    part = PartRow("key-1", "gpt-4", {"rpm": 1000}, ("rpm",), (("key-1", True),), ())
    ended = LeaseRow(lease_id="a", owner="b", said="", began_ms=1, expires_ms=2, parts=(part,))
    for row in (
        ended,
        replace(ended, lease_id="c", state=LeaseState.COMMITTED, ended_ms=repository._world.now_ms()),
    ):
        await repository._scope.must_write([made(repository.namespace_id, row)])


async def seen(repository: Repository) -> dict[str, Any]:
    """What every reading method shows."""
    limiter = RateLimiter(repository)
    return {
        "entity": await repository.get_entity("key-1"),
        "children": await repository.get_children("org"),
        "entities": await repository.list_entities(),
        "system": await repository.get_system_defaults(),
        "resource": await repository.get_resource_defaults("gpt-4"),
        "limits": await repository.get_limits("key-1", "gpt-4"),
        "config": await repository.get_config("entity", "key-1"),
        "resources": await repository.list_resources_with_defaults(),
        "custom": await repository.list_entities_with_custom_limits("gpt-4"),
        "custom resources": await repository.list_resources_with_entity_configs(),
        "resolved": await repository.resolve_limits("key-1", "gpt-4"),
        "bucket": await repository.get_bucket("key-1", "gpt-4"),
        "buckets": await repository.get_buckets("key-1"),
        "resource buckets": await repository.get_resource_buckets("gpt-4"),
        "batch": await repository.batch_get_buckets([("key-1", "gpt-4")]),
        "capacity": await repository.get_resource_capacity("gpt-4", "rpm"),
        "usage": await repository.get_usage_snapshots("key-1"),
        "resource usage": await repository.get_usage_snapshots(resource="gpt-4"),
        "summary": await repository.get_usage_summary("key-1"),
        "audit": await repository.get_audit_events("key-1"),
        "system audit": await repository.get_audit_events("$SYSTEM"),
        "available": await limiter.available("key-1", "gpt-4", [RPM]),
    }


async def test_namespaces_never_see_each_other(store: Store) -> None:
    """Whatever is done in one under the same names, no reading method of the other shows a trace."""
    mine = await store.repository("mine")
    await mine.register_namespace("theirs")
    theirs = await mine.namespace("theirs")  # shares every cache
    empty = await seen(theirs)
    await fill(mine, "mine")
    full = await seen(mine)
    assert await seen(theirs) == empty
    assert all(full[name] != empty[name] for name in full if name != "available"), "everything is tried"
    await fill(theirs, "theirs")
    await theirs.delete_limits("key-1", "gpt-4")
    await theirs.update_entity("key-1", parent_id=None)
    await theirs.delete_entity("org")
    await theirs.delete_entity("key-1")
    await theirs.delete_system_defaults()
    theirs.invalidate_config_cache()
    assert await seen(mine) == full


async def test_writes_stay_in_their_namespace(store: Store) -> None:
    """A key of another namespace, or of the registry, is refused before it reaches the store."""
    repository, calls = await store.recorded()
    for partition in ("_/SYSTEM#", "other/ENTITY#x", repository.namespace_id):
        for method in (repository.write_each, repository.transact_write):
            with pytest.raises(ValidationError, match="not in this namespace"):
                await method([Delete(Key(partition, "#META"))])
    assert calls.round_trips == 0


async def test_purging_leaves_nothing_and_touches_nobody_else(store: Store) -> None:
    """Every record of the namespace goes, over many pages; the neighbour keeps all of his."""
    mine, neighbour = await store.repository("mine"), await store.repository("neighbour")
    for repository in (mine, neighbour):
        await fill(repository, "x")
        for n in range(60):
            await repository.create_entity(f"more-{n:02}")
    before = await everything(neighbour)
    with pytest.raises(NamespaceStateError, match="is in use; delete it before you purge"):
        await mine.purge_namespace(mine.namespace_id)
    held = len(await everything(mine))
    assert held > namespaces.PURGE_PAGE
    await neighbour.delete_namespace("mine")
    assert await neighbour.purge_namespace(mine.namespace_id) == held
    assert await everything(mine) == {}
    assert await everything(neighbour) == before
    assert await mine.get_entity("key-1") is None
    assert await neighbour.list_orphan_namespaces() == []
    with pytest.raises(NamespaceNotFoundError):
        await neighbour.purge_namespace(mine.namespace_id)


async def test_every_record_is_found_by_its_namespace(store: Store) -> None:
    """Nothing that a namespace writes escapes the index by which it is purged."""
    repository = await store.repository()
    written: set[Key] = set()
    backend = repository._backend
    for verb in ("write_each", "transact_write"):
        inner = getattr(backend, verb)

        async def watched(writes: Any, inner: Any = inner) -> Any:
            written.update(write.key for write in writes)
            return await inner(writes)

        setattr(backend, verb, watched)
    await fill(repository, "x")
    there = [k for k in written if (await backend.batch_get([k]))[0] is not None]
    assert len(there) > 10
    assert set(there) == set(await everything(repository))


async def test_purging_what_is_still_written_to_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives up after some passes, stays an orphan, and can be purged later."""
    repository = await store.repository("mine")
    await repository.create_entity("key-1")
    gone = await repository.delete_namespace("mine")
    erase = namespaces._erase

    async def erase_while_somebody_writes(scope: Any, rows: Any) -> int:
        count = await erase(scope, rows)
        await repository.set_system_defaults([RPM])
        return count

    async def not_heard_of_it() -> None:
        pass

    monkeypatch.setattr(namespaces, "_erase", erase_while_somebody_writes)
    monkeypatch.setattr(repository._scope, "check_namespace", not_heard_of_it)
    with pytest.raises(NamespaceStateError, match="still being written to"):
        await repository.purge_namespace(gone.namespace_id)
    monkeypatch.undo()
    assert [one.status for one in await repository.list_orphan_namespaces()] == [NamespaceStatus.PURGING]
    with pytest.raises(NamespaceStateError, match="only a deleted one recovers"):
        await repository.recover_namespace(gone.namespace_id)
    await repository.purge_namespace(gone.namespace_id)
    assert await everything(repository) == {}
