"""What a middleware adds to a request: applications that are asked without a server.

All have the same route of Starlette, and are asked for it by one client that nobody refuses; what is sent is
thrown away. Each middleware is installed as its documentation shows, and tells in headers what is left.
Libraries are imported inside, because each is installed in only one environment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .cases import LIMIT, PLENTY, RESOURCE

AsyncStep = Callable[[], Awaitable[object]]
PATH = "/v1/hello"
HEADERS = [
    (b"host", b"localhost"),
    (b"user-agent", b"bench"),
    (b"accept", b"*/*"),
    (b"x-api-key", b"key"),
]


class NotAnswered(Exception):
    """A response is not the one that is expected."""


def application() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    return Starlette(routes=[Route(PATH, hello)])


def asking(app: Any, header: bytes | None) -> AsyncStep:
    """One request after the other; the response has to be good, and to tell what is left."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": HEADERS,
        "client": ("192.0.2.7", 5000),
        "server": ("127.0.0.1", 80),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def step() -> None:
        begun: list[Any] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                begun.append(message)

        await app({**scope, "state": {}}, receive, send)
        if begun[0]["status"] != 200 or (header and header not in dict(begun[0]["headers"])):
            raise NotAnswered(begun[0])

    return step


async def bare_app() -> AsyncStep:
    return asking(application(), None)


async def ours_app() -> AsyncStep:
    from zae_limiter import Limit, RateLimiter
    from zae_limiter.web import RateLimitMiddleware, Rule, client_address

    limiter = await RateLimiter.open("memory://")
    await limiter.repository.set_resource_defaults(RESOURCE, [Limit.per_second(LIMIT, PLENTY)])
    app = application()
    rules = [Rule("/v1/*", RESOURCE, {LIMIT: 1}, entity=client_address())]
    app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=rules)
    return asking(app, b"ratelimit")


async def slowapi_app(middleware: str) -> AsyncStep:
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi import middleware as offered
    from slowapi.errors import RateLimitExceeded
    from slowapi.util import get_remote_address

    app = application()
    app.state.limiter = Limiter(get_remote_address, default_limits=[f"{PLENTY}/second"], headers_enabled=True)
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
    app.add_middleware(getattr(offered, middleware))
    return asking(app, b"x-ratelimit-remaining")
