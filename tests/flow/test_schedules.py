"""Limits whose numbers change with the time of day, on every store: exact at the boundary, and never back."""

import asyncio
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.flow.clients import RESOURCE, Client, Store
from tests.quotas import instant
from zae_limiter import ExplainedPhase, Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.schema import bucket_key

OFFICE = Limit.per_minute("rpm", 60).during("* 9-16 * * mon-fri", 600, tz="Europe/Berlin")
NINE = instant("2026-03-30T07:00Z")  # a Monday; the clocks went forward the day before
FIVE = instant("2026-03-30T15:00Z")


async def with_limits(store: Store, *limits: Limit) -> Client:
    client = await store.client()
    await client.repository.set_resource_defaults(RESOURCE, list(limits))
    return client


async def test_a_raise_gives_the_difference_at_the_boundary(store: Store) -> None:
    """Until nine the small numbers count, to the millisecond; at nine there is more by the difference."""
    store.clock.now_ms = NINE - 500
    client = await with_limits(store, OFFICE)
    await client.take("user", {"rpm": 60})
    refused = await client.refused("user", {"rpm": 540})
    assert round(refused.retry_after_seconds * 1000) == 500
    assert refused.statuses[0].limit == Limit.per_minute("rpm", 60)
    store.clock.now_ms = NINE - 1
    assert (await client.refused("user", {"rpm": 1})).retry_after_seconds == 0.001
    store.clock.now_ms += 1
    await client.take("user", {"rpm": 540})
    refused = await client.refused("user", {"rpm": 1})
    assert refused.statuses[0].limit == Limit.per_minute("rpm", 600)
    assert round(refused.retry_after_seconds * 1000) == 50  # half a token accrued before nine
    store.clock.now_ms += 50
    await client.take("user", {"rpm": 1})


async def test_a_cut_takes_the_difference_and_makes_no_debt(store: Store) -> None:
    """At five a full bucket holds sixty, one that was nearly empty holds nothing, and fills slowly."""
    store.clock.now_ms = FIVE - 1
    client = await with_limits(store, OFFICE)
    await client.take("full", {"rpm": 1})
    await client.take("empty", {"rpm": 500})
    store.clock.now_ms = FIVE
    other = await store.client()
    for one in (client, other):
        assert await one.limiter.available("full", RESOURCE) == {"rpm": 59}
        assert await one.limiter.available("empty", RESOURCE) == {"rpm": 0}
    assert (await other.refused("empty", {"rpm": 1})).retry_after_seconds == 1.0
    assert (await client.refused("full", {"rpm": 61})).retry_after_seconds > 15 * 3600
    await other.take("full", {"rpm": 59})
    await client.refused("full", {"rpm": 1})


async def test_never_is_told_only_if_no_phase_allows_it(store: Store) -> None:
    """What is too much at night is told to wait for the morning; what is too much by day is told never."""
    store.clock.now_ms = FIVE + 3_600_000
    client = await with_limits(store, OFFICE)
    refused = await client.refused("user", {"rpm": 600})
    assert round(refused.retry_after_seconds * 1000) == NINE + 86_400_000 - store.clock.now_ms
    assert (await client.refused("user", {"rpm": 601})).retry_after_seconds == math.inf


async def test_a_bucket_that_was_idle_over_phases_is_followed_through_them(store: Store) -> None:
    """What a slow limit gained by night and by day is what each phase gave."""
    limit = replace(Limit("slow", 100, 1, 3600), schedule="10:100(* 9-16 * * *)@Europe/Berlin")
    store.clock.now_ms = FIVE - 3_600_000
    client = await with_limits(store, limit)
    await client.take("user", {"slow": 100})
    store.clock.now_ms += 3 * 3_600_000
    assert await client.limiter.available("user", RESOURCE) == {"slow": 12}
    store.clock.now_ms = NINE + 86_400_000 + 2 * 3_600_000
    assert await client.limiter.available("user", RESOURCE) == {"slow": 10 + 16 + 20}
    await client.take("user", {"slow": 46})
    await client.refused("user", {"slow": 1})


async def test_a_clock_that_is_behind_goes_by_the_phase_that_others_saw(store: Store) -> None:
    """No phase goes back: who is a little behind finds the bucket's numbers, and a raise is given once."""
    store.clock.now_ms = NINE
    client = await with_limits(store, OFFICE)
    await client.take("user", {"rpm": 100})
    store.clock.now_ms = NINE - 200
    await client.take("user", {"rpm": 400})
    assert await (await store.client()).limiter.available("user", RESOURCE) == {"rpm": 100}
    store.clock.now_ms = NINE + 1
    assert await client.limiter.available("user", RESOURCE) == {"rpm": 100}
    await client.refused("user", {"rpm": 101})


async def test_who_waits_is_not_booked_beyond_the_phase(store: Store) -> None:
    """Before nine nobody gets a slot after it; at nine all book anew, and there is enough for them."""
    store.clock.now_ms = NINE - 500
    client, began = await with_limits(store, OFFICE), list[int]()
    await client.take("user", {"rpm": 60})

    async def job() -> None:
        async with client.limiter.acquire("user", RESOURCE, {"rpm": 100}, wait=60):
            began.append(store.clock.now_ms - NINE)

    await asyncio.gather(*(job() for _ in range(6)))
    assert began[:5] == [0] * 5
    assert began[5:] == [5_950]
    await client.refused("user", {"rpm": 1})


async def test_who_waits_through_many_phases_gets_its_turn(store: Store) -> None:
    """Numbers that change every minute keep nobody from waiting for hours, and are no outage."""
    limit = Limit("slow", 100, 1, 120).during("*/2 * * * *", 2, 100)  # three tokens in four minutes
    store.clock.now_ms = NINE
    client = await with_limits(store, limit)
    await client.take("user", {"slow": 100})
    async with client.limiter.acquire("user", RESOURCE, {"slow": 90}, wait=7_200) as lease:
        assert lease.waited_ms == 120 * 60_000
    assert store.clock.now_ms == NINE + 120 * 60_000


async def test_a_booking_within_the_phase_stays_as_it_is(store: Store) -> None:
    """Whoever fits before the boundary begins then; who does not waits by the numbers of after it."""
    store.clock.now_ms = FIVE - 2_000
    client, began = await with_limits(store, OFFICE), list[int]()
    await client.take("user", {"rpm": 600})
    for amount in (10, 5, 10):
        async with client.limiter.acquire("user", RESOURCE, {"rpm": amount}, wait=60):
            began.append(store.clock.now_ms - FIVE)
    assert began == [-1_000, -500, 10_000]


async def test_who_waits_sleeps_through_as_many_phases_as_it_takes(store: Store) -> None:
    """Phases of a minute: whoever needs what accrues in a hundred of them begins after these."""
    store.clock.now_ms = NINE
    limit = replace(Limit("slow", 200, 60, 3600), schedule="120:200(*/2 * * * *)@UTC")
    client = await with_limits(store, limit)
    await client.take("user", {"slow": 200})
    async with client.limiter.acquire("user", RESOURCE, {"slow": 150}, wait=math.inf) as lease:
        assert store.clock.now_ms == NINE + 100 * 60_000
        assert lease.waited_ms == 100 * 60_000
    await client.refused("user", {"slow": 1})


async def test_a_told_wait_is_for_when_all_limits_have_enough_at_once(store: Store) -> None:
    """What is enough now may be cut while another limit is waited for; then it is told when it is back."""
    store.clock.now_ms = FIVE - 60_000
    client = await with_limits(store, OFFICE, Limit("slow", 10, 10, 600))
    await client.take("user", {"slow": 10})
    asked = {"rpm": 300, "slow": 2}
    told = await client.limiter.time_until_available("user", RESOURCE, asked)
    refused = await client.refused("user", asked)
    assert refused.retry_after_seconds == told
    assert round(told * 1000) == NINE + 86_400_000 - store.clock.now_ms
    store.clock.now_ms = FIVE + 60_000
    assert await client.limiter.available("user", RESOURCE) == {"rpm": 60, "slow": 2}
    await client.refused("user", asked)
    store.clock.now_ms = NINE + 86_400_000 - 1
    await client.refused("user", asked)
    store.clock.now_ms += 1
    await client.take("user", asked)


async def test_who_waits_for_a_limit_that_is_cut_is_told_so_at_once(store: Store) -> None:
    """Nobody waits for a minute to hear that it takes a night."""
    store.clock.now_ms = FIVE - 60_000
    client = await with_limits(store, OFFICE, Limit("slow", 10, 10, 600))
    await client.take("user", {"slow": 10})
    with pytest.raises(RateLimitExceeded) as refused:
        async with client.limiter.acquire("user", RESOURCE, {"rpm": 300, "slow": 2}, wait=3_600):
            pass
    assert store.clock.now_ms == FIVE - 60_000
    assert round(refused.value.retry_after_seconds * 1000) == NINE + 86_400_000 - store.clock.now_ms


async def test_limits_that_never_have_enough_at_once_are_asked_again(store: Store) -> None:
    """One has enough by day and the other by night: a wait is told, and it is long."""
    store.clock.now_ms = NINE + 1
    night = Limit.per_minute("nightly", 600).during("* 9-16 * * *", 60, tz="Europe/Berlin")
    client = await with_limits(
        store, Limit.per_minute("rpm", 60).during("* 9-16 * * *", 600, tz="Europe/Berlin"), night
    )
    refused = await client.refused("user", {"rpm": 300, "nightly": 300})
    assert 86_400 < refused.retry_after_seconds < math.inf


async def test_settling_and_refunds_go_over_a_boundary(store: Store) -> None:
    """Debt that is noted after a cut is owed after it, and what comes back after a raise is there."""
    store.clock.now_ms = FIVE - 1
    client = await with_limits(store, OFFICE)
    async with client.limiter.acquire("user", RESOURCE, {"rpm": 600}) as lease:
        store.clock.now_ms = FIVE
        await lease.adjust(rpm=30)
    assert await client.limiter.available("user", RESOURCE) == {"rpm": -30}
    lease = await client.limiter.acquire("other", RESOURCE, {"rpm": 60}).open()
    store.clock.now_ms = NINE + 86_400_000
    await lease.cancel()
    assert await client.limiter.available("other", RESOURCE) == {"rpm": 600}


async def test_a_changed_configuration_finds_what_the_phases_left(store: Store) -> None:
    """The old schedule counts until the change, the new numbers from then on, and what it said is gone."""
    store.clock.now_ms = FIVE - 1_000
    client = await with_limits(store, OFFICE)
    await client.take("user", {"rpm": 600})
    store.clock.now_ms = FIVE + 10_000
    await client.repository.set_resource_defaults(RESOURCE, [Limit.per_minute("rpm", 100)])
    assert await client.limiter.available("user", RESOURCE) == {"rpm": 50}
    await client.take("user", {"rpm": 50})
    await client.refused("user", {"rpm": 1})
    await client.repository.set_resource_defaults(RESOURCE, [OFFICE])
    store.clock.now_ms = NINE + 86_400_000
    await client.take("user", {"rpm": 600})
    await client.refused("user", {"rpm": 1})


async def test_limits_that_a_caller_brings_along_have_schedules_too(store: Store) -> None:
    """They go by the same instants, and by none of the stored configuration."""
    store.clock.now_ms = NINE - 1
    client = await store.client()
    await client.take("user", {"rpm": 60}, OFFICE)
    await client.refused("user", {"rpm": 1}, OFFICE)
    store.clock.now_ms = NINE
    await client.take("user", {"rpm": 540}, OFFICE)
    await client.refused("user", {"rpm": 1}, OFFICE)


async def test_a_parent_has_its_own_schedule(store: Store) -> None:
    """Each of a family goes by its own numbers of the instant."""
    store.clock.now_ms = NINE - 1
    client = await with_limits(store, Limit.per_minute("rpm", 1000))
    await client.repository.create_entity("team")
    await client.repository.create_entity("user", parent_id="team", cascade=True)
    await client.repository.set_limits("team", [OFFICE], resource=RESOURCE)
    await client.take("user", {"rpm": 60})
    await client.refused("user", {"rpm": 1})
    store.clock.now_ms = NINE
    await client.take("user", {"rpm": 540})
    assert (await client.refused("user", {"rpm": 1})).statuses


async def test_two_schedules_share_a_bucket_with_a_plain_limit(store: Store) -> None:
    """A boundary of one moves the origin for all, and nothing is counted twice."""
    store.clock.now_ms = NINE - 30_000
    lunch = Limit.per_minute("tpm", 1000).during("1-30 9 * * *", 100, tz="Europe/Berlin")
    client = await with_limits(store, OFFICE, lunch, Limit.per_minute("plain", 600))
    await client.take("user", {"rpm": 60, "tpm": 1000, "plain": 600})
    store.clock.now_ms = NINE + 30_000
    assert await client.limiter.available("user", RESOURCE) == {"rpm": 600, "tpm": 1000, "plain": 600}
    await client.take("user", {"rpm": 600, "tpm": 950, "plain": 600})
    store.clock.now_ms = NINE + 60_000
    left = await client.limiter.available("user", RESOURCE)
    assert left == {"rpm": 300, "tpm": 0, "plain": 300}
    await client.take("user", {"rpm": 300})
    await client.take("user", {"plain": 300})
    store.clock.now_ms += 6_000
    assert await client.limiter.available("user", RESOURCE) == {"rpm": 60, "tpm": 10, "plain": 60}


async def test_a_soft_limit_with_a_schedule_refuses_nobody(store: Store) -> None:
    """It is counted by the numbers of the instant."""
    store.clock.now_ms = FIVE - 1
    client = await with_limits(store, OFFICE.softly())
    async with client.limiter.acquire("user", RESOURCE, {"rpm": 500}) as lease:
        assert not lease.exceeded
    store.clock.now_ms = FIVE
    async with client.limiter.acquire("user", RESOURCE, {"rpm": 1}) as lease:
        assert lease.exceeded


async def test_operators_give_in_the_phase_that_it_is(store: Store) -> None:
    """A reset after a raise fills the larger bucket."""
    store.clock.now_ms = NINE - 1
    client = await with_limits(store, OFFICE)
    await client.take("user", {"rpm": 60})
    store.clock.now_ms = NINE
    change = await client.repository.reset("user", RESOURCE, key="k1", principal="me")
    assert (change.before, change.after) == ({"rpm": 540}, {"rpm": 600})


def test_the_sync_limiter_goes_by_schedules(sync_limiter: SyncRateLimiter, store: Store) -> None:
    """The same for programs that block."""
    store.clock.now_ms = NINE - 1
    with sync_limiter.acquire("user", RESOURCE, {"rpm": 60}, [OFFICE]):
        pass
    with pytest.raises(RateLimitExceeded), sync_limiter.acquire("user", RESOURCE, {"rpm": 1}, [OFFICE]):
        pass
    store.clock.now_ms = NINE
    with sync_limiter.acquire("user", RESOURCE, {"rpm": 540}, [OFFICE]):
        pass


async def test_only_a_bucket_with_a_schedule_says_anything_of_it(store: Store) -> None:
    """A plain bucket has no attribute more."""
    store.clock.now_ms = NINE
    client = await with_limits(store, Limit.per_minute("rpm", 60))
    await client.take("plain", {"rpm": 1})
    await client.take("office", {"rpm": 1}, OFFICE)
    keys = [bucket_key(client.repository.namespace_id, who, RESOURCE) for who in ("plain", "office")]
    plain, office = await client.recording.batch_get(keys)
    assert plain is not None
    assert office is not None
    assert office.keys() - plain.keys() == {"ph", "b_rpm_sd"}
    assert office["ph"] == NINE


async def test_full_is_told_by_the_numbers_of_that_time(store: Store) -> None:
    """Half a minute before five an empty bucket is full at one past five; before nine not at nine already."""
    for at_ms, full_seconds in ((FIVE - 30_000, 90.0), (NINE - 30_000, 33.0)):
        store.clock.now_ms = at_ms
        client = await with_limits(store, OFFICE)
        limit = OFFICE.at(datetime.fromtimestamp(at_ms / 1000, UTC))
        entity_id = f"user-{at_ms}"
        async with client.limiter.acquire(entity_id, RESOURCE, {"rpm": limit.capacity}) as lease:
            (status,) = lease.statuses
        assert (status.full_after_seconds, status.reset_after_seconds) == (full_seconds, full_seconds)
        (refused,) = (await client.refused(entity_id, {"rpm": 1})).statuses
        assert refused.reset_after_seconds == full_seconds
        store.clock.now_ms += round(full_seconds * 1000)
        limit = OFFICE.at(datetime.fromtimestamp(store.clock.now_ms / 1000, UTC))
        assert await client.limiter.available(entity_id, RESOURCE) == {"rpm": limit.capacity}


async def test_which_window_won_is_explained(store: Store) -> None:
    """What everybody is told of the numbers of an instant is the same, and the limit stays what was set."""
    store.clock.now_ms = NINE
    client = await with_limits(store, OFFICE)
    for at_ms, window, until_ms in (
        (NINE - 1, None, NINE),
        (NINE, "* 9-16 * * mon-fri", FIVE),
        (FIVE, None, NINE + 86_400_000),
    ):
        store.clock.now_ms = at_ms
        numbers = OFFICE.at(datetime.fromtimestamp(at_ms / 1000, UTC))
        (bucket,) = (await client.limiter.explain("user", RESOURCE)).buckets
        assert bucket.phases == {"rpm": ExplainedPhase(numbers, window, until_ms)}
        assert bucket.winner is not None
        assert (
            (await client.limiter.resolve_limits("user", RESOURCE))[0] == [OFFICE] == [*bucket.winner.limits]
        )
        async with client.limiter.acquire("user", RESOURCE, {"rpm": 1}) as lease:
            assert lease.statuses[0].limit == numbers


async def test_a_schedule_that_a_bucket_does_not_know_yet_is_told_by_too(store: Store) -> None:
    """Who brings one along for a bucket without it is told when its window begins, and not: never."""
    store.clock.now_ms = NINE - 3_600_000
    client, plain = await store.client(), Limit.per_minute("rpm", 60)
    await client.take("user", {"rpm": 10}, plain)
    wait = client.limiter.time_until_available
    assert await wait("user", RESOURCE, {"rpm": 500}, [OFFICE]) == 3_600.0
    assert await wait("user", RESOURCE, {"rpm": 601}, [OFFICE]) == math.inf
    assert await client.limiter.available("user", RESOURCE, [OFFICE]) == {"rpm": 50}
    assert (await client.refused("user", {"rpm": 500}, OFFICE)).retry_after_seconds == 3_600.0
