"""Whether the server lives, and whether its store answers: for whoever starts and watches it.

Both are answered without a token, and tell nothing but yes or no.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from .problems import problem
from .state import ServerState


def routes(server: ServerState) -> list[BaseRoute]:
    async def alive(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(_: Request) -> Response:
        if server.stopping.is_set():
            return problem(503, "the server is ending")
        if not await server.limiter.is_available():
            return problem(503, "the store does not answer", [("Retry-After", "1")])
        return JSONResponse({"status": "ready"})

    return [Route("/healthz", alive), Route("/readyz", ready)]
