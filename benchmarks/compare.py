"""``make compare BASE=commit``: the client's CPU for an acquire, as a share of what another commit needs.

Both versions take turns on one machine, each round in a fresh process; the smallest of each case is compared,
for whatever else runs on the machine only adds. The versions are compared by what their users call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CALLS = {"memory": 20_000, "sqlite": 3_000, "dynamodb": 1_500}


def measured(store: str, url: str) -> dict[str, float]:
    """Microseconds of CPU for one acquire of each kind, on whichever version Python finds."""
    from zae_limiter import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter

    plenty, scarce = Limit.per_minute("rpm", 1_000_000_000), Limit.per_day("few", 1)
    calls, found = CALLS[store], dict[str, float]()

    async def timed(name: str, count: int, work: Callable[[int], Awaitable[None]]) -> None:
        await work(max(count // 10, 5))
        begun = time.process_time()
        await work(count)
        found[f"{store}: {name}"] = (time.process_time() - begun) * 1e6 / count

    async def of_async() -> None:
        async with RateLimiter.open(url) as limiter:
            await limiter.set_system_defaults([plenty, scarce])

            async def alone(count: int) -> None:
                for _ in range(count):
                    async with limiter.acquire("key", "api", {"rpm": 1}):
                        pass

            async def adjusted(count: int) -> None:
                for _ in range(count):
                    async with limiter.acquire("adjusted", "api", {"rpm": 1}) as lease:
                        await lease.adjust(rpm=1)

            async def together(count: int) -> None:
                await asyncio.gather(*(alone(count // 20) for _ in range(20)))

            async def refused(count: int) -> None:
                for _ in range(count):
                    with suppress(RateLimitExceeded):
                        async with limiter.acquire("poor", "api", {"few": 2}):
                            raise AssertionError("it never fits")

            await timed("alone", calls, alone)
            await timed("20 tasks", calls, together)
            await timed("refused", calls, refused)
            await timed("adjusted", calls // 4, adjusted)

    asyncio.run(of_async())
    with SyncRateLimiter.open(url) as limiter:
        limiter.set_system_defaults([plenty, scarce])

        def sync_alone(count: int) -> None:
            for _ in range(count):
                with limiter.acquire("key", "api", {"rpm": 1}):
                    pass

        sync_alone(calls // 10)
        begun = time.process_time()
        sync_alone(calls)
        found[f"{store}: sync"] = (time.process_time() - begun) * 1e6 / calls
    return found


def one_round(sources: Path, urls: dict[str, str]) -> dict[str, float]:
    """What a fresh process measures with these sources."""
    found: dict[str, float] = {}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(sources), str(ROOT)])}
    for store, url in urls.items():
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.compare", "--measure", store, url],
            cwd=ROOT,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        found |= json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--base", default="HEAD~1", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--measure", nargs=2, metavar=("STORE", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(*options.measure)))
        return
    from tests.dynamodb.tables import make_table
    from tests.engines import dynamodb_local

    dynamodb_local.isolate_from_aws()
    engine = dynamodb_local.start()
    with tempfile.TemporaryDirectory() as place:
        base = Path(place) / "base"
        subprocess.run(["git", "worktree", "add", "--detach", base, options.base], cwd=ROOT, check=True)
        try:
            best: dict[str, list[float]] = {}
            for number in range(options.rounds):
                for side, sources in enumerate((base / "src", ROOT / "src")):
                    table = dynamodb_local.url(make_table(), timeout_ms=60_000)
                    file = f"sqlite:///{place}/{side}-{number}.db"
                    for name, us in one_round(
                        sources, {"memory": "memory://", "sqlite": file, "dynamodb": table}
                    ).items():
                        known = best.setdefault(name, [float("inf")] * 2)
                        known[side] = min(known[side], us)
            for name, (before, after) in best.items():
                print(f"{name:20} {before:8.1f} us -> {after:8.1f} us   {after / before:.2f}")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", base], cwd=ROOT, check=True)
            dynamodb_local.stop(engine)


if __name__ == "__main__":
    main()
