"""Waiting for a boundary that is far: whoever takes of other limits too sleeps, and closes them to nobody."""

import math
from typing import Any

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm
from tests.flow.waiting_room import Room, Waiter, stored
from zae_limiter import Limit, RateLimitExceeded, ResourceDisabled, SyncRateLimiter
from zae_limiter.engine.booking import AGED_MS_MAX, NEAR_MS

DAY = 86_400
MONTHLY = Limit.per_month("runs", 2, tz="UTC")
SESSION = Limit.session("runs", 2, 5 * 3_600)
BOTH = {"runs": 1, "rpm": 1}
AWAKE = (AGED_MS_MAX + NEAR_MS) // 1000
"""Nobody is awake more seconds than that before a boundary."""


async def exhausted(room: Room, *limits: Limit, days: float = 12) -> tuple[Client, float]:
    """A customer whose quota is used up, and in how many seconds its period ends."""
    room.store.clock.now_ms = room.began_ms = 1_798_761_600_000 - int(days * DAY * 1000)  # 2027 begins in UTC
    client = await room.client()
    await client.repository.set_resource_defaults(RESOURCE, limits or [MONTHLY, rpm(60)])
    await client.take("key", {"runs": 2})
    return client, days * DAY


async def waits(room: Room, client: Client, consume: dict[str, int] = BOTH, **more: Any) -> Waiter:
    return await room.join(client, consume=consume, limits=None, **more)


async def follow(room: Room, boundary: float) -> None:
    """Let the last minute before a boundary pass, in steps in which nobody who wakes goes unnoticed."""
    for at in range(AGED_MS_MAX // 1000 + 1):
        await room.settled(boundary - AWAKE + at)
    for at_ms in (-1, 0, 1_000):
        await room.settled(boundary + at_ms / 1000)


async def test_who_waits_for_a_month_closes_nothing_for_the_others(store: Store) -> None:
    """It leaves nothing in the store until shortly before, and begins at the very boundary."""
    room = Room(store)
    client, boundary = await exhausted(room)
    before = await stored(store)
    waiter = await waits(room, client)
    assert await stored(store) == before
    assert await client.limiter.available("key", RESOURCE) == {"runs": 0, "rpm": 60}
    await room.settled(6 * DAY)
    await client.take("key", {"rpm": 60})
    await follow(room, boundary)
    assert (waiter.began_seconds, waiter.waited_ms) == (boundary, boundary * 1000)
    assert (await client.limiter.available("key", RESOURCE))["runs"] == 1


async def test_a_process_that_dies_while_it_waits_harms_nobody(store: Store) -> None:
    """Whoever asks next finds all that there is; nobody has to clean up."""
    room = Room(store)
    client, boundary = await exhausted(room)
    before = await stored(store)
    await (await waits(room, client)).cancel()
    assert await stored(store) == before
    await room.settled(boundary)
    await client.take("key", {"runs": 2, "rpm": 60})


async def test_those_who_sleep_book_about_in_the_order_of_asking(store: Store) -> None:
    """Who has waited for longer wakes earlier; who does not fit into the period waits for the next one."""
    room = Room(store)
    client, boundary = await exhausted(room)
    other = await room.client()
    waiters = []
    for at, who in enumerate((client, other, client, other)):
        await room.settled(2 * DAY * at)
        waiters.append(await waits(room, who))
    await follow(room, boundary)
    assert [waiter.began_seconds for waiter in waiters] == [boundary, boundary, None, None]
    assert (await client.limiter.available("key", RESOURCE))["runs"] == 0
    await follow(room, boundary + 31 * DAY)
    assert [waiter.began_seconds for waiter in waiters[2:]] == [boundary + 31 * DAY] * 2


async def test_who_comes_when_the_rate_is_short_is_not_before_those_who_sleep(store: Store) -> None:
    """What it needs of the rate comes before the boundary: it is booked when that is near, as all are."""
    room = Room(store)
    client, boundary = await exhausted(room, MONTHLY, Limit("rpm", 2, 1, 60))
    early = await waits(room, client, {"runs": 2, "rpm": 1})
    await room.settled(boundary - 118)  # who has slept for twelve days wakes three seconds later
    await client.take("key", {"rpm": 1})
    late = await waits(room, client, {"runs": 1, "rpm": 2})
    assert await client.limiter.available("key", RESOURCE) == {"runs": 0, "rpm": 1}
    for at in range(-117, 1):
        await room.settled(boundary + at)
    assert (early.began_seconds, late.began_seconds) == (boundary, None)


async def test_what_is_there_of_a_slow_rate_is_closed_to_nobody(store: Store) -> None:
    """Though it is not enough for who waits until just before the boundary."""
    room = Room(store)
    hour = 3_600
    client, boundary = await exhausted(room, MONTHLY, Limit("rpm", 2, 1, hour), days=(hour + 30) / DAY)
    await client.take("key", {"rpm": 1})
    before = await stored(store)
    waiter = await waits(room, client, {"runs": 1, "rpm": 2})
    assert await stored(store) == before
    await follow(room, round(boundary))
    assert waiter.began_seconds == round(boundary)


async def test_who_sleeps_goes_before_those_who_come_at_the_boundary(store: Store) -> None:
    """It has booked by then."""
    room = Room(store)
    client, boundary = await exhausted(room)
    waiter = await waits(room, client, {"runs": 2, "rpm": 1})
    await room.settled(boundary - NEAR_MS / 1000)
    await room.settled(boundary - 1)
    assert (await client.limiter.available("key", RESOURCE))["runs"] == -2
    await client.take("key", {"rpm": 50})  # the next minute's is not needed for it
    await room.settled(boundary)
    await client.refused("key", {"runs": 1})
    assert waiter.began_seconds == boundary


async def test_a_wait_that_ends_before_the_boundary_is_refused_at_once(store: Store) -> None:
    """With the exact time, and nothing is left of it."""
    room = Room(store)
    client, boundary = await exhausted(room)
    before = await stored(store)
    with pytest.raises(RateLimitExceeded) as caught:
        async with client.limiter.acquire("key", RESOURCE, BOTH, wait=boundary - 0.001):
            pass
    assert caught.value.retry_after_seconds == boundary
    assert await stored(store) == before


async def test_a_wait_whose_place_others_got_is_refused_when_it_is_known(store: Store) -> None:
    """Shortly before the boundary, with the time until the next one."""
    room = Room(store)
    client, boundary = await exhausted(room)
    first = await waits(room, client, {"runs": 2, "rpm": 1})
    await room.settled(DAY)
    second = await waits(room, client, wait=boundary)
    await follow(room, boundary)
    assert first.began_seconds == boundary
    refusal = second.task.exception()
    assert isinstance(refusal, RateLimitExceeded)
    assert refusal.retry_after_seconds == pytest.approx(31 * DAY, abs=AWAKE)


@pytest.mark.parametrize(
    ("consume", "days"), [({"runs": 1}, 12), (BOTH, NEAR_MS / 86_400_000)], ids=["alone", "near"]
)
async def test_who_keeps_nobody_from_anything_is_booked_at_once(
    store: Store, consume: dict[str, int], days: float
) -> None:
    """Where only the quota is asked for, or its boundary is near: in the order of asking."""
    room = Room(store)
    client, boundary = await exhausted(room, days=days)
    waiters = [await waits(room, client, consume) for _ in range(2)]
    assert (await client.limiter.available("key", RESOURCE))["runs"] == -2
    await room.settled(boundary)
    assert [waiter.began_seconds for waiter in waiters] == [boundary] * 2


async def test_two_quotas_that_end_together_are_booked(store: Store) -> None:
    """Neither could give sooner, so nobody is kept from anything."""
    room = Room(store)
    client, boundary = await exhausted(room, MONTHLY, Limit.per_month("usd", 5, tz="UTC"))
    await client.take("key", {"usd": 5})
    waiter = await waits(room, client, {"runs": 1, "usd": 1})
    assert await client.limiter.available("key", RESOURCE) == {"runs": -1, "usd": -1}
    await room.settled(boundary)
    assert waiter.began_seconds == boundary


async def test_the_end_of_a_session_is_a_boundary_too(store: Store) -> None:
    room = Room(store)
    client, _ = await exhausted(room, SESSION, rpm(60))
    waiter = await waits(room, client)
    assert await client.limiter.available("key", RESOURCE) == {"runs": 0, "rpm": 60}
    await follow(room, 5 * 3_600)
    assert waiter.began_seconds == 5 * 3_600


async def test_a_rate_that_is_slow_is_booked(store: Store) -> None:
    """Its line has an order, and each a time of its own: nobody sleeps without a place."""
    room = Room(store)
    client, _ = await exhausted(room, rpm(60), Limit("runs", 2, 1, DAY))
    waiters = [await waits(room, client) for _ in range(2)]
    assert (await client.limiter.available("key", RESOURCE))["runs"] == -2
    await room.settled(DAY)
    await room.settled(2 * DAY)
    assert [waiter.began_seconds for waiter in waiters] == [DAY, 2 * DAY]


async def test_a_parent_is_closed_to_nobody_either(store: Store) -> None:
    """Its quota is waited for by one child; its rate is there for all others."""
    room = Room(store)
    client, boundary = await exhausted(room)
    await client.repository.create_entity("team")
    for name in ("key", "other"):
        await client.repository.create_entity(name, parent_id="team", cascade=True)
    await client.repository.set_limits("team", [Limit.per_month("runs", 3, tz="UTC"), rpm(60)], RESOURCE)
    await client.limiter.reset("key", RESOURCE)
    await client.take("other", {"runs": 2})
    await client.take("key", {"runs": 1})
    waiter = await waits(room, client)
    assert await client.limiter.available("other", RESOURCE) == {"runs": 0, "rpm": 60}
    await follow(room, boundary)
    assert waiter.began_seconds == boundary
    assert (await client.limiter.available("team", RESOURCE))["runs"] == 2


async def test_who_sleeps_goes_by_what_is_said_when_it_wakes(store: Store) -> None:
    """Limits that were changed count, and nobody begins who was switched off."""
    room = Room(store)
    client, boundary = await exhausted(room)
    first = await waits(room, client)
    await client.repository.set_resource_defaults(RESOURCE, [Limit.per_month("runs", 1, tz="UTC"), rpm(60)])
    await follow(room, boundary)
    assert first.began_seconds == boundary
    late = await waits(room, client)
    await client.limiter.disable(resource=RESOURCE, reason="closed for good")
    await follow(room, boundary + 31 * DAY)
    assert isinstance(late.task.exception(), ResourceDisabled)
    await client.repository.enable(resource=RESOURCE)
    assert (await client.limiter.available("key", RESOURCE))["runs"] == 1


def test_a_sync_limiter_sleeps_too(sync_limiter: SyncRateLimiter, store: Store) -> None:
    """And leaves others what they need meanwhile."""
    store.clock.now_ms = 1_798_761_600_000 - 12 * DAY * 1000
    sync_limiter.repository.set_resource_defaults(RESOURCE, [MONTHLY, rpm(60)])
    with sync_limiter.acquire("key", RESOURCE, {"runs": 2}):
        pass
    with sync_limiter.acquire("key", RESOURCE, BOTH, wait=math.inf) as lease:
        assert (store.clock.now_ms, lease.waited_ms) == (1_798_761_600_000, 12 * DAY * 1000)
