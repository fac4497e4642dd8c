"""Several demands in one acquire: all of them or none."""

# Blocks that fail under a lease are what is tested here, and they hold more than one statement.

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from tests.flow.clients import EMBEDDED, RESOURCE, Client, Store, rpm, tpm
from tests.flow.several import MODES, SEARCH, Failed, both, client_of, left, refused
from zae_limiter import (
    Demand,
    NoLimitsError,
    RateLimitExceeded,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)


@MODES
async def test_every_demand_is_charged_once(store: Store, speculative_writes: bool) -> None:
    """The first time, when buckets are made, and later."""
    client = await client_of(store, speculative_writes=speculative_writes)
    for times in (1, 2):
        async with client.limiter.acquire(both()) as lease:
            assert lease.consumed == {"rpm": 2, "tpm": 500}
            assert [part.consumed for part in lease.parts] == [{"rpm": 1, "tpm": 500}, {"rpm": 1}]
        assert await left(store) == {"rpm": 10 - times, "tpm": 1_000 - 500 * times}
        assert await left(store, SEARCH) == {"rpm": 3 - times}


@MODES
async def test_one_that_refuses_costs_the_others_nothing(store: Store, speculative_writes: bool) -> None:
    """The refusal tells of all demands, each as it was found."""
    client = await client_of(store, speculative_writes=speculative_writes)
    async with client.limiter.acquire(both(searches=2)):
        pass
    refusal = await refused(client, both(calls=2, tokens=100, searches=2))
    found = {(s.resource, s.limit_name): (s.available, s.requested, s.exceeded) for s in refusal.statuses}
    assert found == {
        (RESOURCE, "rpm"): (9, 2, False),
        (RESOURCE, "tpm"): (500, 100, False),
        (SEARCH, "rpm"): (1, 2, True),
    }
    assert (refusal.entity_id, refusal.retry_after_seconds) == ("key", 20.0)
    assert await left(store) == {"rpm": 9, "tpm": 500}
    assert await left(store, SEARCH) == {"rpm": 1}
    store.clock.advance(20)
    async with client.limiter.acquire(both(calls=2, tokens=100, searches=2)):
        pass
    assert await left(store, SEARCH) == {"rpm": 0}


async def test_a_refusal_of_a_moment_ago_is_told_again_without_asking(store: Store) -> None:
    client = await client_of(store)
    async with client.limiter.acquire(both(searches=3)):
        pass
    first = await refused(client, both(tokens=0))
    client.forget()
    again = await refused(client, both(tokens=0))
    assert (client.calls, again.retry_after_seconds) == ([], first.retry_after_seconds)


@MODES
async def test_demands_of_one_entity_on_one_resource_are_asked_for_as_their_sum(
    store: Store, speculative_writes: bool
) -> None:
    """Though each of them would fit; and together they are one part."""
    client = await client_of(store, speculative_writes=speculative_writes)
    refusal = await refused(client, [Demand("key", SEARCH, {"rpm": 2}), Demand("key", SEARCH, {"rpm": 2})])
    assert [(s.requested, s.available) for s in refusal.statuses] == [(4, 3)]
    assert refusal.retry_after_seconds == float("inf")
    async with client.limiter.acquire(
        [Demand("key", SEARCH, {"rpm": 2}), Demand("key", SEARCH, {"rpm": 1})]
    ) as lease:
        assert [part.consumed for part in lease.parts] == [{"rpm": 3}]
    assert await left(store, SEARCH) == {"rpm": 0}


@MODES
async def test_a_common_parent_is_asked_once_for_the_sum(store: Store, speculative_writes: bool) -> None:
    client = await client_of(store, speculative_writes=speculative_writes)
    siblings = [Demand(child, RESOURCE, {"rpm": 4}) for child in ("child-1", "child-2")]
    async with client.limiter.acquire(siblings):
        pass
    client.forget()
    refusal = await refused(client, [Demand(child, RESOURCE, {"rpm": 2}) for child in ("child-1", "child-2")])
    assert {s.entity_id: (s.requested, s.available, s.exceeded) for s in refusal.statuses} == {
        "child-1": (2, 6, False),
        "child-2": (2, 6, False),
        "parent": (4, 2, True),
    }
    assert refusal.retry_after_seconds == pytest.approx(12, abs=0.01)
    assert await left(store, entity_id="parent") == {"rpm": 2, "tpm": 1_000}
    assert (await store.used("child-1"), await store.used("child-2"), await store.used("parent")) == (4, 4, 8)


async def test_a_common_parent_is_one_write(store: Store) -> None:
    client = await client_of(store)
    siblings = [Demand(child, RESOURCE, {"rpm": 1}) for child in ("child-1", "child-2")]
    async with client.limiter.acquire(siblings):
        pass
    client.forget()
    async with client.limiter.acquire(siblings) as lease:
        assert client.calls == [(client.together, 3)]
        for part in lease.parts:
            await part.adjust(rpm=1)
    assert client.calls[1:] == [("write_each", 3)]
    assert await store.used("parent") == 6


async def test_somebody_may_be_asked_as_itself_and_as_a_parent(store: Store) -> None:
    """By the limits that it brings along, if it does."""
    client = await client_of(store)
    asked = [
        Demand("child-1", RESOURCE, {"rpm": 2, "tpm": 5}),
        Demand("parent", RESOURCE, {"rpm": 3}, [rpm(20)]),
    ]
    async with client.limiter.acquire(asked) as lease:
        assert lease.part(entity_id="parent").consumed == {"rpm": 3}
    state = await store.bucket("parent")
    assert state is not None
    assert (state.capacity, state.total_consumed_milli) == (20, 5_000)
    refusal = await refused(client, [asked[0], Demand("parent", RESOURCE, {"rpm": 14}, [rpm(20)])])
    assert [(s.entity_id, s.requested) for s in refusal.violations] == [("parent", 16)]


async def test_fifty_demands_of_children_are_one_acquire(store: Store) -> None:
    """Each of another resource, with a parent: as many buckets as a store can change at once."""
    client = await client_of(store, speculative_writes=False)
    await client.repository.set_system_defaults([rpm(10)])
    asked = [Demand("child-1", f"resource-{n}", {"rpm": 1}) for n in range(50)]
    async with client.limiter.acquire(asked) as lease:
        assert lease.consumed == {"rpm": 50}
    await refused(client, [*asked[:-1], Demand("child-1", "resource-49", {"rpm": 10})])
    assert await left(store, "resource-0", "parent") == {"rpm": 9}


async def test_rivals_for_the_same_buckets_get_no_more_than_there_is(store: Store) -> None:
    """In any order, from several processes: what both buckets gave is what was admitted, and never half."""
    clients = [await client_of(store), await store.client(), await store.client(speculative_writes=False)]
    for client in clients:
        async with client.limiter.acquire(both(0, 0, 0)):
            pass
    admitted = 0

    async def work(client: Client, demands: Sequence[Demand]) -> None:
        nonlocal admitted
        with contextlib.suppress(RateLimitExceeded):
            async with client.limiter.acquire(demands):
                admitted += 1

    demands = both(1, 0, 1)
    await asyncio.gather(*(work(client, demands[::way]) for client in clients for way in (1, -1, 1)))
    assert 1 <= admitted <= 3
    assert await left(store) == {"rpm": 10 - admitted, "tpm": 1_000}
    assert await left(store, SEARCH) == {"rpm": 3 - admitted}


async def test_a_child_that_was_given_another_parent_is_charged_to_that(store: Store) -> None:
    client = await client_of(store)
    asked = [Demand("child-1", RESOURCE, {"rpm": 1}), Demand("child-2", RESOURCE, {"rpm": 1})]
    async with client.limiter.acquire(asked):
        pass
    other = await store.client()
    await other.repository.create_entity("stepparent")
    await other.repository.update_entity("child-2", parent_id="stepparent")
    async with client.limiter.acquire(asked) as lease:
        await lease.part(entity_id="child-2").adjust(rpm=1)
    assert (await store.used("parent"), await store.used("stepparent")) == (3, 2)
    assert (await store.used("child-1"), await store.used("child-2")) == (2, 3)


async def test_a_refusal_by_a_parent_that_is_none_any_more_is_looked_into(store: Store) -> None:
    """The record of the child that it blames is read, where a store does not tell of changes."""
    client = await client_of(store)
    asked = [Demand("child-1", RESOURCE, {"rpm": 1}), Demand("key", SEARCH, {"rpm": 1})]
    async with client.limiter.acquire(asked):
        pass
    await client.take("parent", {"rpm": 9})
    other = await store.client()
    await other.repository.update_entity("child-1", cascade=False)
    async with client.limiter.acquire(asked):
        pass
    assert (await store.used("parent"), await store.used("child-1")) == (10, 2)


async def test_a_deleted_entity_starts_anew_beside_one_that_is_not(store: Store) -> None:
    client = await client_of(store)
    async with client.limiter.acquire(both()) as lease:
        await lease.part(SEARCH).adjust(rpm=1)
        await (await store.client()).repository.delete_entity("key")
    assert client.limiter.refunds_lost == 0
    async with client.limiter.acquire(both(tokens=600)):
        pass
    assert await left(store) == {"rpm": 9, "tpm": 400}


async def test_a_limit_that_has_disappeared_is_missed_although_another_demand_has_its_name(
    store: Store,
) -> None:
    client = await client_of(store)
    async with client.limiter.acquire(both()):
        pass
    other = await store.client()
    await other.repository.set_resource_defaults(RESOURCE, [tpm(1_000)])
    if store.name not in EMBEDDED:  # it is only told by a bucket that somebody else has changed since
        async with other.limiter.acquire("key", RESOURCE, {"tpm": 1}):
            pass
    with pytest.raises(ValidationError, match="'key' has no such limit on 'api'; it has tpm"):
        async with client.limiter.acquire(both(tokens=1)):
            pass
    assert await left(store, SEARCH) == {"rpm": 2}


# What may be asked for.


async def test_demands_that_cannot_be_are_told_at_once(store: Store) -> None:
    client = await client_of(store)
    limiter, one = client.limiter, Demand("key", RESOURCE, {"rpm": 1})
    with pytest.raises(ValidationError, match="pass at least one Demand"):
        limiter.acquire([])
    with pytest.raises(ValidationError, match=r"51.*at most 50"):
        limiter.acquire([one] * 51)
    with pytest.raises(ValidationError, match="pass a list of Demand"):
        limiter.acquire([one, "key"])  # type: ignore[list-item]
    with pytest.raises(ValidationError, match="pass a list of Demand"):
        limiter.acquire(one)  # type: ignore[call-overload]
    with pytest.raises(ValidationError, match="give all of them the same"):
        limiter.acquire([one, Demand("key", RESOURCE, {"rpm": 1}, [rpm(1)])])
    with pytest.raises(ValidationError, match="each Demand says its own"):
        limiter.acquire([one], RESOURCE, {"rpm": 1})  # type: ignore[call-overload]
    with pytest.raises(ValidationError, match="pass amounts by limit"):
        limiter.acquire("key", RESOURCE)  # type: ignore[call-overload]
    with pytest.raises(NoLimitsError):
        async with limiter.acquire([one, Demand("key", "unheard-of", {"rpm": 1})]):
            pass
    assert await left(store) == {"rpm": 10, "tpm": 1_000}


async def test_an_acquire_that_is_not_entered_warns_of_all_it_did_not_take(store: Store) -> None:
    client = await client_of(store)
    asked = "{'rpm': 1, 'tpm': 500} by 'key' on 'api', {'rpm': 1} by 'key' on 'search'"
    with pytest.warns(RuntimeWarning, match=f"<Acquisition of {asked}, not entered> took nothing"):
        client.limiter.acquire(both())


async def test_a_demand_of_nothing_has_a_part_and_costs_nothing(store: Store) -> None:
    client = await client_of(store)
    async with client.limiter.acquire(both(0, 0, 2)) as lease:
        assert (lease.consumed, lease.part(RESOURCE).consumed) == ({"rpm": 2}, {})
        await lease.adjust(tpm=5)
    assert (await left(store), await left(store, SEARCH)) == ({"rpm": 10, "tpm": 995}, {"rpm": 1})


def test_sync_code_has_the_same(store: Store) -> None:
    repository = SyncRepository.over(store.open_backend(sync=True), world=store.clock.world)
    limiter = SyncRateLimiter(repository)
    repository.set_resource_defaults(RESOURCE, [rpm(10), tpm(1_000)])
    repository.set_resource_defaults(SEARCH, [rpm(3)])
    with limiter.acquire(both()) as lease:
        lease.adjust(tpm=-100)
        lease.part(SEARCH).consume(rpm=1)
        assert [part.consumed for part in lease.parts] == [{"rpm": 1, "tpm": 400}, {"rpm": 2}]
        assert repr(lease).startswith(
            "<SyncLease of 'key' on 'api', consumed={'rpm': 1, 'tpm': 400}; 'key' on"
        )
    opened = limiter.acquire(both(tokens=1)).open()
    opened.part(RESOURCE).settle(tpm=3)
    opened.cancel()
    with pytest.raises(Failed), limiter.acquire(both(tokens=1)):
        raise Failed
    with pytest.raises(RateLimitExceeded), limiter.acquire(both(searches=2)):
        pass
    assert limiter.available("key", RESOURCE) == {"rpm": 9, "tpm": 600}
    assert limiter.available("key", SEARCH) == {"rpm": 1}
    repository.close()
