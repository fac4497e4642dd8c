"""A process dies between any two calls of a change: what is left, the next call finishes or reports.

Each case is tried with a crash at the first call, at the second, and so on until the change runs
through, each time once before that call takes effect and once after. A lost reply is tried the same
way. After every crash the audit trail and the records agree.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.odd_stores import Crash, Crashing
from tests.records.store import RPM, TPM, Store, count_usage, everything, take
from zae_limiter import (
    AuditAction,
    EntityExistsError,
    EntityNotFoundError,
    NamespaceNotFoundError,
    RateLimiter,
    RateLimiterUnavailable,
    Repository,
)
from zae_limiter.records import belongings, namespaces
from zae_limiter.repository_protocol import Backend
from zae_limiter.testing import Fault, FaultyBackend

# Where a process dies is a matter of the records, so stores that take longer are left out.
pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)

Change = Callable[[Repository], Awaitable[Any]]

CALLS_MAX = 200


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few records make many pages."""
    monkeypatch.setattr(belongings, "DELETE_PAGE", 2)
    monkeypatch.setattr(namespaces, "PURGE_PAGE", 3)


async def crash_everywhere(store: Store, prepare: Change, change: Change, check: Change) -> int:
    """Let ``change`` die at every call in turn, each in a namespace of its own; returns how often it died."""
    died = 0
    for at in range(1, CALLS_MAX):
        survived = 0
        for late in (False, True):
            dying: list[Crashing] = []

            def wrap(backend: Backend, dying: list[Crashing] = dying) -> Backend:
                dying.append(Crashing(backend))
                return dying[0]

            name = f"at-{at}-{'late' if late else 'early'}"
            doomed = await store.repository(name, wrap=wrap)
            await prepare(doomed)
            dying[0].arm(at, late=late)
            try:
                await change(doomed)
                survived += 1
            except Crash:
                died += 1
            await check(await store.repository(name))
        if survived == 2:
            return died
    raise AssertionError(f"the change takes more than {CALLS_MAX} calls")


async def nothing(repository: Repository) -> None:
    del repository


async def test_creating_an_entity(store: Store) -> None:
    """It is there with its event and counted by its parent, or it is not there at all."""

    async def prepare(repository: Repository) -> None:
        await repository.set_resource_defaults("gpt-4", [RPM])
        await repository.create_entity("org")
        await take(RateLimiter(repository), "key-1", "gpt-4", rpm=1)  # a bucket that has to be told

    async def change(repository: Repository) -> None:
        await repository.create_entity("key-1", parent_id="org", cascade=True)

    async def check(repository: Repository) -> None:
        entity, events = await repository.get_entity("key-1"), await repository.get_audit_events("key-1")
        assert (entity is not None) == (len(events) == 1)
        if entity is None:
            await change(repository)
        else:
            with pytest.raises(EntityExistsError):
                await change(repository)
        assert [child.entity_id for child in await repository.get_children("org")] == ["key-1"]
        await take(RateLimiter(repository), "key-1", "gpt-4", rpm=1)
        await take(RateLimiter(repository), "key-1", "gpt-4", rpm=5)
        assert (await RateLimiter(repository).available("org", "gpt-4"))["rpm"] in (94, 95)
        await repository.delete_entity("key-1")
        await repository.delete_entity("org")

    assert await crash_everywhere(store, prepare, change, check) >= 5


async def test_deleting_an_entity(store: Store) -> None:
    """Until it is marked nothing is gone; once it is marked the next call of several kinds finishes."""

    async def prepare(repository: Repository) -> None:
        await repository.create_entity("org")
        await repository.create_entity("key-1", parent_id="org")
        for n in range(3):
            await repository.set_limits("key-1", [RPM], f"r{n}")
            await take(RateLimiter(repository), "key-1", f"r{n}", rpm=1)
            await count_usage(repository, "key-1", f"r{n}", "hourly", n, rpm=1)

    async def change(repository: Repository) -> None:
        await repository.delete_entity("key-1")

    turns = iter(range(10**6))

    async def check(repository: Repository) -> None:
        deleted = AuditAction.ENTITY_DELETED in {e.action for e in await repository.get_audit_events("key-1")}
        entity = await repository.get_entity("key-1")
        assert deleted == (entity is None)
        if not deleted:
            assert len(await repository.get_buckets("key-1")) == 3
            assert await repository.list_entities_with_custom_limits("r0") == (["key-1"], None)
            await change(repository)
        elif (turn := next(turns) % 3) == 0:
            with contextlib.suppress(EntityNotFoundError):  # when it had come to its end
                await change(repository)
        elif turn == 1:
            await repository.create_entity("key-1")
            assert await repository.get_limits("key-1", "r0") == []
            await change(repository)
        else:
            await repository.set_limits("key-1", [TPM], "r1")
            assert await repository.list_entities_with_custom_limits("r0") == ([], None)
            assert await repository.list_entities_with_custom_limits("r1") == (["key-1"], None)
            await change(repository)
        assert await repository.get_buckets("key-1") == []
        assert await repository.get_usage_snapshots("key-1") == ([], None)
        assert await repository.list_resources_with_entity_configs() == []
        left = [key for key in await everything(repository) if key.partition.endswith("/ENTITY#key-1")]
        assert {key.sort for key in left} <= {"#CONFIG#r0", "#CONFIG#r1", "#CONFIG#r2"}
        await repository.delete_entity("org")

    assert await crash_everywhere(store, prepare, change, check) >= 20


@pytest.mark.parametrize("level", ["system", "resource", "entity"])
async def test_setting_and_deleting_config(store: Store, level: str) -> None:
    """The level, its count, the lists and the event change together or not at all."""
    where = {"system": (), "resource": (None, "gpt-4"), "entity": ("key-1", "gpt-4")}[level]
    audited = {"system": "$SYSTEM", "resource": "$RESOURCE:gpt-4", "entity": "key-1"}[level]

    async def change(repository: Repository) -> None:
        if level == "system":
            await repository.set_system_defaults([RPM])
            await repository.delete_system_defaults()
        elif level == "resource":
            await repository.set_resource_defaults("gpt-4", [RPM])
            await repository.delete_resource_defaults("gpt-4")
        else:
            await repository.set_limits("key-1", [RPM], "gpt-4")
            await repository.delete_limits("key-1", "gpt-4")

    async def check(repository: Repository) -> None:
        config = await repository.get_config(level, *where)
        actions = [event.action for event in await repository.get_audit_events(audited)]
        assert actions in (
            [],
            [AuditAction.LIMITS_SET],
            [AuditAction.LIMITS_DELETED, AuditAction.LIMITS_SET],
        )
        assert (config is not None) == (actions == [AuditAction.LIMITS_SET])
        if level == "entity":
            listed = (await repository.list_entities_with_custom_limits("gpt-4"))[0]
            assert listed == (["key-1"] if config else [])
            assert await repository.list_resources_with_entity_configs() == (["gpt-4"] if config else [])
        await change(repository)
        assert await repository.get_config(level, *where) is None

    assert await crash_everywhere(store, nothing, change, check) == 8


async def test_purging_a_namespace(store: Store) -> None:
    """It goes on where it stopped, and the neighbour keeps all of his."""
    neighbour = await store.repository("neighbour")
    for n in range(4):
        await neighbour.create_entity(f"key-{n}")
    before = await everything(neighbour)

    doomed: list[Repository] = []

    async def prepare(repository: Repository) -> None:
        doomed.append(repository)
        for n in range(4):
            await repository.create_entity(f"key-{n}")
        await repository.delete_namespace(repository.namespace_name)

    async def change(repository: Repository) -> None:
        await repository.purge_namespace(repository.namespace_id)

    async def check(repository: Repository) -> None:
        # Opening the name again made a namespace of its own, so the old one is looked up as an orphan.
        for orphan in await repository.list_orphan_namespaces():
            assert orphan.namespace_id == doomed[-1].namespace_id
            await repository.purge_namespace(orphan.namespace_id)
        with pytest.raises(NamespaceNotFoundError):
            await repository.purge_namespace(doomed[-1].namespace_id)
        left = Repository(repository._connection, "purged", doomed[-1].namespace_id)
        assert await everything(left) == {}
        assert await everything(neighbour) == before

    assert await crash_everywhere(store, prepare, change, check) >= 10


async def test_the_registry(store: Store) -> None:
    """A namespace is registered, deleted and recovered whole."""

    async def change(repository: Repository) -> None:
        made = await repository.register_namespace("team")
        await repository.delete_namespace("team")
        await repository.recover_namespace(made.namespace_id)
        await repository.delete_namespace("team")
        await repository.purge_namespace(made.namespace_id)

    async def check(repository: Repository) -> None:
        named, orphans = await repository.get_namespace("team"), await repository.list_orphan_namespaces()
        assert (named is not None) + len(orphans) <= 1
        if named is not None:
            assert (
                named.namespace_id
                == (await namespaces.identified(repository._scope, named.namespace_id)).namespace_id
            )
            orphans = [await repository.delete_namespace("team")]
        for orphan in orphans:
            await repository.purge_namespace(orphan.namespace_id)

    assert await crash_everywhere(store, nothing, change, check) >= 15


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_REPLY])
async def test_an_answer_that_is_lost_is_told(store: Store, fault: Fault) -> None:
    """The caller learns that nothing is certain; trail and record agree, and trying again settles it."""
    faulty: list[FaultyBackend] = []

    def wrap(backend: Backend) -> Backend:
        faulty.append(FaultyBackend(backend))
        return faulty[0]

    repository = await store.repository(wrap=wrap)
    faulty[0].faults = [None, fault]
    with pytest.raises(RateLimiterUnavailable) as caught:
        await repository.set_resource_defaults("gpt-4", [RPM])
    assert caught.value.ambiguous
    happened = fault is Fault.LOST_REPLY
    assert await repository.get_resource_defaults("gpt-4") == ([RPM] if happened else [])
    assert len(await repository.get_audit_events("$RESOURCE:gpt-4")) == happened
    await repository.set_resource_defaults("gpt-4", [TPM])
    assert await repository.get_resource_defaults("gpt-4") == [TPM]
    assert len(await repository.get_audit_events("$RESOURCE:gpt-4")) == 1 + happened


async def test_a_switch_and_its_entry(store: Store) -> None:
    """Whoever dies while throwing a switch leaves it and its entry in the list, or neither."""

    async def prepare(repository: Repository) -> None:
        await repository.set_limits("key-1", [RPM])

    async def change(repository: Repository) -> None:
        await repository.disable(entity_id="key-1", reason="leaked")
        await repository.bypass(entity_id="key-1")
        await repository.enable(entity_id="key-1")

    async def check(repository: Repository) -> None:
        config = await repository.get_config("entity", "key-1")
        assert config is not None
        found, _ = await repository.list_switches()
        said = [(one.disabled, one.bypass) for one in found]
        assert said == ([(config.disabled, config.bypass)] if config.has_switch else [])

    assert await crash_everywhere(store, prepare, change, check) >= 6
