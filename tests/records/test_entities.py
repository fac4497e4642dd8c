"""Entities: families, versions, metadata, deletion with everything that belongs to them."""

from itertools import pairwise
from typing import Any

import pytest

from tests.odd_stores import Crash, Crashing
from tests.records.store import RPM, Store, count_usage, everything, take
from zae_limiter import (
    AuditAction,
    Entity,
    EntityConflictError,
    EntityError,
    EntityExistsError,
    EntityNotFoundError,
    RateLimiter,
    Repository,
    ValidationError,
)
from zae_limiter.repository_protocol import Backend, Delete, Update
from zae_limiter.schema import entity_key


async def test_an_entity_is_read_back_as_it_was_made(store: Store) -> None:
    """All fields survive the store, metadata of every JSON kind included."""
    repository = await store.repository()
    metadata = {"tier": "gold", "seats": 3, "nested": {"a": [1, None, True, "x"]}, "share": 0.5}
    await repository.create_entity("org")
    made = await repository.create_entity("key-1", "Key One", "org", True, metadata, "admin@x")
    assert made == Entity("key-1", "Key One", "org", True, metadata, made.created_at, 1)
    assert made.created_at == "2023-11-14T22:13:20.000Z"
    assert await repository.get_entity("key-1") == made
    assert await repository.get_entity("key-2") is None


async def test_an_entity_is_made_once(store: Store) -> None:
    """A second one of the same id is refused and changes nothing, the audit trail included."""
    repository = await store.repository()
    await repository.create_entity("key-1", "first")
    with pytest.raises(EntityExistsError, match="'key-1' already exists"):
        await repository.create_entity("key-1", "second")
    entity = await repository.get_entity("key-1")
    assert entity is not None
    assert entity.name == "first"
    assert len(await repository.get_audit_events("key-1")) == 1


async def test_a_missing_parent_is_an_error(store: Store) -> None:
    """Neither the entity nor an event about it is left behind."""
    repository = await store.repository()
    with pytest.raises(EntityNotFoundError, match="'org' does not exist; create it before its child 'key-1'"):
        await repository.create_entity("key-1", parent_id="org")
    assert await everything(repository) == {}
    with pytest.raises(ValidationError, match="cannot be its own parent"):
        await repository.create_entity("key-1", parent_id="key-1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"entity_id": "a#b"}, "'#' is reserved"),
        ({"parent_id": "a#b"}, "invalid parent_id 'a#b'"),
        ({"name": ""}, "invalid name ''"),
        ({"name": "x" * 257}, "1 to 256 characters"),
        ({"name": 5}, "invalid name 5"),
        ({"cascade": "yes"}, "invalid cascade 'yes'"),
        ({"metadata": {"a": {1, 2}}}, "JSON values"),
        ({"metadata": {"a": float("nan")}}, "JSON values"),
        ({"metadata": [1]}, "must be a mapping"),
        ({"metadata": {"": 1}}, "a key is empty"),
        ({"metadata": {"a": 10**38}}, "is not kept exactly"),
        ({"metadata": {"a": [1e-60]}}, "is not kept exactly"),
        ({"metadata": {"a": "x" * 70_000}}, "at most 65536 are kept"),
        ({"principal": "a#b"}, "invalid principal 'a#b'"),
    ],
    ids=str,
)
async def test_bad_input_never_reaches_the_store(store: Store, given: dict[str, Any], said: str) -> None:
    """The error shows the value, and nothing is asked or written."""
    repository, calls = await store.recorded()
    with pytest.raises(ValidationError, match=said):
        await repository.create_entity(**{"entity_id": "key-1", **given})
    assert calls.round_trips == 0


async def test_metadata_that_is_too_deep_is_refused(store: Store) -> None:
    """Every store keeps sixteen levels."""
    repository = await store.repository()
    deep: dict[str, Any] = {}
    for _ in range(14):
        deep = {"in": deep}
    await repository.create_entity("key-1", metadata={"a": deep})
    with pytest.raises(ValidationError, match="more than 16 levels"):
        await repository.create_entity("key-2", metadata={"a": {"b": {"c": deep}}})


async def test_an_update_changes_what_it_is_given(store: Store) -> None:
    """The rest stays, ``None`` clears, and the version counts."""
    repository = await store.repository()
    await repository.create_entity("org")
    await repository.create_entity("key-1", "one", "org", True, {"a": 1})
    renamed = await repository.update_entity("key-1", name="two")
    assert (renamed.name, renamed.parent_id, renamed.cascade, renamed.metadata) == (
        "two",
        "org",
        True,
        {"a": 1},
    )
    cleared = await repository.update_entity("key-1", name=None, parent_id=None, cascade=False, metadata={})
    assert cleared == Entity("key-1", None, None, False, {}, renamed.created_at, 3)
    assert await repository.get_entity("key-1") == cleared
    assert await repository.get_children("org") == []
    with pytest.raises(EntityNotFoundError):
        await repository.update_entity("key-2", name="x")


async def test_an_update_of_an_old_version_is_refused(store: Store) -> None:
    """Who saw version 1 does not overwrite version 2."""
    repository = await store.repository()
    await repository.create_entity("key-1")
    await repository.update_entity("key-1", name="mine", expected_version=1)
    with pytest.raises(EntityConflictError, match="version 1 was expected, 2 is stored") as caught:
        await repository.update_entity("key-1", name="theirs", expected_version=1)
    assert isinstance(caught.value, EntityError)
    entity = await repository.get_entity("key-1")
    assert entity is not None
    assert (entity.name, entity.version) == ("mine", 2)


@pytest.mark.parametrize("parent", ["a", "b", "c"])
async def test_nobody_becomes_its_own_ancestor(store: Store, parent: str) -> None:
    """A circle is refused at any distance, and the family stays as it was."""
    repository = await store.repository()
    for entity_id, above in (("a", None), ("b", "a"), ("c", "b")):
        await repository.create_entity(entity_id, parent_id=above)
    with pytest.raises(ValidationError, match="'a' would become its own ancestor"):
        await repository.update_entity("a", parent_id=parent)
    assert [child.entity_id for child in await repository.get_children("a")] == ["b"]


async def line(repository: Repository, *entity_ids: str) -> None:
    """Entities, each the parent of the next."""
    for above, entity_id in pairwise((None, *entity_ids)):
        await repository.create_entity(str(entity_id), parent_id=above)


async def test_a_family_has_eight_generations(store: Store) -> None:
    """Nobody is made below the eighth, and the message shows who is above whom."""
    repository = await store.repository()
    await line(repository, *"abcdefgh")
    shown = "'i' → 'h' → 'g' → 'f' → 'e' → 'd' → 'c' → 'b' → 'a'"
    with pytest.raises(
        ValidationError, match=f"at most 8 generations, and this one would have more: {shown}"
    ):
        await repository.create_entity("i", parent_id="h")
    assert await repository.get_entity("i") is None
    assert await repository.get_children("h") == []
    await repository.create_entity("i", parent_id="g")


async def test_nobody_moves_where_its_family_would_be_too_deep(store: Store) -> None:
    """Those below it come along, so they count; what is refused changes nothing."""
    repository = await store.repository()
    await line(repository, *"abcdef")
    await line(repository, *"xyz")
    await repository.create_entity("y2", parent_id="x")
    shown = "'z' → 'y' → 'x' → 'f' → 'e' → 'd' → 'c' → 'b' → 'a'"
    with pytest.raises(ValidationError, match=shown):
        await repository.update_entity("x", parent_id="f")
    await repository.update_entity("x", parent_id="e")
    with pytest.raises(ValidationError, match="at most 8 generations"):
        await repository.create_entity("zz", parent_id="z")
    await repository.update_entity("x", parent_id=None)
    await repository.create_entity("zz", parent_id="z")
    with pytest.raises(ValidationError, match="'zz' → 'z' → 'y' → 'x' → 'e'"):
        await repository.update_entity("x", parent_id="e")


async def test_who_was_remembered_too_deep_is_looked_at_again(store: Store) -> None:
    """Another process made room: what this one remembers refuses nobody."""
    repository, other = await store.repository(), await store.repository()
    await line(repository, *"abcdefgh")
    with pytest.raises(ValidationError, match="at most 8 generations"):
        await repository.create_entity("i", parent_id="h")
    await other.update_entity("c", parent_id="a")
    await repository.create_entity("i", parent_id="h")


async def test_a_lost_parent_is_not_made_below_its_child(store: Store) -> None:
    """Whose child names it, though its record is gone, would become its own ancestor."""
    repository = await store.repository()
    await line(repository, *"abc")
    await store.open_backend().write_each([Delete(entity_key(repository.namespace_id, "a"))])
    with pytest.raises(ValidationError, match="'a' would become its own ancestor: 'a' → 'c' → 'b' → 'a'"):
        await repository.create_entity("a", parent_id="c")
    await repository.create_entity("a")


async def test_a_circle_that_is_stored_is_walked_once(store: Store) -> None:
    """Nobody hangs because of it, and it can be taken apart."""
    repository = await store.repository()
    await line(repository, *"abc")
    await store.open_backend().write_each(
        [Update(entity_key(repository.namespace_id, "a"), set={"parent_id": "c"})]
    )
    await repository.create_entity("d", parent_id="b")
    with pytest.raises(ValidationError, match="'b' would become its own ancestor"):
        await repository.update_entity("b", parent_id="c")
    await repository.update_entity("a", parent_id=None)


async def test_children_are_counted_wherever_they_go(store: Store) -> None:
    """Made, moved up to a grandparent and back, deleted: a parent is deleted only when it has none."""
    repository = await store.repository()
    for entity_id, above in (("a", None), ("b", "a"), ("c", "b")):
        await repository.create_entity(entity_id, parent_id=above)
    for entity_id in ("a", "b"):
        with pytest.raises(EntityError, match="it has children"):
            await repository.delete_entity(entity_id)
    await repository.update_entity("c", parent_id="a")
    assert [child.entity_id for child in await repository.get_children("a")] == ["b", "c"]
    await repository.update_entity("c", parent_id="b")
    await repository.delete_entity("c")
    await repository.delete_entity("b")
    await repository.delete_entity("a")
    assert (await repository.list_entities())[0] == []


async def test_the_count_keeps_a_parent_that_the_index_forgot(store: Store) -> None:
    """An index may lag behind; the record itself knows that there is a child."""
    repository = await store.repository()
    await repository.create_entity("org")
    await repository.create_entity("key-1", parent_id="org")
    key = entity_key(repository.namespace_id, "key-1")
    await repository.write_each([Update(key, set={"GSI1PK": None, "GSI1SK": None})])
    assert await repository.get_children("org") == []
    with pytest.raises(EntityError, match="it has children"):
        await repository.delete_entity("org")


async def test_lists_go_over_many_pages(store: Store) -> None:
    """Entities by their ids in pages, children all at once, more than one page of each."""
    repository = await store.repository()
    await repository.create_entity("org")
    names = [f"key-{n:03}" for n in range(130)]
    for name in names:
        await repository.create_entity(name, parent_id="org")
    assert [child.entity_id for child in await repository.get_children("org")] == names
    listed: list[str] = []
    cursor = None
    pages = 0
    while True:
        page, cursor = await repository.list_entities(50, cursor)
        listed += [entity.entity_id for entity in page]
        pages += 1
        if cursor is None:
            break
    assert (listed, pages) == ([*names, "org"], 3)


@pytest.mark.parametrize("limit", [0, -1, 1001, True, "5"])
async def test_page_sizes_are_checked(store: Store, limit: Any) -> None:
    """One to a thousand rows."""
    repository = await store.repository()
    with pytest.raises(ValidationError, match="limit"):
        await repository.list_entities(limit)


async def test_a_foreign_cursor_is_refused(store: Store) -> None:
    """Nonsense, and the cursor of another namespace or list, do not reach the store."""
    mine, theirs = await store.repository("mine"), await store.repository("theirs")
    for repository in (mine, theirs):
        for name in ("a", "b"):
            await repository.create_entity(name)
            await repository.set_limits(name, [RPM])
    _, cursor = await theirs.list_entities(1)
    assert cursor is not None
    for wrong in (cursor, "xyz", "00", 5):
        with pytest.raises(ValidationError, match="previous page"):
            await mine.list_entities(1, wrong)  # type: ignore[arg-type]


async def test_deleting_takes_everything_along(store: Store) -> None:
    """Limits, buckets and usage of more than one page go; others of the same resources stay."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    for entity_id in ("key-1", "key-11"):
        await repository.create_entity(entity_id)
        for n in range(120):
            await count_usage(repository, entity_id, "gpt-4", "hourly", n * 3_600_000, rpm=1)
        for n in range(12):
            await repository.set_limits(entity_id, [RPM], f"r{n}")
            await take(limiter, entity_id, f"r{n}", rpm=1)
    await repository.delete_entity("key-1", principal="admin")
    assert await repository.get_entity("key-1") is None
    assert await repository.get_buckets("key-1") == []
    assert await repository.get_usage_snapshots("key-1") == ([], None)
    assert await repository.get_limits("key-1", "r3") == []
    assert await repository.list_entities_with_custom_limits("r3") == (["key-11"], None)
    assert await repository.list_resources_with_entity_configs() == sorted(f"r{n}" for n in range(12))
    assert len(await repository.get_buckets("key-11")) == 12
    assert len((await repository.get_usage_snapshots("key-11", limit=1000))[0]) == 120
    newest = (await repository.get_audit_events("key-1", limit=1))[0]
    assert (newest.action, newest.principal) == (AuditAction.ENTITY_DELETED, "admin")
    assert await repository.delete_entity("key-1") is False


async def test_what_a_deleted_entity_leaves_expires(store: Store) -> None:
    """Only the stamps of its config stay, with a ttl, and its audit trail."""
    repository = await store.repository()
    await repository.create_entity("key-1")
    await repository.set_limits("key-1", [RPM], "gpt-4")
    await repository.delete_limits("key-1", "gpt-4")
    await repository.set_limits("key-1", [RPM])
    await repository.delete_entity("key-1")
    left = {
        key: item for key, item in (await everything(repository)).items() if "ENTITY#key-1" in key.partition
    }
    assert sorted(key.sort for key in left) == ["#CONFIG#_default_", "#CONFIG#gpt-4"]
    for item in left.values():
        assert set(item) == {"config_version", "ttl", "GSI4PK", "GSI4SK"}
    assert await repository.list_resources_with_entity_configs() == []
    await repository.set_limits("key-2", [RPM], "gpt-4")
    assert await repository.list_resources_with_entity_configs() == ["gpt-4"]


async def test_an_id_that_was_never_created_can_be_deleted(store: Store) -> None:
    """Limits and buckets of an entity without a record go the same way; of nobody there is nothing."""
    repository = await store.repository()
    await repository.set_limits("ghost", [RPM])
    await take(RateLimiter(repository), "ghost", "gpt-4", rpm=1)
    await repository.delete_entity("ghost")
    assert await repository.get_buckets("ghost") == []
    assert await repository.get_limits("ghost") == []
    assert await repository.delete_entity("ghost") is False


async def test_a_deleted_entity_can_be_made_again(store: Store) -> None:
    """It starts from nothing: no limits, a full bucket, version 1."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_resource_defaults("gpt-4", [RPM])
    await repository.create_entity("key-1")
    await repository.set_limits("key-1", [RPM])
    await take(limiter, "key-1", "gpt-4", rpm=70)
    await repository.delete_entity("key-1")
    again = await repository.create_entity("key-1")
    assert again.version == 1
    assert await limiter.available("key-1", "gpt-4") == {"rpm": 100}
    await repository.set_limits("key-1", [RPM], "gpt-4")
    assert await repository.list_entities_with_custom_limits("gpt-4") == (["key-1"], None)


async def test_a_new_parent_pays_from_the_next_acquire_on(store: Store) -> None:
    """Whoever changes a family binds itself and every other process at once."""
    admin, user = await store.repository(), await store.repository()
    limiter = RateLimiter(user)
    await admin.set_resource_defaults("gpt-4", [RPM])
    for parent in ("old", "new"):
        await admin.create_entity(parent)
    await admin.create_entity("key-1", parent_id="old", cascade=True)
    await take(limiter, "key-1", "gpt-4", rpm=1)
    await admin.update_entity("key-1", parent_id="new")
    await take(limiter, "key-1", "gpt-4", rpm=5)
    assert await RateLimiter(admin).available("old", "gpt-4") == {"rpm": 99}
    assert await RateLimiter(admin).available("new", "gpt-4") == {"rpm": 95}


async def test_an_entity_made_after_its_bucket_cascades(store: Store) -> None:
    """A bucket used before its entity was recorded learns who its parent is."""
    admin, user = await store.repository(), await store.repository()
    await admin.set_resource_defaults("gpt-4", [RPM])
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=1)
    await admin.create_entity("org")
    await admin.create_entity("key-1", parent_id="org", cascade=True)
    await take(RateLimiter(user), "key-1", "gpt-4", rpm=7)
    assert await RateLimiter(admin).available("org", "gpt-4") == {"rpm": 93}


async def test_a_parent_that_is_being_deleted_takes_no_child(store: Store) -> None:
    """Somebody died after marking it: for everybody else it is gone already."""
    dying: list[Crashing] = []

    def wrap(backend: Backend) -> Backend:
        dying.append(Crashing(backend))
        return dying[0]

    doomed, repository = await store.repository(wrap=wrap), await store.repository()
    for name in ("org", "key-1"):
        await repository.create_entity(name)
    dying[0].arm(3, late=True)  # the record, its children, the mark
    with pytest.raises(Crash):
        await doomed.delete_entity("org")
    with pytest.raises(EntityNotFoundError, match="'org' does not exist"):
        await repository.create_entity("key-2", parent_id="org")
    with pytest.raises(EntityNotFoundError, match="'org' does not exist"):
        await repository.update_entity("key-1", parent_id="org")
    with pytest.raises(EntityNotFoundError, match="'org' does not exist"):
        await repository.update_entity("org", name="x")
    assert [entity.entity_id for entity in (await repository.list_entities())[0]] == ["key-1"]
