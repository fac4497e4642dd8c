"""A manifest and a real store: applied, applied again, changed, compared, exported."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.manifest.wishes import levels, manifests, places, wanted
from tests.records.store import RPM, TPM, Store, everything
from zae_limiter import (
    AuditAction,
    Bypass,
    InvalidIdentifierError,
    LimiterConfig,
    OnUnavailable,
    Repository,
    SyncRepository,
)
from zae_limiter.operate.manifest import (
    Action,
    LevelAddress,
    Manifest,
    StoredLimits,
    SyncStoredLimits,
    parse,
    stored_limits,
    to_yaml,
)
from zae_limiter.repository_protocol import Key, Put

FIRST = """
    system: {on_unavailable: block, limits: {rpm: {capacity: 100}}}
    resources:
      gpt-3: {limits: {rpm: {capacity: 10}}}
      gpt-4: {limits: {rpm: {capacity: 20}, tpm: {capacity: 5000, refill_period: 1}}}
    entities:
      user-1:
        resources:
          gpt-4: {limits: {rpm: {capacity: 1}}}
          _default_: {on_unavailable: allow}
"""
SECOND = """
    resources:
      gpt-4: {limits: {rpm: {capacity: 25}}}
      gpt-5: {limits: {rpm: {capacity: 5}}}
    entities:
      user-1: {resources: {gpt-4: {limits: {rpm: {capacity: 1}}}}}
"""


def read(text: str) -> Manifest:
    return parse(dedent(text))


async def claims_of(repository: Repository) -> set[str]:
    return {key.sort for key in await everything(repository) if key.sort.startswith("#CLAIM#")}


async def put(repository: Repository, place: LevelAddress, config: LimiterConfig) -> None:
    """Write a level as somebody does who knows of no manifest."""
    identifier = place.entity_id if place.level == "entity" else None
    await repository.set_config(place.level, config, identifier, place.resource)


async def take_away(repository: Repository, place: LevelAddress) -> None:
    """Delete a level with all it says; a switch would stay, so it is replaced first."""
    identifier = place.entity_id if place.level == "entity" else None
    config = await repository.get_config(place.level, identifier, place.resource)
    if config is not None and config.has_switch:
        await put(repository, place, LimiterConfig(on_unavailable=OnUnavailable.BLOCK))
    if place.level == "system":
        await repository.delete_system_defaults()
    elif place.level == "resource":
        await repository.delete_resource_defaults(str(place.resource))
    else:
        await repository.delete_limits(str(place.entity_id), str(place.resource))


async def test_a_file_that_changes(store: Store) -> None:
    """All levels are made; what a later file leaves out is deleted, what it changes is changed."""
    repository = await store.repository()
    stored = StoredLimits(repository)
    planned = await stored.plan(read(FIRST))
    assert planned.counts == {"created": 5, "updated": 0, "deleted": 0, "unchanged": 0}
    assert [change.action for change in await stored.apply(read(FIRST), "ops")] == [Action.CREATE] * 5
    assert (await repository.resolve_limits("user-1", "gpt-4"))[1] is OnUnavailable.ALLOW
    assert await repository.list_entities_with_custom_limits("gpt-4") == (["user-1"], None)
    (event,) = await repository.get_audit_events("$RESOURCE:gpt-4")
    assert (event.action, event.principal) == (AuditAction.LIMITS_SET, "ops")
    assert [limit["name"] for limit in event.details["limits"]] == ["rpm", "tpm"]

    changed = await stored.apply(read(SECOND), "ops")
    assert [(change.action, str(change.address)) for change in changed] == [
        (Action.UPDATE, "resource gpt-4"),
        (Action.CREATE, "resource gpt-5"),
        (Action.DELETE, "system"),
        (Action.DELETE, "resource gpt-3"),
        (Action.DELETE, "entity user-1 _default_"),
    ]
    assert await repository.list_resources_with_defaults() == ["gpt-4", "gpt-5"]
    assert await repository.get_config("system") is None
    assert len(await repository.get_audit_events("$SYSTEM")) == 2
    assert to_yaml(await stored.export()) == to_yaml(Manifest(read(SECOND).levels, "default"))
    assert await claims_of(repository) == {
        "#CLAIM#resource#gpt-4",
        "#CLAIM#resource#gpt-5",
        "#CLAIM#entity#user-1#gpt-4",
    }


async def test_the_second_apply_writes_nothing(store: Store) -> None:
    """No level, no event, no claim; and it costs two reads."""
    repository, calls = await store.recorded()
    stored = StoredLimits(repository)
    await stored.apply(read(FIRST))
    before = await everything(repository)
    calls.forget()
    assert await stored.apply(read(FIRST)) == []
    assert calls.writes == 0
    assert dict(calls.verbs) == {"query": 1, "batch_get": 1}
    assert await everything(repository) == before


async def test_what_others_made_is_theirs(store: Store) -> None:
    """A level that was there stays when it leaves the file, changed or not; so does what others remade."""
    repository = await store.repository()
    stored = StoredLimits(repository)
    await repository.set_resource_defaults("gpt-3", [RPM])
    await repository.set_resource_defaults("gpt-4", [TPM])
    await repository.set_limits("other", [RPM], "gpt-4")
    await stored.apply(read(FIRST))
    assert await repository.get_resource_defaults("gpt-3") != [RPM]

    await repository.delete_limits("user-1", "gpt-4")
    await repository.set_limits("user-1", [TPM], "gpt-4")
    await repository.set_limits("user-1", [TPM], "_default_")  # a change is no new life
    left = await stored.difference(read("{}"))
    assert [str(change.address) for change in left.changes if change.action is Action.LEAVE] == [
        "resource gpt-3",
        "resource gpt-4",
        "entity other gpt-4",
        "entity user-1 gpt-4",
    ]
    changed = await stored.apply(read("{}"))
    assert [str(change.address) for change in changed] == ["system", "entity user-1 _default_"]
    assert await repository.get_limits("user-1", "gpt-4") == [TPM]
    assert await repository.get_limits("other", "gpt-4") == [RPM]
    assert await repository.list_resources_with_defaults() == ["gpt-3", "gpt-4"]
    assert await claims_of(repository) == set()


async def test_what_is_deleted_by_hand_comes_back(store: Store) -> None:
    """While the file names it; and what goes by hand, with its entity or alone, leaves no claim for ever."""
    repository = await store.repository()
    stored = StoredLimits(repository)
    await repository.create_entity("user-1")
    await stored.apply(read(FIRST))
    await repository.delete_resource_defaults("gpt-3")
    await repository.delete_entity("user-1")
    changed = await stored.apply(read(FIRST))
    assert [str(change.address) for change in changed] == [
        "resource gpt-3",
        "entity user-1 _default_",
        "entity user-1 gpt-4",
    ]
    await repository.delete_resource_defaults("gpt-3")
    await repository.delete_entity("user-1")
    assert [str(change.address) for change in await stored.apply(read("{}"))] == ["system", "resource gpt-4"]
    assert await claims_of(repository) == set()


async def test_the_system_keeps_what_no_manifest_says(store: Store) -> None:
    """Its settings survive an apply, a change and the end of its limits."""
    repository = await store.repository()
    stored = StoredLimits(repository)
    await repository.set_config("system", LimiterConfig(auto_update=False))
    assert (await stored.export()).levels == {}
    await stored.apply(read(FIRST))
    config = await repository.get_config("system")
    assert config is not None
    assert (config.auto_update, config.on_unavailable) == (False, OnUnavailable.BLOCK)
    assert "system" in [str(change.address) for change in await stored.apply(read(SECOND))]
    assert await repository.get_config("system") == LimiterConfig(auto_update=False, config_version=3)
    assert (await stored.plan(read(SECOND))).is_empty


async def test_a_bad_principal_changes_nothing(store: Store) -> None:
    """It is looked at before the first step."""
    repository = await store.repository()
    with pytest.raises(InvalidIdentifierError):
        await StoredLimits(repository).apply(read(FIRST), "a#b")
    assert await everything(repository) == {}


async def test_many_entities_come_in_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export has all of them, and a plan finds nothing to do."""
    monkeypatch.setattr(stored_limits, "READ_MAX", 7)
    repository = await store.repository()
    stored = StoredLimits(repository)
    own = {
        LevelAddress("entity", f"user-{n:02}", resource): LimiterConfig((RPM,))
        for n in range(20)
        for resource in ("gpt-4", "_default_")
    }
    await stored.apply(Manifest(own))
    exported = await stored.export()
    assert {place: config.limits for place, config in exported.levels.items()} == dict.fromkeys(own, (RPM,))
    assert (await stored.plan(exported)).counts["unchanged"] == 40
    assert (await stored.difference(exported)).is_empty
    assert len(await stored.apply(Manifest({}))) == 40


async def test_applies_at_the_same_time(store: Store) -> None:
    """The last write to a level wins; no level is a mixture; whatever is left, the next apply settles it."""
    names = [f"r{n}" for n in range(6)]
    one = Manifest(
        {LevelAddress("resource", None, n): LimiterConfig((RPM,), OnUnavailable.ALLOW) for n in names}
    )
    other = Manifest(
        {LevelAddress("resource", None, n): LimiterConfig((TPM,), OnUnavailable.BLOCK) for n in names[3:]}
    )
    repositories = [await store.repository() for _ in range(4)]
    applies = [StoredLimits(repositories[n]).apply((one, other)[n % 2]) for n in range(4)]
    await asyncio.gather(*applies)
    stored = StoredLimits(repositories[0])
    for place, config in (await stored.export()).levels.items():
        assert (config.limits, config.on_unavailable) in [
            ((RPM,), OnUnavailable.ALLOW),
            ((TPM,), OnUnavailable.BLOCK),
        ], place
    await stored.apply(other)
    assert (await stored.export()).levels.keys() == other.levels.keys()
    assert (await stored.difference(other)).is_empty


async def test_what_happens_between_a_plan_and_its_turn(store: Store) -> None:
    """A level is looked at again: what is right by then is left, and so is what leads another life."""
    repository = await store.repository()
    stored = StoredLimits(repository)
    await stored.apply(read(FIRST))
    await repository.delete_resource_defaults("gpt-3")
    planned = await stored.plan(read(SECOND))
    assert list(planned.lapsed) == [LevelAddress("resource", None, "gpt-3")]
    # Somebody remakes what is to go, another apply makes what is to be made and claims what had lapsed.
    await repository.delete_system_defaults()
    await repository.set_system_defaults([TPM])
    other = {**read(SECOND).levels, LevelAddress("resource", None, "gpt-3"): LimiterConfig((TPM,))}
    await StoredLimits(await store.repository()).apply(Manifest(other))
    before = await everything(repository)
    assert await stored.carry_out(planned) == []
    assert await everything(repository) == before
    # With its claim the level goes when a file without it is applied next.
    assert [str(change.address) for change in await stored.apply(read(SECOND))] == ["resource gpt-3"]
    assert await repository.get_system_defaults() == ([TPM], None)


async def test_namespaces_do_not_meet(store: Store) -> None:
    """Neither levels nor claims of one are seen by another."""
    here, there = await store.repository("here"), await store.repository("there")
    await StoredLimits(here).apply(read(FIRST))
    assert await StoredLimits(there).apply(read("{}")) == []
    assert (await StoredLimits(there).export()).levels == {}
    assert len((await StoredLimits(here).export()).levels) == 5


def test_the_sync_twin() -> None:
    """It does the same over a store that blocks."""
    with SyncRepository.open(store="memory://") as repository:
        stored = SyncStoredLimits(repository)
        told: list[str] = []
        stored.carry_out(stored.plan(read(FIRST)), "ops", lambda change: told.append(str(change.address)))
        assert len(told) == 5
        assert stored.apply(read(FIRST)) == []
        assert stored.difference(read(FIRST)).is_empty
        assert len(stored.export().levels) == 5


async def test_a_switch_that_the_file_does_not_mention_stays(store: Store) -> None:
    """Whether its level is named or not; one that the file mentions becomes what it says."""
    repository = await store.repository()
    stored = StoredLimits(repository)
    await stored.apply(read(FIRST))
    await repository.disable(resource="gpt-3", reason="leak")
    await repository.disable(resource="gpt-4", reason="leak")
    await repository.bypass(entity_id="user-1", resource="gpt-4")
    assert (await stored.plan(read(FIRST))).is_empty
    assert (await stored.difference(read(FIRST))).is_empty

    planned = await stored.plan(read(SECOND))
    (update,) = [change for change in planned.changes if change.action is Action.UPDATE]
    assert update.after is not None
    assert update.after.disabled == "leak"
    changed = await stored.carry_out(planned)
    assert [str(change.address) for change in changed if change.action is Action.DELETE] == [
        "system",
        "resource gpt-3",
        "entity user-1 _default_",
    ]
    gpt3, gpt4 = [await repository.get_config("resource", name) for name in ("gpt-3", "gpt-4")]
    own = await repository.get_config("entity", "user-1", "gpt-4")
    assert gpt3 is not None
    assert gpt4 is not None
    assert own is not None
    assert (gpt3.limits, gpt3.disabled) == ((), "leak")
    assert (gpt4.limits[0].capacity, gpt4.disabled) == (25, "leak")
    assert own.bypass is Bypass.COUNTED
    assert await stored.apply(read(SECOND)) == []
    (left,) = (await stored.difference(read(SECOND))).changes
    assert (left.action, str(left.address)) == (Action.LEAVE, "resource gpt-3")

    said = read("resources: {gpt-4: {disabled: false, limits: {rpm: {capacity: 25}}}}")
    assert said.levels.items() <= (await applied(stored, said)).items()
    said = read("resources: {gpt-4: {bypass: uncounted, limits: {rpm: {capacity: 25}}}}")
    assert said.levels.items() <= (await applied(stored, said)).items()
    await repository.enable(resource="gpt-3")
    await stored.apply(said)
    assert await claims_of(repository) == {"#CLAIM#resource#gpt-4", "#CLAIM#entity#user-1#gpt-4"}


async def applied(stored: StoredLimits, manifest: Manifest) -> Mapping[LevelAddress, LimiterConfig]:
    """What is stored after an apply."""
    await stored.apply(manifest)
    return (await stored.export()).levels


async def test_a_switch_that_is_thrown_after_the_plan_stays(store: Store) -> None:
    """And one that was lifted since does not come back."""
    repository = await store.repository()
    stored = StoredLimits(repository)
    await stored.apply(read(FIRST))
    await repository.disable(resource="gpt-4", reason="leak")
    planned = await stored.plan(read(SECOND))
    await repository.enable(resource="gpt-4")
    await repository.disable(resource="gpt-3", reason="leak")
    await repository.disable(entity_id="user-1", resource="gpt-4", reason="leak")
    await stored.carry_out(planned)
    found = (await stored.export()).levels
    assert {str(at): config.disabled for at, config in found.items() if config.has_switch} == {
        "resource gpt-3": "leak",
        "entity user-1 gpt-4": "leak",
    }


by_hand = st.lists(st.tuples(places, st.none() | levels), max_size=8)


@settings(max_examples=60)
@given(wanted, by_hand, manifests)
def test_random_stores_and_manifests(
    first: dict[LevelAddress, LimiterConfig],
    hands: list[tuple[LevelAddress, LimiterConfig | None]],
    second: Manifest,
) -> None:
    """An export plans to nothing; an apply exports as it was read; what hands made is never deleted."""

    async def work() -> None:
        async with await Repository.open(store="memory://") as repository:
            stored = StoredLimits(repository)
            await stored.apply(Manifest(first))
            assert (await stored.export()).levels.keys() == first.keys()
            foreign: set[LevelAddress] = set()
            for place, config in hands:
                present = place in (await stored.export()).levels
                if config is None:
                    await take_away(repository, place)
                    foreign.discard(place)
                else:
                    await put(repository, place, config)
                    foreign |= set() if present else {place}
            exported = parse(to_yaml(await stored.export()))
            assert (await stored.plan(exported)).is_empty
            assert (await stored.difference(exported)).is_empty

            await stored.apply(second)
            levels = (await stored.export()).levels
            switched = {place for place, config in exported.levels.items() if config.has_switch}
            for place, config in second.levels.items():
                one = exported.levels[place] if place in switched and not config.has_switch else config
                assert levels[place] == replace(config, disabled=one.disabled, bypass=one.bypass)
            assert levels.keys() == second.levels.keys() | foreign | switched
            assert await stored.apply(second) == []

    asyncio.run(work())


@settings(max_examples=60)
@given(manifests)
def test_a_manifest_on_an_empty_store(manifest: Manifest) -> None:
    """Applied, exported, written and read again, it is the same."""
    with SyncRepository.open(store="memory://") as repository:
        stored = SyncStoredLimits(repository)
        stored.apply(manifest)
        back = parse(to_yaml(stored.export()))
        assert back == Manifest(manifest.levels, "default")


async def test_claims_that_nobody_here_wrote_are_ignored(store: Store) -> None:
    """They are neither believed nor touched."""
    repository = await store.repository()
    stored = StoredLimits(repository)
    await repository.set_resource_defaults("gpt-4", [RPM])
    strange: list[tuple[str, dict[str, Any]]] = [
        ("resource#gpt-4", {"level": "resource", "resource": "gpt-4"}),
        ("resource#gpt-5", {"level": "resource", "resource": "gpt-4", "born": "x"}),
        ("galaxy", {"level": "galaxy", "born": "x"}),
        ("entity#a", {"level": "entity", "resource": "gpt-4", "born": "x"}),
        ("nothing", {"born": "x"}),
        ("number", {"level": 7, "born": 7}),
    ]
    partition = f"{repository.namespace_id}/SYSTEM#"
    await repository.write_each([Put(Key(partition, f"#CLAIM#{name}"), item) for name, item in strange])
    planned = await stored.plan(read("{}"))
    assert (planned.changes, dict(planned.lapsed)) == ((), {})
    assert await repository.get_resource_defaults("gpt-4") == [RPM]


async def test_a_claim_is_found_by_its_namespace(store: Store) -> None:
    """So that it goes when the namespace is purged."""
    repository = await store.repository("gone")
    await StoredLimits(repository).apply(read(FIRST))
    await repository.delete_namespace("gone")
    await repository.purge_namespace(repository.namespace_id)
    key = Key(f"{repository.namespace_id}/SYSTEM#", "#CLAIM#resource#gpt-4")
    assert await repository._backend.batch_get([key]) == [None]
