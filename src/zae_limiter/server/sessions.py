"""The session of the page: a token is shown once, and a cookie stands for it from then on.

No script can read the cookie, and no other site can have it sent; what it may change needs a header besides,
see ``access``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ..web.answers import RequestRefused
from ..web.request import parsed_json
from .access import SESSION_SECONDS
from .state import ServerState

BEGINNING_MAX = 20
"""How many may send a token at the same time: anybody may, slowly, and each keeps a place from decisions.

Whoever has taken longest gives way to the next, so that nobody is kept from beginning a session, either.
"""

TOKEN_SECONDS_MAX = 5.0
"""How long a token may take to come: all of it is in one packet as a rule."""


def routes(server: ServerState) -> list[BaseRoute]:
    access = server.access
    how: Any = {"path": "/", "secure": server.config.is_tls, "httponly": True, "samesite": "strict"}

    beginning: dict[asyncio.Timeout, None] = {}

    async def begin(request: Request) -> Response:
        deadline = asyncio.timeout(TOKEN_SECONDS_MAX)
        try:
            async with deadline:
                if len(beginning) >= BEGINNING_MAX:
                    slowest = next(iter(beginning))
                    del beginning[slowest]
                    if not slowest.expired():
                        slowest.reschedule(0)
                beginning[deadline] = None
                said = parsed_json(await request.body())
        except TimeoutError as error:
            raise RequestRefused(408, "the token took too long to come; send it again") from error
        finally:
            beginning.pop(deadline, None)
        secret = said.get("token") if isinstance(said, dict) else None
        caller = access.bearer(secret) if isinstance(secret, str) else None
        if caller is None:
            raise RequestRefused(401, "this server does not know this token")
        response = JSONResponse({"name": caller.name, "scopes": sorted(caller.scopes)})
        response.set_cookie(access.cookie, access.session(caller), max_age=SESSION_SECONDS, **how)
        return response

    async def end(_: Request) -> Response:
        response = Response(status_code=204)
        response.delete_cookie(access.cookie, **how)
        return response

    return [Route("/ui/session", begin, methods=["POST"]), Route("/ui/session", end, methods=["DELETE"])]
