"""Taking at once: done whenever it can be, left to a write whenever anything has changed.

These run on the embedded stores as users open them, which can swap; the other tests of the flow put
recording stores in between, which cannot.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.stores import url_of
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded, SyncRateLimiter
from zae_limiter.testing import ManualClock

RPM = Limit.per_minute("rpm", 60)


class Failed(Exception):
    """The work under a lease did not succeed."""


class Traffic:
    """Two limiters of one store, and how the first one got its tokens."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.limiter, self.other = (SyncRateLimiter.open(url, world=self.clock.world) for _ in range(2))
        self.limiter.set_resource_defaults("api", [RPM])
        self.swaps = 0
        backend: Any = self.limiter.repository._async._backend
        writer = self.limiter.repository._async.writer
        assert writer.swap is not None

        def swap(*given: Any) -> Any:
            self.swaps += 1
            return backend.swap(*given)

        writer.swap = swap

    def take(self, amount: int = 1, entity: str = "key") -> bool:
        """Take some and tell whether it was taken at once."""
        before = self.swaps
        with self.limiter.acquire(entity, "api", {"rpm": amount}):
            pass
        return self.swaps > before

    @property
    def left(self) -> int:
        return self.limiter.available("key", "api")["rpm"]


@pytest.fixture(params=["memory", "sqlite"])
def traffic(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Traffic]:
    traffic = Traffic(url_of(request.param, tmp_path))
    yield traffic
    traffic.limiter.close()
    traffic.other.close()


def test_a_known_bucket_is_spent_from_at_once(traffic: Traffic) -> None:
    """The first acquire works everything out; those after it take at once, and every token counts."""
    assert [traffic.take() for _ in range(5)] == [False, True, True, True, True]
    assert traffic.left == 55


def test_what_accrues_counts(traffic: Traffic) -> None:
    for _ in range(60):
        traffic.take()
    with pytest.raises(RateLimitExceeded) as refused:
        traffic.take()
    traffic.clock.advance(refused.value.retry_after_seconds)
    assert traffic.take()
    assert traffic.left == 0


def test_an_overfull_bucket_is_a_full_one(traffic: Traffic) -> None:
    """A refund to a bucket that has refilled meanwhile cannot be saved up."""
    traffic.take()
    with suppress(Failed), traffic.limiter.acquire("key", "api", {"rpm": 59}):
        traffic.clock.advance(50)
        raise Failed
    traffic.clock.advance(9)
    assert traffic.take(60)
    with pytest.raises(RateLimitExceeded):
        traffic.take()


def test_a_failed_body_gives_back_what_was_taken_at_once(traffic: Traffic) -> None:
    traffic.take()
    with suppress(Failed), traffic.limiter.acquire("key", "api", {"rpm": 30}) as lease:
        lease.consume(rpm=5)
        assert lease.consumed == {"rpm": 35}
        raise Failed
    assert traffic.swaps == 1
    assert traffic.left == 59


def test_a_lease_that_was_given_at_once_settles(traffic: Traffic) -> None:
    traffic.take()
    with traffic.limiter.acquire("key", "api", {"rpm": 10}) as lease:
        lease.adjust(rpm=60)
    assert traffic.swaps == 1
    assert traffic.left == -11


def test_new_limits_of_this_process_count_at_once(traffic: Traffic) -> None:
    traffic.take()
    traffic.limiter.set_limits("key", [Limit.per_minute("rpm", 10)], "api")
    assert not traffic.take()
    assert traffic.left == 8
    assert traffic.take()


def test_new_limits_of_another_process_count_once_the_bucket_shows_them(traffic: Traffic) -> None:
    """The image is not what it was, so the swap fails and the limits are read anew."""
    traffic.take()
    traffic.other.set_limits("key", [Limit.per_minute("rpm", 10)], "api")
    with traffic.other.acquire("key", "api", {"rpm": 1}):
        pass
    assert traffic.take(), "it was tried"
    assert traffic.left == 7


def test_limits_that_nobody_used_yet_count_when_the_cache_expires(traffic: Traffic) -> None:
    traffic.take()
    traffic.other.set_limits("key", [Limit.per_minute("rpm", 10)], "api")
    assert traffic.take()
    traffic.clock.advance(61)
    assert not traffic.take()
    assert traffic.left == 9


def test_taking_at_once_is_seldom_left(traffic: Traffic) -> None:
    """Once a minute to read the limits anew, and now and then to prolong the life of the bucket."""
    ways = []
    for _ in range(600):
        ways.append(traffic.take())
        traffic.clock.advance(1)
    assert 10 <= ways.count(False) <= 14


def test_an_invalidated_cache_is_read_again(traffic: Traffic) -> None:
    traffic.take()
    traffic.limiter.invalidate_config_cache()
    assert [traffic.take(), traffic.take()] == [False, True]


def test_a_parent_is_charged_from_the_moment_there_is_one(traffic: Traffic) -> None:
    traffic.take()
    traffic.limiter.create_entity("parent")
    traffic.limiter.create_entity("key", parent_id="parent", cascade=True)
    assert not traffic.take()
    assert traffic.limiter.available("parent", "api") == {"rpm": 59}


def test_another_process_takes_part_in_every_token(traffic: Traffic) -> None:
    """Each swap of one makes the next swap of the other fail, and nothing is lost on the way."""
    traffic.take()
    for _ in range(10):
        traffic.take()
        with traffic.other.acquire("key", "api", {"rpm": 1}):
            pass
    assert traffic.left == 60 - 21


def test_limits_brought_along_are_compared(traffic: Traffic) -> None:
    """A plan is only good for the limits it was made for."""
    generous, strict = [Limit.per_minute("rpm", 100)], [Limit.per_minute("rpm", 5)]
    for limits, at_once in ((generous, False), (generous, True), (strict, False)):
        before = traffic.swaps
        with traffic.limiter.acquire("mine", "api", {"rpm": 1}, limits):
            pass
        assert (traffic.swaps > before) is at_once


def test_a_bucket_is_kept_alive(traffic: Traffic) -> None:
    """When a bucket might expire before it is full nothing is taken at once, and ``ttl`` moves."""
    traffic.take()
    with traffic.limiter.acquire("key", "api", {"rpm": 1}) as lease:
        lease.adjust(rpm=200)  # more than three minutes of debt
    traffic.clock.advance(5 * 60 + 30)
    before = traffic.swaps
    traffic.take(60)
    traffic.clock.advance(20)
    traffic.take(5)
    writer = traffic.limiter.repository._async.writer
    (ttl,) = {item["ttl"] for item in writer.images.values() if item is not None}
    assert traffic.swaps <= before + 1
    assert ttl * 1000 >= traffic.clock.now_ms + 60_000


def test_a_store_that_fails_in_the_middle_is_answered_by_the_policy(traffic: Traffic) -> None:
    """Whether the swap happened is not known; it is not tried again."""
    traffic.take()
    lost = RateLimiterUnavailable("nobody knows", ambiguous=True)
    traffic.limiter.repository._async.writer.swap = mock.Mock(side_effect=lost)
    with pytest.raises(RateLimiterUnavailable), traffic.limiter.acquire("key", "api", {"rpm": 1}):
        pass
    with traffic.limiter.acquire("key", "api", {"rpm": 1}, on_unavailable="allow") as lease:
        assert lease.degraded
    assert traffic.left == 59


def test_what_a_process_remembers_is_bounded() -> None:
    """Idle entities cost memory up to a limit that can be set."""

    async def work() -> tuple[int, int, int]:
        async with RateLimiter.open("memory://", remembered_max=1_000) as limiter:
            await limiter.set_system_defaults([Limit.per_day("rpm", 60)])
            for number in range(1_500):
                async with limiter.acquire(f"key-{number}", "api", {"rpm": 1}):
                    pass
            async with limiter.acquire("key-0", "api", {"rpm": 1}):
                assert await limiter.available("key-0", "api") == {"rpm": 58}
            repository = limiter.repository
            return len(repository.plans), len(repository.writer.images), limiter.get_cache_stats().size

    assert asyncio.run(work()) == (1_000, 1_000, 1_000)
