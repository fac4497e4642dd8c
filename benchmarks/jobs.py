"""``python -m benchmarks.jobs``, of ``make waiting``: 100 jobs at 20 a second, as a new user writes them.

Each job is an acquire with ``wait=``, all of them asked for at once in one process: tasks of one loop, or
threads. Beside them are the same jobs in a loop that sleeps for what a refusal tells and tries again. The
bucket is full when they begin, so the ideal is what the others need to accrue. That is done on SQLite and on
DynamoDB Local; what must hold of those that wait is in ``TARGETS``, and a miss ends the run with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository, SyncRateLimiter, SyncRepository
from zae_limiter.backends import open_backend, store_world
from zae_limiter.runtime.world import World
from zae_limiter.testing import RecordingBackend

from .waiting import STORES, Target, judged, located, stores

JOBS = 100
VENDOR = [Limit.per_second("calls", 20)]
IDEAL_SECONDS = (JOBS - VENDOR[0].capacity) / 20
CALL = "vendor", "api", {"calls": 1}, VENDOR


class Done(NamedTuple):
    """What it took until the last job had begun."""

    seconds: float
    begun: int
    tries: int
    writes: int


ADMITTED, TIME, WRITES, TRIES = "jobs that began", "seconds, of the ideal ones", "writes", "acquires"
TARGETS = (Target(ADMITTED, JOBS, JOBS), Target(TIME, most=1.05), Target(WRITES, most=1.1 * JOBS))


def figures(done: Done) -> dict[str, float]:
    share = done.seconds / IDEAL_SECONDS
    return {ADMITTED: done.begun, TIME: share, WRITES: done.writes, TRIES: done.tries}


async def in_tasks(limiter: RateLimiter, *, waits: bool) -> list[int]:
    """Do all jobs in tasks; tells how often each has asked."""

    async def job(_: int) -> int:
        async with limiter.acquire(*CALL, wait=math.inf):
            return 1

    async def stubborn_job(_: int) -> int:
        tries = 0
        while True:
            tries += 1
            try:
                async with limiter.acquire(*CALL):
                    return tries
            except RateLimitExceeded as refusal:
                await asyncio.sleep(refusal.retry_after_seconds)

    return await asyncio.gather(*map(job if waits else stubborn_job, range(JOBS)))


def in_threads(limiter: SyncRateLimiter, *, waits: bool) -> list[int]:
    """The same in threads."""

    def job(_: int) -> int:
        with limiter.acquire(*CALL, wait=math.inf):
            return 1

    def stubborn_job(_: int) -> int:
        tries = 0
        while True:
            tries += 1
            try:
                with limiter.acquire(*CALL):
                    return tries
            except RateLimitExceeded as refusal:
                time.sleep(refusal.retry_after_seconds)

    with ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(job if waits else stubborn_job, range(JOBS)))


async def run_tasks(url: str, *, waits: bool) -> Done:
    world = store_world(url, World())
    store = RecordingBackend(open_backend(url, sync=False, world=world))
    async with RateLimiter(await Repository.over(store, world=world)) as limiter:
        store.forget()
        began = time.monotonic()
        tries = await in_tasks(limiter, waits=waits)
        return Done(time.monotonic() - began, len(tries), sum(tries), store.writes)


def run_threads(url: str, *, waits: bool) -> Done:
    world = store_world(url, World())
    store = RecordingBackend(open_backend(url, sync=True, world=world))
    with SyncRateLimiter(SyncRepository.over(store, world=world)) as limiter:
        store.forget()
        began = time.monotonic()
        tries = in_threads(limiter, waits=waits)
        return Done(time.monotonic() - began, len(tries), sum(tries), store.writes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=["sqlite", "dynamodb"])
    options, fine = parser.parse_args(), True
    with stores() as folder:
        for store in options.stores:
            for colour in ("tasks", "threads"):
                for way in ("wait", "sleep and try again"):
                    url, waits = located(store, folder, f"{colour} {way} {store}"), way == "wait"
                    done = (
                        asyncio.run(run_tasks(url, waits=waits))
                        if colour == "tasks"
                        else run_threads(url, waits=waits)
                    )
                    print(f"{store}, {JOBS} {colour} that {way}, {IDEAL_SECONDS:g} s at best")
                    fine = judged(figures(done), TARGETS if waits else ()) and fine
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
