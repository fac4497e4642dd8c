"""``make bench``: an acquire on the embedded stores, in one run with what it is made of.

The floor is a bare ``UPDATE … RETURNING`` in WAL for SQLite and a dictionary update for memory. Figures
are client CPU, the median of several rounds and their spread, because wall time on a busy machine
says little. They are printed as ratios to the floor; nothing here is a test.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from zae_limiter import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter

LIMITS = [Limit.per_second("rps", 1_000_000_000)]
EMPTY = [Limit.custom("rps", 1, 1, 86_400)]
ROUNDS = 7
CALLS = 2_000


def bare_update(folder: Path) -> Callable[[int], None]:
    database = sqlite3.connect(folder / "floor.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE items (key TEXT PRIMARY KEY, tokens INTEGER) WITHOUT ROWID")
    database.execute("INSERT INTO items VALUES ('key', 0)")
    update = "UPDATE items SET tokens = tokens - 1 WHERE key = 'key' AND tokens <= 1 RETURNING tokens"

    def work(calls: int) -> None:
        for _ in range(calls):
            database.execute(update).fetchone()

    return work


def bare_dictionary() -> Callable[[int], None]:
    items = {"key": {"tokens": 0}}

    def work(calls: int) -> None:
        for _ in range(calls):
            item = items["key"]
            items["key"] = {**item, "tokens": item["tokens"] - 1}

    return work


def acquire_sync(url: str) -> Callable[[int], None]:
    limiter = SyncRateLimiter.open(url)

    def work(calls: int) -> None:
        for _ in range(calls):
            with limiter.acquire("key", "api", {"rps": 1}, LIMITS):
                pass

    return work


def acquire_async(url: str) -> Callable[[int], None]:
    runner = asyncio.Runner()

    async def start() -> RateLimiter:
        return await RateLimiter.open(url)

    limiter = runner.run(start())

    async def many(calls: int) -> None:
        for _ in range(calls):
            async with limiter.acquire("key", "api", {"rps": 1}, LIMITS):
                pass

    return lambda calls: runner.run(many(calls))


def refused(url: str) -> Callable[[int], None]:
    limiter = SyncRateLimiter.open(url)
    with limiter.acquire("empty", "api", {"rps": 1}, EMPTY):
        pass

    def work(calls: int) -> None:
        for _ in range(calls):
            try:
                with limiter.acquire("empty", "api", {"rps": 1}, EMPTY):
                    pass
            except RateLimitExceeded:
                continue

    return work


def cpu_us(work: Callable[[int], None]) -> tuple[float, float]:
    """Median and spread of the CPU time of one call, in microseconds."""
    work(CALLS // 10)
    rounds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work(CALLS)
        rounds.append((time.process_time() - started) / CALLS * 1e6)
    return statistics.median(rounds), max(rounds) - min(rounds)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sqlite = f"sqlite:///{folder}/limits.db"
        tables = {
            "memory": {
                "floor: dictionary update": bare_dictionary(),
                "acquire, sync": acquire_sync("memory://"),
                "acquire, async": acquire_async("memory://"),
                "refusal, remembered": refused("memory://"),
            },
            "SQLite": {
                "floor: UPDATE … RETURNING": bare_update(folder),
                "acquire, sync": acquire_sync(sqlite),
                "acquire, async": acquire_async(sqlite),
            },
        }
        for store, cases in tables.items():
            print(f"{store:32} {'CPU µs':>8} {'spread':>8} {'× floor':>8}")
            floor = 0.0
            for case, work in cases.items():
                median, spread = cpu_us(work)
                floor = floor or median
                print(f"  {case:30} {median:8.1f} {spread:8.1f} {median / floor:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
