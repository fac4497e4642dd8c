"""Cascading: an entity and its parent are charged together or not at all."""

# Blocks that fail under a lease are what is tested here, and they hold more than one statement.
# ruff: noqa: PT012

import contextlib
from collections.abc import Sequence

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm, tpm
from zae_limiter import OnUnavailable, RateLimiterUnavailable, ValidationError
from zae_limiter.repository_protocol import Backend, Outcome, Write
from zae_limiter.testing import Fault
from zae_limiter.testing.stores import Wrapper

HELD = {"rpm": 100, "tpm": 1000}


async def family(store: Store, *, cascade: bool = True, **options: bool) -> Client:
    """A process that knows ``child`` of ``parent``, with the same limits for all."""
    client = await store.client(**options)
    repository = client.repository
    await repository.set_resource_defaults(RESOURCE, [rpm(HELD["rpm"]), tpm(HELD["tpm"])])
    await repository.create_entity("parent")
    await repository.create_entity("child", parent_id="parent", cascade=cascade)
    return client


async def used(store: Store, *entity_ids: str, limit_name: str = "rpm") -> tuple[int, ...]:
    return tuple([await store.used(entity_id, limit_name) for entity_id in entity_ids])


@pytest.mark.parametrize("speculative_writes", [True, False], ids=["speculative", "transacted"])
async def test_both_are_charged(store: Store, speculative_writes: bool) -> None:
    """What a child takes its parent pays as well, limit by limit, the first time and later."""
    client = await family(store, speculative_writes=speculative_writes)
    for times in (1, 2, 3):
        await client.take("child", {"rpm": 3, "tpm": 40})
        assert await used(store, "child", "parent") == (3 * times, 3 * times)
        assert await used(store, "child", "parent", limit_name="tpm") == (40 * times, 40 * times)
    await client.take("parent", {"rpm": 1})
    assert await used(store, "child", "parent") == (9, 10)


async def test_lease_counts_the_amounts_once(store: Store) -> None:
    """To the caller a cascade costs what it asked for, not twice that."""
    client = await family(store)
    async with client.limiter.acquire("child", RESOURCE, {"rpm": 3}) as lease:
        await lease.consume(rpm=2)
        assert lease.consumed == {"rpm": 5}


@pytest.mark.parametrize("speculative_writes", [True, False], ids=["speculative", "transacted"])
async def test_parent_that_refuses_costs_the_child_nothing(store: Store, speculative_writes: bool) -> None:
    """The refusal shows both, each as it was found, and says which one refused and for how long."""
    client = await family(store, speculative_writes=speculative_writes)
    await client.take("child", {"rpm": 1})
    await client.take("parent", {"rpm": 99})
    refusal = await client.refused("child", {"rpm": 5, "tpm": 7})
    found = {(s.entity_id, s.limit_name): (s.available, s.exceeded) for s in refusal.statuses}
    assert found == {
        ("child", "rpm"): (99, False),
        ("child", "tpm"): (1000, False),
        ("parent", "rpm"): (0, True),
        ("parent", "tpm"): (1000, False),
    }
    assert refusal.primary_violation.entity_id == "parent"
    assert await used(store, "child", "parent") == (1, 100)
    assert await used(store, "child", "parent", limit_name="tpm") == (0, 0)
    store.clock.advance(refusal.retry_after_seconds)
    await client.take("child", {"rpm": 5, "tpm": 7})


async def test_child_that_refuses_costs_the_parent_nothing(store: Store) -> None:
    """The same the other way round."""
    client = await family(store)
    await client.repository.set_limits("child", [rpm(10), tpm(1000)])
    await client.take("child", {"rpm": 10})
    refusal = await client.refused("child", {"rpm": 1})
    assert [s.entity_id for s in refusal.violations] == ["child"]
    assert [s.entity_id for s in refusal.passed] == ["parent"]
    assert refusal.passed[0].available == 90
    assert await used(store, "child", "parent") == (10, 10)


async def test_both_refuse(store: Store) -> None:
    """With both empty the wait is the longer one: after it both admit, a millisecond earlier they do not."""
    client = await family(store)
    await client.repository.set_limits("parent", [rpm(60, 30)])
    await client.repository.set_limits("child", [rpm(60)])
    await client.take("child", {"rpm": 60})
    refusal = await client.refused("child", {"rpm": 1})
    waits: dict[str, float] = {s.entity_id: s.retry_after_seconds for s in refusal.statuses}
    assert waits == {"child": 1, "parent": 2}
    assert refusal.retry_after_seconds == 2
    store.clock.advance(1.999)
    assert [s.entity_id for s in (await client.refused("child", {"rpm": 1})).violations] == ["parent"]
    store.clock.advance(0.001)
    await client.take("child", {"rpm": 1})


async def test_parent_pays_only_for_the_limits_it_has(store: Store) -> None:
    """A parent without a limit is not asked for it, in an acquire, an adjustment or a refund."""
    client = await family(store)
    await client.repository.set_limits("parent", [rpm(50)])
    async with client.limiter.acquire("child", RESOURCE, {"rpm": 1, "tpm": 10}) as lease:
        await lease.consume(tpm=5)
        await lease.adjust(tpm=200, rpm=2)
    assert await used(store, "child", "parent") == (3, 3)
    assert await store.used("child", "tpm") == 215
    assert await store.bucket("parent", "tpm") is None
    client.forget()
    await client.take("child", {"tpm": 10})
    assert client.calls == [("write_each", 1)]


async def test_parent_without_limits_pays_nothing(store: Store) -> None:
    """A child with limits of its own may have a parent that has none at all."""
    client = await store.client()
    await client.repository.create_entity("parent")
    await client.repository.create_entity("child", parent_id="parent", cascade=True)
    await client.repository.set_limits("child", [rpm(10)])
    async with client.limiter.acquire("child", RESOURCE, {"rpm": 4}) as lease:
        await lease.adjust(rpm=1)
    assert await client.limiter.available("child", RESOURCE) == {"rpm": 5}
    assert await store.used("child") == 5
    assert await store.bucket("parent") is None


async def test_parent_with_limits_of_its_own(store: Store) -> None:
    """A parent is held to its own numbers: the smaller of both decides what is available."""
    client = await family(store)
    await client.repository.set_limits("parent", [rpm(5), tpm(5000)])
    assert await client.limiter.available("child", RESOURCE) == {"rpm": 5, "tpm": 1000}
    await client.take("child", {"rpm": 5})
    refusal = await client.refused("child", {"rpm": 1})
    (violation,) = refusal.violations
    assert (violation.entity_id, violation.limit, violation.available) == ("parent", rpm(5), 0)
    assert (await store.left("child"), await store.left("parent")) == (95, 0)


async def test_explicit_limits_are_the_childs_own(store: Store) -> None:
    """Limits that the caller brings along are no limits of the parent, which goes by its own."""
    client = await family(store)
    await client.take("child", {"rpm": 7}, rpm(10))
    assert (await store.left("child"), await store.left("parent")) == (3, 93)
    refusal = await client.refused("child", {"rpm": 4}, rpm(10))
    assert {s.entity_id for s in refusal.violations} == {"child"}


async def test_children_who_bring_limits_along_do_not_widen_their_parent(store: Store) -> None:
    """A parent of 5 that is empty stays empty, however much its children bring along."""
    client = await store.client()
    await client.repository.create_entity("parent")
    await client.repository.set_limits("parent", [rpm(5)])
    await client.take("parent", {"rpm": 5})
    before = await store.bucket("parent")
    for number in range(50):
        await client.repository.create_entity(f"child-{number}", parent_id="parent", cascade=True)
        refusal = await client.refused(f"child-{number}", {"rpm": 1}, rpm(100))
        assert [s.entity_id for s in refusal.violations] == ["parent"]
    assert await store.bucket("parent") == before


async def test_parent_for_whom_nothing_is_stored_is_not_asked(store: Store) -> None:
    """Limits brought along are then all there is."""
    client = await store.client()
    await client.repository.create_entity("parent")
    await client.repository.create_entity("child", parent_id="parent", cascade=True)
    await client.take("child", {"rpm": 7}, rpm(10))
    assert await store.left("child") == 3
    assert await store.bucket("parent") is None


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "explicit"])
async def test_budget_that_only_the_parent_holds(store: Store, stored: bool) -> None:
    """A limit is known if anybody of the family has it: it is taken, adjusted and told where it is."""
    client = await store.client()
    await client.repository.create_entity("parent")
    await client.repository.create_entity("child", parent_id="parent", cascade=True)
    await client.repository.set_limits("parent", [tpm(100)])
    if stored:
        await client.repository.set_limits("child", [rpm(10)])
    limits = None if stored else [rpm(10)]
    async with client.limiter.acquire("child", RESOURCE, {"rpm": 1, "tpm": 30}, limits) as lease:
        await lease.adjust(tpm=20)
        await lease.consume(tpm=10)
        assert lease.consumed == {"rpm": 1, "tpm": 60}
    assert (await store.used("child"), await store.used("parent", "tpm")) == (1, 60)
    assert await client.limiter.available("child", RESOURCE, limits) == {"rpm": 9, "tpm": 40}
    refusal = await client.refused("child", {"rpm": 1, "tpm": 41}, *(limits or ()))
    assert [(s.entity_id, s.limit_name) for s in refusal.violations] == [("parent", "tpm")]
    assert await store.used("child") == 1
    with pytest.raises(ValidationError, match="cost"):
        await client.take("child", {"cost": 1}, *(limits or ()))


async def test_child_without_limits_under_a_parent_that_has_some(store: Store) -> None:
    """The family's budget is all that is asked for."""
    client = await store.client()
    await client.repository.create_entity("parent")
    await client.repository.create_entity("child", parent_id="parent", cascade=True)
    await client.repository.set_limits("parent", [rpm(3)])
    await client.take("child", {"rpm": 3})
    await client.refused("child", {"rpm": 1})
    assert await store.bucket("child") is None


async def test_adjustments_and_refunds_reach_both(store: Store) -> None:
    """Whatever a lease settles or gives back, both get it."""
    client = await family(store)
    async with client.limiter.acquire("child", RESOURCE, {"rpm": 10}) as lease:
        await lease.adjust(rpm=120)
    assert (await store.left("child"), await store.left("parent")) == (-30, -30)
    store.clock.advance(60)
    async with client.limiter.acquire("child", RESOURCE, {"rpm": 10}) as lease:
        await lease.release(rpm=6)
    assert await used(store, "child", "parent") == (134, 134)
    with pytest.raises(KeyError):
        async with client.limiter.acquire("child", RESOURCE, {"rpm": 10}) as lease:
            await lease.consume(rpm=10)
            raise KeyError
    assert await used(store, "child", "parent") == (134, 134)
    assert (await store.left("child"), await store.left("parent")) == (66, 66)


async def test_refused_consume_takes_from_neither(store: Store) -> None:
    """A consume within a lease cascades like the acquire did."""
    client = await family(store)
    async with client.limiter.acquire("child", RESOURCE, {"rpm": 10}) as lease:
        await client.take("parent", {"rpm": 85})
        with pytest.raises(Exception, match="parent/api"):
            await lease.consume(rpm=6)
        assert await used(store, "child", "parent") == (10, 95)
        await lease.consume(rpm=5)
    assert await used(store, "child", "parent") == (15, 100)


async def test_without_cascade_the_parent_is_left_alone(store: Store) -> None:
    """Being somebody's child is not enough."""
    client = await family(store, cascade=False)
    await client.take("child", {"rpm": 3})
    assert await store.used("child") == 3
    assert await store.bucket("parent") is None


CHANGES = [
    pytest.param({"parent_id": "other"}, (1, 1), id="another parent"),
    pytest.param({"cascade": False}, (1, 0), id="no cascade"),
    pytest.param({"parent_id": None}, (1, 0), id="no parent"),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
async def test_change_of_family_reaches_another_process(
    store: Store, change: dict[str, object], expected: tuple[int, int]
) -> None:
    """A process that trusts its cache charges the new family with its very next acquire."""
    admin = await family(store)
    await admin.repository.create_entity("other")
    warm = await store.client()
    await warm.take("child", {"rpm": 1})
    await admin.repository.update_entity("child", **change)  # type: ignore[arg-type]
    await warm.take("child", {"rpm": 1})
    assert await used(store, "parent", "other") == expected
    assert await store.used("child") == 2, "what the wrong family was charged with is given back"
    await warm.take("child", {"rpm": 1})
    warm.forget()
    await warm.take("child", {"rpm": 1})
    assert [verb for verb, _ in warm.calls] in (["write_each"], [warm.together]), "and it is warm again"


async def test_change_of_family_reaches_a_process_that_is_refused(store: Store) -> None:
    """A parent that is exhausted does not hold its former child for a single acquire."""
    admin = await family(store)
    await admin.repository.create_entity("other")
    warm = await store.client()
    await warm.take("child", {"rpm": 1})
    await admin.take("parent", {"rpm": 99})
    await admin.repository.update_entity("child", parent_id="other")
    await warm.take("child", {"rpm": 1})
    assert await used(store, "child", "parent", "other") == (2, 100, 1)


async def test_cascade_that_is_switched_on_reaches_another_process(store: Store) -> None:
    """An entity that begins to cascade charges its parent from the next acquire of anybody."""
    admin = await family(store, cascade=False)
    warm = await store.client()
    await warm.take("child", {"rpm": 1})
    await admin.repository.update_entity("child", cascade=True)
    await admin.take("child", {"rpm": 1})
    await warm.take("child", {"rpm": 1})
    await warm.take("child", {"rpm": 1})
    assert await used(store, "child", "parent") == (4, 3)


class Dying(Wrapper):
    """The connection of a process that changes records and then is gone: no plain write gets out."""

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        return [Outcome(False, None, failure=Fault.UNREACHABLE.failure()) for _ in writes]


async def moved_by_the_dying(store: Store) -> None:
    """A child that used its bucket gets another parent from somebody who dies before the bucket is told."""
    admin = await family(store)
    await admin.repository.create_entity("other")
    await admin.take("child", {"rpm": 1})
    dying = await store.client(wrap=Dying)
    with contextlib.suppress(RateLimiterUnavailable):
        await dying.repository.update_entity("child", parent_id="other")


async def test_bucket_with_an_old_copy_of_the_family_is_put_right(store: Store) -> None:
    """If whoever changed the family died before it told the buckets, the next to see the bucket does."""
    await moved_by_the_dying(store)
    late = await store.client()
    await late.take("child", {"rpm": 1})
    await late.take("child", {"rpm": 1})
    late.forget()
    await late.take("child", {"rpm": 1})
    assert late.calls == [(late.together, 2)]
    assert await used(store, "child", "parent", "other") == (4, 1, 3)


class LoseOne(Wrapper):
    """Loses the reply, or the request, of the next write to one entity's bucket."""

    entity_id = ""
    fault: Fault | None = None

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        fault, self.fault = self.fault, None
        hit = [fault is not None and f"BUCKET#{self.entity_id}#" in write.key.partition for write in writes]
        if fault is not None and not any(hit):
            self.fault = fault
        passing = [w for w, gone in zip(writes, hit, strict=True) if not gone or fault is Fault.LOST_REPLY]
        outcomes = iter(await super().write_each(passing))
        answers = []
        for gone in hit:
            outcome = next(outcomes) if not gone or fault is Fault.LOST_REPLY else None
            failed = Outcome(False, None, failure=fault.failure()) if gone and fault else None
            answers.append(failed or outcome)
        return answers  # type: ignore[return-value]

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        fault, self.fault = self.fault, None
        if fault is None or fault is Fault.LOST_REPLY:
            outcomes = await super().transact_write(writes)
        if fault is not None:
            raise fault.failure()
        return outcomes


async def who_loses(store: Store) -> tuple[Client, LoseOne]:
    """One more process, and its way to the store."""
    ways: list[LoseOne] = []

    def wrap(backend: Backend) -> LoseOne:
        ways.append(LoseOne(backend))
        return ways[-1]

    return await store.client(wrap=wrap), ways[0]


async def test_a_repair_that_gets_lost_leaves_nobody_in_doubt(store: Store) -> None:
    """The copy of a family is put right before anything is taken, so nothing is taken for nobody."""
    await moved_by_the_dying(store)
    late, way = await who_loses(store)
    way.entity_id, way.fault = "child", Fault.LOST_REPLY
    with pytest.raises(RateLimiterUnavailable) as caught:
        await late.take("child", {"rpm": 1})
    assert (caught.value.ambiguous, late.limiter.refunds_lost) == (False, 0)
    await late.take("child", {"rpm": 1})
    assert await used(store, "child", "parent", "other") == (2, 1, 1)


@pytest.mark.parametrize("policy", list(OnUnavailable))
@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.value)
@pytest.mark.parametrize(("lost", "other"), [("child", "parent"), ("parent", "child")])
async def test_one_of_the_two_does_not_answer(
    store: Store, lost: str, other: str, fault: Fault, policy: OnUnavailable
) -> None:
    """The one that answered is refunded; the other keeps at most the tokens of the one lost write.

    Where all or none costs no more, it is one write.
    """
    client, way = await who_loses(store)
    await client.repository.set_resource_defaults(RESOURCE, [rpm(100)])
    await client.repository.create_entity("parent")
    await client.repository.create_entity("child", parent_id="parent", cascade=True)
    await client.take("child", {"rpm": 1})
    way.entity_id, way.fault = lost, fault
    if policy is OnUnavailable.BLOCK:
        with pytest.raises(RateLimiterUnavailable) as caught:
            async with client.limiter.acquire("child", RESOURCE, {"rpm": 5}):
                raise AssertionError("nobody may work")
        assert caught.value.ambiguous is (fault is not Fault.UNREACHABLE)
    else:
        async with client.limiter.acquire("child", RESOURCE, {"rpm": 5}, on_unavailable=policy) as lease:
            assert lease.degraded
    kept = 6 if fault is Fault.LOST_REPLY else 1
    assert await store.used(other) == (kept if client.together == "transact_write" else 1)
    assert await store.used(lost) == kept
    unsure = 2 if client.together == "transact_write" else 1
    assert client.limiter.refunds_lost == (0 if fault is Fault.UNREACHABLE else unsure)
