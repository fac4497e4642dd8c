"""One worker of several, as a program: ``python -m zae_limiter.server.worker SOCKET``.

The supervisor says on standard input how the server is started, and holds it open for as long as it lives.
Standard output has one byte, when the first request can come.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import sys

from .config import ServerConfig
from .run import server_of

READY = b"\x01"


def told() -> ServerConfig:
    """What the supervisor says."""
    length = int.from_bytes(_read(8))
    config = pickle.loads(_read(length))
    if not isinstance(config, ServerConfig):
        raise TypeError(f"the supervisor sent {type(config).__name__}")
    return config


def _read(length: int) -> bytes:
    found = b""
    while len(found) < length:
        part = os.read(0, length - len(found))
        if not part:
            raise SystemExit(1)  # the supervisor is gone
        found += part
    return found


async def work(config: ServerConfig, listening: socket.socket) -> None:
    """Serve until it is told to end, or nobody is there who could."""

    def ready(_: int | None) -> None:
        os.write(1, READY)

    server = server_of(config, ready)

    def orphaned() -> None:
        if not os.read(0, 1024):
            asyncio.get_running_loop().remove_reader(0)
            server.handle_exit(signal.SIGTERM, None)

    asyncio.get_running_loop().add_reader(0, orphaned)
    await server.serve([listening])


def main() -> None:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    listening = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(work(told(), listening))


if __name__ == "__main__":
    main()
