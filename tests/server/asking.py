"""A server in this process, and how it is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from zae_limiter.models import Limit
from zae_limiter.runtime.world import World
from zae_limiter.server import ServerConfig
from zae_limiter.server.app import application
from zae_limiter.server.state import ServerState
from zae_limiter.server.tokens import TokenScope, token_of

SECRET = "zae_" + "5" * 64
OTHER = "zae_" + "6" * 64
READER = "zae_" + "7" * 64

LIMITS = [Limit.per_minute("rpm", 10), Limit.per_minute("tpm", 1000)]


def config(**more: Any) -> ServerConfig:
    """A server in memory that knows three tokens."""
    tokens = (
        token_of("all", [scope.value for scope in TokenScope], SECRET),
        token_of("other", ["decide"], OTHER),
        token_of("reader", ["read"], READER),
    )
    return ServerConfig(**{"store": "memory://", "tokens": tokens, **more})


class Asking:
    """A client of one server."""

    def __init__(self, http: httpx.AsyncClient, server: ServerState) -> None:
        self.http, self.server = http, server

    async def post(
        self, path: str, said: Any = None, *, key: str | None = None, secret: str = SECRET, **more: str
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {secret}"}
        headers |= {"Idempotency-Key": key} if key else {}
        return await self.http.post(path, json=said, headers={**headers, **more})

    async def get(self, path: str, *, secret: str = SECRET, **params: Any) -> httpx.Response:
        return await self.http.get(path, params=params, headers={"Authorization": f"Bearer {secret}"})

    async def acquire(self, consume: dict[str, int] | None = None, **more: Any) -> httpx.Response:
        key = more.pop("key", None)
        said = {"entity": "key-1", "resource": "gpt-4", "consume": consume or {"rpm": 1}, **more}
        return await self.post("/v1/acquire", said, key=key)

    async def left(self, **more: str) -> dict[str, int]:
        answer = await self.get("/v1/available", **{"entity": "key-1", "resource": "gpt-4", **more})
        return answer.json()["available"]


@asynccontextmanager
async def asking(world: World | None = None, **more: Any) -> AsyncIterator[Asking]:
    """A server with limits for one resource."""
    app = application(config(**more), world)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8400") as http,
    ):
        server: ServerState = app.state.server
        await server.limiter.set_resource_defaults("gpt-4", LIMITS)
        yield Asking(http, server)
