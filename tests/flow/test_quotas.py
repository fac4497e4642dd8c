"""Calendar quotas on every store: back at the boundary, to the millisecond."""

import asyncio
import random
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from tests.flow.clients import RESOURCE, Client, Store
from tests.quotas import instant
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter

MONTH = Limit.per_month("usd", 100, tz="Europe/Berlin")
DAY = Limit.per_day("usd", 100, calendar=True, tz="Europe/Berlin")


async def with_limits(store: Store, *limits: Limit) -> Client:
    client = await store.client()
    await client.repository.set_resource_defaults(RESOURCE, list(limits))
    return client


@pytest.mark.parametrize(
    ("limit", "now", "boundary"),
    [
        (MONTH, "2026-03-29T02:00Z", "2026-03-31T22:00Z"),
        (
            Limit.per_day("usd", 100, calendar=True, tz="Europe/Berlin"),
            "2026-10-24T23:00Z",
            "2026-10-25T23:00Z",
        ),
        (Limit.per_week("usd", 100, tz="America/New_York"), "2026-03-07T12:00Z", "2026-03-09T04:00Z"),
        (Limit.cron("usd", 100, "0 6 * * 1", tz="Europe/Berlin"), "2026-03-24T05:00Z", "2026-03-30T04:00Z"),
    ],
    ids=lambda value: value.accrual if isinstance(value, Limit) else None,
)
async def test_a_quota_is_full_again_at_the_boundary(
    store: Store, limit: Limit, now: str, boundary: str
) -> None:
    """A refusal names the boundary; a millisecond before it nothing is admitted, at it everything."""
    store.clock.now_ms = instant(now)
    client = await with_limits(store, limit)
    await client.take("user", {"usd": 60})
    await client.take("user", {"usd": 40})
    refused = await client.refused("user", {"usd": 1})
    assert round(refused.retry_after_seconds * 1000) == instant(boundary) - instant(now)
    store.clock.now_ms = instant(boundary) - 1
    for other in (client, await store.client()):
        assert (await other.refused("user", {"usd": 1})).retry_after_seconds == 0.001
    store.clock.now_ms += 1
    await client.take("user", {"usd": 100})
    assert (await client.refused("user", {"usd": 1})).retry_after_seconds > 86_000


async def test_a_quota_and_a_rate_share_a_bucket(store: Store) -> None:
    """Each goes by its own accrual, and both must admit."""
    store.clock.now_ms = instant("2026-02-28T22:59:59Z")
    client = await with_limits(store, MONTH, Limit.per_second("rps", 10))
    await client.take("user", {"usd": 95, "rps": 10})
    refused = await client.refused("user", {"usd": 1, "rps": 10})
    assert [status.limit_name for status in refused.violations] == ["rps"]
    store.clock.advance(1)
    await client.take("user", {"usd": 100, "rps": 10})


async def test_what_is_given_back_does_not_outlast_the_period(store: Store) -> None:
    """A settlement that comes after the boundary makes no more than a full quota."""
    store.clock.now_ms = instant("2026-02-28T22:00Z")
    client = await with_limits(store, MONTH)
    async with client.limiter.acquire("user", RESOURCE, {"usd": 80}) as lease:
        store.clock.now_ms = instant("2026-03-01T00:00Z")
        await lease.adjust({"usd": -70})
    assert await client.limiter.available("user", RESOURCE) == {"usd": 100}


async def test_what_was_owed_is_taken_from_the_next_period(store: Store) -> None:
    """Work that cost more than there was leaves debt, which the next period pays."""
    store.clock.now_ms = instant("2026-02-28T22:00Z")
    client = await with_limits(store, MONTH)
    async with client.limiter.acquire("user", RESOURCE, {"usd": 80}) as lease:
        await lease.adjust({"usd": 50})
    store.clock.now_ms = instant("2026-03-01T00:00Z")
    assert await client.limiter.available("user", RESOURCE) == {"usd": 70}


async def test_a_rate_becomes_a_quota_and_back(store: Store) -> None:
    """A change of the kind alone is a change of limits: what was used stays used."""
    store.clock.now_ms = instant("2026-01-15T12:00Z")
    client = await with_limits(store, MONTH)
    plain = Limit("usd", 100, 100, MONTH.refill_period_seconds)
    for limit, left in ((plain, 90), (MONTH, 80), (plain, 70)):
        await client.take("user", {"usd": 10}, limit)
        states = await client.repository.get_bucket("user", RESOURCE)
        assert [(one.limit, one.tokens) for one in states] == [(limit, left)]


async def test_a_level_keeps_its_quota(store: Store) -> None:
    """It is stored, read back by others, and told by what explains limits."""
    client = await store.client()
    await client.repository.set_limits("user", [MONTH], RESOURCE)
    other = await store.client()
    assert list(await other.repository.get_limits("user", RESOURCE)) == [MONTH]
    assert Limit.from_dict(MONTH.to_dict()) == MONTH


async def test_whoever_is_told_of_a_limit_is_told_its_unit(store: Store) -> None:
    """Leases, refusals and looks show money; limits that count something else have no word about it."""
    money, plain = Limit.per_month("usd", 5_000_000, unit="usd_micro"), Limit.per_minute("rpm", 60)
    client = await with_limits(store, money, plain)
    await client.repository.create_entity("team")
    await client.repository.create_entity("user", parent_id="team", cascade=True)
    everywhere = {"usd": "usd_micro", "rpm": None}
    need = {"usd": 4_000_000, "rpm": 1}
    for brought in (None, [money, plain]):
        async with client.limiter.acquire("user", RESOURCE, {"rpm": 1}, brought) as lease:
            assert {one.limit_name: one.limit.unit for one in lease.statuses} == everywhere
    await client.take("user", need)
    refused = await client.refused("user", need)
    assert {one.limit for one in refused.statuses} == {money, plain}
    for told in (refused.as_dict(), refused.public_dict()):
        assert {(one["limit_name"], one.get("unit")) for one in told["limits"]} == set(everywhere.items())
        assert {"unit" in one for one in told["limits"] if one["limit_name"] == "rpm"} == {False}
    looked = await client.limiter.check_availability("user", RESOURCE, need)
    assert {one.limit_name: one.limit.unit for one in looked.statuses} == everywhere
    await client.repository.set_resource_defaults(RESOURCE, [replace(money, unit="eur_micro"), plain])
    store.clock.advance(120)
    (violation,) = (await client.refused("team", need)).violations
    assert violation.limit.unit == "eur_micro"


def test_a_sync_limiter_has_quotas_too(sync_limiter: SyncRateLimiter) -> None:
    with sync_limiter.acquire("user", RESOURCE, {"usd": 100}, [MONTH]):
        pass
    with pytest.raises(RateLimitExceeded), sync_limiter.acquire("user", RESOURCE, {"usd": 1}, [MONTH]):
        pass


async def test_a_session_begins_with_the_first_use(store: Store) -> None:
    """It is full again when its window is over, to the millisecond; the next one begins when it is used."""
    first = await with_limits(store, Limit.session("msgs", 50, "5h"))
    other, window_ms = await store.client(), 5 * 3_600_000
    await first.take("user", {"msgs": 30})
    store.clock.advance(3_600)
    await other.take("user", {"msgs": 20})
    assert round((await first.refused("user", {"msgs": 1})).retry_after_seconds) == 4 * 3_600
    store.clock.now_ms += window_ms - 3_600_000 - 1
    assert (await first.refused("user", {"msgs": 1})).retry_after_seconds == 0.001
    store.clock.advance(7_200)  # nobody uses it, so no window begins
    await other.take("user", {"msgs": 1})
    await first.take("user", {"msgs": 49})
    assert round((await other.refused("user", {"msgs": 1})).retry_after_seconds) == 5 * 3_600


async def test_what_a_session_cost_besides_is_charged(store: Store) -> None:
    """Work that cost more than was taken uses up its window; what the window lacks is owed by the next."""
    client, window_ms = await with_limits(store, Limit.session("msgs", 50, "5h")), 5 * 3_600_000
    async with client.limiter.acquire("user", RESOURCE, {"msgs": 30}) as lease:
        await lease.settle(msgs=45)
    assert await client.limiter.available("user", RESOURCE) == {"msgs": 5}
    async with client.limiter.acquire("user", RESOURCE, {"msgs": 5}) as lease:
        await lease.adjust({"msgs": 20})
    store.clock.now_ms += window_ms
    assert await client.limiter.available("user", RESOURCE) == {"msgs": 30}


async def test_who_waits_for_a_session_begins_when_it_is_over(store: Store) -> None:
    """To the millisecond, and leaves less for the others."""
    client = await with_limits(store, Limit.session("msgs", 50, 60))
    await client.take("user", {"msgs": 50})
    began_ms = store.clock.now_ms
    store.clock.advance(10)
    async with client.limiter.acquire("user", RESOURCE, {"msgs": 20}, wait=100) as lease:
        assert (store.clock.now_ms - began_ms, lease.waited_ms) == (60_000, 50_000)
    assert await client.limiter.available("user", RESOURCE) == {"msgs": 30}


async def test_a_budget_holds_against_a_thousand_at_once(store: Store) -> None:
    """A thousand requests of three processes meet a budget of a dollar: nobody too many, nobody too few.

    Each reserves what it may cost and settles what it did. Only what was estimated too low may be owed in the
    end, to the millionth of a dollar, and the budget is back at the very millisecond of the next month.
    """
    budget, estimate = Limit.per_month("usd", 1_000_000, tz="Europe/Berlin", unit="usd_micro"), 3_000
    clients = [await store.client() for _ in range(3)]
    rng, admitted, costs, underestimated = random.Random(1), 0, 0, 0

    async def request(client: Client, cost: int) -> None:
        nonlocal admitted, costs, underestimated
        async with client.limiter.acquire("key", RESOURCE, {"usd": estimate}, [budget]) as lease:
            admitted += 1
            await asyncio.sleep(0)  # the others are at work meanwhile
            await lease.settle(usd=cost)
            costs, underestimated = costs + cost, underestimated + max(0, cost - estimate)

    requests = [
        request(clients[number % 3], rng.choice((500, 1_500, 3_000, 3_500))) for number in range(1_000)
    ]
    answers = await asyncio.gather(*requests, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, RateLimitExceeded)]
    assert [answer for answer in answers if answer is not None and answer not in refused] == []
    assert admitted + len(refused) == 1_000
    left = (await clients[0].limiter.available("key", RESOURCE, [budget]))["usd"]
    assert left == 1_000_000 - costs
    assert costs <= 1_000_000 + underestimated
    assert min(len(refused), underestimated) > 0, "a budget that nobody reaches proves nothing"
    while (left := (await clients[0].limiter.available("key", RESOURCE, [budget]))["usd"]) > 0:
        await clients[0].take("key", {"usd": left}, budget)
    refusal = await clients[0].refused("key", {"usd": 1}, budget)
    store.clock.advance(refusal.retry_after_seconds - 0.001)
    await clients[1].refused("key", {"usd": 1}, budget)
    store.clock.advance(0.001)
    assert datetime.fromtimestamp(store.clock.now_ms / 1000, ZoneInfo("Europe/Berlin")).day == 1
    await clients[1].take("key", {"usd": 1}, budget)
