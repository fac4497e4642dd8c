"""A loopback proxy in front of DynamoDB Local that loses, delays and falsifies on command.

Faults are scripted per operation and used up in order; without one a request passes. Every request is
counted by operation when it arrives, and every connection when it is accepted.
"""

import json
import os
import socket
import struct
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.patience import PATIENCE_SECONDS


@dataclass(frozen=True)
class DropRequest:
    """Close the connection instead of passing the request on."""


@dataclass(frozen=True)
class DropReply:
    """Pass the request on, then close the connection instead of answering."""


@dataclass(frozen=True)
class ResetReply:
    """Pass the request on, then break the connection off, as a crash would."""


@dataclass(frozen=True)
class Delay:
    """Pass the request on, but answer later."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """Answer with an error without passing the request on."""

    status: int
    code: str
    message: str = "said the proxy"


@dataclass(frozen=True)
class Meet:
    """Pass the request on, but answer when as many others are there as the barrier waits for."""

    barrier: threading.Barrier


Fault = DropRequest | DropReply | ResetReply | Delay | Meet | Answer
THROTTLE = Answer(400, "ProvisionedThroughputExceededException")
BROKEN = Answer(500, "InternalServerError")


class Proxy:
    """What happened, and what is to happen."""

    def __init__(self, engine: str) -> None:
        self.engine = engine.removeprefix("http://")
        self.requests: Counter[str] = Counter()
        self.payloads: list[tuple[str, dict[str, Any]]] = []
        self.connections = 0
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._gone = False
        self.over = threading.Event()
        """Nobody has to be kept waiting any more."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fault(self, operation: str, *faults: Fault) -> None:
        """Do these to the next requests of an operation, one each."""
        self._faults[operation].extend(faults)

    def arrived(self, operation: str, body: bytes) -> Fault | None:
        with self._lock:
            self.requests[operation] += 1
            self.payloads.append((operation, json.loads(body)))
            if self._gone:
                return DropRequest()
            return self._faults[operation].popleft() if self._faults[operation] else None

    def accepted(self) -> None:
        with self._lock:
            self.connections += 1

    @contextmanager
    def running(self) -> Iterator["Proxy"]:
        self._start()
        try:
            yield self
        finally:
            self.over.set()
            self._stop()

    @contextmanager
    def gone(self) -> Iterator[None]:
        """For a while nobody listens, and connections that were open are cut off."""
        address = self._server.server_address
        self._gone = True
        self._stop()
        try:
            yield
        finally:
            self._server = _Server(address, _Handler)  # type: ignore[arg-type]
            self._server.proxy = self
            self._start()
            self._gone = False

    def _start(self) -> None:
        # A short poll, because shutting down waits for it.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    proxy: Proxy
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A client that gave up is what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.proxy.accepted()
        self._upstream = HTTPConnection(self.server.proxy.engine)

    def finish(self) -> None:
        self._upstream.close()
        with suppress(OSError):
            super().finish()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        fault = self.server.proxy.arrived(operation, body)
        if isinstance(fault, DropRequest):
            self._hang_up()
            return
        if isinstance(fault, Answer):
            kind = f"com.amazonaws.dynamodb.v20120810#{fault.code}"
            self._reply(fault.status, json.dumps({"__type": kind, "message": fault.message}).encode())
            return
        status, answer = self._forward(body)
        if isinstance(fault, DropReply):
            self._hang_up()
            return
        if isinstance(fault, ResetReply):
            self._break_off()
            return
        if isinstance(fault, Delay):
            self.server.proxy.over.wait(fault.seconds)
        if isinstance(fault, Meet):
            fault.barrier.wait(PATIENCE_SECONDS)
        self._reply(status, answer)

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        self._upstream.request("POST", "/", body, headers)
        reply = self._upstream.getresponse()
        return reply.status, reply.read()

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _break_off(self) -> None:
        """Closing without lingering sends a reset; the descriptor is taken from all who would say goodbye."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    def log_message(self, *_: object) -> None:
        """Requests are counted, not printed."""
