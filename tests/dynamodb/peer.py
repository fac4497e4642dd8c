"""A server that says exactly what a test wants said, byte by byte, and remembers what it was asked."""

import asyncio
import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from tests.dynamodb.tables import session
from tests.patience import PATIENCE_SECONDS
from zae_limiter.backends.dynamodb import DynamoDBBackend, open_backend, open_transport
from zae_limiter.backends.dynamodb.boto import Access
from zae_limiter.backends.dynamodb.transport import Transport

CLOSE = "close"
"""In the place of bytes: hang up."""

Said = bytes | str | threading.Event
"""Bytes to send, ``CLOSE``, or something to wait for before going on."""


def answer(
    body: Any = None, status: str = "200 OK", fields: dict[str, str] | None = None, checksum: bool = True
) -> bytes:
    """A right answer."""
    content = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
    lines = {"Content-Type": "application/x-amz-json-1.0", "Content-Length": str(len(content))}
    if checksum:
        lines["x-amz-crc32"] = str(crc32(content))
    head = "".join(f"{name}: {value}\r\n" for name, value in (lines | (fields or {})).items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + content


def refusal(code: str, message: str = "no", fields: dict[str, str] | None = None, **more: Any) -> bytes:
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message, **more}
    return answer(body, "400 Bad Request", fields)


@dataclass
class Asked:
    """One request as it arrived, and on which connection."""

    connection: int
    fields: dict[str, str]
    body: dict[str, Any]

    @property
    def operation(self) -> str:
        return self.fields["x-amz-target"].rpartition(".")[2]

    @property
    def access_key(self) -> str:
        return self.fields["authorization"].partition("Credential=")[2].partition("/")[0]


@dataclass
class Peer:
    """Answers in the order of the script, then with ``otherwise``."""

    tls: ssl.SSLContext | None = None
    otherwise: list[Said] = field(default_factory=lambda: [answer()])
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    hung_up: int = 0
    """How many connections the other side has closed."""
    held: int = 0
    """How many connections are open now, those that have yet to shake hands among them."""

    def __post_init__(self) -> None:
        self._script: deque[list[Said]] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._open: set[socket.socket] = set()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def say(self, *said: Said) -> None:
        """The answer to the next request that has none yet."""
        self._script.append(list(said))

    def unsay(self) -> None:
        """Forget what nobody has asked for."""
        self._script.clear()

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something has happened here."""
        with self._changed:
            assert self._changed.wait_for(is_so, PATIENCE_SECONDS), "it did not happen"

    def hang_up(self) -> None:
        """Close every connection that is open."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def running(self) -> Iterator["Peer"]:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            thread.join()
            self.hang_up()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._count(1)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _count(self, step: int) -> None:
        with self._changed:
            self.held += step
            self._changed.notify_all()

    def _serve(self, connection: socket.socket) -> None:
        try:
            self._talk(connection)
        finally:
            self._count(-1)

    def _talk(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError), connection:
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with self._changed:
                self.connections += 1
                number = self.connections
                self._open.add(connection)
                self._changed.notify_all()
            try:
                with connection, connection.makefile("rb") as lines:
                    while self._one(number, connection, lines):
                        pass
            finally:
                with self._changed:
                    self._open.discard(connection)
                    self._changed.notify_all()

    def _one(self, number: int, connection: socket.socket, lines: Any) -> bool:
        try:
            first = lines.readline()
            if not first:
                raise ConnectionError
        except OSError:
            with self._changed:
                self.hung_up += 1
                self._changed.notify_all()
            return False
        if not first.startswith(b"POST"):
            connection.sendall(answer(status="400 Bad Request"))
            return False
        fields = {}
        while line := lines.readline().strip():
            name, _, value = line.decode("latin-1").partition(": ")
            fields[name.lower()] = value
        body = json.loads(lines.read(int(fields["content-length"])))
        with self._changed:
            self.asked.append(Asked(number, fields, body))
            said = self._script.popleft() if self._script else self.otherwise
            self._changed.notify_all()
        for part in said:
            if isinstance(part, threading.Event):
                part.wait(PATIENCE_SECONDS)
            elif part == CLOSE:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                return False
            else:
                connection.sendall(part)  # type: ignore[arg-type]
        return True


@asynccontextmanager
async def connected(sync: bool, peer: Peer, **options: Any) -> AsyncIterator[Transport]:
    options.setdefault("timeout_ms", 20_000)
    access = Access("eu-west-1", peer.url, session=session(sync), **options)
    transport = open_transport(access, sync=sync)
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def store(sync: bool, peer: Peer, **options: Any) -> AsyncIterator[DynamoDBBackend]:
    query = "".join(f"&{name}={value}" for name, value in ({"timeout_ms": 20_000} | options).items())
    url = f"dynamodb://table?region=eu-west-1&endpoint_url={peer.url}{query}"
    backend = open_backend(url, sync=sync, session=session(sync))
    try:
        yield backend
    finally:
        await backend.close()


async def happens(sync: bool, peer: Peer, is_so: Callable[[], bool]) -> None:
    """Wait for the peer without keeping an event loop from its work."""
    if sync:
        peer.until(is_so)
    else:
        await asyncio.to_thread(peer.until, is_so)


async def ask(transport: Transport, timeout_ms: float = 20_000) -> Any:
    return await transport.call("UpdateItem", {"n": 1}, timeout_ms)
