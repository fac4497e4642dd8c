"""Processes with clocks a day apart that are killed while they take: the books of the server are right."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS, wait_until
from tests.stores import url_of
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.runtime.world import World

DAY_MS = 86_400_000
DAYS = (-1, 0, 1)
EACH_MIN = 15
CAPACITY, DAILY = 100_000, 50_000

TAKES = """
import sys
from zae_limiter import SyncRateLimiter
from zae_limiter.runtime.world import World

url, ahead_ms = sys.argv[1], int(sys.argv[2])
with SyncRateLimiter.open(url, world=World(now_ms=lambda: World().now_ms() + ahead_ms)) as limiter:
    while True:
        with limiter.acquire("key", "api", {"x": 1}):
            pass
        print(1, flush=True)
"""


class Taker:
    """A process that takes one after the other, and writes down each that was admitted and settled."""

    def __init__(self, url: str, days: int, book: Path) -> None:
        self._book, self._log = book, book.with_suffix(".err")
        with book.open("w") as out, self._log.open("w") as err:
            words = [sys.executable, "-c", TAKES, url, str(days * DAY_MS)]
            self._process = subprocess.Popen(words, stdout=out, stderr=err)

    def has_taken(self, count: int) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        return self.admitted >= count

    @property
    def admitted(self) -> int:
        return self._book.read_text().count("1\n")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_killed_takers_with_clocks_a_day_apart(kind: str, tmp_path: Path) -> None:
    """Two rounds of three processes: nothing accrues for the day that some of them believe to have passed.

    Each was killed with at most one token under way; all others are in its book.
    """
    url = url_of(kind, tmp_path)
    takers = []
    with SyncRateLimiter.open(url) as limiter:
        # A day brings more than all of them take: who believes in it finds a full bucket, and cuts it off.
        limiter.set_system_defaults([Limit("x", CAPACITY, DAILY, 86_400)])
        begun = time.monotonic()
        for round_number in range(2):
            some = [Taker(url, days, tmp_path / f"{round_number}{days}") for days in DAYS]
            takers += some
            for taker in some:
                wait_until(lambda taker=taker: taker.has_taken(EACH_MIN))  # type: ignore[misc]
            for taker in some:
                taker.kill()
        admitted = sum(taker.admitted for taker in takers)
        taken = CAPACITY - limiter.available("key", "api")["x"]
        accrued = (time.monotonic() - begun) * DAILY / 86_400 + 1
        assert admitted - accrued <= taken <= admitted + len(takers)


@pytest.mark.parametrize("days", [-1, 1])
@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_who_believes_in_another_day_sees_the_same(kind: str, days: int, tmp_path: Path) -> None:
    """Nothing is swept because of it, no quota begins anew, and who is refused is told the same wait."""
    url = url_of(kind, tmp_path)
    limits = [Limit("hourly", 3, 3, 3_600), Limit.per_day("daily", 5, calendar=True)]
    wrong = World(now_ms=lambda: World().now_ms() + days * DAY_MS)
    with SyncRateLimiter.open(url, bucket_ttl_multiplier=2) as limiter:
        limiter.set_system_defaults(limits)
        for taken in ({"hourly": 3, "daily": 1}, {"daily": 4}):
            with limiter.acquire("key", "api", taken):
                pass
        with SyncRateLimiter.open(url, bucket_ttl_multiplier=2, world=wrong) as other:
            for name in ("hourly", "daily"):
                waits = [refused(one, {name: 1}) for one in (limiter, other, limiter)]
                assert max(waits) - min(waits) < PATIENCE_SECONDS, (name, waits)
            assert other.available("key", "api") == limiter.available("key", "api")


def refused(limiter: SyncRateLimiter, amounts: dict[str, int]) -> float:
    with pytest.raises(RateLimitExceeded) as caught, limiter.acquire("key", "api", amounts):
        pass
    return caught.value.retry_after_seconds
