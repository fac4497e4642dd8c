"""A loopback proxy in front of Redis that loses, cuts, delays and counts on command.

Faults are scripted per command and used up in order; without one a request passes. Every request is counted
by its command when it arrives, with its bytes and those of its reply.
"""

import contextlib
import os
import re
import socket
import ssl
import struct
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from zae_limiter.backends.redis.resp import _Incomplete, _parse


@dataclass(frozen=True)
class DropRequest:
    """Close the connection instead of passing the request on."""


@dataclass(frozen=True)
class DropReply:
    """Pass the request on, then close the connection instead of answering."""


@dataclass(frozen=True)
class CutReply:
    """Pass the request on, send half of the reply, then break the connection off, as a crash would.

    Of several that were asked for at once the first ones can be sent, and nothing of the others.
    """

    whole: int = 0


@dataclass(frozen=True)
class Delay:
    """Pass the request on, but answer later."""

    seconds: float


@dataclass(frozen=True)
class Say:
    """Answer something else, without passing the request on."""

    reply: bytes


Fault = DropRequest | DropReply | CutReply | Delay | Say
_WORD = re.compile(rb"\*\d+\r\n\$\d+\r\n(\w+)\r\n")


class FaultyWire:
    """In front of the server at a port; with a context it speaks TLS for it."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._upstream_port, self._tls = port, tls
        self.commands: Counter[str] = Counter()
        self.bytes_out = self.bytes_in = self.connections = 0
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._over = threading.Event()
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def fault(self, command: str, *faults: Fault) -> None:
        """Do these to the next requests with a command, one each."""
        self._faults[command].extend(faults)

    def forget(self) -> None:
        """Count from here."""
        with self._lock:
            self.commands.clear()
            self.bytes_out = self.bytes_in = 0

    @contextlib.contextmanager
    def running(self) -> Iterator["FaultyWire"]:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            thread.join()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            with client, socket.create_connection(("127.0.0.1", self._upstream_port)) as server:
                while (request := _whole(client)) is not None and self._pass_on(client, server, *request):
                    pass

    def _pass_on(self, client: socket.socket, server: socket.socket, request: bytes, count: int) -> bool:
        words = [word.decode().upper() for word in _WORD.findall(request)][:count]
        with self._lock:
            self.commands.update(words)
            self.bytes_out += len(request)
            waiting = [self._faults[word] for word in words if self._faults[word]]
            fault = waiting[0].popleft() if waiting else None
        if isinstance(fault, DropRequest):
            return False
        if isinstance(fault, Say):
            client.sendall(fault.reply)
            return True
        server.sendall(request)
        reply = _replies(server, count)
        if isinstance(fault, DropReply):
            return False
        if isinstance(fault, CutReply):
            client.sendall(reply[: _end_of(reply, fault.whole) if fault.whole else len(reply) // 2])
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(client.detach())
            return False
        if isinstance(fault, Delay):
            self._over.wait(fault.seconds)
        with self._lock:
            self.bytes_in += len(reply)
        client.sendall(reply)
        return True


def _whole(client: socket.socket) -> tuple[bytes, int] | None:
    """All commands that were sent at once, and how many they are."""
    data = b""
    while True:
        piece = client.recv(65_536)
        if not piece:
            return None
        data += piece
        with contextlib.suppress(_Incomplete):
            at = count = 0
            while at < len(data):
                _, at = _parse(data, at, 0)
                count += 1
            return data, count


def _end_of(data: bytes, count: int) -> int:
    """Where so many replies end."""
    at = 0
    for _ in range(count):
        _, at = _parse(data, at, 0)
    return at


def _replies(server: socket.socket, count: int) -> bytes:
    data = b""
    while True:
        piece = server.recv(65_536)
        if not piece:
            raise ConnectionResetError
        data += piece
        with contextlib.suppress(_Incomplete):
            _end_of(data, count)
            return data
