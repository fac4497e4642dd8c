"""Leases that no block holds, of a limit that fills so slowly that a test in real time sees nothing of it."""

import asyncio
from typing import Any

from tests.flow.clients import RESOURCE
from zae_limiter import Lease, Limit, RateLimiter, SyncLease, SyncRateLimiter
from zae_limiter.runtime.kept import _running

LIMIT = Limit("rpm", 1_000, 1, 86_400)


async def opened(limiter: RateLimiter, amount: int = 100, **more: Any) -> Lease:
    return await limiter.acquire("key", RESOURCE, {"rpm": amount}, [LIMIT], **more)


def sync_opened(limiter: SyncRateLimiter, amount: int = 100, **more: Any) -> SyncLease:
    return limiter.acquire("key", RESOURCE, {"rpm": amount}, [LIMIT], **more).open()


async def rest() -> None:
    """Wait for what the loop carries out for those who could not wait."""
    while _running:
        await asyncio.wait(_running)
