"""Limits that change while buckets are in use: what was consumed stays consumed, nothing is minted."""

# Blocks that fail under a lease are what is tested here, and they hold more than one statement.
# ruff: noqa: PT012

import asyncio
import contextlib

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm, tpm
from zae_limiter import Limit, RateLimitExceeded, ValidationError

SLOW = 10**6
"""A period in seconds so long that nothing refills within a test."""


def slow(capacity: int) -> Limit:
    return Limit("rpm", capacity, 1, SLOW)


def hourly(capacity: int) -> Limit:
    return Limit.per_hour("rpm", capacity)


async def put(client: Client, limit: Limit, *, stored: bool) -> list[Limit]:
    """Store a limit, or return it to be brought along."""
    if stored:
        await client.repository.set_resource_defaults(RESOURCE, [limit])
    return [] if stored else [limit]


async def test_explicit_limits_are_honoured_on_an_existing_bucket(store: Store) -> None:
    """``limits=`` counts from the very next acquire, up and down, in any process."""
    client, other = await store.client(), await store.client()
    await client.take("key", {"rpm": 10}, slow(100))
    assert await client.limiter.available("key", RESOURCE, [slow(12)]) == {"rpm": 2}
    await other.take("key", {"rpm": 2}, slow(12))
    refusal = await client.refused("key", {"rpm": 1}, slow(12))
    assert refusal.primary_violation.limit.capacity == 12
    await client.take("key", {"rpm": 1}, slow(100))
    assert await store.left("key") == 87


async def test_explicit_limits_win_over_stored_ones(store: Store) -> None:
    """An acquire that brings its own limits does not ask what is stored, and the others still do."""
    client = await store.client()
    await client.repository.set_resource_defaults(RESOURCE, [slow(100)])
    await client.take("key", {"rpm": 10})
    await client.refused("key", {"rpm": 1}, slow(10))
    await client.take("key", {"rpm": 90})
    await client.refused("key", {"rpm": 1})
    assert await store.used("key") == 100


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "explicit"])
@pytest.mark.parametrize(
    ("capacity", "left"), [(150, 120), (101, 71), (100, 70), (31, 1), (30, 0), (10, 0), (1, 0)]
)
async def test_consumed_amount_survives(store: Store, stored: bool, capacity: int, left: int) -> None:
    """Capacity +50 gives +50, and a cut leaves nothing but makes no debt: the 30 that were used stay used."""
    client = await store.client()
    await client.take("key", {"rpm": 30}, *(await put(client, slow(100), stored=stored)))
    given = await put(client, slow(capacity), stored=stored)
    assert await client.limiter.available("key", RESOURCE, given or None) == {"rpm": left}
    if left > 0:
        await client.take("key", {"rpm": left}, *given)
    refusal = await client.refused("key", {"rpm": 1}, *given)
    assert refusal.primary_violation.available == min(left, 0)
    assert await store.used("key") == 30 + max(left, 0)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "explicit"])
async def test_cut_makes_nobody_wait_for_more_than_one_token(store: Store, stored: bool) -> None:
    """After a cut from 1,000 an hour to 5 the next token comes within 12 minutes, to the millisecond."""
    client = await store.client()
    await client.take("key", {"rpm": 500}, *(await put(client, hourly(1000), stored=stored)))
    given = await put(client, hourly(5), stored=stored)
    refusal = await client.refused("key", {"rpm": 1}, *given)
    assert refusal.primary_violation.available == 0
    assert 719 < refusal.retry_after_seconds <= 720
    store.clock.advance(refusal.retry_after_seconds - 0.001)
    await client.refused("key", {"rpm": 1}, *given)
    store.clock.advance(0.001)
    await client.take("key", {"rpm": 1}, *given)


@pytest.mark.parametrize(
    ("before", "after", "used", "needed", "seconds"),
    [
        (hourly(1000), hourly(5), 500, 1, 720),
        (Limit("rpm", 1000, 1000, 3600), Limit("rpm", 5, 1000, 3600), 500, 2, 7.2),
        (Limit("rpm", 10, 1, 3600), Limit("rpm", 10, 2, 3600), 10, 1, 1800),
    ],
    ids=["slower", "smaller", "faster"],
)
async def test_question_after_a_change_is_answered_by_the_new_limits(
    store: Store, before: Limit, after: Limit, used: int, needed: int, seconds: float
) -> None:
    """Although nobody has asked for tokens since: then it passes, and not a millisecond earlier."""
    client = await store.client()
    await client.repository.set_resource_defaults(RESOURCE, [before])
    await client.take("key", {"rpm": used})
    await client.repository.set_resource_defaults(RESOURCE, [after])
    asker = await store.client()
    found = await asker.limiter.check_availability("key", RESOURCE, {"rpm": needed})
    wait_seconds = found.retry_after_seconds
    assert seconds - 1 < wait_seconds <= seconds, "what accrues does so in whole millitokens"
    assert await client.limiter.time_until_available("key", RESOURCE, {"rpm": needed}) == wait_seconds
    store.clock.advance(wait_seconds - 0.001)
    assert await client.limiter.time_until_available("key", RESOURCE, {"rpm": needed}) == 0.001
    store.clock.advance(0.001)
    await client.take("key", {"rpm": needed})


async def test_question_writes_only_to_tell_a_wait(store: Store) -> None:
    """And never for limits that somebody brings along to ask about them."""
    client = await store.client()
    await client.repository.set_resource_defaults(RESOURCE, [slow(100)])
    await client.take("key", {"rpm": 50})
    await client.repository.set_resource_defaults(RESOURCE, [slow(60)])
    client.forget()
    assert await client.limiter.time_until_available("key", RESOURCE, {"rpm": 10}) == 0
    assert await client.limiter.available("key", RESOURCE) == {"rpm": 10}
    assert await client.limiter.time_until_available("key", RESOURCE, {"rpm": 10}, [slow(20)]) > 0
    assert {verb for verb, _ in client.calls} == {"batch_get"}
    assert await client.limiter.time_until_available("key", RESOURCE, {"rpm": 11}) == SLOW
    assert "write_each" in {verb for verb, _ in client.calls}
    client.forget()
    assert await client.limiter.time_until_available("key", RESOURCE, {"rpm": 11}) == SLOW
    assert {verb for verb, _ in client.calls} == {"batch_get"}


async def test_raise_after_a_cut_gives_the_difference(store: Store) -> None:
    """An operator who takes a cut back gives 995 more, at once."""
    client = await store.client()
    await client.take("key", {"rpm": 500}, *(await put(client, hourly(1000), stored=True)))
    await put(client, hourly(5), stored=True)
    await client.refused("key", {"rpm": 1})
    await put(client, hourly(1000), stored=True)
    assert await client.limiter.available("key", RESOURCE) == {"rpm": 995}
    await client.take("key", {"rpm": 995})
    await client.refused("key", {"rpm": 1})


async def test_debt_is_carried_over_a_cut_but_nobody_waits_longer_than_a_refill(store: Store) -> None:
    """400 in debt at 1,000 an hour; cut to 5 an hour, the next token comes when an empty bucket were full."""
    client = await store.client()
    await put(client, hourly(1000), stored=True)
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1000}) as lease:
        await lease.adjust(rpm=400)
    await put(client, hourly(500), stored=True)
    assert (await client.limiter.available("key", RESOURCE))["rpm"] == -400
    await put(client, hourly(5), stored=True)
    refusal = await client.refused("key", {"rpm": 1})
    assert refusal.primary_violation.available == -4
    assert 3599 < refusal.retry_after_seconds <= 3600


async def test_full_small_limit_makes_up_only_for_what_flows_over(store: Store) -> None:
    """1,000 an hour used up, and somebody who brings one a second: by turns they get no thousand a second."""
    client, admitted = await store.client(), 0
    large, small = hourly(1000), Limit("rpm", 1, 1, 1)
    await client.take("key", {"rpm": 1000}, large)
    for _ in range(20):
        store.clock.advance(1)
        with contextlib.suppress(RateLimitExceeded):  # the first time, when the bucket learns of it
            await client.take("key", {"rpm": 1}, small)
        left = (await client.limiter.available("key", RESOURCE, [large]))["rpm"]
        if left > 0:
            await client.take("key", {"rpm": left}, large)
            admitted += left
    assert admitted <= 10
    store.clock.advance(2000)
    assert (await client.limiter.available("key", RESOURCE, [large]))["rpm"] > 500


async def test_limit_that_others_do_not_know_is_not_filled_by_them(store: Store) -> None:
    """One caller has stored limits, another brings one more along: that does not start full at every turn."""
    client, admitted = await store.client(), 0
    await client.repository.set_resource_defaults(RESOURCE, [hourly(100)])
    brought = [hourly(50), Limit.per_hour("tpm", 1)]
    for _ in range(20):
        await client.take("key", {"rpm": 1})
        try:
            await client.take("key", {"tpm": 1}, *brought)
            admitted += 1
        except RateLimitExceeded:
            pass
    assert admitted == 1


async def test_callers_who_disagree_get_what_accrues(store: Store) -> None:
    """Two switches a millisecond between 10 and 11 at 100 a second: 11 at once, and 50 in half a second."""
    client = await store.client()
    limits, admitted = [Limit("rpm", 10, 100, 1), Limit("rpm", 11, 100, 1)], 0
    for turn in range(1000):
        if turn % 2 == 0:
            store.clock.advance(0.001)
        try:
            await client.take("key", {"rpm": 1}, limits[turn % 2])
            admitted += 1
        except RateLimitExceeded:
            pass
    assert admitted in (60, 61)


@pytest.mark.parametrize("others", [[11], [11, 12, 10], [1], [1000]])
async def test_callers_who_disagree_do_not_make_tokens(store: Store, others: list[int]) -> None:
    """While the clock stands still they get by turns what the largest of their limits allows, once."""
    client = await store.client()
    capacities, admitted = [10, *others], 0

    def quick(capacity: int) -> Limit:
        return Limit("rpm", capacity, 1000, 1)

    for turn in range(300):
        try:
            await client.take("key", {"rpm": 1}, quick(capacities[turn % len(capacities)]))
            admitted += 1
        except RateLimitExceeded:
            pass
    assert admitted <= max(capacities)
    assert admitted == (max(capacities) if max(capacities) < 100 else admitted)
    refusal = await client.refused("key", {"rpm": 1}, quick(10))
    assert refusal.retry_after_seconds <= 0.001, "and nobody starves because the others had their turn"


async def test_gain_under_the_old_rate_is_kept(store: Store) -> None:
    """What accrued before the change accrued at the old rate, what comes later at the new one."""
    client = await store.client()
    await client.take("key", {"rpm": 60}, rpm(60))
    store.clock.advance(10)
    await client.take("key", {"rpm": 1}, rpm(60, 6000))
    assert await store.left("key") == 9
    store.clock.advance(0.1)
    assert await client.limiter.available("key", RESOURCE, [rpm(60, 6000)]) == {"rpm": 19}


async def test_full_bucket_is_full_under_new_numbers(store: Store) -> None:
    """A bucket that idled until it was full is neither more nor less than full after the change."""
    client = await store.client()
    await client.take("key", {"rpm": 60}, rpm(60))
    store.clock.advance(300)
    await client.take("key", {"rpm": 90}, rpm(90))
    await client.refused("key", {"rpm": 1}, rpm(90))
    assert await store.left("key") == 0


async def test_limit_that_joins_starts_full(store: Store) -> None:
    """A limit that is new to a bucket starts full and leaves the others as they were."""
    client = await store.client()
    await client.take("key", {"rpm": 30}, slow(100))
    await client.take("key", {"rpm": 1, "tpm": 7}, slow(100), tpm(10))
    assert (await store.left("key"), await store.left("key", "tpm")) == (69, 3)


async def test_limit_that_is_not_brought_along_is_kept(store: Store) -> None:
    """Explicit limits say nothing of other limits of the bucket: they keep their numbers and tokens."""
    client = await store.client()
    await client.take("key", {"rpm": 30, "tpm": 6}, slow(100), tpm(60))
    store.clock.advance(2)
    await client.take("key", {"rpm": 1}, slow(200))
    assert (await store.left("key"), await store.left("key", "tpm")) == (169, 56)


async def test_limit_that_left_the_config_leaves_the_bucket(store: Store) -> None:
    """A stored limit that is dropped is unknown from then on, and comes back full if it comes back."""
    client = await store.client()
    await client.repository.set_resource_defaults(RESOURCE, [slow(100), tpm(10)])
    await client.take("key", {"rpm": 30, "tpm": 6})
    await client.repository.set_resource_defaults(RESOURCE, [slow(100)])
    with pytest.raises(ValidationError, match="'tpm'"):
        await client.take("key", {"rpm": 1, "tpm": 1})
    await client.take("key", {"rpm": 1})
    assert await store.bucket("key", "tpm") is None
    await client.repository.set_resource_defaults(RESOURCE, [slow(100), tpm(10)])
    await client.take("key", {"tpm": 10})
    assert await store.left("key") == 69


async def test_change_reaches_other_processes_at_their_next_write(store: Store) -> None:
    """A cut that one process has met is obeyed by all others at once, not when their caches expire."""
    admin = await store.client()
    await admin.repository.set_resource_defaults(RESOURCE, [slow(100)])
    fleet = [await store.client() for _ in range(3)]
    for client in fleet:
        await client.take("key", {"rpm": 1})
    await admin.repository.set_resource_defaults(RESOURCE, [slow(5)])
    await admin.take("key", {"rpm": 1})
    for client in fleet:
        refusal = await client.refused("key", {"rpm": 2})
        assert refusal.primary_violation.limit.capacity == 5
    await fleet[0].take("key", {"rpm": 1})
    assert await store.left("key") == 0


@pytest.mark.parametrize("count", [2, 5])
async def test_processes_that_disagree_do_not_mint(store: Store, count: int) -> None:
    """Processes with different explicit limits take turns: the larger capacity is all there is."""
    clients = [await store.client() for _ in range(count)]
    limits = [slow(100 - 10 * n) for n in range(count)]

    async def attempt(client: Client, limit: Limit) -> int:
        try:
            await client.take("key", {"rpm": 3}, limit)
        except RateLimitExceeded:
            return 0
        return 3

    admitted = 0
    for _ in range(60):
        for client, limit in zip(clients, limits, strict=True):
            admitted += await attempt(client, limit)
    assert admitted == 99
    assert (await store.used("key"), await store.left("key")) == (99, 1)


async def test_processes_that_disagree_at_once_do_not_mint(store: Store) -> None:
    """The same with all of them asking at the same time, with a refill that is counted exactly once."""
    clients = [await store.client() for _ in range(4)]
    limits = [rpm(60), rpm(50), rpm(60, 50), rpm(40)]

    async def attempts(client: Client, limit: Limit) -> int:
        admitted = 0
        for _ in range(8):
            try:
                await client.take("key", {"rpm": 2}, limit)
                admitted += 2
            except RateLimitExceeded:
                pass
            await asyncio.sleep(0)
        return admitted

    admitted = 0
    for _ in range(10):
        parts = await asyncio.gather(*(attempts(c, x) for c, x in zip(clients, limits, strict=True)))
        admitted += sum(parts)
        store.clock.advance(3)
    # Sixty at first, and at most one token a second for thirty seconds.
    assert 60 <= admitted <= 90
    assert await store.used("key") == admitted


async def test_lease_that_began_under_older_limits_settles_under_the_new(store: Store) -> None:
    """An adjustment or refund of a lease does not bring the old numbers back."""
    client, admin = await store.client(), await store.client()
    await admin.repository.set_resource_defaults(RESOURCE, [slow(100)])
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}) as lease:
        await admin.repository.set_resource_defaults(RESOURCE, [slow(10)])
        await admin.take("key", {"rpm": 1})
        await lease.consume(rpm=1)
        await lease.adjust(rpm=2)
    state = await store.bucket("key")
    assert state is not None
    assert state.limit.capacity == 10
    assert await store.left("key") == 5


async def test_refund_of_a_lease_that_began_under_older_limits(store: Store) -> None:
    """A refund adds what was taken, whatever the numbers are by then."""
    client, admin = await store.client(), await store.client()
    await admin.repository.set_resource_defaults(RESOURCE, [slow(100)])
    with pytest.raises(KeyError):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 4}):
            await admin.repository.set_resource_defaults(RESOURCE, [slow(10)])
            await admin.take("key", {"rpm": 1})
            raise KeyError
    assert (await store.left("key"), await store.used("key")) == (9, 1)
    state = await store.bucket("key")
    assert state is not None
    assert state.limit.capacity == 10


async def test_limit_that_vanished_under_a_warm_process(store: Store) -> None:
    """A process that learns from a write that a limit is gone says so as for any unknown limit."""
    client, admin = await store.client(), await store.client()
    await admin.repository.set_resource_defaults(RESOURCE, [slow(100), tpm(10)])
    await client.take("key", {"rpm": 1, "tpm": 1})
    await admin.repository.set_resource_defaults(RESOURCE, [slow(100)])
    await admin.take("key", {"rpm": 1})
    with pytest.raises(ValidationError, match="'tpm'"):
        await client.take("key", {"rpm": 1, "tpm": 1})
    assert await store.used("key") == 2
    await client.take("key", {"rpm": 1})


@pytest.mark.parametrize("after", [[rpm(50)], []], ids=["one limit gone", "all limits gone"])
async def test_parent_that_lost_limits_under_a_warm_process(store: Store, after: list[Limit]) -> None:
    """A parent pays for the limits it has now; having fewer than this process thought refuses nobody."""
    client, admin = await store.client(), await store.client()
    repository = admin.repository
    await repository.create_entity("parent")
    await repository.create_entity("child", parent_id="parent", cascade=True)
    for entity_id in ("child", "parent"):
        await repository.set_limits(entity_id, [rpm(100), tpm(100)])
    await client.take("child", {"rpm": 1, "tpm": 1})
    await repository.set_limits("parent", [rpm(50)])
    await admin.take("child", {"rpm": 1})
    if not after:
        await repository.delete_limits("parent")
    await client.take("child", {"rpm": 1, "tpm": 1})
    assert (await store.used("child"), await store.used("child", "tpm")) == (3, 2)
