"""A server with tokens of each kind, asked without a network; answers compared with declared types."""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import httpx

from zae_limiter import RateLimiter
from zae_limiter.server import ServerConfig
from zae_limiter.server.app import application
from zae_limiter.server.state import ServerState
from zae_limiter.server.tokens import token_of

SECRETS = {scope: f"zae_{number:064x}" for number, scope in enumerate(("decide", "read", "change"), 1)}
ALL = f"zae_{9:064x}"
ORIGIN = "http://127.0.0.1:8400"


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


class Asking:
    """Somebody who asks a server, and the server that is asked."""

    def __init__(self, http: httpx.AsyncClient, server: ServerState) -> None:
        self.http, self.server = http, server

    @property
    def limiter(self) -> RateLimiter:
        """The server's own."""
        return self.server.limiter

    async def view(self, name: str, **query: object) -> Any:
        """What a view tells whoever may read; it must tell it."""
        answer = await self.asked(name, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def asked(self, name: str, secret: str = SECRETS["read"], **query: Any) -> httpx.Response:
        return await self.http.get(f"/v1/view/{name}", params=query, headers=bearer(secret))

    async def change(self, name: str, secret: str = SECRETS["change"], **said: object) -> httpx.Response:
        return await self.http.post(f"/v1/change/{name}", json=said, headers=bearer(secret))


@asynccontextmanager
async def asking(store: str, **more: Any) -> AsyncIterator[Asking]:
    tokens = tuple(token_of(f"who-{scope}s", [scope], secret) for scope, secret in SECRETS.items())
    tokens += (token_of("all", list(SECRETS), ALL),)
    config = ServerConfig(**{"store": store, "tokens": tokens, "ui": True, "changes": True, **more})
    app = application(config)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=ORIGIN, timeout=None) as http,
    ):
        yield Asking(http, app.state.server)


def mismatches(value: object, kind: Any, where: str = "answer") -> list[str]:
    """Where a value from JSON is not of a declared type: all fields, no others, each of its type."""
    if kind is Any:
        return []
    origin, inner = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return _fields(value, get_type_hints(kind), where)
    if origin in (Union, types.UnionType):
        if any(not mismatches(value, one) for one in inner):
            return []
        more = [found for one in inner if is_typeddict(one) for found in mismatches(value, one, where)]
        return more or [f"{where}: {value!r} is none of {inner}"]
    if origin is Literal:
        there = any(value == one and type(value) is type(one) for one in inner)
        return [] if there else [f"{where}: {value!r} is none of {inner}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{where}: {value!r} is no list"]
        return [
            found for at, one in enumerate(value) for found in mismatches(one, inner[0], f"{where}[{at}]")
        ]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no object"]
        return [
            found for name, one in value.items() for found in mismatches(one, inner[1], f"{where}.{name}")
        ]
    is_it = isinstance(value, (int, float) if kind is float else kind)
    is_it = is_it and (kind is bool or not isinstance(value, bool))
    return [] if is_it else [f"{where}: {value!r} is no {kind}"]


def _fields(value: object, hints: Mapping[str, Any], where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where}: {value!r} is no object"]
    odd = [
        f"{where}.{name} is {'missing' if name in hints else 'extra'}" for name in hints.keys() ^ value.keys()
    ]
    named = hints.keys() & value.keys()
    return odd + [
        found for name in named for found in mismatches(value[name], hints[name], f"{where}.{name}")
    ]
