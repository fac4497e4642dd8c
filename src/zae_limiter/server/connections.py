"""How HTTP is spoken: uvicorn's, with an end to connections that say or read nothing, and a limit on them.

uvicorn waits for ever for the rest of a request's head, and for whoever does not read what was answered. Each
would keep a connection for nothing, the second a place among the requests under way, too, and a thousand of
these all that a worker can have. Of who speaks TLS it knows nothing until they have agreed on it: so they are
counted here from the moment that they come, and have no longer for it than for the head of a request.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from asyncio.sslproto import SSLProtocol
from functools import cache
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS_MAX = 10.0
"""After how long a connection is closed that has not sent the head of its request."""

UNREAD_SECONDS_MAX = 30.0
"""After how long a connection is closed whose client has not taken what was sent."""

CONNECTIONS_MAX = 4096
"""How many connections a worker has, with and without a request."""

GOODBYE_SECONDS_MAX = 2
"""How long a client may take to end TLS in good order."""

FILES_WANTED = 4 * CONNECTIONS_MAX


@cache
def connections_max() -> int:
    """How many connections there is room for: each is an open file, and the store needs some, too.

    A process may raise its own limit up to a hard one, and begins with a low one as a rule. The other half is
    for connections that come all at once: whoever accepts one too many is told so again and again.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return min(CONNECTIONS_MAX, max(soft, wanted) // 2)


class BoundedProtocol(H11Protocol):
    """One connection."""

    is_agreed: bool = False
    """Whether there is a way to speak: with TLS not from the beginning."""
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.is_agreed = True
        if len(self.connections) > connections_max():
            transport.abort()
            return
        # So that it is told whenever anything waits to be taken; by 0 TLS tells so when nothing does.
        transport.set_write_buffer_limits(high=1)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._watch()
        else:
            self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        self._taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            # Even one that is closed by then waits for its client: only abort does not.
            self._unread = self.loop.call_later(UNREAD_SECONDS_MAX, self.transport.abort)

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def _taken(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch(self) -> None:
        """Close the connection unless the head of a request has come by then."""
        if self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(HEAD_SECONDS_MAX, self._drop)

    def _relax(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _drop(self) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class TlsConnections:
    """All connections of a worker that speaks TLS; uvicorn asks it for a protocol when somebody has come."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.context: ssl.SSLContext = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(certificate, key)
        self.open: set[_Tls] = set()
        self.is_ending: bool = False

    def __call__(self, **given: Any) -> asyncio.BaseProtocol:
        return _Tls(self, BoundedProtocol(**given))

    def end(self) -> None:
        """Wait for nobody who has asked for nothing yet."""
        self.is_ending = True
        for connection in self.open:
            if not connection.http.is_agreed:
                connection.raw.abort()


class _Tls(SSLProtocol):
    """TLS around one connection."""

    raw: asyncio.Transport

    def __init__(self, connections: TlsConnections, http: BoundedProtocol) -> None:
        super().__init__(
            http.loop,
            http,
            connections.context,
            None,  # type: ignore[arg-type]  # nobody waits for it to begin
            server_side=True,
            ssl_handshake_timeout=HEAD_SECONDS_MAX,  # type: ignore[arg-type]  # a part of one is good
            ssl_shutdown_timeout=GOODBYE_SECONDS_MAX,
        )
        self.connections, self.http = connections, http

    def connection_made(self, transport: Any) -> None:
        self.raw = transport
        self.connections.open.add(self)
        super().connection_made(transport)
        if self.connections.is_ending or len(self.connections.open) > connections_max():
            transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.connections.open.discard(self)
        super().connection_lost(exc)
