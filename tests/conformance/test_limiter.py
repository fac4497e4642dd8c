"""A limiter that is opened by the URL of a store, in both colours: the rest of the way a user goes."""

import asyncio
from pathlib import Path

import pytest

from tests.stores import STORES, url_of
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter

NEVER = 10**6
"""A period in seconds so long that nothing refills within a test."""

LIMITS = [Limit("rpm", 3, 1, NEVER), Limit("tpm", 1_000, 1, NEVER)]


@pytest.fixture(params=list(STORES))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


def test_sync_clients_share_what_is_left(url: str) -> None:
    """Amounts are taken from all limits or none, settled, given back, and seen by everybody."""
    with SyncRateLimiter.open(url) as first, SyncRateLimiter.open(url) as second:
        first.set_resource_defaults("api", LIMITS)
        with first.acquire("key", "api", {"rpm": 1, "tpm": 500}) as lease:
            lease.adjust(tpm=100)
        assert second.available("key", "api") == {"rpm": 2, "tpm": 400}
        with pytest.raises(RateLimitExceeded), second.acquire("key", "api", {"rpm": 1, "tpm": 401}):
            raise AssertionError("there are 400 left")
        with pytest.raises(ZeroDivisionError), second.acquire("key", "api", {"rpm": 1, "tpm": 1}):
            raise ZeroDivisionError
        assert first.available("key", "api") == {"rpm": 2, "tpm": 400}


def test_families_are_charged_together(url: str) -> None:
    """A parent that is out of tokens refuses for its child, which loses none."""
    with SyncRateLimiter.open(url) as limiter:
        limiter.set_system_defaults(LIMITS)
        limiter.create_entity("parent")
        limiter.create_entity("child", parent_id="parent", cascade=True)
        with limiter.acquire("parent", "api", {"rpm": 2}):
            pass
        with limiter.acquire("child", "api", {"rpm": 1}):
            pass
        with pytest.raises(RateLimitExceeded), limiter.acquire("child", "api", {"rpm": 1}):
            raise AssertionError("the parent has none")
        states = limiter.repository.get_bucket("child", "api")
        assert {one.limit_name: one.total_consumed_milli for one in states}["rpm"] == 1_000


def test_async_clients_admit_what_there_is(url: str) -> None:
    """Ten tasks of two clients want one each of three."""

    async def ask(limiter: RateLimiter) -> bool:
        try:
            async with limiter.acquire("key", "api", {"rpm": 1}, LIMITS):
                return True
        except RateLimitExceeded:
            return False

    async def work() -> int:
        async with RateLimiter.open(url) as first, RateLimiter.open(url) as second:
            return sum(await asyncio.gather(*(ask(one) for one in (first, second) * 5)))

    assert asyncio.run(work()) == 3
