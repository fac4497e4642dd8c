"""The list of all switches: exact after every change, bounded, and for nobody but its namespace."""

import pytest

from tests.records.store import RPM, Store
from zae_limiter import Bypass, LimiterConfig, Repository, SyncRateLimiter, ThrownSwitch, ValidationError
from zae_limiter.records import switching
from zae_limiter.records.switching import switches_of
from zae_limiter.repository_protocol import Update
from zae_limiter.schema import bucket_key, system_config_key


async def listed(repository: Repository) -> list[tuple[str, str | None, str | None]]:
    found, cursor = await repository.list_switches()
    assert cursor is None
    return [(one.level, one.entity_id, one.resource) for one in found]


async def test_every_level_is_listed(store: Store) -> None:
    """The system's first, then resources', then entities'; with reason, since when and by whom."""
    repository = await store.repository()
    now = "2024-01-01T00:00:00.000Z"
    store.clock.now_ms = 1_704_067_200_000
    await repository.set_limits("zoe", [RPM], "gpt-4")  # limits alone are no switch
    await repository.disable(entity_id="key-1", resource="a/b", reason="leaked", principal="ops")
    await repository.bypass(entity_id="key-1")
    await repository.enable(entity_id="batch", overrule=True, principal="me")
    await repository.disable(resource="gpt-4", reason="maintenance")
    await repository.bypass(counted=False)
    assert await repository.list_switches() == (
        [
            ThrownSwitch("system", bypass=Bypass.UNCOUNTED, since=now),
            ThrownSwitch("resource", "maintenance", resource="gpt-4", since=now),
            ThrownSwitch("entity_default", False, entity_id="batch", since=now, by="me"),
            ThrownSwitch("entity_default", bypass=Bypass.COUNTED, entity_id="key-1", since=now),
            ThrownSwitch("entity", "leaked", entity_id="key-1", resource="a/b", since=now, by="ops"),
        ],
        None,
    )


async def test_it_goes_with_the_switch(store: Store) -> None:
    """Whatever takes a switch away takes it off the list."""
    repository = await store.repository()
    await repository.disable(entity_id="key-1", reason="leaked")
    await repository.disable(entity_id="key-2", reason="leaked")
    await repository.disable(resource="gpt-4", reason="down")
    await repository.disable(reason="all of it")
    await repository.set_config("resource", LimiterConfig(limits=(RPM,)), resource="gpt-4")
    await repository.enable()
    await repository.delete_entity("key-2")
    assert await listed(repository) == [("entity_default", "key-1", None)]
    await repository.enable(entity_id="key-1")
    assert await listed(repository) == []


async def test_since_when_is_since_it_was_thrown(store: Store) -> None:
    """Other limits of the same level leave that as it is; another position is another throw."""
    repository = await store.repository()
    await repository.disable(resource="gpt-4", reason="down", principal="ops")
    ((first,), _) = await repository.list_switches()
    store.clock.advance(60)
    await repository.set_resource_defaults("gpt-4", [RPM], principal="somebody")
    await repository.disable(resource="gpt-4", reason="down", principal="nobody")
    assert await repository.list_switches() == ([first], None)
    assert await repository.get_resource_defaults("gpt-4") == [RPM]
    await repository.delete_resource_defaults("gpt-4")
    assert await repository.list_switches() == ([first], None)
    await repository.bypass(resource="gpt-4")
    ((then,), _) = await repository.list_switches()
    assert (then.bypass, then.by) == (Bypass.COUNTED, None)
    assert str(then.since) > str(first.since)


async def test_page_by_page(store: Store) -> None:
    """No page is longer than asked for, and together they are all; bad pages are refused."""
    repository = await store.repository()
    for number in range(7):
        await repository.disable(entity_id=f"key-{number}", reason="leaked")
    seen, cursor = [], None
    while True:
        page, cursor = await repository.list_switches(3, cursor)
        assert len(page) <= 3
        seen += [one.entity_id for one in page]
        if cursor is None:
            break
    assert seen == [f"key-{number}" for number in range(7)]
    for limit in (0, 1001):
        with pytest.raises(ValidationError):
            await repository.list_switches(limit)
    with pytest.raises(ValidationError):
        await repository.list_switches(cursor="made up")


async def test_nobody_sees_anothers(store: Store) -> None:
    """A namespace has a list of its own."""
    one, other = await store.repository("one"), await store.repository("other")
    await one.disable(reason="closed")
    assert await listed(other) == []


async def test_what_cannot_be_read_is_left_out(store: Store) -> None:
    """A damaged switch, and an entry that leads to no level."""
    repository = await store.repository()
    await repository.disable(resource="gpt-4", reason="down")
    await repository.disable(reason="closed")
    scope = repository._scope
    entry = {"GSI2PK": f"{scope.namespace_id}/SWITCHES", "GSI2SK": "1#x", "off": "mine"}
    await scope.must_write([Update(system_config_key(scope.namespace_id), set={"off": 7})])
    await scope.must_write([Update(bucket_key(scope.namespace_id, "key-1", "gpt-4"), set=entry)])
    assert await listed(repository) == [("resource", None, "gpt-4")]


async def test_some_entities_are_one_look(store: Store) -> None:
    """It asks the list once, and reads no record of whoever has no switch."""
    repository, calls = await store.recorded()
    await repository.disable(entity_id="b", resource="gpt-4", reason="leaked")
    await repository.disable(entity_id="bb", reason="leaked")
    await repository.disable(entity_id="d", reason="leaked")
    calls.forget()
    found = await switches_of(repository._scope, {"a", "b", "c"})
    assert [(one.entity_id, one.resource) for one in found] == [("b", "gpt-4")]
    assert calls.verbs == {"query": 1, "batch_get": 1}
    assert await switches_of(repository._scope, set()) == []


async def test_some_entities_among_very_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many switches lie between those of two entities, both are found."""
    monkeypatch.setattr(switching, "PAGE_MAX", 3)
    repository = await store.repository()
    for number in range(8):
        await repository.disable(entity_id=f"key-{number}", reason="leaked")
    found = await switches_of(repository._scope, {"key-0", "key-7", "key-9"})
    assert [one.entity_id for one in found] == ["key-0", "key-7"]


def test_in_sync_code() -> None:
    """The sync twins list the same."""
    with SyncRateLimiter.open("memory://") as limiter:
        limiter.disable(reason="closed")
        assert limiter.list_switches() == limiter.repository.list_switches()
        assert len(limiter.list_switches()[0]) == 1
