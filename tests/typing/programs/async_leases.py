"""A gateway: streams that are paid for as they go, an open lease, a wait, a task that is cancelled."""

import asyncio
import json
from collections.abc import AsyncIterator

from zae_limiter import Demand, JointLease, Lease, Limit, OnError, RateLimiter, RateLimitExceeded

LIMITS = (Limit.per_minute("rpm", 5), Limit.per_day("tpm", 1_000), Limit.concurrent("parallel", 2))


async def model(prompt: str) -> AsyncIterator[tuple[str, int]]:
    for word in prompt.split():
        yield word, 10


async def stream(limiter: RateLimiter, key: str, prompt: str) -> AsyncIterator[str]:
    async with limiter.acquire(key, "gpt-4", {"rpm": 1, "tpm": 20, "parallel": 1}) as lease:
        async for chunk, tokens in model(prompt):
            await lease.adjust(tpm=tokens)
            yield chunk


async def respond(limiter: RateLimiter, key: str, prompt: str) -> tuple[int, dict[str, str], str]:
    try:
        return 200, {}, " ".join([chunk async for chunk in stream(limiter, key, prompt)])
    except RateLimitExceeded as refusal:
        body: dict[str, object] = refusal.public_dict()
        return 429, {"Retry-After": refusal.retry_after_header}, json.dumps(body)


async def open_lease(limiter: RateLimiter) -> int:
    lease: Lease = await limiter.acquire("key-2", "gpt-4", {"tpm": 100}, on_error=OnError.KEEP)
    await lease.settle({"tpm": 70})
    await lease.commit()
    return lease.consumed["tpm"]


async def both(limiter: RateLimiter) -> dict[str, int]:
    joint: JointLease
    async with limiter.acquire([Demand("key-3", "gpt-4", {"rpm": 1})], wait=2) as joint:
        return dict(joint.part("gpt-4").consumed)


async def main() -> None:
    async with RateLimiter.open("memory://", on_unavailable="block") as limiter:
        await limiter.set_resource_defaults("gpt-4", LIMITS)
        status, _, text = await respond(limiter, "key-1", "read to the end")
        assert (status, text) == (200, "read to the end")
        refused = [await respond(limiter, "key-1", "again") for _ in range(5)]
        assert [status for status, _, _ in refused] == [200, 200, 200, 200, 429]
        assert await open_lease(limiter) == 70
        assert await both(limiter) == {"rpm": 1}
        assert (await limiter.check_availability("key-2", "gpt-4", {"tpm": 1})).available["tpm"] == 930


if __name__ == "__main__":
    asyncio.run(main())
