"""The server as an ASGI application: routes of all modules, guarded, with problem documents for errors.

Each module of routes has ``routes(server)``; which of them are served is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from ..runtime.world import World
from . import changes, decisions, health, metrics, page, sessions, views
from .config import ServerConfig
from .guard import Guard
from .problems import HANDLED, handle
from .state import ServerState


def application(config: ServerConfig, world: World | None = None) -> Starlette:
    """The whole server for one worker; it opens the store when it starts."""
    server = ServerState(config, world)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with server.running():
            yield

    app = Starlette(
        routes=routes_of(server),
        middleware=[Middleware(Guard, server=server)],
        exception_handlers=dict.fromkeys(HANDLED, handle),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.server = server
    return app


def routes_of(server: ServerState) -> list[BaseRoute]:
    """All that is served, in the order in which it is tried."""
    modules = [health, decisions]
    if server.config.metrics:
        modules.append(metrics)
    if server.config.ui:
        modules += [sessions, views, changes, page]
    return [route for module in modules for route in module.routes(server)]
