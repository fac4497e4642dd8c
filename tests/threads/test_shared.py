"""What threads share stays true when they come between any two steps of each other, GIL or not."""

from __future__ import annotations

import sys
import threading

import pytest

from tests.threads.switching import together
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.config_cache import ConfigCache
from zae_limiter.repository_protocol import Key
from zae_limiter.runtime.colour import Blocking, run_sync
from zae_limiter.telemetry import Telemetry

THREADS, TIMES = 4, 25
ENGINE = ("group_commit.py", "line.py", "seen_buckets.py", "door.py", "shelf.py", "memory.py")
SQLITE = ("sqlite/backend.py", "sqlite/database.py", "convoy.py")
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


@pytest.mark.parametrize("seed", range(3))
def test_no_token_is_lost_or_made(limiter: SyncRateLimiter, seed: int) -> None:
    """Threads that take from one bucket get together what it has, and not one more."""
    capacity = THREADS * TIMES // 2
    limiter.set_system_defaults([Limit.per_day("rpd", capacity)])
    admitted, lock = [], threading.Lock()

    def task() -> None:
        for _ in range(TIMES):
            try:
                with limiter.acquire("key", "api", {"rpd": 1}):
                    pass
            except RateLimitExceeded:
                continue
            with lock:
                admitted.append(1)

    together([task] * THREADS, ENGINE + SQLITE, seed)
    assert len(admitted) == capacity
    assert limiter.available("key", "api") == {"rpd": 0}


@pytest.mark.parametrize("seed", range(3))
def test_what_is_given_back_is_there(limiter: SyncRateLimiter, seed: int) -> None:
    """Leases that fail at once in many threads leave the bucket as it was."""
    limiter.set_system_defaults([Limit.per_day("rpd", 1_000)])

    def task() -> None:
        for _ in range(TIMES):
            with pytest.raises(KeyError), limiter.acquire("key", "api", {"rpd": 3}):
                raise KeyError

    together([task] * THREADS, ENGINE + SQLITE, seed)
    assert limiter.available("key", "api") == {"rpd": 1_000}
    assert limiter.refunds_lost == 0


@pytest.mark.parametrize("seed", range(3))
def test_all_is_counted(limiter: SyncRateLimiter, seed: int) -> None:
    """Telemetry has every acquire of every thread where a GIL makes an addition one step, and never more."""
    limiter.set_system_defaults([Limit.per_day("rpd", 1_000_000)])
    with Telemetry(limiter) as telemetry:

        def task() -> None:
            for _ in range(TIMES):
                with limiter.acquire("key", "api", {"rpd": 1}):
                    pass

        together([task] * THREADS, ENGINE + SQLITE, seed)
        assert (THREADS * TIMES if HAS_GIL else 1) <= telemetry.counters.admitted <= THREADS * TIMES
    assert limiter.available("key", "api") == {"rpd": 1_000_000 - THREADS * TIMES}


@pytest.mark.parametrize("seed", range(3))
def test_a_signal_may_be_given_by_several(seed: int) -> None:
    """Whoever waits goes on, however many give it and however many wait."""
    signals = [Blocking().signal() for _ in range(60)]

    def give() -> None:
        for signal in signals:
            signal.give()

    def wait() -> None:
        for signal in signals:
            run_sync(signal.wait(60))
            assert signal.given

    together([give, give, wait, wait], ("colour.py",), seed)


def test_the_cache_of_limits_keeps_to_its_size() -> None:
    """Threads that look up, put in and put out of date find no wrong record, nor more than have room."""
    cache = ConfigCache(60_000, 10)
    keys = [Key(f"n/RESOURCE#{number}", "#CONFIG") for number in range(20)]

    def task() -> None:
        for turn in range(TIMES):
            for key in keys:
                entry = cache.get(key, 0.0)
                if entry is None:
                    cache.put(key, {"v": key.partition}, 0.0, cache.set_out())
                else:
                    assert entry.item == {"v": key.partition}
            if turn % 5 == 0:
                cache.invalidate(lambda key: key.partition.endswith("7"))

    together([task] * THREADS, ("config_cache.py",), 1)
    assert cache.stats().size <= 10


def test_a_count_without_a_lock_is_seen_to_lose() -> None:
    """The switching is real: an addition that is not guarded loses under it."""

    class Counter:
        value = 0

    counter = Counter()

    def task() -> None:
        for _ in range(200):
            seen = counter.value
            counter.value = seen + 1

    together([task] * THREADS, ("test_shared.py",), 1)
    assert counter.value < THREADS * 200
