"""Calls to language models: what they took, what they cost, and what is learned of them."""

import asyncio
from collections.abc import Mapping
from typing import Any

from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.llm import (
    LearnedEstimates,
    Usage,
    UsageMeter,
    estimate_tokens,
    output_cap,
    priced_tokens,
    separate_tokens,
)

REQUEST: dict[str, Any] = {
    "model": "gpt-4o",
    "max_tokens": 500,
    "messages": [{"role": "user", "content": "Name a river."}],
}
ANSWER = [
    b'data: {"choices": [{"delta": {"content": "The Nile"}}], "usage": null}\n\nda',
    b'ta: {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3}}\n\ndata: [DONE]\n\n',
]


def call(limiter: SyncRateLimiter) -> Mapping[str, int] | None:
    cost: int = estimate_tokens(REQUEST["messages"]) + output_cap(REQUEST, default=4_096)
    with limiter.acquire("key-1", "gpt-4o", {"tpm": cost}) as lease:
        meter = UsageMeter()
        for chunk in ANSWER:
            meter.feed(chunk)
        amounts = meter.amounts()
        lease.settle(amounts)
        return amounts


async def learn() -> int:
    async with RateLimiter.open("memory://") as limiter, LearnedEstimates(limiter) as estimates:
        reserved: int = await estimates.reserve("gpt-4o", 4_096)
        estimates.observe("gpt-4o", 4_096, 300)
        await estimates.refresh()
        return reserved


def main() -> None:
    with SyncRateLimiter.open("memory://") as limiter:
        limiter.set_resource_defaults("gpt-4o", [Limit.per_day("tpm", 10_000)])
        assert call(limiter) == {"tpm": 14}
    usage = Usage(input_tokens=1_200, output_tokens=300, cached_tokens=1_000)
    price = priced_tokens(input="2.50", output="10.00", cached="1.25")
    assert {**separate_tokens(cached="ctpm")(usage), **price(usage)}["ctpm"] == 1_000
    assert asyncio.run(learn()) == 4_096


if __name__ == "__main__":
    main()
