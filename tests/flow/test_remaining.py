"""What a lease tells of its buckets, by the reply of its acquire: never by another read."""

from dataclasses import FrozenInstanceError

import pytest

from tests.flow.clients import RESOURCE, Store, rpm, tpm
from zae_limiter import LeaseStatus, Limit, SyncRateLimiter

LIMITS = [rpm(60), tpm(1_000)]


async def test_what_is_left(store: Store) -> None:
    """All limits of the bucket, also those of which nothing was asked; cold and warm, by one call each."""
    client = await store.client()
    for number in range(1, 4):
        client.forget()
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, LIMITS) as lease:
            calls = client.calls
            assert lease.remaining == {"rpm": 60 - 2 * number, "tpm": 1_000}
            assert client.calls == calls
        assert number == 1 or len(calls) <= 1


async def test_each_limit_in_full(store: Store) -> None:
    """By whom, on what, under which limit, and when the bucket is full again, to the millisecond."""
    client = await store.client()
    await client.take("key", {"rpm": 20}, *LIMITS)
    store.clock.advance(5)
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 3, "tpm": 100}, LIMITS) as lease:
        assert lease.statuses == (
            LeaseStatus(
                "key", RESOURCE, "rpm", LIMITS[0], 60 - 20 + 5 - 3, 18.0, 18.0, 0.0, store.clock.now_ms
            ),
            LeaseStatus("key", RESOURCE, "tpm", LIMITS[1], 900, 6.0, 6.0, 0.0, store.clock.now_ms),
        )
    store.clock.advance(18)
    assert await client.limiter.available("key", RESOURCE, LIMITS) == {"rpm": 60, "tpm": 1_000}


async def test_it_stands_still(store: Store) -> None:
    """It is what the acquire has seen: neither time nor others nor the end of the lease change it."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 30}, LIMITS) as lease:
        store.clock.advance(30)
        await client.take("key", {"rpm": 7}, *LIMITS)
        await lease.adjust(rpm=5)
        assert lease.remaining == {"rpm": 30, "tpm": 1_000}
    assert lease.remaining == {"rpm": 30, "tpm": 1_000}


async def test_consume_sees_anew(store: Store) -> None:
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 30}, LIMITS) as lease:
        await client.take("key", {"tpm": 1_000}, *LIMITS)
        await lease.consume(rpm=5)
        assert lease.remaining == {"rpm": 25, "tpm": 0}


async def test_others_took_meanwhile(store: Store) -> None:
    """What other processes took is in the reply."""
    client, other = await store.client(), await store.client()
    await client.take("key", {"rpm": 10}, *LIMITS)
    await other.take("key", {"rpm": 10}, *LIMITS)
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 10}, LIMITS) as lease:
        assert lease.remaining["rpm"] == 30


async def test_debt_is_negative(store: Store) -> None:
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, LIMITS) as lease:
        await lease.adjust(tpm=1_500)
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, LIMITS) as lease:
        assert lease.remaining == {"rpm": 58, "tpm": -500}
        assert [status.full_after_seconds for status in lease.statuses] == [2.0, 90.0]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
async def test_every_bucket_of_a_family(store: Store, warm: bool) -> None:
    """The statuses tell of child and parent, ``remaining`` is the least of them."""
    client = await store.client()
    await client.repository.create_entity("parent")
    await client.repository.create_entity("key", parent_id="parent", cascade=True)
    await client.repository.set_limits("parent", [rpm(50), Limit.per_minute("usd", 9)], RESOURCE)
    await client.repository.set_resource_defaults(RESOURCE, [rpm(100), tpm(500)])
    await client.take("parent", {"rpm": 1})
    if warm:
        await client.take("key", {"rpm": 1})
    left = 48 if warm else 49
    client.forget()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 9, "tpm": 1}) as lease:
        calls = client.calls
        assert lease.remaining == {"rpm": left - 9, "tpm": 499, "usd": 9}
        told = [(s.entity_id, s.limit_name, s.remaining) for s in lease.statuses]
        assert told == [
            ("key", "rpm", left + 51 - 9),
            ("key", "tpm", 499),
            ("parent", "rpm", left - 9),
            ("parent", "usd", 9),
        ]
        assert client.calls == calls


async def test_bucket_that_is_not_asked_tells_nothing(store: Store) -> None:
    """A parent without such a limit is not written to, so no reply shows it."""
    client = await store.client()
    await client.repository.create_entity("parent")
    await client.repository.create_entity("key", parent_id="parent", cascade=True)
    await client.repository.set_limits("parent", [tpm(50)], RESOURCE)
    await client.take("parent", {"tpm": 1})
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 9}, [rpm(10)]) as lease:
        assert [(s.entity_id, s.limit_name) for s in lease.statuses] == [("key", "rpm")]


async def test_limits_that_have_changed(store: Store) -> None:
    """The limit that is told is the one that binds, whatever this process had believed."""
    client, other = await store.client(), await store.client()
    await client.repository.set_limits("key", [rpm(60)], RESOURCE)
    await client.take("key", {"rpm": 10})
    await other.repository.set_limits("key", [rpm(100)], RESOURCE)
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 10}) as lease:
        (status,) = lease.statuses
        assert (status.limit, status.remaining) == (rpm(100), 80)


async def test_nothing_is_known_of_what_was_not_asked(store: Store) -> None:
    """An acquire of nothing asks nobody; a store that is down tells nothing."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {}, LIMITS) as lease:
        assert (lease.remaining, lease.statuses) == ({}, ())
    with client.down():
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, LIMITS, "allow") as lease:
            assert (lease.degraded, lease.remaining, lease.statuses) == (True, {}, ())


async def test_read_first(store: Store) -> None:
    client = await store.client(speculative_writes=False)
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, LIMITS) as lease:
        assert lease.remaining == {"rpm": 58, "tpm": 1_000}


def test_sync(sync_limiter: SyncRateLimiter) -> None:
    with sync_limiter.acquire("key", RESOURCE, {"rpm": 2}, LIMITS) as lease:
        assert lease.remaining == {"rpm": 58, "tpm": 1_000}
        (first, _) = lease.statuses
    assert (first.limit_name, first.remaining, first.full_after_seconds) == ("rpm", 58, 2.0)
    with pytest.raises(FrozenInstanceError):
        first.remaining = 60  # type: ignore[misc]
