"""Runs the server: one socket, and a process for each worker, or this one if there is one worker.

uvicorn speaks HTTP; it tells its log no paths, for they have the ids of entities in them. A worker that is
told to end says so at once (``/readyz``), ends its streams, and finishes the requests that it has.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..exceptions import InfrastructureError
from .config import ServerConfig, Started

if TYPE_CHECKING:
    import uvicorn

EXTRA = "the server needs starlette and uvicorn; install this package with its extra: server"

BACKLOG = 2048
"""How many connections wait for a worker to accept them."""


def bound_socket(config: ServerConfig) -> socket.socket:
    """Where the server listens; an address that cannot be had is told before anything is started."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((config.host, config.port))
    except OSError as error:
        listening.close()
        told = f"cannot listen on {config.host}:{config.port}: {error.strerror}; choose another --port"
        raise InfrastructureError(told) from error
    return listening


def serve(config: ServerConfig, listening: socket.socket, started: Started) -> None:
    """Serve until a TERM signal or Ctrl-C; ``started`` is told when the first request can come."""
    check_extra()
    if config.workers > 1:
        from .supervisor import Supervisor

        listening.listen(BACKLOG)
        asyncio.run(Supervisor(config, listening, started).run())
        return
    asyncio.run(server_of(config, started).serve([listening]))


def check_extra() -> None:
    """Say how to install what the server needs, if it is not there."""
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise InfrastructureError(EXTRA) from error
    del starlette, uvicorn


def server_of(config: ServerConfig, started: Started) -> uvicorn.Server:
    """One worker."""
    import uvicorn

    from .app import application
    from .connections import BoundedProtocol, TlsConnections, connections_max

    connections_max()
    tls = None
    if config.tls_cert is not None and config.tls_key is not None:
        tls = TlsConnections(config.tls_cert, config.tls_key)
    app = application(config)

    class Worker(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                started(app.state.server.grpc_port)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if tls is not None:
                tls.end()
            await super().shutdown(sockets)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """End well; a second Ctrl-C does not wait for anybody."""
            del frame
            app.state.server.stopping.set()
            self.force_exit = self.force_exit or (self.should_exit and sig == signal.SIGINT)
            self.should_exit = True

    settings: dict[str, Any] = {
        "log_level": "error",  # what it would warn of is what clients send, once for each request
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "lifespan": "on",
        "http": tls or BoundedProtocol,
        "ws": "none",
        "backlog": BACKLOG,
        "h11_max_incomplete_event_size": config.header_bytes_max,
        "timeout_graceful_shutdown": max(1, round(config.shutdown_seconds)),
    }
    return Worker(uvicorn.Config(app, **settings))
