"""``python -m benchmarks.families``, of ``make waiting``: jobs wait for an entity and its parent at once.

Twenty children share a parent of 20 a second, and three jobs of each wait again and again. Where one of the
two has something to spare all of the rate is used. Where every child is as short as the parent, which holds
one token, much of it passes by: both have to give at the same instant. That is done on SQLite in one
process. What must hold is in ``BOUNDS``, and that nothing begins beyond what the parent allows; a miss ends
the run with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time

from zae_limiter import Limit, RateLimiter

from .waiting import SHARE, Target, judged, located, stores

PARENT, RESOURCE, CHILDREN, JOBS, RATE = "family", "api", 20, 3, 20
WARM_SECONDS = 3
BOUNDS = {
    "children of 1 a second, a parent that holds 1": (1, 1, 0.2),
    "children of 1 a second, a parent that holds 20": (1, 20, 0.97),
    "children of 10 a second, a parent that holds 1": (10, 1, 0.97),
}
"""What each child gets in a second, what the parent holds, and the least share of its rate that is used."""

EXCESS, BEGAN = "jobs begun beyond what the parent allows", "jobs begun"


async def run(url: str, rate: int, held: int, seconds: float) -> dict[str, float]:
    """Let a family work for a while; what came of it."""
    began = list[float]()

    async with RateLimiter.open(url) as limiter:
        await limiter.create_entity(PARENT)
        await limiter.set_limits(PARENT, [Limit("calls", held, RATE, 1)], RESOURCE)
        children = [f"child-{number}" for number in range(CHILDREN)]
        for child in children:
            await limiter.create_entity(child, parent_id=PARENT, cascade=True)
            await limiter.set_limits(child, [Limit.per_second("calls", rate)], RESOURCE)

        async def work(child: str) -> None:
            while True:
                async with limiter.acquire(child, RESOURCE, {"calls": 1}, wait=math.inf):
                    began.append(time.monotonic())

        since = time.monotonic()
        jobs = [asyncio.create_task(work(child)) for child in children for _ in range(JOBS)]
        await asyncio.sleep(seconds)
        until = time.monotonic()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
    warm = since + WARM_SECONDS
    share = sum(warm < at <= until for at in began) / (RATE * (until - warm))
    beyond = sum(at <= until for at in began) - held - RATE * (until - since)
    return {SHARE: share, EXCESS: max(0.0, beyond), BEGAN: len(began)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="how long each of the runs lasts")
    options, fine = parser.parse_args(), True
    with stores() as folder:
        for variant, (rate, held, share) in BOUNDS.items():
            print(f"sqlite, {CHILDREN} {variant} and gets {RATE} a second, {options.seconds:g} s")
            url = located("sqlite", folder, variant)
            found = asyncio.run(run(url, rate, held, options.seconds))
            fine = judged(found, (Target(SHARE, least=share), Target(EXCESS, most=0))) and fine
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
