"""What strangers, older versions and broken disks do to records, and who must not notice."""

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.fuzz.outcomes import outcome
from tests.fuzz.surface import REPOSITORY, usual_arguments
from tests.fuzz.tenants import ABROAD, ENTITIES, HOME, LIMITS, RESOURCES, Contents, Tenants, template
from tests.fuzz.values import HOSTILE_TEXTS
from zae_limiter import SyncRateLimiter, SyncRepository
from zae_limiter.exceptions import DamagedRecordError
from zae_limiter.repository_protocol import Item, Key

NEIGHBOUR = "neighbour"
"""Whoever is called so is left alone."""


def is_whole(text: str) -> bool:
    """Whether a text can be written down."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


integers = st.one_of(
    st.integers(-(10**37), 10**37),
    st.sampled_from([0, -1, 1, 2, 3, 31, 32, 33, 64, 1000, 60_000, 10**9, 2**31, 2**53, 2**63, -(2**63)]),
    st.sampled_from([10**12, 10**15, 10**18, 10**26, 10**27, 10**37, -(10**37)]),
)
stored_texts = st.one_of(
    st.sampled_from([text for text in HOSTILE_TEXTS if text and is_whole(text)]),
    st.sampled_from(
        ["deleted", "active", "purging", "hourly", "allow", "9999-12-31T23:59:59Z", "0001-01-01"]
    ),
    st.sampled_from(["0@5:0-3", "nonsense", "entity_created", "1.0.0", "2.0.0", "2024-01-01T00:00:00Z"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6),
)
floats = st.sampled_from([0.0, 0.5, 1.0, 60_000.0, -1.0, 1e20, 1.5e30, -2.5])
values: SearchStrategy[Any] = st.recursive(
    st.one_of(integers, integers, st.booleans(), floats, stored_texts),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(stored_texts, inner, max_size=2)),
    max_leaves=3,
)
"""What any store can hold."""

unlikely = st.one_of(
    values,
    st.sampled_from(
        [10**400, -(10**400), float("nan"), float("inf"), "\ud800", "", {"": 1}, [None], {"a": None}]
    ),
    st.builds(pow, st.just(10), st.just(5000)),
)
"""What only a store in memory can hold, too."""

SHARDS = ("shard_count", "b_rpm_sc", "b_rpm_mx", "b_wcu_tk", "b_wcu_tc", "b_wcu_rp")
STRANGE = (
    *(
        "ttl",
        "status",
        "rf",
        "cv",
        "born",
        "cascade",
        "parent_id",
        "moved",
        "children",
        "entities",
        "resource",
    ),
    *(
        "b_rpm_tk",
        "b_x_tk",
        "b_#_tk",
        "l_rpm_cp",
        "l_x_cp",
        "l_x#y_rp",
        "config_version",
        "_seen",
        "_rest",
        "_passed",
        "#x",
        "0",
    ),
    *("GSI1PK", "GSI1SK", "GSI2PK", "GSI2SK", "GSI3PK", "GSI3SK", "GSI4PK", "GSI4SK"),
)
"""Attributes that somebody may add."""


class Damage(NamedTuple):
    """What a record holds from now on."""

    key: Key
    item: Item


def is_neighbour(key: Key) -> bool:
    """Whether a record belongs to somebody who is left alone, or to the tenant next door."""
    ids = template().ids
    mine = key.partition.partition("/")[0] in (ids[HOME], "_")
    return not mine or NEIGHBOUR in key.partition or key.sort.endswith((f"#{ids[ABROAD]}", f"#{ABROAD}"))


def kind_of(key: Key) -> str:
    return key.partition.partition("/")[2].partition("#")[0] + key.sort[:5]


def places() -> dict[str, list[Key]]:
    """The records that may be damaged, by kind, so that each kind gets its share."""
    found: dict[str, list[Key]] = {}
    for key in sorted(template().contents):
        if not is_neighbour(key):
            found.setdefault(kind_of(key), []).append(key)
    return found


@st.composite
def damages(draw: DrawFn, what: SearchStrategy[Any] = values) -> Damage:
    """One record of the furnished store with something wrong about it."""
    known = template().contents
    kinds = places()
    key = draw(st.sampled_from(kinds[draw(st.sampled_from(["BUCKET#STAT", "BUCKET#STAT", *sorted(kinds)]))]))
    item = dict(known[key])
    way = draw(
        st.sampled_from(["change", "change", "add", "shards", "remove", "replace", "strip", "elsewhere"])
    )
    if way == "strip":
        return Damage(key, {})
    if way == "elsewhere":  # as a careless copy leaves it
        return Damage(key, known[draw(st.sampled_from(sorted(known)))])
    if way == "replace":
        return Damage(key, draw(st.dictionaries(st.sampled_from([*item, *STRANGE]), what, max_size=4)))
    names = {"add": STRANGE, "shards": SHARDS}.get(way, tuple(sorted(item)))
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=4)):
        if way == "remove":
            item.pop(name, None)
        else:
            item[name] = draw(what)
    return Damage(key, item)


def use_everything(stage: Tenants, rng: random.Random) -> None:
    """Every method once, in any order, on what is there; each works or raises an error of ours."""
    names = sorted(REPOSITORY)
    rng.shuffle(names)
    for name in names:
        given = usual_arguments(rng, REPOSITORY[name], stage.ids)
        if name == "delete_table" or (name == "delete_namespace" and HOME in given.values()):
            continue  # it would do what it says
        outcome(lambda name=name, given=given: getattr(stage.repository, name)(**given))


def use_buckets(stage: Tenants) -> None:
    """Take from every bucket, and look at it."""
    limiter = stage.limiter
    for entity_id in ENTITIES[:-1]:
        for resource in RESOURCES:
            outcome(lambda e=entity_id, r=resource: limiter.acquire(e, r, {"rpm": 1}))
            outcome(lambda e=entity_id, r=resource: limiter.acquire(e, r, {"rpm": 1}, LIMITS))
            outcome(lambda e=entity_id, r=resource: limiter.check_availability(e, r, {"rpm": 61}))
            outcome(lambda e=entity_id, r=resource: spend_and_adjust(limiter, e, r))


def spend_and_adjust(limiter: SyncRateLimiter, entity_id: str, resource: str) -> None:
    with limiter.acquire(entity_id, resource, {"rpm": 2}) as lease:
        lease.adjust(rpm=3)
        lease.release(rpm=1)


def delete_what_nobody_knows(repository: SyncRepository, resource: str) -> None:
    """What nobody knows at a level that all share could be a switch and so binds all; deleting it helps."""
    repository.invalidate_config_cache()  # what is stored, and not what was read before it was damaged
    try:
        repository.resolve_limits(NEIGHBOUR, resource)
    except DamagedRecordError:
        repository.delete_resource_defaults(resource)
        repository.delete_system_defaults()


def switch_on(repository: SyncRepository, resource: str) -> None:
    """A switch for everybody is one for neighbours too. Beside limits that cannot be read it stays."""
    for switched, delete in (
        (None, repository.delete_system_defaults),
        (resource, lambda: repository.delete_resource_defaults(resource)),
    ):
        try:
            repository.enable(resource=switched)
        except DamagedRecordError:
            delete()
            repository.enable(resource=switched)


def check_neighbour(limiter: SyncRateLimiter) -> None:
    """An entity that nothing happened to finds everything as it was, and the lists find it."""
    repository = limiter.repository
    for resource in RESOURCES:
        delete_what_nobody_knows(repository, resource)
        switch_on(repository, resource)
        before = limiter.available(NEIGHBOUR, resource)
        with limiter.acquire(NEIGHBOUR, resource, {"rpm": 1}):
            assert limiter.available(NEIGHBOUR, resource) == {"rpm": before["rpm"] - 1}
    found = repository.get_entity(NEIGHBOUR)
    assert found is not None
    assert repository.get_limits(NEIGHBOUR) == LIMITS[:1]
    assert len(repository.get_buckets(NEIGHBOUR)) == len(RESOURCES)
    assert len(repository.get_audit_events(NEIGHBOUR)) == 2
    assert len(repository.get_usage_snapshots(NEIGHBOUR)[0]) == 3
    assert repository.get_usage_summary(NEIGHBOUR).total == {"rpm": 1}
    assert found in _every(repository.list_entities)
    assert NEIGHBOUR in _every(repository.list_entities_with_custom_limits)
    assert NEIGHBOUR in {state.entity_id for state in repository.get_resource_buckets("gpt-4")}
    capacity = {one.entity_id: one for one in repository.get_resource_capacity("gpt-4", "rpm").entities}
    assert capacity[NEIGHBOUR].capacity == LIMITS[0].capacity
    assert NEIGHBOUR in {one.entity_id for one in repository.get_usage_snapshots(resource="gpt-4")[0]}


def _every(list_page: Any) -> list[Any]:
    found, cursor = [], None
    while True:
        page, cursor = list_page(limit=2, cursor=cursor)
        found += page
        if cursor is None:
            return found


def of_namespace(contents: Contents, namespace_id: str) -> dict[Key, Item]:
    return {key: item for key, item in contents.items() if key.partition.startswith(f"{namespace_id}/")}


def check_tenants(stage: Tenants, ids: Mapping[str, str]) -> None:
    """Both tenants are still there, and whoever nothing happened to works in each."""
    names = {one.namespace_name: one.namespace_id for one in stage.tenants[0].repository.list_namespaces()}
    assert names.get(ABROAD) == ids[ABROAD]
    for tenant in stage.tenants:
        check_neighbour(tenant)
