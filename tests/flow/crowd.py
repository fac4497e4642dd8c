"""One process of the fifty clients: takes from the keys it is told of, as often as it can.

Reads a key and a duration from each line of its standard input. After that time each of its tasks stops at
its next refusal. The answer is a line: how many were admitted, and between which milliseconds the last of
these final refusals was made.
"""

import asyncio
import sys
import time

from zae_limiter import Limit, RateLimiter, RateLimitExceeded

RESOURCE, LIMIT = "gpt-4", Limit.per_second("rps", 20, burst=20_000)


async def client(limiter: RateLimiter, key: str, until: float) -> tuple[int, int, int]:
    admitted, now_ms = 0, limiter.repository.writer.world.now_ms
    while True:
        asked_ms = now_ms()
        try:
            async with limiter.acquire(key, RESOURCE, {"rps": 1}, [LIMIT]):
                admitted += 1
        except RateLimitExceeded as refused:
            if time.monotonic() > until:
                return admitted, asked_ms, now_ms()
            await asyncio.sleep(min(refused.retry_after_seconds, 0.02))


async def main(url: str, tasks: int) -> None:
    async with RateLimiter.open(url) as limiter:
        print("ready", flush=True)
        for line in sys.stdin:
            key, seconds = line.split()
            until = time.monotonic() + float(seconds)
            answers = await asyncio.gather(*(client(limiter, key, until) for _ in range(tasks)))
            admitted, asked_ms, refused_ms = zip(*answers, strict=True)
            print(sum(admitted), max(asked_ms), max(refused_ms), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
