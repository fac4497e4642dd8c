"""The audit trail: one event for each change, newest first, kept as long as it was asked."""

from typing import Any

import pytest

from tests.records.store import RPM, TPM, Store, everything
from zae_limiter import AuditAction, Limit, LimiterConfig, OnUnavailable, ValidationError
from zae_limiter.records.connection import Options


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
