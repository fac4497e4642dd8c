"""Configuration at four levels: precedence, what each level may say, lists, changes in any order."""

import itertools
from functools import partial
from typing import Any

import pytest

from tests.records.store import RPM, TPM, Store, everything, take
from zae_limiter import (
    AuditAction,
    ConfigSource,
    DamagedRecordError,
    Limit,
    LimiterConfig,
    OnUnavailable,
    RateLimiter,
    Repository,
    ValidationError,
)
from zae_limiter.repository_protocol import Put
from zae_limiter.schema import entity_config_key, resource_config_key, system_config_key

LEVELS = ("entity", "entity_default", "resource", "system")
PRESENCE = list(itertools.product((False, True), repeat=4))
"""All 16 ways in which the four levels can be there or not."""

ids = [
    "+".join(name for name, is_there in zip(LEVELS, row, strict=True) if is_there) or "none"
    for row in PRESENCE
]


async def set_level(repository: Repository, level: str, config: LimiterConfig) -> None:
    where: dict[str, tuple[str, str | None, str | None]] = {
        "entity": ("entity", "key-1", "gpt-4"),
        "entity_default": ("entity", "key-1", None),
        "resource": ("resource", None, "gpt-4"),
        "system": ("system", None, None),
    }
    kind, identifier, resource = where[level]
    await repository.set_config(kind, config, identifier, resource)


@pytest.mark.parametrize("present", PRESENCE, ids=ids)
async def test_the_first_level_with_limits_wins_whole(store: Store, present: tuple[bool, ...]) -> None:
    """No limit of a lower level joins in, and the source is named; every presence of the four."""
    admin, reader = await store.repository(), await store.repository()
    for number, (level, is_there) in enumerate(zip(LEVELS, present, strict=True), start=1):
        if is_there:
            limits = (Limit.per_minute("rpm", number), Limit.per_minute(f"only-{level}", number))
            await set_level(admin, level, LimiterConfig(limits))
    limits_found, policy, source = await reader.resolve_limits("key-1", "gpt-4")
    winner = next((level for level, is_there in zip(LEVELS, present, strict=True) if is_there), None)
    assert policy is None
    if winner is None:
        assert (limits_found, source) == (None, None)
        with pytest.raises(ValidationError, match="call set_system_defaults, set_resource_defaults or"):
            await take(RateLimiter(reader), "key-1", "gpt-4", rpm=1)
        return
    number = LEVELS.index(winner) + 1
    assert source == ConfigSource(winner)
    assert limits_found is not None
    assert {limit.name: limit.capacity for limit in limits_found} == {"rpm": number, f"only-{winner}": number}
    assert await RateLimiter(reader).available("key-1", "gpt-4") == {"rpm": number, f"only-{winner}": number}


@pytest.mark.parametrize("present", PRESENCE, ids=ids)
async def test_on_unavailable_is_resolved_field_by_field(store: Store, present: tuple[bool, ...]) -> None:
    """The first level that says anything about it decides, whichever level has the limits."""
    admin, reader = await store.repository(), await store.repository()
    await admin.set_system_defaults([RPM])
    policies = ["allow", "block", "allow", "block"]
    expected = None
    for level, policy, is_there in zip(LEVELS, policies, present, strict=True):
        if is_there:
            limits = (RPM,) if level == "system" else ()
            await set_level(admin, level, LimiterConfig(limits, OnUnavailable(policy)))
            expected = expected or OnUnavailable(policy)
    limits_found, found, source = await reader.resolve_limits("key-1", "gpt-4")
    assert (limits_found, found, source) == ([RPM], expected, ConfigSource.SYSTEM)


async def test_the_named_setters_set_their_levels(store: Store) -> None:
    """What they set they get back, in the order of the names, with the policy at every level."""
    repository = await store.repository()
    await repository.set_system_defaults([TPM, RPM], "allow", "admin")
    await repository.set_resource_defaults("gpt-4", [RPM], on_unavailable=OnUnavailable.BLOCK)
    await repository.set_limits("key-1", [TPM], on_unavailable="allow")
    await repository.set_limits("key-1", [RPM], "gpt-4")
    assert await repository.get_system_defaults() == ([RPM, TPM], OnUnavailable.ALLOW)
    assert await repository.get_resource_defaults("gpt-4") == [RPM]
    assert await repository.get_limits("key-1") == [TPM]
    assert await repository.get_limits("key-1", "gpt-4") == [RPM]
    resource = await repository.get_config("resource", resource="gpt-4")
    assert resource == LimiterConfig((RPM,), OnUnavailable.BLOCK, config_version=1)
    assert await repository.get_config("entity", "key-1") == LimiterConfig(
        (TPM,), OnUnavailable.ALLOW, config_version=1
    )
    await repository.delete_system_defaults()
    await repository.delete_resource_defaults("gpt-4")
    await repository.delete_limits("key-1")
    await repository.delete_limits("key-1", "gpt-4")
    assert await repository.get_system_defaults() == ([], None)
    assert await repository.get_resource_defaults("gpt-4") == []
    assert await repository.get_limits("key-1") == []
    assert await repository.get_limits("key-1", "gpt-4") == []
    assert await repository.get_config("system") is None


async def test_setting_limits_keeps_what_it_does_not_name(store: Store) -> None:
    """The policy and the system's own fields stay until ``set_config`` replaces the whole."""
    repository = await store.repository()
    whole = LimiterConfig((RPM,), OnUnavailable.ALLOW, auto_update=False, strict_version=True)
    await repository.set_config("system", whole)
    await repository.set_system_defaults([TPM])
    assert await repository.get_config("system") == LimiterConfig(
        (TPM,), OnUnavailable.ALLOW, False, True, config_version=2
    )
    await repository.set_config("system", LimiterConfig((TPM,)))
    assert await repository.get_config("system") == LimiterConfig((TPM,), config_version=3)


@pytest.mark.parametrize("level", ["resource", "entity"])
@pytest.mark.parametrize("field", ["auto_update", "strict_version"])
async def test_some_fields_are_the_systems_only(store: Store, level: str, field: str) -> None:
    """Infrastructure is one for all, so no other level may speak of it."""
    repository, calls = await store.recorded()
    with pytest.raises(ValidationError, match="exist at the system level only"):
        await repository.set_config(level, LimiterConfig((RPM,), **{field: True}), "x", "gpt-4")
    assert calls.round_trips == 0


@pytest.mark.parametrize(
    ("level", "identifier", "resource", "said"),
    [
        ("planet", None, None, "use 'system', 'resource' or 'entity'"),
        ("system", "x", None, "takes no identifier"),
        ("system", None, "gpt-4", "takes no identifier"),
        ("resource", None, None, "name the resource"),
        ("resource", "gpt#4", None, "'#' is reserved"),
        ("entity", None, "gpt-4", "name the entity"),
        ("entity", "a#b", "gpt-4", "entity_id"),
        ("entity", "key-1", "g#pt", "resource"),
    ],
)
async def test_a_level_must_be_named_rightly(
    store: Store, level: str, identifier: str | None, resource: str | None, said: str
) -> None:
    """Reading and writing refuse the same."""
    repository, calls = await store.recorded()
    with pytest.raises(ValidationError, match=said):
        await repository.get_config(level, identifier, resource)
    with pytest.raises(ValidationError, match=said):
        await repository.set_config(level, LimiterConfig((RPM,)), identifier, resource)
    assert calls.round_trips == 0


@pytest.mark.parametrize("limits", [[RPM, RPM], ["rpm"], RPM, None])
async def test_limits_are_checked(store: Store, limits: Any) -> None:
    """No name twice, nothing but limits."""
    repository, calls = await store.recorded()
    with pytest.raises(ValidationError, match="limits"):
        await repository.set_system_defaults(limits)
    with pytest.raises(ValidationError, match="it says nothing"):
        await repository.set_config("system", LimiterConfig())
    assert calls.round_trips == 0


async def test_a_change_and_its_event_are_one_transaction(store: Store) -> None:
    """No write stands alone, and a read comes before it; what follows looks for buckets to be told."""
    repository, calls = await store.recorded()
    await repository.set_limits("key-1", [RPM], "gpt-4", principal="admin")
    verbs = [verb for verb, _ in calls.calls]
    assert verbs[:2] == ["batch_get", "transact_write"]
    assert set(verbs[2:]) <= {"query", "batch_get", "write_each"}
    event = (await repository.get_audit_events("key-1"))[0]
    assert (event.action, event.resource, event.principal) == (AuditAction.LIMITS_SET, "gpt-4", "admin")
    assert event.details == {"limits": [RPM.to_dict()]}


async def test_deleting_what_is_not_there_changes_nothing(store: Store) -> None:
    """Neither a stamp nor an event is written, the second time neither."""
    repository = await store.repository()
    await repository.delete_limits("key-1")
    assert await everything(repository) == {}
    await repository.set_limits("key-1", [RPM])
    await repository.delete_limits("key-1")
    await repository.delete_limits("key-1")
    actions = [event.action for event in await repository.get_audit_events("key-1")]
    assert actions == [AuditAction.LIMITS_DELETED, AuditAction.LIMITS_SET]


async def test_a_level_counts_its_changes(store: Store) -> None:
    """Deletions count too, so the count never falls; levels count for themselves."""
    repository = await store.repository()
    counts = []
    for limits in ([RPM], [TPM], None, [RPM]):
        if limits is None:
            await repository.delete_resource_defaults("gpt-4")
        else:
            await repository.set_resource_defaults("gpt-4", limits)
            config = await repository.get_config("resource", "gpt-4")
            assert config is not None
            counts.append(config.config_version)
    assert counts == [1, 2, 4]
    await repository.set_resource_defaults("gpt-5", [RPM])
    config = await repository.get_config("resource", "gpt-5")
    assert config is not None
    assert config.config_version == 1


async def test_lists_of_resources_and_entities(store: Store) -> None:
    """Sorted, over more than one page, without what was deleted."""
    repository = await store.repository()
    names = [f"key-{n:03}" for n in range(120)]
    for name in names:
        await repository.set_limits(name, [RPM], "gpt-4")
    await repository.set_limits("key-000", [RPM])
    for n in range(105):
        await repository.set_resource_defaults(f"r{n:03}", [RPM])
    await repository.delete_resource_defaults("r050")
    await repository.delete_limits("key-007", "gpt-4")
    resources = [f"r{n:03}" for n in range(105) if n != 50]
    assert await repository.list_resources_with_defaults() == resources
    assert await repository.list_resources_with_entity_configs() == ["_default_", "gpt-4"]
    assert await repository.list_entities_with_custom_limits() == (["key-000"], None)
    listed: list[str] = []
    cursor: str | None = None
    for _ in range(3):
        page, cursor = await repository.list_entities_with_custom_limits("gpt-4", 50, cursor)
        listed += page
    assert cursor is None
    assert listed == [name for name in names if name != "key-007"]
    await repository.delete_limits("key-000")
    assert await repository.list_resources_with_entity_configs() == ["gpt-4"]


async def test_a_policy_alone_is_a_config(store: Store) -> None:
    """It is listed, found and deleted like one with limits."""
    repository = await store.repository()
    await repository.set_config("entity", LimiterConfig(on_unavailable=OnUnavailable.ALLOW), "key-1", "gpt-4")
    assert await repository.list_entities_with_custom_limits("gpt-4") == (["key-1"], None)
    assert await repository.resolve_limits("key-1", "gpt-4") == (None, OnUnavailable.ALLOW, None)
    await repository.delete_limits("key-1", "gpt-4")
    assert await repository.resolve_limits("key-1", "gpt-4") == (None, None, None)


@pytest.mark.parametrize("level", ["system", "resource", "entity"])
async def test_what_nobody_knows_can_be_deleted(store: Store, level: str) -> None:
    """A level that only says something unknown admits nobody and says that it can be deleted, so it can."""
    repository = await store.repository()
    await repository.create_entity("key-1")
    keys = {
        "system": system_config_key(repository.namespace_id),
        "resource": resource_config_key(repository.namespace_id, "gpt-4"),
        "entity": entity_config_key(repository.namespace_id, "key-1", "gpt-4"),
    }
    await repository._backend.write_each([Put(keys[level], {"odd": 1})])
    limiter = RateLimiter(repository)
    repository.invalidate_config_cache()
    with pytest.raises(DamagedRecordError, match=r"nobody knows what 'odd' says.*delete it"):
        await limiter.available("key-1", "gpt-4", [RPM])
    delete = {
        "system": repository.delete_system_defaults,
        "resource": partial(repository.delete_resource_defaults, "gpt-4"),
        "entity": partial(repository.delete_limits, "key-1", "gpt-4"),
    }[level]
    assert await delete()
    assert not await delete()
    assert await limiter.available("key-1", "gpt-4", [RPM]) == {"rpm": 100}
    assert await repository.list_resources_with_entity_configs() == []
