"""What somebody else changed binds whoever holds a lease, was refused, or would be by a former parent.

Each test runs for coroutines and for sync code. Time moves only when a test says so.
"""

import contextlib
import gc
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.flow.clients import EMBEDDED, RESOURCE, Store
from zae_limiter import (
    Limit,
    RateLimiter,
    RateLimitExceeded,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.testing import RecordingBackend

SLOW = 10**7
"""A period in seconds so long that nothing refills within a test."""


def slow(name: str, capacity: int) -> Limit:
    return Limit(name, capacity, 1, SLOW)


X5, X10, X50, Y9 = slow("x", 5), slow("x", 10), slow("x", 50), slow("y", 9)


@dataclass
class Person:
    """A process with a limiter of either colour."""

    limiter: RateLimiter | SyncRateLimiter
    recording: RecordingBackend

    async def do(self, name: str, *given: Any, **named: Any) -> Any:
        """Call something of the repository."""
        return await answer(getattr(self.limiter.repository, name)(*given, **named))

    @contextlib.asynccontextmanager
    async def hold(self, entity_id: str, amounts: dict[str, int], *limits: Limit) -> AsyncIterator[Any]:
        acquisition = self.limiter.acquire(entity_id, RESOURCE, amounts, list(limits) or None)
        if isinstance(self.limiter, SyncRateLimiter):
            with acquisition as lease:  # type: ignore[attr-defined]
                yield lease
        else:
            async with acquisition as lease:  # type: ignore[attr-defined]
                yield lease

    async def take(self, entity_id: str, **amounts: int) -> None:
        async with self.hold(entity_id, amounts):
            pass

    async def refused(self, entity_id: str, **amounts: int) -> RateLimitExceeded:
        with pytest.raises(RateLimitExceeded) as caught:
            await self.take(entity_id, **amounts)
        return caught.value

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.recording.calls]


async def answer(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


Open = Callable[[], Awaitable[Person]]


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def person(request: pytest.FixtureRequest, store: Store) -> Iterator[Open]:
    opened: list[SyncRepository] = []

    async def open_person() -> Person:
        if not request.param:
            client = await store.client()
            return Person(client.limiter, client.recording)
        recording = RecordingBackend(store.open_backend(sync=True))
        repository = SyncRepository.over(recording, world=store.clock.world)
        opened.append(repository)
        return Person(SyncRateLimiter(repository), recording)

    yield open_person
    for repository in opened:
        repository.close()


# What a lease takes later is one more acquire.


async def test_a_cut_binds_who_holds_a_lease(store: Store, person: Open) -> None:
    """Ten, four of them taken; cut to five: one is left, for this lease too."""
    admin, user = await person(), await person()
    await admin.do("set_limits", "key", [X10], RESOURCE)
    async with user.hold("key", {"x": 4}) as lease:
        await admin.do("set_limits", "key", [X5], RESOURCE)
        with pytest.raises(RateLimitExceeded) as caught:
            await answer(lease.consume(x=3))
        assert caught.value.primary_violation.limit == X5
        await answer(lease.consume(x=1))
        assert lease.consumed == {"x": 5}
    assert await store.used("key", "x") == 5


async def test_a_raise_is_there_for_who_holds_a_lease(store: Store, person: Open) -> None:
    admin, user = await person(), await person()
    await admin.do("set_limits", "key", [X10], RESOURCE)
    async with user.hold("key", {"x": 4}) as lease:
        await admin.do("set_limits", "key", [X50], RESOURCE)
        await answer(lease.consume(x=20))
        await answer(lease.release(x=3))
    assert (await store.used("key", "x"), await store.left("key", "x")) == (21, 29)


async def test_a_limit_that_is_gone_is_no_limit_of_a_lease(store: Store, person: Open) -> None:
    """Nothing more can be taken of it; what was taken of it can still be noted."""
    admin, user = await person(), await person()
    await admin.do("set_limits", "key", [X10, Y9], RESOURCE)
    async with user.hold("key", {"x": 4}) as lease:
        await admin.do("set_limits", "key", [Y9], RESOURCE)
        with pytest.raises(ValidationError, match="has no such limit"):
            await answer(lease.consume(x=3))
        await answer(lease.consume(y=2))
        await answer(lease.release(x=1))
        assert lease.consumed == {"x": 3, "y": 2}
    assert await store.used("key", "y") == 2


async def test_a_limit_that_is_new_is_one_of_a_lease(store: Store, person: Open) -> None:
    """It can be taken, and then adjusted and given back like the others."""
    admin, user = await person(), await person()
    for key, change, left in (("one", 2, 3), ("two", -1, 6), ("three", -3, 8)):
        await admin.do("set_limits", key, [X10], RESOURCE)
        async with user.hold(key, {"x": 1}) as lease:
            await admin.do("set_limits", key, [X10, Y9], RESOURCE)
            await answer(lease.consume(y=4))
            await answer(lease.adjust(y=change))
            assert lease.consumed == {"x": 1, "y": 4 + change}
        assert await store.left(key, "y") == left


async def test_limits_brought_along_stay_those_of_the_lease(store: Store, person: Open) -> None:
    admin, user = await person(), await person()
    async with user.hold("key", {"x": 4}, X10) as lease:
        await admin.do("set_limits", "key", [X5], RESOURCE)
        await answer(lease.consume(x=5))
        with pytest.raises(RateLimitExceeded):
            await answer(lease.consume(x=2))
    assert (await store.used("key", "x"), await store.left("key", "x")) == (9, 1)


async def family(admin: Person, parent: Limit = X10) -> None:
    """A child of a parent, and somebody else with room to spare."""
    await admin.do("set_system_defaults", [X50])
    for entity_id in ("parent", "other"):
        await admin.do("create_entity", entity_id)
    await admin.do("set_limits", "parent", [parent], RESOURCE)
    await admin.do("create_entity", "child", parent_id="parent", cascade=True)


async def used(store: Store) -> tuple[int, ...]:
    return tuple([await store.used(name, "x") for name in ("child", "parent", "other")])


async def test_a_lease_takes_more_from_the_present_family(store: Store, person: Open) -> None:
    """What it took before stays where it was taken; each gets back what it gave, the last first."""
    admin, user = await person(), await person()
    await family(admin)
    async with user.hold("child", {"x": 4}) as lease:
        await admin.do("update_entity", "child", parent_id="other")
        await answer(lease.consume(x=3))
        assert lease.consumed == {"x": 7}
        assert await used(store) == (7, 4, 3)
        await answer(lease.release(x=5))
    assert await used(store) == (2, 2, 0)


async def test_a_lease_that_fails_gives_back_to_both_families(store: Store, person: Open) -> None:
    admin, user = await person(), await person()
    await family(admin)

    async def work() -> None:
        async with user.hold("child", {"x": 4}) as lease:
            await admin.do("update_entity", "child", parent_id="other")
            await answer(lease.consume(x=3))
            await answer(lease.adjust(x=9))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    assert await used(store) == (0, 0, 0)


async def test_what_was_needed_besides_is_paid_by_the_first_family(store: Store, person: Open) -> None:
    admin, user = await person(), await person()
    await family(admin)
    async with user.hold("child", {"x": 4}) as lease:
        await admin.do("update_entity", "child", cascade=False)
        await answer(lease.consume(x=3))
        await answer(lease.adjust(x=2))
    assert await used(store) == (9, 6, 0)


async def test_a_lease_whose_former_parent_would_refuse_takes_more(store: Store, person: Open) -> None:
    admin, user = await person(), await person()
    await family(admin)
    async with user.hold("child", {"x": 4}) as lease:
        await admin.do("update_entity", "child", cascade=False)
        await answer(lease.consume(x=30))
    assert await used(store) == (34, 4, 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_an_entity_made_again_gets_back_what_it_gave(store: Store, person: Open, fails: bool) -> None:
    """What was taken before it was deleted is owed to nobody; what the lease took since is."""
    admin, user = await person(), await person()
    await admin.do("set_system_defaults", [X50])
    await admin.do("create_entity", "key")
    await user.take("key", x=1)
    with contextlib.suppress(ZeroDivisionError):
        async with user.hold("key", {"x": 4}) as lease:
            await admin.do("delete_entity", "key")
            await admin.do("create_entity", "key")
            await answer(lease.consume(x=3))
            assert await store.used("key", "x") == 3
            await answer(lease.release(x=5))
            assert not fails or 1 // 0
    assert (await store.used("key", "x"), await store.left("key", "x")) == (0, 50)


async def test_to_take_nothing_more_asks_nobody(store: Store, person: Open) -> None:
    user = await person()
    async with user.hold("key", {"x": 1}, X10) as lease:
        user.recording.forget()
        await answer(lease.consume())
        assert user.verbs == []
    assert await store.used("key", "x") == 1


@pytest.mark.parametrize("amounts", [{}, {"x": 1}])
async def test_only_what_was_taken_can_be_lost(store: Store, amounts: dict[str, int]) -> None:
    """A sync lease that is thrown away without being left counts if it holds anything."""
    repository = SyncRepository.over(store.open_backend(sync=True), world=store.clock.world)
    limiter = SyncRateLimiter(repository)
    limiter.acquire("key", RESOURCE, amounts, [X10]).__enter__()
    gc.collect()
    assert limiter.refunds_lost == len(amounts)
    repository.close()


# A former parent refuses nobody.

CHANGES: dict[str, Callable[[Person], Awaitable[None]]] = {
    "cascade off": lambda admin: admin.do("update_entity", "child", cascade=False),
    "no parent": lambda admin: admin.do("update_entity", "child", parent_id=None),
    "another parent": lambda admin: admin.do("update_entity", "child", parent_id="other"),
    "deleted": lambda admin: admin.do("delete_entity", "child"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_of_family_binds_while_the_former_parent_would_refuse(
    store: Store, person: Open, change: str
) -> None:
    """The parent is believed to refuse, so it is asked alone; what it says is for its children."""
    admin, user = await person(), await person()
    await family(admin, slow("x", 2))
    await user.take("child", x=1)
    await CHANGES[change](admin)
    await user.take("child", x=3)
    gave = {"another parent": 3}.get(change, 0)
    assert await used(store) == (3 if change == "deleted" else 4, 1, gave)
    user.recording.forget()
    await user.take("child", x=3)
    assert len(user.verbs) == 1, "and it is warm again"


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_of_family_binds_after_a_refusal_was_remembered(
    store: Store, person: Open, change: str
) -> None:
    """Where nobody is told of changes, a refusal answers for a second, and no longer."""
    admin, user = await person(), await person()
    await family(admin, slow("x", 2))
    await user.take("child", x=1)
    await user.refused("child", x=3)
    await CHANGES[change](admin)
    if store.name not in EMBEDDED:
        await user.refused("child", x=3)
        store.clock.advance(1.001)
    await user.take("child", x=3)


async def test_refusals_of_others_do_not_prolong_that(store: Store, person: Open) -> None:
    """A parent that goes on to refuse its other children says nothing about who has left."""
    admin, user = await person(), await person()
    await family(admin, slow("x", 2))
    await admin.do("create_entity", "sister", parent_id="parent", cascade=True)
    await user.take("child", x=1)
    await user.refused("sister", x=3)
    await user.refused("child", x=3)
    await admin.do("update_entity", "child", cascade=False)
    store.clock.advance(0.9)
    await user.refused("sister", x=3)
    store.clock.advance(0.2)
    await user.refused("sister", x=3)
    await user.take("child", x=3)


async def test_a_former_parent_that_alone_has_the_limit_refuses_nobody(store: Store, person: Open) -> None:
    """A child without limits of its own has no bucket that could tell."""
    admin, user = await person(), await person()
    for entity_id, capacity in (("parent", 2), ("other", 50)):
        await admin.do("create_entity", entity_id)
        await admin.do("set_limits", entity_id, [slow("x", capacity)], RESOURCE)
    await admin.do("create_entity", "child", parent_id="parent", cascade=True)
    await user.take("child", x=1)
    await admin.do("update_entity", "child", parent_id="other")
    await user.take("child", x=3)
    assert await used(store) == (0, 1, 3)


async def test_what_a_refusal_by_the_parent_costs(store: Store, person: Open) -> None:
    """One write, and one read where nobody is told of changes; within a second nothing."""
    admin, user = await person(), await person()
    await family(admin, slow("x", 2))
    await user.take("child", x=1)
    user.recording.forget()
    await user.refused("child", x=3)
    # Who is told of limits that were changed before it asked reads them once more.
    costs = {"dynamodb": ["write_each", "batch_get"], "postgres": ["batch_get", "transact_write"]}
    assert user.verbs == costs.get(store.name, ["transact_write"])
    user.recording.forget()
    await user.refused("child", x=3)
    assert user.verbs == []
    store.clock.advance(1.001)
    await user.refused("child", x=60)
    alone = store.name == "dynamodb"
    assert user.verbs == (["write_each"] if alone else ["transact_write"]), "for want of its own tokens"


# An entity that is deleted takes the memory of its refusals along.


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and made again"])
async def test_a_refusal_does_not_outlive_its_entity(store: Store, person: Open, again: bool) -> None:
    admin, user = await person(), await person()
    await admin.do("set_system_defaults", [X5])
    await admin.do("create_entity", "key")
    await user.take("key", x=5)
    await user.refused("key", x=1)
    await admin.do("delete_entity", "key")
    if again:
        await admin.do("create_entity", "key")
    if store.name not in EMBEDDED:
        store.clock.advance(1.001)
    await user.take("key", x=5)
