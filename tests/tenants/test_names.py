"""Names as a way into somebody else's records: there is none.

Every call of a tenant reads, asks and writes under keys that begin with the id of its own namespace, in the
table and in every index, whatever the names, cursors and amounts that it passes.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.fuzz.damage import is_whole
from tests.fuzz.figures import cases
from tests.fuzz.outcomes import outcome
from tests.fuzz.surface import REPOSITORY, arguments, parameters_of, usual
from tests.fuzz.tenants import ABROAD, HOME, RPM, Tenants, contents, in_memory, template
from tests.fuzz.values import HOSTILE_TEXTS, texts
from tests.tenants.places import ABOUT_THE_STORE, REGISTRY, of_tenant, places_of, places_written, writes_of
from zae_limiter import Limit, ValidationError, ZAELimiterError
from zae_limiter.naming import validate_limit_name, validate_resource
from zae_limiter.records.scope import cursor_text
from zae_limiter.repository_protocol import Cursor, Key, Put, Query, Update
from zae_limiter.schema import INDEXES, gsi3_pk_entities
from zae_limiter.testing import ManualClock, RecordingBackend

CRAFTED = (
    *(
        "SYSTEM",
        "ENTITY",
        "BUCKET",
        "AUDIT",
        "RESOURCE",
        "CONFIG",
        "META",
        "STATE",
        "PARENT",
        "CHILD",
        "USAGE",
    ),
    *(
        "a:b",
        "a@b",
        "a.b",
        "a-b",
        "a_b",
        "A",
        "a",
        "0",
        "x" * 64,
        "default",
        "ENTITIES",
        "ENTITY_CONFIG",
        "CLAIM",
    ),
    *(
        "GSI1PK",
        "PK",
        "SK",
        "ttl",
        "rf",
        "cv",
        "wcu.",
        "tk",
        "entity_id",
        "window",
        "total_events",
        "resource",
    ),
)
"""Names of entities that are allowed and spell something."""


def allowed(validate: Callable[[str], str]) -> list[str]:
    """Those of them that something else may have, too."""
    found = {name: outcome(lambda name=name: validate(name)) for name in CRAFTED}
    return [name for name, passed in found.items() if passed == name]


IDENTIFIERS = {
    "entity_id",
    "resource",
    "limit_name",
    "parent_id",
    "principal",
    "identifier",
    "name",
    "updated_by",
}


def recorded(colour: str = "sync") -> tuple[Tenants, RecordingBackend, Any]:
    _, backend = in_memory(colour)
    recorder = RecordingBackend(backend)
    clock = ManualClock(template().now_ms, seed=1)
    return Tenants(colour, recorder, clock.world, template().ids), recorder, backend


@pytest.mark.parametrize("name", sorted(set(REPOSITORY) - ABOUT_THE_STORE))
@cases("tenants", 40, data=st.data())
def test_no_name_leads_to_another_tenant(name: str, data: Any) -> None:
    """Whatever stands in the place of a name, the call stays at home."""
    stage, recorder, backend = recorded()
    abroad, known = of_tenant(contents(backend), stage.ids[ABROAD]), usual(stage.ids)
    ids = [stage.ids[ABROAD], f"../{stage.ids[ABROAD]}", f"{stage.ids[ABROAD]}/ENTITY#user-1", "_/SYSTEM#"]
    crafted = st.one_of(st.sampled_from([*CRAFTED, *HOSTILE_TEXTS, *ids]), texts)
    given = {
        parameter: data.draw(crafted if parameter in IDENTIFIERS else st.sampled_from(known[parameter]))
        for parameter, optional in parameters_of(REPOSITORY[name]).items()
        if not optional or data.draw(st.booleans())
    }
    outcome(lambda: getattr(stage.repository, name)(**given))
    assert places_of(recorder) <= {stage.ids[HOME]}
    assert of_tenant(contents(backend), stage.ids[ABROAD]) == abroad


@pytest.mark.parametrize("name", sorted(ABOUT_THE_STORE - {"namespace"}))
@cases("tenants", 20, data=st.data())
def test_the_registry_is_all_that_is_shared(name: str, data: Any) -> None:
    """Registering, deleting and looking up namespaces touches the registry, and what it says of one."""
    stage, recorder, _ = recorded()
    given = data.draw(arguments(REPOSITORY[name]))
    outcome(lambda: getattr(stage.repository, name)(**given))
    named = given.get("namespace_id")
    assert places_of(recorder) <= {REGISTRY, *([named] if isinstance(named, str) else [])}
    if name != "purge_namespace":
        assert all(places_written(write) <= {REGISTRY} for write in writes_of(recorder))


@cases(
    "tenants",
    100,
    entity=st.sampled_from(CRAFTED),
    resource=st.sampled_from(allowed(validate_resource)),
    limit=st.sampled_from(allowed(validate_limit_name)),
)
def test_names_that_spell_something_are_names_like_any_other(entity: str, resource: str, limit: str) -> None:
    """Limits, buckets and lists work for them, and nobody else's numbers move."""
    stage, recorder, backend = recorded()
    repository, limits = stage.repository, [Limit.per_minute(limit, 10), Limit.per_minute("other", 20)]
    before = of_tenant(contents(backend), stage.ids[HOME])
    repository.create_entity(entity, principal=entity)
    repository.set_limits(entity, limits, resource, principal=entity)
    with stage.limiter.acquire(entity, resource, {limit: 3, "other": 4}) as lease:
        lease.adjust({limit: 2})
    assert stage.limiter.available(entity, resource) == {limit: 5, "other": 16}
    assert {state.limit_name for state in repository.get_buckets(entity, resource)} == {limit, "other"}
    assert entity in repository.list_entities_with_custom_limits(resource)[0]
    assert [event.principal for event in repository.get_audit_events(entity)] == [entity, entity]
    assert places_of(recorder) <= {stage.ids[HOME]}
    after = of_tenant(contents(backend), stage.ids[HOME])
    assert {key: after[key] for key in before} == before


# Cursors.

LISTS = {
    "list_entities": lambda repository, cursor: repository.list_entities(2, cursor),
    "list_entities_with_custom_limits": lambda repository, cursor: (
        repository.list_entities_with_custom_limits("gpt-4", 1, cursor)
    ),
    "usage of an entity": lambda repository, cursor: repository.get_usage_snapshots(
        "user-1", limit=1, next_key=cursor
    ),
    "usage of a resource": lambda repository, cursor: repository.get_usage_snapshots(
        resource="gpt-4", limit=1, next_key=cursor
    ),
}


@pytest.mark.parametrize("used", LISTS)
@pytest.mark.parametrize("made", LISTS)
def test_a_cursor_goes_with_its_list(made: str, used: str) -> None:
    """One of another tenant, or of another list, is refused before the store is asked."""
    stage, recorder, _ = recorded()
    home, abroad = (tenant.repository for tenant in stage.tenants)
    for repository in (home, abroad):
        for entity_id in ("user-1", "user-2"):
            repository.set_limits(entity_id, [RPM], "gpt-4")
    for repository in (home, abroad):
        _, cursor = LISTS[made](repository, None)
        assert cursor is not None
        if repository is home and made == used:
            LISTS[used](home, cursor)
            continue
        recorder.forget()
        with pytest.raises(ValidationError, match="pass on what the previous page"):
            LISTS[used](home, cursor)
        assert recorder.calls == []


written = texts.filter(is_whole)


@cases("tenants", 150, partition=written, sort=written, place=written, rows=st.integers(1, 3))
def test_a_forged_cursor_shows_nothing_of_others(partition: str, sort: str, place: str, rows: int) -> None:
    """It is a place in one's own list, wherever it points to."""
    stage, recorder, _ = recorded()
    home = stage.tenants[0].repository
    mine = {one.entity_id for one in home.list_entities()[0]}
    query = Query(gsi3_pk_entities(stage.ids[HOME]), index="GSI3")
    for key in (Key(partition, sort), Key(f"{stage.ids[ABROAD]}/ENTITY#user-1", "#META")):
        forged = cursor_text(Cursor(key, place), query)
        page = outcome(lambda forged=forged: home.list_entities(rows, forged))
        if not isinstance(page, ZAELimiterError):
            assert {one.entity_id for one in page[0]} <= mine
    assert places_of(recorder) <= {stage.ids[HOME]}


# Writes of one's own.


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("verb", ["write_each", "transact_write"])
def test_own_writes_stay_in_their_namespace(verb: str, index: str) -> None:
    """Neither a key nor an index entry of another tenant can be written."""
    stage, recorder, backend = recorded()
    home, abroad = stage.ids[HOME], stage.ids[ABROAD]
    key, before = Key(f"{home}/ENTITY#x", "#META"), contents(backend)
    for foreign in (
        abroad,
        f"{abroad}/PARENT#org-1",
        REGISTRY,
        f"{home}x",
        f"{home}x/ENTITIES",
        "",
        f"/{home}",
    ):
        entries = {f"{index}PK": foreign, f"{index}SK": "x"}
        for write in (Put(key, entries), Update(key, set=entries), Update(key, {f"{index}PK": 1})):
            with pytest.raises(ValidationError):
                getattr(stage.repository, verb)([write])
        for elsewhere in (Put(Key(foreign, "x"), {}), Update(Key(f"{foreign}/ENTITY#x", "#META"))):
            with pytest.raises(ValidationError):
                getattr(stage.repository, verb)([elsewhere])
    assert contents(backend) == before
    assert recorder.writes == 0


# Index entries that somebody else wrote past all of us.


@cases("tenants", 60, seed=st.integers(0, 2**32 - 1), index=st.sampled_from(INDEXES))
def test_forged_index_entries_are_not_followed(seed: int, index: str) -> None:
    """Whoever may write its own items can give them any index entry; nobody sees or deletes them by it."""
    rng = random.Random(seed)
    stage, _, backend = recorded()
    home, abroad = stage.ids[HOME], stage.ids[ABROAD]
    own = [key for key in contents(backend) if key.partition.startswith(f"{abroad}/")]
    forged = {}
    for item in of_tenant(contents(backend), home).values():
        if item.get(f"{index}PK") is not None and rng.random() < 0.5:
            place = {
                f"{index}PK": item[f"{index}PK"],
                f"{index}SK": str(item[f"{index}SK"]) + rng.choice(["", "!"]),
            }
            forged[rng.choice(own)] = place
    before = told(stage)
    for key, place in forged.items():
        backend._shelf.items[key] = {**backend._shelf.items[key], **place}
    theirs = of_tenant(contents(backend), abroad)
    assert told(stage) == before
    for entity_id in ("user-1", "user-2"):
        stage.repository.delete_entity(entity_id)
    stage.repository.delete_namespace(HOME)
    stage.repository.purge_namespace(home)
    assert of_tenant(contents(backend), home) == {}
    assert of_tenant(contents(backend), abroad) == theirs


def told(stage: Tenants) -> list[Any]:
    """All that the lists of a tenant say."""
    home = stage.repository
    return [
        home.list_entities()[0],
        home.get_children("org-1"),
        home.list_resources_with_defaults(),
        home.list_resources_with_entity_configs(),
        home.list_entities_with_custom_limits("other")[0],
        home.get_buckets("user-1"),
        home.get_resource_buckets("gpt-4"),
        home.get_resource_capacity("gpt-4", "rpm"),
        home.get_usage_snapshots(resource="gpt-4")[0],
        home.get_usage_summary(resource="gpt-4"),
    ]


def test_the_table_of_methods_about_the_store_is_current() -> None:
    """Every other method is about a tenant, and tried as such."""
    assert set(REPOSITORY) >= ABOUT_THE_STORE
