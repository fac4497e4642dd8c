"""Two processes change the same records: something happens between one's look and its write."""

from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.records.store import RPM, TPM, Store
from zae_limiter import (
    EntityConflictError,
    EntityError,
    EntityNotFoundError,
    LimiterConfig,
    NamespaceStateError,
    OnUnavailable,
    RateLimiterUnavailable,
    Repository,
    ValidationError,
)
from zae_limiter.repository_protocol import Backend, Outcome, Update, Write
from zae_limiter.schema import nsid_key
from zae_limiter.testing.stores import Wrapper


class Meddled(Wrapper):
    """Lets somebody else act just before the next transactions are performed."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.acts: list[Callable[[], Awaitable[object]]] = []

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        if self.acts:
            await self.acts.pop(0)()
        return await super().transact_write(writes)


async def meddled(store: Store) -> tuple[Repository, Meddled, Repository]:
    """A process, the place where it can be disturbed, and somebody who disturbs it."""
    places: list[Meddled] = []

    def wrap(backend: Backend) -> Backend:
        places.append(Meddled(backend))
        return places[0]

    return await store.repository(wrap=wrap), places[0], await store.repository()


async def test_a_child_made_meanwhile_keeps_its_parent(store: Store) -> None:
    """The deletion notices, though no child was there when it looked."""
    mine, place, other = await meddled(store)
    await mine.create_entity("org")
    place.acts = [lambda: other.create_entity("key-1", parent_id="org")]
    with pytest.raises(EntityError, match="it has children"):
        await mine.delete_entity("org")
    assert [child.entity_id for child in await mine.get_children("org")] == ["key-1"]


async def test_a_parent_deleted_meanwhile_takes_no_child(store: Store) -> None:
    """Neither a new one nor one that moves."""
    mine, place, other = await meddled(store)
    for name in ("org", "org-2", "key-2"):
        await mine.create_entity(name)
    place.acts = [lambda: other.delete_entity("org")]
    with pytest.raises(EntityNotFoundError, match="'org' does not exist"):
        await mine.create_entity("key-1", parent_id="org")
    place.acts = [lambda: other.delete_entity("org-2")]
    with pytest.raises(EntityNotFoundError, match="'org-2' does not exist"):
        await mine.update_entity("key-2", parent_id="org-2")


async def test_a_circle_closed_from_both_sides_is_refused(store: Store) -> None:
    """Each move alone is fine; the second one notices the first."""
    mine, place, other = await meddled(store)
    for name in ("a", "b"):
        await mine.create_entity(name)
    place.acts = [lambda: other.update_entity("b", parent_id="a")]
    with pytest.raises(ValidationError, match="'a' would become its own ancestor"):
        await mine.update_entity("a", parent_id="b")


async def test_a_circle_closed_from_three_sides_is_refused(store: Store) -> None:
    """Also one that goes through somebody whom neither of the two names."""
    mine, place, other = await meddled(store)
    await mine.create_entity("b")
    await mine.create_entity("a")
    await mine.create_entity("c", parent_id="b")
    place.acts = [lambda: other.update_entity("b", parent_id="a")]
    with pytest.raises(ValidationError, match="'a' would become its own ancestor: 'a' → 'c' → 'b' → 'a'"):
        await mine.update_entity("a", parent_id="c")


async def test_updates_of_different_fields_both_count(store: Store) -> None:
    """The one that was overtaken looks again; with an expected version it is told."""
    mine, place, other = await meddled(store)
    await mine.create_entity("key-1")
    place.acts = [lambda: other.update_entity("key-1", name="theirs")]
    updated = await mine.update_entity("key-1", metadata={"mine": 1})
    assert (updated.name, updated.metadata, updated.version) == ("theirs", {"mine": 1}, 3)
    place.acts = [lambda: other.update_entity("key-1", name="again")]
    with pytest.raises(EntityConflictError, match="version 3 was expected, 4 is stored"):
        await mine.update_entity("key-1", name="mine", expected_version=3)


async def test_an_update_that_is_always_overtaken_gives_up(store: Store) -> None:
    """After some attempts, with an error that says so."""
    mine, place, other = await meddled(store)
    await mine.create_entity("key-1")
    place.acts = [lambda: other.update_entity("key-1", name="x") for _ in range(20)]
    with pytest.raises(EntityConflictError, match="16 attempts to update it were overtaken"):
        await mine.update_entity("key-1", name="mine")
    place.acts = [lambda: other.set_system_defaults([RPM]) for _ in range(20)]
    with pytest.raises(RateLimiterUnavailable, match="16 attempts to change the limits were overtaken"):
        await mine.set_system_defaults([TPM])


async def test_an_update_of_an_entity_deleted_meanwhile(store: Store) -> None:
    """It is not brought back to life."""
    mine, place, other = await meddled(store)
    await mine.create_entity("key-1")
    place.acts = [lambda: other.delete_entity("key-1")]
    with pytest.raises(EntityNotFoundError):
        await mine.update_entity("key-1", name="x")
    assert await mine.get_entity("key-1") is None


async def test_a_policy_set_meanwhile_is_kept(store: Store) -> None:
    """Setting limits leaves the policy alone, also one that it had not seen."""
    mine, place, other = await meddled(store)
    await mine.set_system_defaults([RPM])
    allow = LimiterConfig((RPM,), OnUnavailable.ALLOW, strict_version=True)
    place.acts = [lambda: other.set_config("system", allow)]
    await mine.set_system_defaults([TPM])
    assert await mine.get_config("system") == LimiterConfig(
        (TPM,), OnUnavailable.ALLOW, strict_version=True, config_version=3
    )


async def test_limits_set_by_two_are_counted_once(store: Store) -> None:
    """The list of entities and the list of resources agree with what is stored."""
    mine, place, other = await meddled(store)
    place.acts = [lambda: other.set_limits("key-1", [RPM], "gpt-4")]
    await mine.set_limits("key-1", [TPM], "gpt-4")
    place.acts = [lambda: other.delete_limits("key-1", "gpt-4")]
    await mine.delete_limits("key-1", "gpt-4")
    assert await mine.list_entities_with_custom_limits("gpt-4") == ([], None)
    assert await mine.list_resources_with_entity_configs() == []


async def test_a_name_registered_by_two_is_one_namespace(store: Store) -> None:
    """Both get the same id."""
    mine, place, other = await meddled(store)
    theirs = []

    async def register() -> None:
        theirs.append(await other.register_namespace("team"))

    place.acts = [register]
    assert [await mine.register_namespace("team")] == theirs
    assert len([one for one in await mine.list_namespaces() if one.namespace_name == "team"]) == 1


async def test_a_purge_that_began_meanwhile_is_not_undone(store: Store) -> None:
    """What is half gone does not come back as if it were whole."""
    mine, place, other = await meddled(store)
    made = await other.register_namespace("team")
    await other.delete_namespace("team")
    marked = Update(nsid_key(made.namespace_id), set={"status": "purging"})
    place.acts = [lambda: other._backend.write_each([marked])]
    with pytest.raises(NamespaceStateError, match="was changed meanwhile"):
        await mine.recover_namespace(made.namespace_id)
    assert await mine.get_namespace("team") is None
