"""Operators' verbs on buckets that somebody waits for: what they end, what they tell, and who begins when."""

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm, tpm
from tests.flow.waiting_room import Room, Waiter, stored
from zae_limiter import Limit


async def waited_for(room: Room) -> tuple[Client, Waiter]:
    """A customer that has used up its limit and waits for a hundred seconds."""
    client = await room.client()
    await client.repository.set_resource_defaults(RESOURCE, [rpm(100, 1, 1), tpm(1_000)])
    await client.take("key", {"rpm": 100, "tpm": 1_000})
    return client, await room.join(client, 100, limits=None)


@pytest.mark.parametrize(("verb", "left"), [("reset", 100), ("forgive", 0)])
async def test_what_was_booked_is_given_and_told(store: Store, verb: str, left: int) -> None:
    """The bucket is what the verb says, at once; whoever waits begins at its slot all the same."""
    room = Room(store)
    client, waiter = await waited_for(room)
    done = await getattr(client.limiter, verb)("key", RESOURCE, ["rpm"], principal="ann")
    assert (done.before, done.given, done.after) == ({"rpm": -100}, {"rpm": 100 + left}, {"rpm": left})
    assert done.booked == {"rpm": 100}
    assert 100_000 <= done.booked_until_ms - room.began_ms < 101_000
    assert (await client.limiter.available("key", RESOURCE))["rpm"] == left
    image = await stored(store)
    assert image is not None
    assert "booked" not in image
    (event, *_) = await client.repository.get_audit_events("key")
    assert (event.details["booked"], event.details["booked_until_ms"]) == (
        done.booked,
        done.booked_until_ms,
    )
    if left:
        await client.take("key", {"rpm": 100})
    await room.settled(100)
    assert waiter.began_seconds == 100
    assert await client.limiter.available("key", RESOURCE) == {"rpm": 100, "tpm": 1_000}


async def test_who_gives_up_what_was_given_gets_nothing(store: Store) -> None:
    """Neither from here nor from elsewhere, and nobody else's place is given away by it."""
    room = Room(store)
    client, waiter = await waited_for(room)
    other = await room.client()
    second = await room.join(other, 50, limits=None)
    await client.limiter.reset("key", RESOURCE)
    await client.take("key", {"rpm": 100})
    third = await room.join(other, 100, limits=None)
    for one in (waiter, second):
        await one.cancel()
    assert (await client.limiter.available("key", RESOURCE))["rpm"] == -100
    assert await store.used("key") == 300, "what nobody began was not consumed"
    await third.cancel()
    assert (await client.limiter.available("key", RESOURCE))["rpm"] == 0
    assert await store.used("key") == 200


async def test_only_what_is_named_is_ended(store: Store) -> None:
    """Of limits that are not named everybody keeps its place."""
    room = Room(store)
    client = await room.client()
    await client.repository.set_resource_defaults(RESOURCE, [rpm(100, 1, 1), Limit("tpm", 1_000, 10, 1)])
    await client.take("key", {"rpm": 100, "tpm": 1_000})
    waiter = await room.join(client, consume={"rpm": 50, "tpm": 500}, limits=None)
    done = await client.limiter.forgive("key", RESOURCE, ["tpm"])
    assert (done.booked, done.after) == ({"tpm": 500}, {"tpm": 0})
    assert await client.limiter.available("key", RESOURCE) == {"rpm": -50, "tpm": 0}
    later = await room.join(client, 10, limits=None)
    await room.settled(50)
    await room.settled(60)
    assert (waiter.began_seconds, later.began_seconds) == (50, 60)


async def test_a_top_up_beside_somebody_who_waits_says_so(store: Store) -> None:
    """It is set aside as far as there is room, and the answer tells what is in its way."""
    room = Room(store)
    client, waiter = await waited_for(room)
    done = await client.limiter.top_up("key", RESOURCE, {"rpm": 30})
    assert (done.given, done.over) == ({"rpm": 0}, {"rpm": 30})
    assert done.booked == {"rpm": 100}
    assert done.booked_until_ms is not None
    await waiter.cancel()
    done = await client.limiter.top_up("key", RESOURCE, {"rpm": 30})
    assert (done.given, done.booked) == ({"rpm": 30}, {})


async def test_it_is_told_that_somebody_waits_and_not_that_there_is_debt(store: Store) -> None:
    """By when that one has had its turn, and when there is some again for others."""
    room = Room(store)
    client, waiter = await waited_for(room)
    (one, other) = (await client.limiter.explain("key", RESOURCE)).refusing
    assert (one.limit.name, other.limit.name) == ("rpm", "tpm")
    assert one.booked_until_ms is not None
    assert 100_000 <= one.booked_until_ms - room.began_ms < 101_000
    assert str(one).startswith("'rpm' of 'key' refuses: somebody waits for it until ")
    assert " UTC and has booked what comes before; there is some again in 1 min 41 s, at " in str(one)
    assert other.booked_until_ms is None
    assert str(other).startswith("'tpm' of 'key' refuses: nothing of 1000 is left; ")
    await waiter.cancel()
    (one, _) = (await client.limiter.explain("key", RESOURCE)).refusing
    assert "nothing of 100 is left" in str(one)
