"""Soft limits: counted like any other, and nobody is refused or kept waiting by one, on every store."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.clients import EMBEDDED, RESOURCE, Client, Store, rpm, tpm
from tests.flow.several import SEARCH
from tests.flow.waiting_room import Room
from tests.patience import PATIENCE_SECONDS
from zae_limiter import (
    DamagedRecordError,
    Demand,
    Limit,
    LimiterConfig,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.bucket import build_limit_status
from zae_limiter.records.connection import Options
from zae_limiter.repository_protocol import Key, Update
from zae_limiter.schema import resource_config_key, system_config_key
from zae_limiter.testing import ManualClock

SOFT = rpm(10).softly()


async def using(store: Store, *limits: Limit, speculative: bool = True) -> Client:
    client = await store.client(speculative_writes=speculative)
    await client.repository.set_system_defaults(list(limits) or [SOFT])
    return client


async def over(client: Client, amounts: dict[str, int], *limits: Limit, by: str = "key") -> tuple[str, ...]:
    """Which limits an acquire went beyond that was admitted."""
    async with client.limiter.acquire(by, RESOURCE, amounts, list(limits) or None) as lease:
        return lease.exceeded


@pytest.mark.parametrize("speculative", [True, False])
async def test_a_soft_limit_is_counted_and_refuses_nobody(store: Store, speculative: bool) -> None:
    """Every acquire is admitted; from the first that a hard limit would have refused on, it says so."""
    client = await using(store, speculative=speculative)
    told = [await over(client, {"rpm": 4}) for _ in range(5)]
    assert told == [(), (), ("rpm",), ("rpm",), ("rpm",)]
    assert client.limiter.soft_exceeded == 3
    assert await store.used("key") == 20, "usage counts all of it"
    bucket = await store.bucket("key")
    assert bucket is not None
    assert bucket.tokens_milli == -10_000, "in debt by a capacity, and no more"


async def test_what_it_says_is_what_the_reply_told(store: Store) -> None:
    """Nothing is read for it, and what is not asked for was not exceeded."""
    client = await using(store, SOFT, tpm(100))
    await client.take("key", {"rpm": 12})
    async with client.limiter.acquire("key", RESOURCE, {"tpm": 1}) as lease:
        assert lease.exceeded == ()
        client.forget()
        assert [(one.limit_name, one.soft, one.remaining) for one in lease.statuses] == [
            ("rpm", True, -2),
            ("tpm", False, 99),
        ]
        assert lease.statuses[0].limit == SOFT
        assert client.calls == []
        await lease.consume(rpm=1)
        assert lease.exceeded == ("rpm",)
    assert client.limiter.soft_exceeded == 2


async def test_a_hard_limit_beside_it_refuses_and_nothing_is_taken(store: Store) -> None:
    """The refusal tells of both, and the wait is that of the hard one."""
    client = await using(store, SOFT, tpm(100))
    await client.take("key", {"rpm": 30, "tpm": 70})
    refusal = await client.refused("key", {"rpm": 30, "tpm": 50})
    found = {one.limit_name: (one.soft, one.exceeded, one.retry_after_seconds) for one in refusal.statuses}
    assert found == {"rpm": (True, False, 0), "tpm": (False, True, 12.0)}
    assert (await store.used("key"), await store.used("key", "tpm")) == (30, 70)
    assert client.limiter.soft_exceeded == 1


async def test_nobody_waits_for_a_soft_limit(store: Store) -> None:
    """Neither in line nor by what an acquire is told beforehand."""
    room = Room(store)
    client = await room.client()
    await client.repository.set_system_defaults([SOFT])
    for _ in range(3):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 8}, wait=30) as lease:
            assert lease.waited_ms == 0
    assert await client.limiter.time_until_available("key", RESOURCE, {"rpm": 99}) == 0
    found = await client.limiter.check_availability("key", RESOURCE, {"rpm": 99})
    assert found.retry_after_seconds == 0
    assert all(status.soft and not status.exceeded for status in found.statuses)


async def test_a_hard_limit_is_waited_for_with_a_soft_one_beside_it(store: Store) -> None:
    room = Room(store)
    client = await room.client()
    await client.repository.set_system_defaults([Limit("rpm", 10, 10, 10), tpm(5).softly()])
    await client.take("key", {"rpm": 10, "tpm": 50})
    waiter = asyncio.create_task(_waited(client))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while waiter not in room._asleep:  # noqa: ASYNC110 - a nap is no coroutine
            await asyncio.sleep(0)
    await room.until(2)
    assert await waiter == (2_000, ("tpm",))


async def _waited(client: Client) -> tuple[int, tuple[str, ...]]:
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 2, "tpm": 3}, wait=30) as lease:
        return lease.waited_ms, lease.exceeded


@pytest.mark.parametrize("speculative", [True, False])
async def test_a_parent_may_have_a_soft_limit(store: Store, speculative: bool) -> None:
    """It refuses none of its children, and each is told that its parent's was exceeded.

    A transaction of DynamoDB does not tell what it left, so nothing is told of that either.
    """
    told = speculative or store.name != "dynamodb"
    client = await using(store, rpm(100), speculative=speculative)
    await client.repository.create_entity("team")
    await client.repository.set_limits("team", [SOFT])
    for child in ("key", "key-2"):
        await client.repository.create_entity(child, parent_id="team", cascade=True)
    assert await over(client, {"rpm": 9}) == ()
    assert await over(client, {"rpm": 9}, by="key-2") == (("rpm",) if told else ())
    assert (await store.used("team"), await store.used("key-2"), client.limiter.soft_exceeded) == (
        18,
        9,
        told,
    )
    assert (await client.refused("key", {"rpm": 95})).statuses[0].entity_id == "key"
    assert await store.used("team") == 18


async def test_a_joint_lease_tells_for_which_demand(store: Store) -> None:
    client = await using(store)
    await client.repository.set_resource_defaults(SEARCH, [rpm(10), tpm(10).softly()])
    demands = [Demand("key", RESOURCE, {"rpm": 12}), Demand("key", SEARCH, {"rpm": 1, "tpm": 11})]
    async with client.limiter.acquire(demands) as lease:
        assert lease.exceeded == ("rpm", "tpm")
        assert [part.exceeded for part in lease.parts] == [("rpm",), ("tpm",)]
        assert {(one.resource, one.limit_name) for one in lease.statuses if one.soft} == {
            (RESOURCE, "rpm"),
            (SEARCH, "tpm"),
        }
    assert client.limiter.soft_exceeded == 1, "one acquire"
    with pytest.raises(RateLimitExceeded):
        async with client.limiter.acquire([demands[0], Demand("key", SEARCH, {"rpm": 11})]):
            pass
    assert (await store.used("key"), client.limiter.soft_exceeded) == (12, 1)


async def test_a_soft_limit_may_be_brought_along(store: Store) -> None:
    """Whoever brings the same one along as a hard one is refused, as long as the debt lasts."""
    client = await store.client()
    assert await over(client, {"rpm": 15}, SOFT) == ("rpm",)
    await client.refused("key", {"rpm": 1}, rpm(10))
    assert await over(client, {"rpm": 1}, SOFT) == ("rpm",)
    assert await store.used("key") == 16


async def test_a_limit_that_becomes_hard_refuses_until_all_is_paid(store: Store) -> None:
    """And the other way round it refuses nobody any more, from the next acquire on."""
    admin, user = await using(store), await store.client()
    for _ in range(50):
        await user.take("key", {"rpm": 10})
    await admin.repository.set_system_defaults([rpm(10)])
    if store.name not in EMBEDDED:
        store.clock.advance(Options().config_cache_ttl_seconds + 1)
    refusal = await user.refused("key", {"rpm": 10})
    assert 2_900 < refusal.retry_after_seconds <= 3_000
    store.clock.advance(refusal.retry_after_seconds)
    await user.take("key", {"rpm": 10})
    await admin.repository.set_limits("key", [SOFT], RESOURCE)
    assert await over(user, {"rpm": 10}) == ("rpm",)


async def test_seats_may_be_soft(store: Store) -> None:
    """More are at work than there are seats, all of them counted, and each seat comes back."""
    client = await using(store, Limit.concurrent("jobs", 1).softly())
    first = await client.limiter.acquire("key", RESOURCE, {"jobs": 1})
    second = await client.limiter.acquire("key", RESOURCE, {"jobs": 1})
    assert (first.exceeded, second.exceeded, second.remaining) == ((), ("jobs",), {"jobs": -1})
    await first.commit()
    await second.commit()
    assert await client.limiter.available("key", RESOURCE) == {"jobs": 1}


@pytest.mark.parametrize(
    "limit",
    [Limit.per_month("uses", 10), Limit.session("uses", 10, "5h"), Limit.per_second("uses", 10)],
    ids=["quota", "session", "rate"],
)
async def test_every_kind_of_limit_may_be_soft(store: Store, limit: Limit) -> None:
    client = await using(store, limit.softly())
    told = [await over(client, {"uses": 6}) for _ in range(5)]
    assert told == [(), ("uses",), ("uses",), ("uses",), ("uses",)]
    assert (await store.used("key", "uses"), await store.left("key", "uses")) == (30, -20)
    assert client.limiter.soft_exceeded == 4


async def test_it_is_stored_as_part_of_its_level(store: Store) -> None:
    """What is not soft is stored as ever; and a level that cannot be read is refused, not taken for soft."""
    client = await using(store, SOFT, tpm(5))
    repository, namespace_id = client.repository, client.repository.namespace_id
    assert await repository.get_config("system") == LimiterConfig((SOFT, tpm(5)), config_version=1)
    backend = store.open_backend()
    try:
        (item,) = await backend.batch_get([system_config_key(namespace_id)])
        assert item is not None
        assert {name: value for name, value in item.items() if name.endswith("_so")} == {"l_rpm_so": 1}
        await repository.set_system_defaults([rpm(10), tpm(5)])
        (item,) = await backend.batch_get([system_config_key(namespace_id)])
        assert item is not None
        assert not [name for name in item if name.endswith("_so")]
        await repository.set_resource_defaults(RESOURCE, [SOFT])
        await _spoil(backend, resource_config_key(namespace_id, RESOURCE))
    finally:
        await backend.close()
    with pytest.raises(DamagedRecordError, match="soft of 'rpm'"):
        await (await store.client()).take("key", {"rpm": 1})


async def _spoil(backend: Any, key: Key) -> None:
    (outcome,) = await backend.write_each([Update(key, set={"l_rpm_so": 2})])
    assert outcome.applied


async def test_explain_says_that_it_never_binds(store: Store) -> None:
    client = await using(store, SOFT, tpm(5))
    await client.take("key", {"rpm": 15})
    found = await client.repository.explain("key", RESOURCE)
    assert found.binding == {"tpm": "key"}
    assert [limit.soft for limit in found.buckets[0].levels[-1].limits] == [True, False]


def test_sync_says_the_same(sync_limiter: SyncRateLimiter) -> None:
    sync_limiter.set_system_defaults([SOFT])
    with sync_limiter.acquire("key", RESOURCE, {"rpm": 11}) as lease:
        assert (lease.exceeded, lease.statuses[0].soft) == (("rpm",), True)
    assert sync_limiter.soft_exceeded == 1


steps = st.lists(st.tuples(st.integers(0, 90_000), st.integers(1, 40), st.integers(0, 12)), max_size=20)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_a_soft_limit_is_in_debt_by_what_was_used_beyond_it(trace: list[tuple[int, int, int]]) -> None:
    """It is the balance law without a floor, a hard limit beside it decides alone, and usage is exact."""
    asyncio.run(_follow(trace))


async def _follow(trace: list[tuple[int, int, int]]) -> None:
    clock, capacity = ManualClock(), 10_000
    async with RateLimiter(await Repository.over(MemoryBackend(), world=clock.world)) as limiter:
        await limiter.set_system_defaults([SOFT, tpm(20)])
        held, hard, used, over = capacity, 20_000, 0, 0
        for pause_ms, need, beside in trace:
            clock.advance(pause_ms / 1000)
            held, hard = (
                min(most, left + clock.now_ms * most // 60_000 - (clock.now_ms - pause_ms) * most // 60_000)
                for left, most in ((held, capacity), (hard, 20_000))
            )
            amounts, refusal = {"rpm": need} | ({"tpm": beside} if beside else {}), None
            try:
                async with limiter.acquire("key", RESOURCE, amounts) as lease:
                    assert beside * 1000 <= hard
                    assert lease.exceeded == (("rpm",) if need * 1000 > held else ())
            except RateLimitExceeded as error:
                refusal = error
            if refusal is not None:
                assert beside * 1000 > hard
                assert [one.limit_name for one in refusal.statuses if one.exceeded] == ["tpm"]
                continue
            over += need * 1000 > held
            held, hard, used = held - need * 1000, hard - beside * 1000, used + need
            assert (await limiter.available("key", RESOURCE))["rpm"] == held // 1000
        state = await limiter.repository.get_bucket("key", RESOURCE, "rpm")
        assert (0 if state is None else state.total_consumed_milli) == used * 1000
        assert limiter.soft_exceeded == over


async def test_the_arithmetic_for_programs_knows_it(store: Store) -> None:
    client = await using(store)
    await client.take("key", {"rpm": 10})
    state = await store.bucket("key")
    assert state is not None
    status = build_limit_status("key", RESOURCE, SOFT, state, 5, store.clock.now_ms)
    assert (status.soft, status.exceeded, status.retry_after_seconds, status.deficit) == (True, False, 0, 5)
