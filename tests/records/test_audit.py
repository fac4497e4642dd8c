"""The audit trail: one event for each change, newest first, kept as long as it was asked."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.records.store import RPM, TPM, Store, everything
from zae_limiter import (
    AuditAction,
    Limit,
    LimiterConfig,
    OnUnavailable,
    RateLimiter,
    Repository,
    ValidationError,
)
from zae_limiter.records.connection import Options

CHANGES: dict[str, Callable[[Repository], Awaitable[object]]] = {
    "create_entity": lambda it: it.create_entity("key-2", principal="ann"),
    "update_entity": lambda it: it.update_entity("key-1", name="Two", principal="ann"),
    "set_parent": lambda it: it.set_parent("key-1", "org", principal="ann"),
    "delete_entity": lambda it: it.delete_entity("key-1", principal="ann"),
    "set_system_defaults": lambda it: it.set_system_defaults([TPM], principal="ann"),
    "delete_system_defaults": lambda it: it.delete_system_defaults(principal="ann"),
    "set_resource_defaults": lambda it: it.set_resource_defaults("gpt-4", [TPM], principal="ann"),
    "delete_resource_defaults": lambda it: it.delete_resource_defaults("gpt-4", principal="ann"),
    "set_limits": lambda it: it.set_limits("key-1", [TPM], "gpt-4", principal="ann"),
    "delete_limits": lambda it: it.delete_limits("key-1", "gpt-4", principal="ann"),
    "set_config": lambda it: it.set_config("system", LimiterConfig((TPM,)), principal="ann"),
    "disable": lambda it: it.disable(entity_id="key-1", reason="late", principal="ann"),
    "enable": lambda it: it.enable(entity_id="key-1", overrule=True, principal="ann"),
    "bypass": lambda it: it.bypass(resource="gpt-4", principal="ann"),
    "set_entity_cascade": lambda it: it.set_entity_cascade("key-1", True, principal="ann"),
    "set_resource_cascade": lambda it: it.set_resource_cascade("gpt-4", True, principal="ann"),
    "top_up": lambda it: it.top_up("key-1", "gpt-4", {"rpm": 1}, principal="ann"),
    "reset": lambda it: it.reset("key-1", "gpt-4", principal="ann"),
    "forgive": lambda it: it.forgive("key-1", "gpt-4", principal="ann"),
}
"""Verbs that change whom limits bind, what they are or what is left of them, each with a call that does."""
OTHERS = frozenset(
    [
        *("register_namespace", "register_namespaces", "delete_namespace", "recover_namespace"),
        *("purge_namespace", "set_version_record", "transact_write", "write_each"),
        *("create_table", "delete_table", "create_stack", "delete_stack"),
        *("resolve_limits", "invalidate_config_cache", "ping", "close", "namespace"),
    ]
)
"""Those about a namespace or a store as a whole, which has no trail, and those that change nothing."""


def test_every_verb_is_known() -> None:
    """A new one that changes something belongs among those that are tried below."""
    verbs = {name for name, one in vars(Repository).items() if inspect.iscoroutinefunction(one)}
    reads = {name for name in verbs if name.startswith(("_", "get_", "list_", "batch_get_"))}
    assert verbs - reads - OTHERS == CHANGES.keys()


@pytest.mark.parametrize("verb", CHANGES)
async def test_a_change_has_one_event(store: Store, verb: str) -> None:
    """Of whoever made it, among the records of its namespace when the call returns."""
    repository = await store.repository()
    await repository.create_entity("org")
    await repository.create_entity("key-1")
    await repository.set_system_defaults([RPM])
    await repository.set_resource_defaults("gpt-4", [RPM])
    await repository.set_limits("key-1", [RPM], "gpt-4")
    async with RateLimiter(repository).acquire("key-1", "gpt-4", {"rpm": 100}) as lease:
        await lease.adjust(rpm=50)
    before = set(await everything(repository))
    await CHANGES[verb](repository)
    added = {key: item for key, item in (await everything(repository)).items() if key not in before}
    events = [item for key, item in added.items() if "/AUDIT#" in key.partition]
    assert [event["principal"] for event in events] == ["ann"]


async def test_every_change_has_its_event(store: Store) -> None:
    """Whose, what, by whom, with what in it; in the order in which it happened, newest first."""
    repository = await store.repository()
    await repository.create_entity("org")
    await repository.create_entity("key-1", "One", "org", True, principal="ann@x")
    await repository.update_entity("key-1", name="Two", principal="bob")
    await repository.set_limits("key-1", [RPM], "gpt-4", "ann@x", "allow")
    await repository.delete_limits("key-1", "gpt-4")
    await repository.delete_entity("key-1", principal="bob")
    events = await repository.get_audit_events("key-1")
    assert [(e.action, e.principal, e.resource) for e in events] == [
        (AuditAction.ENTITY_DELETED, "bob", None),
        (AuditAction.LIMITS_DELETED, None, "gpt-4"),
        (AuditAction.LIMITS_SET, "ann@x", "gpt-4"),
        (AuditAction.ENTITY_UPDATED, "bob", None),
        (AuditAction.ENTITY_CREATED, "ann@x", None),
    ]
    assert [e.details for e in events[2:]] == [
        {"limits": [RPM.to_dict()], "on_unavailable": "allow"},
        {"name": "Two"},
        {"name": "One", "parent_id": "org", "cascade": True},
    ]
    assert {e.entity_id for e in events} == {"key-1"}
    assert {e.timestamp for e in events} == {"2023-11-14T22:13:20.000Z"}


async def test_defaults_are_audited_under_their_own_names(store: Store) -> None:
    """The system as ``$SYSTEM``, a resource as ``$RESOURCE:`` and its name."""
    repository = await store.repository()
    config = LimiterConfig((RPM,), OnUnavailable.BLOCK, True, False)
    await repository.set_config("system", config, principal="ann")
    await repository.set_resource_defaults("org/gpt-4:turbo", [TPM], principal="bob")
    (system,) = await repository.get_audit_events("$SYSTEM")
    assert (system.entity_id, system.principal, system.resource) == ("$SYSTEM", "ann", None)
    assert system.details == {
        "limits": [RPM.to_dict()],
        "on_unavailable": "block",
        "auto_update": True,
        "strict_version": False,
    }
    (resource,) = await repository.get_audit_events("$RESOURCE:org/gpt-4:turbo")
    assert (resource.resource, resource.principal) == ("org/gpt-4:turbo", "bob")


async def test_events_come_in_pages(store: Store) -> None:
    """More than one page, each beginning behind the last event of the one before."""
    repository = await store.repository()
    for n in range(1, 126):
        await repository.set_limits("key-1", [Limit.per_minute("rpm", n)])
        if n % 3 == 0:
            store.clock.advance(0.001)
    found: list[int] = []
    start = None
    while True:
        page = await repository.get_audit_events("key-1", 50, start)
        if not page:
            break
        found += [event.details["limits"][0]["capacity"] for event in page]
        start = page[-1].event_id
    assert found == list(range(125, 0, -1))


@pytest.mark.parametrize(("days", "ttl"), [(30, 1_700_000_000 + 30 * 86_400), (0, None)])
async def test_events_are_kept_as_long_as_asked(store: Store, days: int, ttl: int | None) -> None:
    """By ``ttl``, or for ever."""
    repository = await store.repository(options=Options(audit_retention_days=days))
    await repository.create_entity("key-1")
    found = {key: item for key, item in (await everything(repository)).items() if "/AUDIT#" in key.partition}
    assert [item.get("ttl") for item in found.values()] == [ttl]


@pytest.mark.parametrize("about", ["a#b", "$OTHER", "$RESOURCE:", "$RESOURCE:a#b", "", 5])
async def test_about_whom_is_checked(store: Store, about: Any) -> None:
    """Entities, the system and resources have events; nothing else has."""
    repository, calls = await store.recorded()
    with pytest.raises(ValidationError):
        await repository.get_audit_events(about)
    assert calls.round_trips == 0


@pytest.mark.parametrize("event_id", ["", "x", "01hf7yat00000000000000000000", 5])
async def test_the_start_is_checked(store: Store, event_id: Any) -> None:
    """It is the id of an event."""
    repository, calls = await store.recorded()
    with pytest.raises(ValidationError, match="start_event_id"):
        await repository.get_audit_events("key-1", start_event_id=event_id)
    assert calls.round_trips == 0
