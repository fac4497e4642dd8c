"""What an HTTP answer says of limits in its headers, of a lease and of a refusal alike."""

import json
from typing import Any

import pytest

from tests.flow.clients import RESOURCE, Store
from zae_limiter import Demand, Limit, LimitKind, RateLimitExceeded, SyncRateLimiter
from zae_limiter.models.header_data import HeaderData

NOON = 1_774_699_200_000  # 2026-03-28T12:00Z: Berlin sets its clocks in the night, so its week ends in 34 h
RATE = Limit.per_minute("rpm", 40, burst=60)
QUOTA = Limit.per_week("usd", 2_500_000, tz="Europe/Berlin", unit="usd_micro")
SESSION = Limit.session("msgs", 5, "5h")
SEATS = Limit.concurrent("parallel", 4, hold="8s")
LIMITS = [RATE, QUOTA, SESSION, SEATS]
HOUR = 3_600.0


def told(status: HeaderData) -> tuple[Any, ...]:
    return (
        status.kind,
        status.window_seconds,
        status.unit,
        status.reset_after_seconds,
        status.next_after_seconds,
    )


async def test_a_lease_that_left_nothing(store: Store) -> None:
    """A rate is full in its time, a quota begins anew at its boundary, a session when its window is over."""
    store.clock.now_ms = NOON
    client = await store.client()
    need = {"rpm": 60, "usd": 2_500_000, "msgs": 5, "parallel": 4}
    async with client.limiter.acquire("key", RESOURCE, need, LIMITS) as lease:
        found = {status.limit_name: status for status in lease.statuses}
        assert {name: told(status) for name, status in found.items()} == {
            "rpm": (LimitKind.RATE, 60, None, 90.0, 1.5),
            "usd": (LimitKind.QUOTA, 7 * 86_400, "usd_micro", 34 * HOUR, 34 * HOUR),
            "msgs": (LimitKind.SESSION, 18_000, None, 5 * HOUR, 5 * HOUR),
            "parallel": (LimitKind.CONCURRENT, None, None, 8.0, 8.0),
        }
        assert {status.remaining for status in lease.statuses} == {0}
        assert found["usd"].reset_at_ms == NOON + 34 * 3_600_000
        assert found["usd"].public_dict() == {
            "resource": RESOURCE,
            "limit_name": "usd",
            "capacity": 2_500_000,
            "refill_amount": 2_500_000,
            "refill_period_seconds": 604_800,
            "accrual": "week@Europe/Berlin",
            "unit": "usd_micro",
            "kind": "quota",
            "window_seconds": 604_800,
            "remaining": 0,
            "reset_after_seconds": 34 * HOUR,
            "next_after_seconds": 34 * HOUR,
            "reset_at_ms": NOON + 34 * 3_600_000,
        }


async def test_a_refusal_tells_the_same(store: Store) -> None:
    """Of every limit that was asked, those that would have admitted too; the public form has it as JSON."""
    store.clock.now_ms = NOON
    client = await store.client()
    await client.take("key", {"rpm": 60, "usd": 2_000_000, "msgs": 1}, *LIMITS)
    store.clock.advance(3)
    refused = await client.refused("key", {"rpm": 3, "usd": 1, "msgs": 1}, *LIMITS)
    assert {status.limit_name: told(status)[3:] for status in refused.public_statuses} == {
        "rpm": (87.0, 0.0),
        "usd": (34 * HOUR - 3, 0.0),
        "msgs": (5 * HOUR - 3, 0.0),
    }
    limits = {one["limit_name"]: one for one in json.loads(json.dumps(refused.public_dict()))["limits"]}
    assert {name: (one["kind"], one["remaining"]) for name, one in limits.items()} == {
        "rpm": ("rate", 2),
        "usd": ("quota", 500_000),
        "msgs": ("session", 4),
    }
    assert limits["rpm"]["reset_at_ms"] == NOON + 90_000
    looked = await client.limiter.check_availability("key", RESOURCE, {"usd": 1}, LIMITS)
    assert told(looked.statuses[0])[3:] == (34 * HOUR - 3, 0.0)


async def test_what_is_full(store: Store) -> None:
    """Nothing to wait for, but a quota has a boundary all the same; a session waits for its first use."""
    store.clock.now_ms = NOON
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"parallel": 1}, LIMITS) as lease:
        assert {status.limit_name: status.reset_after_seconds for status in lease.statuses} == {
            "rpm": 0.0,
            "usd": 34 * HOUR,
            "msgs": 0.0,
            "parallel": 8.0,
        }


async def test_debt_leaves_nothing(store: Store) -> None:
    """What remains is not negative where it is told, and the time to the next token covers the debt."""
    store.clock.now_ms = NOON
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [RATE]) as lease:
        await lease.adjust(rpm=79)
    refused = await client.refused("key", {"rpm": 1}, RATE)
    (limit,) = refused.public_dict()["limits"]
    assert (limit["available"], limit["remaining"]) == (-20, 0)
    assert (limit["next_after_seconds"], limit["reset_after_seconds"]) == (31.5, 120.0)


async def test_a_parent_is_not_told(store: Store) -> None:
    """Neither an admitted child nor a refused one sees its parent's numbers; of several, each its own."""
    client = await store.client()
    await client.repository.create_entity("team")
    for child in ("one", "two"):
        await client.repository.create_entity(child, parent_id="team", cascade=True)
    await client.repository.set_system_defaults([RATE])
    await client.repository.set_limits("team", [Limit.per_day("rpm", 777)])
    async with client.limiter.acquire("one", RESOURCE, {"rpm": 1}) as lease:
        assert {status.entity_id for status in lease.statuses} == {"one", "team"}
        assert [status.entity_id for status in lease.public_statuses] == ["one"]
    both = [Demand("one", RESOURCE, {"rpm": 1}), Demand("two", RESOURCE, {"rpm": 1})]
    async with client.limiter.acquire(both) as lease:
        assert sorted(status.entity_id for status in lease.public_statuses) == ["one", "two"]
        assert [status.entity_id for status in lease.part(entity_id="two").public_statuses] == ["two"]
    refused = await client.refused("one", {"rpm": 60})
    assert [status.entity_id for status in refused.public_statuses] == ["one"]
    assert "777" not in json.dumps(refused.public_dict())


def test_in_sync_code() -> None:
    """The sync twin tells the same."""
    with SyncRateLimiter.open("memory://") as limiter:
        with limiter.acquire("key", RESOURCE, {"rpm": 60}, [RATE]) as lease:
            assert lease.public_statuses == lease.statuses
            assert 80 < lease.statuses[0].reset_after_seconds <= 90
        with (
            pytest.raises(RateLimitExceeded) as refused,
            limiter.acquire("key", RESOURCE, {"rpm": 9}, [RATE]),
        ):
            pass
        assert refused.value.public_statuses[0].kind == "rate"
