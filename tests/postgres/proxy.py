"""A loopback proxy that speaks enough of PostgreSQL's protocol to lose, cut and delay answers on command.

Faults are scripted by the function that a statement calls and used up in order; without one it passes. An
answer is read from the server to its end before anything is done to it: what was asked has happened by then.
"""

import re
import socket
import struct
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Literal, NamedTuple

from tests.engines.postgres import HOST

LostOrCut = Literal["lose request", "lose reply", "half a reply", "no end", "reset", "silence"]
REPLY_FAULTS: tuple[LostOrCut, ...] = ("lose reply", "half a reply", "no end", "reset", "silence")


class Damage(NamedTuple):
    """Some bytes of the answer are others: of the value in it, or of all that carries it."""

    seed: int
    of_value: bool

    def done_to(self, reply: bytes) -> bytes:
        chance, damaged = Random(self.seed), bytearray(reply)
        places = range(*_value_in(reply)) if self.of_value else range(len(reply))
        for _ in range(chance.randint(1, 4)):
            damaged[chance.choice(places)] = chance.choice([chance.randrange(256), *b'0-9"{[,]}x'])
        return bytes(damaged)


Fault = LostOrCut | Damage
READY_BYTES = 6
_CALLED = re.compile(rb"SELECT \w+\.(\w+)\(|^Q.{4}(BEGIN|COMMIT|DROP|--)", re.S)
_ASKS = {80877103, 80877104}  # for TLS or GSSAPI, which are answered with one byte


class Proxy:
    """What happened, and what is to happen."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.calls: Counter[str] = Counter()
        self.bytes_sent: Counter[str] = Counter()
        self.bytes_received: Counter[str] = Counter()
        self.connections = 0
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    def fault(self, function: str, *faults: Fault) -> None:
        """Do these to the next calls of a function, one each.

        What an owner says is BEGIN, DROP, COMMIT, or `--` if it makes something.
        """
        self._faults[function].extend(faults)

    @contextmanager
    def running(self) -> Iterator["Proxy"]:
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            self._listener.close()
            self.cut()

    def cut(self) -> None:
        """Break off all connections, as a crash would."""
        for one in self._open:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RDWR)
                one.close()
        self._open.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                server = socket.create_connection((HOST, self._server_port))
                self._open += (client, server)
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError, EOFError):
            while True:
                head = _exactly(client, 8)
                length, code = struct.unpack("!ii", head)
                server.sendall(head + _exactly(client, length - 8))
                if code not in _ASKS:
                    break
                client.sendall(_exactly(server, 1))
            client.sendall(_reply(server))
            while True:
                request = _request(client)
                found = _CALLED.search(request)
                function = (found[1] or found[2]).decode() if found else ""
                self.calls[function] += 1
                waiting = self._faults[function]
                if not self._answer(
                    client, server, function, request, waiting.popleft() if waiting else None
                ):
                    return

    def _answer(
        self, client: socket.socket, server: socket.socket, function: str, request: bytes, fault: Fault | None
    ) -> bool:
        """Pass a request on, and its answer back or not; whether the connection goes on."""
        if fault == "lose request":
            return False
        if isinstance(fault, Damage):
            server.sendall(request)
            client.sendall(fault.done_to(_reply(server)))
            return True
        server.sendall(request)
        if request[:1] == b"X":
            return False
        reply = _reply(server)
        self.bytes_sent[function] += len(request)
        self.bytes_received[function] += len(reply)
        if fault is None:
            client.sendall(reply)
            return True
        if fault in ("half a reply", "no end"):
            client.sendall(reply[: len(reply) // 2 if fault == "half a reply" else -READY_BYTES])
        elif fault == "silence":
            client.recv(1)  # until the client gives up
        elif fault == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


def _value_in(reply: bytes) -> tuple[int, int]:
    """Where the one value of an answer begins and ends."""
    at = 0
    while reply[at : at + 1] != b"D":
        at += 1 + int(struct.unpack_from("!i", reply, at + 1)[0])
    begin = at + 11
    return begin, begin + int(struct.unpack_from("!i", reply, at + 7)[0])


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        data = source.recv(count - len(found))
        if not data:
            raise EOFError
        found += data
    return found


def _message(source: socket.socket) -> bytes:
    head = _exactly(source, 5)
    return head + _exactly(source, struct.unpack("!i", head[1:])[0] - 4)


def _request(client: socket.socket) -> bytes:
    """Messages up to the one that ends a request."""
    whole = b""
    while True:
        message = _message(client)
        whole += message
        if message[:1] in b"SQX":
            return whole


def _reply(server: socket.socket) -> bytes:
    whole = b""
    while True:
        message = _message(server)
        whole += message
        if message[:1] == b"Z":
            return whole
