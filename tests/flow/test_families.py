"""Families of several generations: all are charged or none, as far up as each cascades."""

import contextlib
from collections.abc import Awaitable, Callable

import pytest

from tests.flow.clients import EMBEDDED, RESOURCE, Client, Store, rpm, tpm
from zae_limiter import DamagedRecordError, Demand, LimiterConfig, ValidationError
from zae_limiter.repository_protocol import Update
from zae_limiter.schema import entity_key

CHAIN = ("key", "user", "team", "org")
"""From who asks to the top."""


async def family(store: Store, *names: str, **options: bool) -> Client:
    """A process that knows a chain of entities that all cascade, with 100 rpm and 1,000 tpm each."""
    client = await store.client(**options)
    names = names or CHAIN
    await client.repository.set_resource_defaults(RESOURCE, [rpm(100), tpm(1000)])
    for at in reversed(range(len(names))):
        above = names[at + 1] if at + 1 < len(names) else None
        await client.repository.create_entity(names[at], parent_id=above, cascade=above is not None)
    return client


async def used(store: Store, *names: str, limit_name: str = "rpm") -> tuple[int, ...]:
    return tuple([await store.used(name, limit_name) for name in names or CHAIN])


@pytest.mark.parametrize("speculative_writes", [True, False], ids=["speculative", "transacted"])
async def test_all_generations_are_charged(store: Store, speculative_writes: bool) -> None:
    """The first time and later; whoever asks in the middle charges only those above."""
    client = await family(store, speculative_writes=speculative_writes)
    for times in (1, 2, 3):
        await client.take("key", {"rpm": 3, "tpm": 40})
        assert await used(store) == (3 * times,) * 4
        assert await used(store, limit_name="tpm") == (40 * times,) * 4
    await client.take("team", {"rpm": 1})
    assert await used(store) == (9, 9, 10, 10)


async def test_eight_generations_are_charged(store: Store) -> None:
    """As many as there can be, in one call when they are known."""
    names = tuple("abcdefgh")
    client = await family(store, *names)
    await client.take("a", {"rpm": 1})
    client.forget()
    await client.take("a", {"rpm": 1})
    assert client.calls == [(client.together, 8)]
    assert await used(store, *names) == (2,) * 8


@pytest.mark.parametrize("top", CHAIN)
async def test_who_refuses_leaves_the_others_untouched(store: Store, top: str) -> None:
    """Wherever it is in the chain; the refusal tells of all, and to whoever asked only of its own."""
    client = await family(store)
    await client.take("key", {"rpm": 1})
    await client.repository.set_limits(top, [rpm(4), tpm(1000)])
    refusal = await client.refused("key", {"rpm": 5, "tpm": 7})
    assert {s.entity_id for s in refusal.statuses} == set(CHAIN)
    assert [s.entity_id for s in refusal.violations] == [top]
    assert await used(store) == (1,) * 4
    assert await used(store, limit_name="tpm") == (0,) * 4
    told = str(refusal.public_dict())
    assert not any(name in told for name in CHAIN)


async def test_what_is_available_is_what_all_can_give(store: Store) -> None:
    """The least of the chain, the longest of its waits; a lease tells the same."""
    client = await family(store)
    await client.repository.set_limits("team", [rpm(30), tpm(1000)])
    await client.repository.set_limits("org", [rpm(60, 30), tpm(200)])
    assert await client.limiter.available("key", RESOURCE) == {"rpm": 30, "tpm": 200}
    await client.take("org", {"rpm": 40})
    assert await client.limiter.available("key", RESOURCE) == {"rpm": 20, "tpm": 200}
    assert await client.limiter.time_until_available("key", RESOURCE, {"rpm": 21}) == 2
    found = await client.limiter.check_availability("key", RESOURCE, {"rpm": 31})
    assert {s.entity_id for s in found.statuses if s.exceeded} == {"team", "org"}
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 5}) as lease:
        assert lease.remaining == {"rpm": 15, "tpm": 200}
        assert {(s.entity_id, s.remaining) for s in lease.statuses if s.limit_name == "rpm"} == {
            ("key", 95),
            ("user", 95),
            ("team", 25),
            ("org", 15),
        }


async def test_who_waits_for_the_top_takes_nothing_below(store: Store) -> None:
    """It begins when the top can give; until then the others have what they had."""
    client = await family(store)
    await client.take("org", {"rpm": 100})
    refusal = await client.refused("key", {"rpm": 5})
    assert refusal.retry_after_seconds == 3
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 5}, wait=10) as lease:
        assert lease.waited_ms == 3000
    assert await used(store) == (5, 5, 5, 105)
    with pytest.raises(type(refusal)):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 90}, wait=1):
            raise AssertionError("it cannot begin within a second")
    assert await used(store) == (5, 5, 5, 105)


async def test_adjustments_and_refunds_reach_all(store: Store) -> None:
    """What work really cost, and what failed work gives back."""
    client = await family(store)
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 5}) as lease:
        await lease.adjust(rpm=2)
    assert await used(store) == (7,) * 4
    with contextlib.suppress(ZeroDivisionError):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 5}) as lease:
            await lease.consume(rpm=1)
            raise ZeroDivisionError
    assert await used(store) == (7,) * 4


async def test_who_is_in_between_without_limits_is_passed_over(store: Store) -> None:
    """Nothing is stored for it, so it is not asked; those above are. What is brought along is the asker's."""
    client = await store.client()
    await client.repository.create_entity("org")
    await client.repository.create_entity("team", parent_id="org", cascade=True)
    await client.repository.create_entity("key", parent_id="team", cascade=True)
    await client.repository.set_limits("org", [rpm(9)])
    await client.take("key", {"rpm": 4}, rpm(50))
    assert (await store.left("key"), await store.left("org")) == (46, 5)
    assert await store.bucket("team") is None
    refusal = await client.refused("key", {"rpm": 6}, rpm(50))
    assert [s.entity_id for s in refusal.violations] == ["org"]
    client.forget()
    await client.take("key", {"rpm": 1}, rpm(50))
    assert client.calls == [(client.together, 2)]


Change = Callable[[Client], Awaitable[object]]

CHANGES: dict[str, tuple[Change, tuple[int, ...]]] = {
    "another grandparent": (
        lambda admin: admin.repository.update_entity("user", parent_id="other"),
        (0, 0, 1),
    ),
    "no grandparent": (lambda admin: admin.repository.update_entity("user", parent_id=None), (0, 0, 0)),
    "another parent above that": (
        lambda admin: admin.repository.update_entity("team", parent_id="other"),
        (1, 0, 1),
    ),
    "cascade off in the middle": (
        lambda admin: admin.repository.update_entity("user", cascade=False),
        (0, 0, 0),
    ),
    "cascade off above that": (
        lambda admin: admin.repository.update_entity("team", cascade=False),
        (1, 0, 0),
    ),
    "off for the entity on the resource": (
        lambda admin: admin.repository.set_entity_cascade("user", False, RESOURCE),
        (0, 0, 0),
    ),
    "off for the entity on all": (
        lambda admin: admin.repository.set_entity_cascade("team", False),
        (1, 0, 0),
    ),
}
"""What somebody changes, and what team, org and other are charged with from then on."""


@pytest.mark.parametrize("refused", [False, True], ids=["admitted", "would be refused"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_in_the_middle_binds_at_the_next_acquire(
    store: Store, change: str, refused: bool
) -> None:
    """Whoever made it, and whether or not somebody refuses who is above no more."""
    admin = await family(store)
    await admin.repository.create_entity("other")
    warm = await store.client()
    await warm.take("key", {"rpm": 1})
    if refused:
        await admin.take("org", {"rpm": 99})
    act, expected = CHANGES[change]
    await act(admin)
    before = await used(store, "team", "org", "other")
    await warm.take("key", {"rpm": 1})
    after = await used(store, "team", "org", "other")
    assert tuple(now - then for now, then in zip(after, before, strict=True)) == expected
    assert await used(store, "key", "user") == (2, 2), "what the wrong family was charged with is given back"
    warm.forget()
    await warm.take("key", {"rpm": 1})
    assert len(warm.calls) == 1, "and it is warm again"


async def test_a_middle_that_is_deleted_leaves_its_children_to_others(store: Store) -> None:
    """They are moved first, for nobody is deleted under a child; then it is charged no more."""
    admin = await family(store)
    warm = await store.client()
    await warm.take("key", {"rpm": 1})
    await admin.repository.update_entity("user", parent_id="org")
    await admin.repository.delete_entity("team")
    await warm.take("key", {"rpm": 2})
    assert await used(store, "key", "user", "org") == (3, 3, 3)


async def test_a_top_that_gets_a_parent_passes_on(store: Store) -> None:
    """A chain may grow at its upper end, too."""
    admin = await family(store)
    warm = await store.client()
    await warm.take("key", {"rpm": 1})
    await admin.repository.create_entity("holding")
    await admin.repository.update_entity("org", parent_id="holding", cascade=True)
    await warm.take("key", {"rpm": 2})
    assert await used(store, *CHAIN, "holding") == (3, 3, 3, 3, 2)


POLICIES = [
    ("entity", ("user", RESOURCE)),
    ("entity", ("user", None)),
    ("resource", (RESOURCE, None)),
    ("system", (None, None)),
]


@pytest.mark.parametrize("at", range(len(POLICIES)))
async def test_a_policy_is_taken_from_the_first_level_that_has_one(store: Store, at: int) -> None:
    """Entity and resource, entity, resource, system, and then the entity's own setting."""
    admin = await family(store)
    for level, (identifier, resource) in POLICIES[at + 1 :]:
        before = await admin.repository.get_config(level, identifier, resource) or LimiterConfig()
        config = LimiterConfig(before.limits, cascade=True)
        await admin.repository.set_config(level, config, identifier, resource)
    level, (identifier, resource) = POLICIES[at]
    before = await admin.repository.get_config(level, identifier, resource) or LimiterConfig()
    await admin.repository.set_config(
        level, LimiterConfig(before.limits, cascade=False), identifier, resource
    )
    client = await store.client()
    await client.take("user", {"rpm": 1})
    assert await used(store, "user", "team") == (1, 0)
    found = await client.repository.explain("user", RESOURCE)
    assert found.buckets[0].cascade_source == ("entity", "entity_default", "resource", "system")[at]
    assert found.buckets[0].cascade is found.cascade is False


@pytest.mark.parametrize("level", ["resource", "system"])
async def test_a_policy_for_all_binds_as_limits_do(store: Store, level: str) -> None:
    """At the next acquire where the store tells, else when it is read, or somebody has used the bucket."""
    admin = await family(store)
    warm, other = await store.client(), await store.client()
    for client in (warm, other):
        await client.take("key", {"rpm": 1})
    if level == "resource":
        await admin.repository.set_resource_cascade(RESOURCE, False)
    else:
        config = LimiterConfig((rpm(1),), cascade=False)
        await admin.repository.set_config("system", config)
    if store.name not in EMBEDDED:
        await warm.take("key", {"rpm": 1})
        assert await used(store) == (3, 3, 3, 3), "it is not told yet"
        store.clock.advance(61)
    before = await used(store)
    await warm.take("key", {"rpm": 1})
    await other.take("key", {"rpm": 1})
    assert [now - then for now, then in zip(await used(store), before, strict=True)] == [2, 0, 0, 0]
    await admin.repository.set_resource_cascade(RESOURCE, True)
    store.clock.advance(61)
    before = await used(store)
    await warm.take("key", {"rpm": 1})
    assert [now - then for now, then in zip(await used(store), before, strict=True)] == [1, 1, 1, 1]


async def test_a_policy_is_for_one_resource(store: Store) -> None:
    """Requests for embeddings do not count against the team; the bucket's copy says the same."""
    client = await family(store)
    await client.repository.set_resource_defaults("embeddings", [rpm(100)])
    await client.repository.set_resource_cascade("embeddings", False)
    async with client.limiter.acquire("key", "embeddings", {"rpm": 1}):
        pass
    await client.take("key", {"rpm": 1})
    assert [bucket.resource for bucket in await client.repository.get_buckets("user")] == [RESOURCE] * 2
    await client.repository.update_entity("key", name="mine")
    async with client.limiter.acquire("key", "embeddings", {"rpm": 1}):
        pass
    assert {bucket.resource for bucket in await client.repository.get_buckets("user")} == {RESOURCE}


async def test_a_policy_may_switch_cascading_on(store: Store) -> None:
    """For those who have a parent and do not cascade elsewhere."""
    client = await family(store, "user", "team")
    await client.repository.update_entity("user", cascade=False)
    await client.take("user", {"rpm": 1})
    await client.repository.set_entity_cascade("user", True, RESOURCE)
    await client.take("user", {"rpm": 1})
    await client.repository.set_entity_cascade("user", None, RESOURCE)
    await client.take("user", {"rpm": 1})
    assert await used(store, "user", "team") == (3, 1)


async def planted(store: Store, client: Client, entity_id: str, parent_id: str) -> None:
    """A record that no version of ours would have written."""
    key = entity_key(client.repository.namespace_id, entity_id)
    await store.open_backend().write_each([Update(key, set={"parent_id": parent_id, "cascade": True})])


async def test_a_circle_that_is_stored_is_charged_once(store: Store) -> None:
    """Nobody hangs, and nobody pays twice."""
    client = await family(store)
    await planted(store, client, "org", "user")
    cold = await store.client()
    for times in (1, 2):
        await cold.take("key", {"rpm": 3})
        assert await used(store) == (3 * times,) * 4
    await planted(store, client, "org", "org")
    colder = await store.client()
    await colder.take("key", {"rpm": 1})
    assert await used(store) == (7,) * 4


async def test_more_generations_than_there_can_be_are_an_error(store: Store) -> None:
    """Nobody is passed over in silence: what damage or an older version stored is told with its chain."""
    client = await family(store, *"abcdefgh")
    await client.repository.create_entity("i")
    await planted(store, client, "h", "i")
    cold = await store.client()
    chain = " → ".join(repr(name) for name in "abcdefghi")
    with pytest.raises(DamagedRecordError, match=f"more than 8 generations, {chain}"):
        await cold.take("a", {"rpm": 1})
    await cold.take("b", {"rpm": 1})
    assert await used(store, "a", "b", "i") == (0, 1, 1)


async def test_parts_that_meet_above_are_asked_for_the_sum(store: Store) -> None:
    """Two keys of one user, and one of another team of the same organisation."""
    client = await family(store)
    repository = client.repository
    await repository.create_entity("key-2", parent_id="user", cascade=True)
    await repository.create_entity("team-2", parent_id="org", cascade=True)
    asked = [Demand(name, RESOURCE, {"rpm": n}) for name, n in (("key", 1), ("key-2", 2), ("team-2", 4))]
    async with client.limiter.acquire(asked):
        pass
    assert await used(store, *CHAIN, "key-2", "team-2") == (1, 3, 3, 7, 2, 4)
    client.forget()
    async with client.limiter.acquire(asked):
        pass
    assert client.calls == [(client.together, 6)]


async def test_more_buckets_than_can_change_at_once_are_refused(store: Store) -> None:
    """Deep families allow fewer demands; the message says how many buckets it would be."""
    client = await store.client()
    await client.repository.set_resource_defaults(RESOURCE, [rpm(100)])
    for n in range(26):
        for at, name in enumerate(("d", "c", "b", "a")):
            above = None if at == 0 else f"{'dcba'[at - 1]}{n}"
            await client.repository.create_entity(f"{name}{n}", parent_id=above, cascade=above is not None)
    asked = [Demand(f"a{n}", RESOURCE, {"rpm": 1}) for n in range(26)]
    with pytest.raises(ValidationError, match="charged to 104 buckets, at most 100"):
        async with client.limiter.acquire(asked):
            raise AssertionError("it is too many")
    assert await used(store, "a0", "d25") == (0, 0)
    async with client.limiter.acquire(asked[:25]):
        pass
    assert await used(store, "a0", "d24") == (1, 1)


async def test_what_a_family_costs(store: Store) -> None:
    """Cold, one read for each generation that has to be learned; then one call, and one read a minute."""
    admin = await family(store)
    await admin.repository.create_entity("key-2", parent_id="user", cascade=True)
    cold = await store.client()
    await cold.take("key", {"rpm": 1})
    assert [verb for verb, _ in cold.calls] == ["batch_get"] * 4 + [cold.together]
    for _ in range(3):
        cold.forget()
        await cold.take("key", {"rpm": 1})
        assert cold.calls == [(cold.together, 4)]
    store.clock.advance(61)
    cold.forget()
    await cold.take("key", {"rpm": 1})
    assert [verb for verb, _ in cold.calls] == ["batch_get", cold.together]
    cold.forget()
    await cold.take("key-2", {"rpm": 1})
    assert [verb for verb, _ in cold.calls] == ["batch_get", cold.together], "the others are known"
