"""Requests to somebody who limits us, by three clients."""

import asyncio

import httpx
import requests

from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.outbound import Provider, read_answer


def vendor(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"x-ratelimit-limit-requests": "40"}, request=request)


async def asynchronous() -> int:
    async with RateLimiter.open("memory://") as limiter:
        provider = Provider(limiter, "vendor", [Limit.per_minute("requests", 500)], wait=60)
        transport = provider.httpx_transport(httpx.MockTransport(vendor))
        async with httpx.AsyncClient(transport=transport) as client:
            response = await client.get("https://vendor.example")
            return response.status_code


def synchronous() -> int:
    with SyncRateLimiter.open("memory://") as limiter:
        provider = Provider(
            limiter,
            "vendor",
            [Limit.per_day("requests", 500, burst=50)],
            wait=1,
            cost=lambda request: {"requests": 1},
            names={"requests": "requests"},
        )
        session = requests.Session()
        session.mount("https://vendor.example", provider.requests_adapter())
        with httpx.Client(transport=provider.sync_httpx_transport(httpx.MockTransport(vendor))) as client:
            return client.get("https://vendor.example").status_code


if __name__ == "__main__":
    assert asyncio.run(asynchronous()) == 200
    assert synchronous() == 200
    told = {"Retry-After": "2", "x-ratelimit-limit-tokens": "150000"}
    print(read_answer(429, told.items(), now_ms=0))
