"""The application as a whole: what holds for every request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from zae_limiter.server import ServerConfig, Token, TokenScope
from zae_limiter.server.app import application
from zae_limiter.server.tokens import token_of

SECRET = "zae_" + "5" * 64


def config(**more: object) -> ServerConfig:
    tokens: tuple[Token, ...] = (token_of("all", [scope.value for scope in TokenScope], SECRET),)
    return ServerConfig(**{"store": "memory://", "tokens": tokens, "ui": True, **more})  # type: ignore[arg-type]


@asynccontextmanager
async def client(**more: object) -> AsyncIterator[httpx.AsyncClient]:
    app = application(config(**more))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8400") as asking,
    ):
        yield asking


async def test_paths_that_nobody_serves_are_problem_documents() -> None:
    """A path that is not there, and a method that is not, are answered as problem documents."""
    async with client() as asking:
        nowhere, wrong = await asking.get("/nowhere"), await asking.post("/healthz")
    assert (nowhere.status_code, wrong.status_code) == (404, 405)
    for answer in (nowhere, wrong):
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == answer.status_code


async def test_health() -> None:
    """It says that it lives and that its store answers, with headers that are safe for any answer."""
    async with client() as asking:
        alive, ready = await asking.get("/healthz"), await asking.get("/readyz")
    assert (alive.json(), ready.json()) == ({"status": "alive"}, {"status": "ready"})
    assert alive.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in alive.headers["content-security-policy"]
