"""``python -m benchmarks.outbound``: workers against a provider whose limit halves and comes back.

Four processes of four tasks each send as fast as they may. Printed for each phase: how much of the provider's
quota was used, and how many requests it had to refuse, within five seconds of a change and after them.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from pathlib import Path

import httpx

from tests.outbound.mock_provider import MockProvider
from zae_limiter import Limit, RateLimiter
from zae_limiter.outbound import Provider

RATE, BURST = 100, 20
PROCESSES, TASKS = 4, 4
SETTLE_SECONDS, PHASE_SECONDS = 5, 12
REFUSED_MAX, USED_MIN = 0.005, 0.95


def work(url: str, store: str) -> None:
    """One process that sends until it is killed."""

    async def main() -> None:
        async with RateLimiter.open(store) as limiter:
            provider = Provider(limiter, "vendor", [Limit.per_second("requests", RATE, burst=BURST)])
            async with httpx.AsyncClient(transport=provider.httpx_transport()) as client:

                async def send() -> None:
                    while True:
                        await client.get(url)

                await asyncio.gather(*(send() for _ in range(TASKS)))

    asyncio.run(main())


def measure(*, tells: bool) -> bool:
    """Print what came of every phase; whether it was good enough after each change."""
    mock, good = MockProvider(RATE, BURST, tells=tells), True
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place, mock.serving() as url:
        store = f"sqlite:///{Path(place) / 'limits.db'}"
        workers = [spawn.Process(target=work, args=(url, store)) for _ in range(PROCESSES)]
        for worker in workers:
            worker.start()
        while len(mock.answers) < RATE:
            time.sleep(0.05)
        for rate in (RATE, RATE // 2, RATE):
            mock.change(rate, BURST * rate / RATE)
            begun = time.monotonic()
            time.sleep(PHASE_SECONDS)
            _shown(mock, rate, begun, begun + SETTLE_SECONDS)
            good &= _shown(mock, rate, begun + SETTLE_SECONDS, time.monotonic())
        for worker in workers:
            worker.kill()
            worker.join()
    return good


def _shown(mock: MockProvider, rate: int, first: float, last: float) -> bool:
    seen = [status for at, status in list(mock.answers) if first <= at < last]
    refused, used = seen.count(429) / max(1, len(seen)), seen.count(200) / (rate * (last - first))
    print(f"limit {rate:>4}/s: {len(seen):>5} sent, {refused:6.2%} refused, {used:6.1%} of the quota used")
    return refused < REFUSED_MAX and used >= USED_MIN


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outbound", description=__doc__)
    parser.add_argument(
        "--silent", action="store_true", help="also a provider that says nothing of its limits"
    )
    options = parser.parse_args()
    good = measure(tells=True)
    if options.silent:
        print("a provider that says nothing:")
        measure(tells=False)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
