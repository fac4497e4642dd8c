"""What was closed stays closed, and says so: a mistake in the program is no outage."""

import asyncio

import pytest

from zae_limiter import ClosedError, Limit, RateLimiter, Repository, SyncRateLimiter, ZAELimiterError

LIMITS = [Limit.per_minute("rpm", 60)]


async def test_a_closed_limiter_is_closed(url: str) -> None:
    """However warm it is, and also if work may go ahead while the store is down."""
    async with RateLimiter.open(url) as limiter:
        for _ in range(3):
            async with limiter.acquire("key", "api", {"rpm": 1}, LIMITS):
                pass
    for policy in (None, "allow"):
        with pytest.raises(ClosedError, match="it was closed before"):
            async with limiter.acquire("key", "api", {"rpm": 1}, LIMITS, policy):
                pass
    for ask in (
        limiter.available("key", "api", LIMITS),
        limiter.get_entity("key"),
        limiter.set_limits("key", LIMITS),
        limiter.resolve_limits("key", "api"),
        limiter.list_entities(),
        limiter.repository.ping(),
        limiter.repository.namespace("default"),
    ):
        with pytest.raises(ClosedError):
            await ask
    assert not await limiter.is_available()
    await limiter.close()


def test_a_closed_limiter_is_closed_in_sync_code_too(url: str) -> None:
    with SyncRateLimiter.open(url) as limiter:
        for _ in range(3):
            with limiter.acquire("key", "api", {"rpm": 1}, LIMITS):
                pass
    with pytest.raises(ClosedError), limiter.acquire("key", "api", {"rpm": 1}, LIMITS):
        pass
    with pytest.raises(ClosedError):
        limiter.get_entity("key")


async def test_a_view_closes_itself_and_nothing_else(url: str) -> None:
    """Who opened the store closes it, for all views of it."""
    repository = await Repository.open("mine", store=url)
    await repository.register_namespace("other")
    views = [RateLimiter(await repository.namespace("other")) for _ in range(2)]
    for view in views:
        async with view.acquire("key", "api", {"rpm": 1}, LIMITS):
            pass
    await views[0].close()
    with pytest.raises(ClosedError):
        async with views[0].acquire("key", "api", {"rpm": 1}, LIMITS):
            pass
    async with views[1].acquire("key", "api", {"rpm": 1}, LIMITS):
        pass
    await repository.close()
    with pytest.raises(ClosedError):
        async with views[1].acquire("key", "api", {"rpm": 1}, LIMITS):
            pass


async def test_what_a_lease_owes_is_stored_although_the_limiter_was_closed_meanwhile(url: str) -> None:
    """Closing refuses new work; it does not lose what was taken."""
    limiter, other = await RateLimiter.open(url), await RateLimiter.open(url)
    async with limiter.acquire("key", "api", {"rpm": 10}, LIMITS) as lease:
        await limiter.close()
        await lease.adjust(rpm=-9)
    states = await other.repository.get_bucket("key", "api")
    assert [state.total_consumed_milli for state in states if state.limit_name == "rpm"] == [1_000]
    await limiter.close()
    await other.close()


def test_it_is_no_outage_and_one_of_ours() -> None:
    """Nothing that waits for a store to come back swallows it."""
    assert issubclass(ClosedError, (ZAELimiterError, RuntimeError))
    assert not issubclass(ClosedError, (OSError, asyncio.CancelledError))
