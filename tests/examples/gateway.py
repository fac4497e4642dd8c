"""The LLM gateway as a process, with its upstream in this one, and its store opened beside it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.examples.mock_llm import MockLLM
from tests.examples.servers import UVICORN, serving
from tests.web.servers import PATIENCE_S, until
from tests.web.servers import serving as serving_here
from zae_limiter import Limit, RateLimiter
from zae_limiter.web import hashed_id

NAMESPACE = "ns-zebra"
TEAMS = {"team-otter": ["sk-otter-1", "sk-otter-2"], "team-heron": ["sk-heron-1"]}
KEYS = [key for keys in TEAMS.values() for key in keys]
UPSTREAM_KEYS = ["upstream-secret-1", "upstream-secret-2"]

NEVER = 10 * 366 * 86_400
PLENTY = 10**9
SEATS = 1_000
RPM, TPM = Limit("rpm", PLENTY, 1, NEVER), Limit("tpm", PLENTY, 1, NEVER)
PARALLEL, TOKENS = Limit.concurrent("parallel", SEATS, hold="1h"), Limit("tokens", PLENTY, 1, NEVER)
"""Limits that nothing comes back to by itself, so that balances are books."""


class Gateway:
    """What tests have in their hands."""

    def __init__(self, url: str, upstream: MockLLM, limiter: RateLimiter, client: httpx.AsyncClient) -> None:
        self.url, self.upstream, self.limiter, self.client = url, upstream, limiter, client
        self.arrivals: Path = Path()

    async def taken(self, entity_id: str) -> dict[str, int]:
        """What is missing in the bucket of a key or a team, by limit."""
        of_key = {"rpm": 1, "parallel": 1} if entity_id in KEYS else {}
        entity_id = hashed_id(entity_id) if entity_id in KEYS else entity_id
        found = await self.limiter.check_availability(entity_id, "chat", {**of_key, "tpm": 1, "tokens": 1})
        own = [status for status in found.statuses if status.entity_id == entity_id]
        return {status.limit_name: status.limit.capacity - status.available for status in own}

    def _answers(self) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.arrivals.read_text().splitlines()]
        return sorted(found, key=lambda one: one["number"])

    async def seen(self) -> list[dict[str, Any]]:
        """What the gateway has answered to all who came until now, in the order in which they came."""
        await self.client.get("/last")

        def is_all_over() -> bool:
            found = self._answers()
            return found[-1]["path"] == "/last" and found[-1]["number"] == len(found) - 1

        await until(is_all_over)
        return [one for one in self._answers() if one["path"] != "/last"]

    async def limit(self, key: str, *limits: Limit) -> None:
        """Give a key limits of its own."""
        await self.limiter.set_limits(hashed_id(key), [*limits], "chat")


@asynccontextmanager
async def running_gateway(folder: Path) -> AsyncIterator[Gateway]:
    """A gateway whose keys and teams have plenty."""
    upstream, store = MockLLM(), f"sqlite:///{folder}/gateway.db?timeout_ms=60000"
    pool = httpx.Limits(max_connections=None)
    async with serving_here("uvicorn h11", upstream.app) as provider:
        settings = {"STORE": store, "ZAEL_NAMESPACE": NAMESPACE}
        settings |= {"OPENAI_UPSTREAM": provider, "ANTHROPIC_UPSTREAM": provider}
        settings |= {"OPENAI_API_KEY": UPSTREAM_KEYS[0], "ANTHROPIC_API_KEY": UPSTREAM_KEYS[1]}
        settings |= {"RECORDED": "examples.llm_gateway:app", "ARRIVALS": str(folder / "arrivals")}
        with serving(UVICORN, "tests.examples.recorded:app", folder, **settings) as url:
            async with (
                httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=pool, trust_env=False) as client,
                RateLimiter.open(store, namespace=NAMESPACE) as limiter,
            ):
                gateway = Gateway(url, upstream, limiter, client)
                gateway.arrivals = folder / "arrivals"
                assert (
                    await client.get("/last")
                ).status_code == 404  # it has started, and set its own limits
                for team, keys in TEAMS.items():
                    await limiter.set_limits(team, [TPM, TOKENS], "chat")
                    for key in keys:
                        await gateway.limit(key, RPM, TPM, PARALLEL)
                yield gateway
                await until(lambda: len(upstream.asked) == upstream.ended.total())
