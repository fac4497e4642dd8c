"""Stored leases on every store, as several workers see them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stores import STORES, url_of
from zae_limiter import RateLimiter, ValidationError
from zae_limiter.models import Limit
from zae_limiter.models.demand import Demand
from zae_limiter.records.leases import PLACES, LeaseState, OnExpiry, _place, lease_item, lease_key, lease_of
from zae_limiter.repository_protocol import Put
from zae_limiter.server.leases import SWEEP_LEASES_MAX, AskedLease, StoredLeases
from zae_limiter.testing import RecordingBackend
from zae_limiter.web.answers import RequestRefused

LIMITS = [Limit.per_day("rpd", 1000), Limit.concurrent("parallel", 5, hold="1h")]


def asked(key: str | None, **more: object) -> AskedLease:
    demands = (Demand("child", "r", {"rpd": 10, "parallel": 1}), Demand("child", "s", {"rpd": 7}))
    return replace(AskedLease(demands=demands, owner="somebody", key=key, lease_seconds=600), **more)  # type: ignore[arg-type]


async def books(limiter: RateLimiter) -> list[dict[str, int]]:
    return [await limiter.available(who, what) for who in ("child", "parent") for what in "rs"]


def left(r: int, s: int, seats: int) -> list[dict[str, int]]:
    return [{"rpd": r, "parallel": seats}, {"rpd": s, "parallel": 5}] * 2


@pytest.mark.parametrize("kind", list(STORES))
async def test_two_workers_on_every_store(kind: str, tmp_path: Path) -> None:
    """Taken at one, at the same time at the other, noted, ended and expired: each once, on any store."""
    url = url_of(kind, tmp_path)
    async with RateLimiter.open(url) as one, RateLimiter.open(url) as other:
        await one.create_entity("parent")
        await one.create_entity("child", parent_id="parent", cascade=True)
        for resource in "rs":
            await one.set_resource_defaults(resource, LIMITS)
        workers = StoredLeases(one), StoredLeases(other)
        both = await asyncio.gather(*(worker.acquire(asked("k")) for worker in workers))
        assert sorted(granted.is_again for granted in both) == [False, True]
        assert await books(other) == left(990, 993, 4)

        row = await workers[1].held(workers[0]._id_of(asked("k")), "somebody")
        assert lease_of(row.lease_id, lease_item("ns", row)) == row, "it reads back as it was written"
        noted = await workers[1].ends.note(row, row.changed(noted=({"rpd": 4}, {"rpd": 9})))
        assert noted is not None
        ends = await asyncio.gather(
            *(w.finish(noted, LeaseState.COMMITTED, OnExpiry.SETTLE, str(n)) for n, w in enumerate(workers))
        )
        assert sum(end is not None for end in ends) == 1
        assert await books(one) == left(996, 991, 5)

        short = asked(None, lease_seconds=0.001, on_expiry=OnExpiry.REFUND)
        await workers[0].acquire(short)
        for _ in range(1000):
            for place in range(PLACES):
                await asyncio.gather(*(worker.sweep(place) for worker in workers))
            if sum(worker.counts.expired for worker in workers):
                break
        assert sum(worker.counts.expired for worker in workers) == 1
        assert await books(other) == left(996, 991, 5)


@pytest.mark.parametrize("kind", list(STORES))
async def test_another_lease_of_the_same_id(kind: str, tmp_path: Path) -> None:
    """Whoever has read the one before it changes nothing, though both are held and nobody changed either."""
    async with RateLimiter.open(url_of(kind, tmp_path)) as limiter:
        await limiter.set_resource_defaults("r", LIMITS)
        leases, demand = StoredLeases(limiter), Demand("child", "r", {"rpd": 10})
        first = (await leases.acquire(asked("k", demands=(demand,)))).row
        assert first is not None
        await leases.ends.forget(first)
        second = (await leases.acquire(asked("k", demands=(Demand("child", "r", {"rpd": 500}),)))).row
        assert second is not None
        assert (second.lease_id, second.rev) == (first.lease_id, first.rev)
        assert await leases.finish(first, LeaseState.CANCELLED, OnExpiry.REFUND) is None
        assert await leases.ends.note(first, first.changed(noted=({"rpd": 3},))) is None
        assert await limiter.available("child", "r") == {"rpd": 500, "parallel": 5}
        assert await leases.finish(second, LeaseState.CANCELLED, OnExpiry.REFUND) is not None
        assert await limiter.available("child", "r") == {"rpd": 1000, "parallel": 5}


@pytest.mark.parametrize("kind", list(STORES))
async def test_leases_that_nobody_can_end(kind: str, tmp_path: Path) -> None:
    """However many have waited longer, of which nothing can be read, one behind them expires."""
    async with RateLimiter.open(url_of(kind, tmp_path)) as limiter:
        await limiter.set_resource_defaults("r", LIMITS)
        leases, demand = StoredLeases(limiter), Demand("child", "r", {"rpd": 10})
        good = asked("k", demands=(demand,), lease_seconds=0.001, on_expiry=OnExpiry.REFUND)
        row = (await leases.acquire(good)).row
        assert row is not None
        scope, place = leases.ends.scope, _place(row.lease_id)
        ids = [f"{n:040x}" for n in range(1000) if _place(f"{n:040x}") == place][: SWEEP_LEASES_MAX + 1]
        for lease_id in ids:
            item = lease_item(scope.namespace_id, replace(row, lease_id=lease_id, expires_ms=1))
            item |= {"parts": "{", "ttl": lease_item(scope.namespace_id, row)["ttl"]}
            await scope.must_write([Put(lease_key(scope.namespace_id, lease_id), item)])
        for _ in range(1000):
            await leases.sweep(place)
            if await limiter.available("child", "r") == {"rpd": 1000, "parallel": 5}:
                break
        else:
            raise AssertionError("it has never expired")
        assert leases.counts.failed > SWEEP_LEASES_MAX


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_can_be_taken_can_be_ended(kind: str, tmp_path: Path) -> None:
    """Though parents that had no limits have some by then: what might not fit any more is not taken."""
    async with RateLimiter.open(url_of(kind, tmp_path)) as limiter:
        leases = StoredLeases(limiter)
        for number in range(50):
            await limiter.create_entity(f"parent-{number}")
            await limiter.create_entity(f"child-{number}", parent_id=f"parent-{number}", cascade=True)
            await limiter.set_limits(f"child-{number}", [LIMITS[0]], resource="r")
        all_of_them = tuple(Demand(f"child-{number}", "r", {"rpd": 10}) for number in range(50))
        with pytest.raises(ValidationError, match="100 buckets"):
            await leases.acquire(asked("k", demands=all_of_them))
        granted = await leases.acquire(asked("k", demands=all_of_them[:49]))
        assert granted.row is not None
        await limiter.set_resource_defaults("r", [LIMITS[0]])
        for number in range(50):
            assert await limiter.available(f"parent-{number}", "r") == {"rpd": 1000}
        row = granted.row.changed(noted=({"rpd": 12},) * 49)
        noted = await leases.ends.note(granted.row, row)
        assert noted is not None
        assert await leases.finish(noted, LeaseState.COMMITTED, OnExpiry.SETTLE) is not None
        assert await limiter.available("child-0", "r") == {"rpd": 988}


async def test_who_gave_a_lease_knows_it_once(tmp_path: Path) -> None:
    """No read of it comes before its end; what another worker did to it meanwhile counts all the same."""
    url = url_of("sqlite", tmp_path)
    async with RateLimiter.open(url) as one, RateLimiter.open(url) as other:
        await one.set_resource_defaults("r", LIMITS)
        await one.set_resource_defaults("s", LIMITS)
        here, there = StoredLeases(one), StoredLeases(other)
        connection = one.repository._connection
        connection.backend = recording = RecordingBackend(connection.backend)
        lease_id = here._id_of(asked("k"))
        await here.acquire(asked("k"))
        recording.forget()
        row = await here.held(lease_id, "somebody")
        assert (row.state, recording.calls) == (LeaseState.HELD, [])
        assert await here.finish(row, LeaseState.CANCELLED, OnExpiry.REFUND) is not None

        lease_id = here._id_of(asked("l"))
        await here.acquire(asked("l"))
        theirs = await there.held(lease_id, "somebody")
        assert await there.finish(theirs, LeaseState.COMMITTED, OnExpiry.SETTLE) is not None
        stale = await here.held(lease_id, "somebody")
        assert await here.finish(stale, LeaseState.CANCELLED, OnExpiry.REFUND) is None
        assert (await here.held(lease_id, "somebody")).state is LeaseState.COMMITTED
        assert await one.available("child", "r") == {"rpd": 990, "parallel": 5}
        with pytest.raises(RequestRefused, match="no such lease"):
            await here.held(lease_id, "somebody else")
