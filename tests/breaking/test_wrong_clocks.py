"""Clients whose clocks are a day apart use a server as if there were one clock; so they do if killed."""

import asyncio
import math
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.patience import wait_until
from tests.stores import drive, url_of
from zae_limiter import Lease, Limit, RateLimiter, RateLimitExceeded, Repository, SyncRateLimiter
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.settings import Settings

RESOURCE = "api"
DAY_MS = 86_400_000
DAYS = (-1, 0, 1)
COARSE_S = {"dynamodb": 1.0, "redis": 0.0, "postgres": 0.0}
"""How exactly a store tells its time; a round trip comes on top."""

EACH_MIN = 15
CAPACITY, DAILY = 100_000, 50_000
ROUNDING_S = 0.002

all_servers = pytest.mark.parametrize("kind", COARSE_S)
both_colours = pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
orders = pytest.mark.parametrize("days", [(0, 1, -1), (1, 0, -1), (-1, 0, 1)], ids=str)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def wrong_by(ms: int) -> World:
    """The world of a machine whose clock was set wrong."""
    return World(lambda: wall_ms() + ms)


def where_it_is_noon() -> str:
    """A zone in which no day ends while a test runs."""
    return f"Etc/GMT{time.gmtime().tm_hour - 12:+d}"


class Crew:
    """Clients of one store whose clocks differ, in one colour."""

    def __init__(self, limiters: list[RateLimiter], began_s: float, coarse_s: float) -> None:
        self.limiters, self._began_s, self._coarse_s = limiters, began_s, coarse_s

    @property
    def apart_s(self) -> float:
        """How far two of them may differ: what the store leaves open, and as much as all round trips took."""
        return self._coarse_s + time.monotonic() - self._began_s + ROUNDING_S

    async def refusals(self, amounts: dict[str, int]) -> list[float]:
        """What each is told to wait; the first asks again after the last."""
        return [await refused(limiter, amounts) for limiter in (*self.limiters, self.limiters[0])]


@asynccontextmanager
async def crew(
    kind: str, folder: Path, sync: bool, days: tuple[int, ...], *limits: Limit
) -> AsyncIterator[Crew]:
    """The first of them has made the limits."""
    url, began_s, opened = url_of(kind, folder), time.monotonic(), list[Repository]()
    try:
        for ahead in days:
            settings = Settings(store=url, world=wrong_by(ahead * DAY_MS), bucket_ttl_multiplier=2)
            opened.append(await Repository._open(settings, None, sync=sync))
        await opened[0].set_resource_defaults(RESOURCE, list(limits))
        yield Crew([RateLimiter(repository) for repository in opened], began_s, COARSE_S[kind])
    finally:
        for repository in opened:
            await repository.close()


async def take(limiter: RateLimiter, amounts: dict[str, int], **how: Any) -> Lease:
    async with limiter.acquire("key", RESOURCE, amounts, **how) as lease:
        return lease


async def refused(limiter: RateLimiter, amounts: dict[str, int]) -> float:
    with pytest.raises(RateLimitExceeded) as caught:
        await take(limiter, amounts)
    return caught.value.retry_after_seconds


async def together(sync: bool, *work: Coroutine[Any, Any, Lease]) -> list[Lease]:
    if not sync:
        return await asyncio.gather(*work)
    with ThreadPoolExecutor() as threads:
        return [*threads.map(run_sync, work)]


@both_colours
@orders
@all_servers
def test_clocks_a_day_apart_admit_what_one_clock_would(
    kind: str, days: tuple[int, ...], sync: bool, tmp_path: Path
) -> None:
    """The capacity and what accrued meanwhile; nobody is locked out, whoever made the bucket."""
    rpm = Limit("rpm", 20, 60, 3_600)
    per_token_s = rpm.refill_period_seconds / rpm.refill_amount

    async def run() -> None:
        async with crew(kind, tmp_path, sync, days, rpm) as it:
            admitted = 0
            for limiter, times in zip(it.limiters, (1, 5, 5), strict=True):
                for _ in range(times):
                    await take(limiter, {"rpm": 1})
                    admitted += 1
            for limiter in it.limiters:
                with suppress(RateLimitExceeded):
                    while True:
                        await take(limiter, {"rpm": 1})
                        admitted += 1
            assert rpm.capacity <= admitted <= rpm.capacity + math.floor(it.apart_s / per_token_s)

    drive(sync, run())


@both_colours
@orders
@all_servers
def test_who_believes_in_another_day_sees_the_same(
    kind: str, days: tuple[int, ...], sync: bool, tmp_path: Path
) -> None:
    """Nothing is swept because of it, no quota or session begins anew, and all are told the same wait."""
    hourly, session = Limit("hourly", 3, 3, 3_600), Limit.session("session", 4, "5h")
    daily = Limit.per_day("daily", 5, calendar=True, tz=where_it_is_noon())

    async def run() -> None:
        async with crew(kind, tmp_path, sync, days, hourly, session, daily) as it:
            for limiter, name, amount in zip(
                it.limiters, ("hourly", "session", "daily"), (3, 4, 5), strict=True
            ):
                await take(limiter, {name: amount})
            for name in ("hourly", "session", "daily"):
                waits = await it.refusals({name: 1})
                assert max(waits) - min(waits) <= it.apart_s, (name, waits)
            waits = await it.refusals({"session": 1})
            assert 5 * 3_600 - it.apart_s <= min(waits) <= max(waits) <= 5 * 3_600 + it.apart_s
            left = [await limiter.available("key", RESOURCE) for limiter in it.limiters]
            assert left == [{"hourly": 0, "session": 0, "daily": 0}] * len(days)

    drive(sync, run())


@both_colours
@orders
@all_servers
def test_a_seat_is_held_for_who_believes_in_another_day(
    kind: str, days: tuple[int, ...], sync: bool, tmp_path: Path
) -> None:
    """It lapses for nobody before its time, and for nobody later; who leaves makes room for all."""
    hold_s = 3_600

    async def run() -> None:
        async with crew(kind, tmp_path, sync, days, Limit.concurrent("seats", 2, hold=hold_s)) as it:
            first, second, third = it.limiters
            leases = [await limiter.acquire("key", RESOURCE, {"seats": 1}) for limiter in (first, second)]
            waits = await it.refusals({"seats": 1})
            assert hold_s - it.apart_s <= min(waits) <= max(waits) <= hold_s * 9 / 8 + it.apart_s
            assert max(waits) - min(waits) <= it.apart_s
            await leases[0].commit()
            leases[0] = await third.acquire("key", RESOURCE, {"seats": 1})
            for limiter in it.limiters:
                assert await limiter.available("key", RESOURCE) == {"seats": 0}
            for lease in leases:
                await lease.commit()
            assert await second.available("key", RESOURCE) == {"seats": 2}

    drive(sync, run())


@both_colours
@all_servers
def test_who_believes_in_another_day_waits_no_other_time(kind: str, sync: bool, tmp_path: Path) -> None:
    """All are booked one behind the other, no turn before its token, and none so late that it is refused."""

    days = (1, 0, -1)

    async def run() -> None:
        async with crew(kind, tmp_path, sync, days, Limit("rps", 3, 3, 3)) as it:
            begun_s = time.monotonic()
            await take(it.limiters[0], {"rps": 3})
            last_s = len(days) + COARSE_S[kind]
            waiting = (take(limiter, {"rps": 1}, wait=last_s) for limiter in it.limiters)
            leases = await together(sync, *waiting)
            elapsed_s = time.monotonic() - begun_s
            unsure_s = COARSE_S[kind] + ROUNDING_S
            assert elapsed_s >= len(days) - unsure_s
            assert all(lease.waited_ms <= (elapsed_s + unsure_s) * 1_000 for lease in leases)

    drive(sync, run())


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
