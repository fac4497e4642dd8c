"""The lease of several demands: one end for all, and a part for each of them."""

# Blocks that fail under a lease are what is tested here, and they hold more than one statement.
# ruff: noqa: PT012

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from tests.flow.clients import RESOURCE, Store, rpm, tpm
from tests.flow.several import MODES, SEARCH, Failed, both, client_of, left
from zae_limiter import (
    Demand,
    JointLease,
    Lease,
    LeaseExpiredError,
    Limit,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ValidationError,
)
from zae_limiter.engine.holding import Holding
from zae_limiter.testing import Fault


async def test_an_amount_goes_to_the_demand_that_asked_for_its_limit(store: Store) -> None:
    """Whatever limits the others have; one that nobody asked for, to the one that has it."""
    client = await client_of(store)
    await client.repository.set_resource_defaults(SEARCH, [rpm(3), tpm(100), Limit.per_minute("pages", 9)])
    async with client.limiter.acquire(both()) as lease:
        await lease.adjust(tpm=200)
        await lease.release({"tpm": 50})
        await lease.adjust(pages=2)
        assert lease.part(SEARCH).consumed == {"rpm": 1, "pages": 2}
    assert await left(store) == {"rpm": 9, "tpm": 350}
    assert await left(store, SEARCH) == {"rpm": 2, "tpm": 100, "pages": 7}


async def test_an_amount_for_several_demands_is_a_mistake_that_names_the_way_out(store: Store) -> None:
    client = await client_of(store)
    async with client.limiter.acquire(both()) as lease:
        with pytest.raises(ValidationError, match=r"such as lease\.part\('api'\)"):
            await lease.adjust(tpm=5, rpm=1)
        with pytest.raises(ValidationError, match="'key' on 'api', 'key' on 'search' have such a limit"):
            await lease.consume(rpm=1)
        with pytest.raises(
            ValidationError, match="none has such a limit of 'key' on 'api', 'key' on 'search'"
        ):
            await lease.release(other=1)
        with pytest.raises(ValidationError, match="adjustment of 'tpm'"):
            await lease.adjust(tpm=True)
        assert lease.consumed == {"rpm": 2, "tpm": 500}
    async with client.limiter.acquire(
        [Demand(child, RESOURCE, {"rpm": 1}) for child in ("child-1", "key")]
    ) as lease:
        with pytest.raises(ValidationError, match=r"such as lease\.part\('api', 'child-1'\)"):
            await lease.adjust(rpm=1)


async def test_parts_are_found_by_resource_by_entity_or_by_both(store: Store) -> None:
    client = await client_of(store)
    asked = [*both(tokens=1), Demand("other", SEARCH, {"rpm": 3})]
    async with client.limiter.acquire(asked) as lease:
        assert lease.part(RESOURCE).consumed == {"rpm": 1, "tpm": 1}
        assert lease.part(entity_id="other").consumed == {"rpm": 3}
        assert lease.part(SEARCH, "key").consumed == {"rpm": 1}
        for wanted in ((SEARCH, None), (None, "key"), ("nothing", None), (None, None)):
            with pytest.raises(
                ValidationError, match="there are 'key' on 'api', 'key' on 'search', 'other' on"
            ):
                lease.part(*wanted)
        assert repr(lease.part(RESOURCE)) == "<Lease of 'key' on 'api', consumed={'rpm': 1, 'tpm': 1}>"
        assert repr(lease) == (
            "<Lease of 'key' on 'api', consumed={'rpm': 1, 'tpm': 1}; "
            "'key' on 'search', consumed={'rpm': 1}; 'other' on 'search', consumed={'rpm': 3}>"
        )


@MODES
async def test_more_is_consumed_for_all_or_none(store: Store, speculative_writes: bool) -> None:
    client = await client_of(store, speculative_writes=speculative_writes)
    await client.repository.set_resource_defaults(SEARCH, [Limit.per_minute("pages", 9)])
    asked = [Demand("key", RESOURCE, {"tpm": 500}), Demand("key", SEARCH, {"pages": 1})]
    async with client.limiter.acquire(asked) as lease:
        await lease.consume(tpm=100, pages=3)
        with pytest.raises(RateLimitExceeded) as caught:
            await lease.consume(tpm=100, pages=6)
        assert {s.limit_name for s in caught.value.statuses} == {"tpm", "pages"}
        await lease.part(SEARCH).consume(pages=5)
        assert lease.consumed == {"tpm": 600, "pages": 9}
    assert await left(store) == {"rpm": 10, "tpm": 400}
    assert await left(store, SEARCH) == {"pages": 0}


async def test_work_that_fails_gets_everything_back(store: Store) -> None:
    """From every bucket, what was consumed later and common parents included."""
    client = await client_of(store)
    asked = [Demand(child, RESOURCE, {"rpm": 2}) for child in ("child-1", "child-2")]
    with pytest.raises(Failed):
        async with client.limiter.acquire(asked) as lease:
            await lease.part(entity_id="child-1").consume(rpm=1, tpm=7)
            await lease.part(entity_id="child-2").adjust(rpm=2)
            raise Failed
    for entity_id in ("child-1", "child-2", "parent"):
        assert await left(store, entity_id=entity_id) == {"rpm": 10, "tpm": 1_000}
    with pytest.raises(LeaseExpiredError):
        await lease.adjust(tpm=1)
    with pytest.raises(LeaseExpiredError):
        await lease.parts[0].consume(rpm=1)
    assert client.limiter.refunds_lost == 0


async def test_a_part_gives_back_no_more_than_it_holds(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    client = await client_of(store)
    async with client.limiter.acquire(both()) as lease:
        await lease.part(SEARCH).release(rpm=2)
        assert lease.part(SEARCH).consumed == {"rpm": 0}
    assert "it holds no more" in caplog.text
    assert (await left(store), await left(store, SEARCH)) == ({"rpm": 9, "tpm": 500}, {"rpm": 3})


async def test_a_reader_who_leaves_stores_what_was_noted(store: Store) -> None:
    client = await client_of(store)

    async def stream() -> AsyncIterator[int]:
        async with client.limiter.acquire(both()) as lease:
            await lease.adjust(tpm=-100)
            yield 1

    reader = stream()
    async for _ in reader:
        break
    await reader.aclose()  # type: ignore[attr-defined]
    assert (await left(store), await left(store, SEARCH)) == ({"rpm": 9, "tpm": 600}, {"rpm": 2})


async def test_a_lease_that_is_dropped_is_settled(store: Store) -> None:
    """By whoever drops it: its parts do not keep it alive."""
    client = await client_of(store)
    lease = await client.limiter.acquire(both()).__aenter__()
    await lease.adjust(tpm=-100)
    del lease
    gc.collect()
    for _ in range(1_000):
        await asyncio.sleep(0)  # a store whose calls never suspend lets nobody else run
        if (await left(store)) == {"rpm": 9, "tpm": 600}:
            break
    assert (await left(store), await left(store, SEARCH)) == ({"rpm": 9, "tpm": 600}, {"rpm": 2})


async def test_a_lease_may_stay_open_and_its_parts_end_with_it(store: Store) -> None:
    client = await client_of(store)
    lease = await client.limiter.acquire(both())
    part = lease.part(RESOURCE)
    await part.settle(tpm=730)
    await lease.settle({"tpm": 720})
    for end in (part.commit, part.cancel, part.keep):
        with pytest.raises(LeaseExpiredError, match="is part of one for several demands, and ends with it"):
            await end()
    await lease.commit()
    assert (await left(store), await left(store, SEARCH)) == ({"rpm": 9, "tpm": 280}, {"rpm": 2})
    with pytest.raises(LeaseExpiredError):
        await part.adjust(tpm=1)
    assert repr(part).endswith("committed>")
    other = await client.limiter.acquire(both(tokens=1))
    await other.cancel()
    assert (await left(store), await left(store, SEARCH)) == ({"rpm": 9, "tpm": 280}, {"rpm": 2})


async def test_work_that_fails_may_keep_or_settle_what_each_part_has(store: Store) -> None:
    client = await client_of(store)
    for on_error, tokens in (("keep", 100), ("settle", 190)):
        with pytest.raises(Failed):
            async with client.limiter.acquire(both(1, 100, 1), on_error=on_error) as lease:
                await lease.release(tpm=10)
                raise Failed
        assert (await left(store))["tpm"] == 1_000 - tokens
    assert await left(store, SEARCH) == {"rpm": 1}


async def test_what_is_left_is_told_by_bucket_and_by_part(store: Store) -> None:
    """A common parent once, and whatever a part consumes later in place of what was seen before."""
    client = await client_of(store)
    asked = [Demand("child-1", RESOURCE, {"rpm": 1}), Demand("child-2", RESOURCE, {"rpm": 2})]
    async with client.limiter.acquire(asked):
        pass
    async with client.limiter.acquire(asked) as lease:
        assert {(s.entity_id, s.limit_name): s.remaining for s in lease.statuses} == {
            ("child-1", "rpm"): 8,
            ("child-1", "tpm"): 1_000,
            ("child-2", "rpm"): 6,
            ("child-2", "tpm"): 1_000,
            ("parent", "rpm"): 4,
            ("parent", "tpm"): 1_000,
        }
        assert (len(lease.statuses), lease.remaining) == (6, {"rpm": 4, "tpm": 1_000})
        await lease.part(entity_id="child-2").consume(rpm=3)
        assert [part.remaining["rpm"] for part in lease.parts] == [1, 1]
        first = lease.part(entity_id="child-1").statuses
        assert {s.entity_id: s.remaining for s in first if s.limit_name == "rpm"} == {
            "child-1": 8,
            "parent": 1,
        }


@pytest.mark.parametrize("turns", range(12))
async def test_who_is_cancelled_gets_everything_back(store: Store, turns: int) -> None:
    """Whenever that happens, on the way in, within or on the way out."""
    client = await client_of(store)

    async def work() -> None:
        async with client.limiter.acquire(both()) as lease:
            await lease.part(SEARCH).consume(rpm=1)
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    for _ in range(turns * 3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.limiter.refunds_lost == 0
    assert (await left(store), await left(store, SEARCH)) == ({"rpm": 10, "tpm": 1_000}, {"rpm": 3})


# A store that does not answer.


@pytest.mark.parametrize("fault", [Fault.UNREACHABLE, Fault.LOST_REPLY])
async def test_the_strictest_demand_decides_what_happens_while_the_store_is_down(
    store: Store, fault: Fault
) -> None:
    """Work that one of them blocks does not go ahead; what was given for a call is for all of them."""
    client = await client_of(store)
    await client.repository.set_resource_defaults(SEARCH, [rpm(3)], on_unavailable="allow")
    for _ in range(2):
        async with client.limiter.acquire(both(1, 1, 1)):
            pass
    with client.down(fault):
        with pytest.raises(RateLimiterUnavailable) as caught:
            async with client.limiter.acquire(both()):
                pass
        assert (caught.value.entity_id, caught.value.resource) == ("key", RESOURCE)
        async with client.limiter.acquire([both()[1]]) as allowed:
            assert (allowed.degraded, allowed.parts[0].degraded) == (True, True)
        async with client.limiter.acquire(both(), on_unavailable="allow") as lease:
            assert isinstance(lease, JointLease)
            assert (lease.degraded, lease.consumed) == (True, {"rpm": 2, "tpm": 500})
            await lease.adjust(tpm=5)
            await lease.consume(tpm=5, other=1)
            await lease.part(SEARCH).consume(rpm=2)
            assert [part.consumed for part in lease.parts] == [
                {"rpm": 1, "tpm": 510, "other": 1},
                {"rpm": 3},
            ]
            with pytest.raises(ValidationError):
                await lease.adjust(rpm=1)
        with pytest.raises(LeaseExpiredError):
            await lease.part(SEARCH).adjust(rpm=1)
    assert client.limiter.degraded == 2


async def test_more_is_let_through_while_the_store_is_down_and_stored_by_part(store: Store) -> None:
    client = await client_of(store)
    async with client.limiter.acquire(both(), on_unavailable="allow") as lease:
        with client.down():
            await lease.consume(tpm=5)
            await lease.part(SEARCH).consume(rpm=1)
        assert lease.consumed == {"rpm": 3, "tpm": 505}
    assert (await left(store), await left(store, SEARCH)) == ({"rpm": 9, "tpm": 495}, {"rpm": 1})
    assert client.limiter.degraded == 2


async def test_a_part_has_all_that_a_lease_has(store: Store) -> None:
    """Whatever a lease keeps is its own to a part, or shared with the whole."""
    client = await client_of(store)
    async with client.limiter.acquire(both()) as lease:
        for part in lease.parts:
            assert [name for name in Holding.__slots__ if not hasattr(part, name)] == []
            assert [name for name in dir(Lease) if not hasattr(part, name)] == []
            assert part.waited_ms == 0


async def test_several_demands_wait_for_their_turn_together(store: Store) -> None:
    """As long as the slowest needs; what is longer than allowed is refused, and takes nothing meanwhile."""
    client = await client_of(store)
    async with client.limiter.acquire(both(1, 500, 3)):
        pass
    with pytest.raises(RateLimitExceeded):
        async with client.limiter.acquire(both(1, 500, 1), wait=10):
            pass
    assert (await left(store), await left(store, SEARCH)) == ({"rpm": 9, "tpm": 500}, {"rpm": 0})
    async with client.limiter.acquire(both(1, 500, 1), wait=30) as lease:
        assert (lease.waited_ms, lease.part(SEARCH).waited_ms) == (20_000, 20_000)
        await lease.part(SEARCH).adjust(rpm=1)
    assert await left(store, SEARCH) == {"rpm": -1}
    assert client.limiter.refunds_lost == 0
