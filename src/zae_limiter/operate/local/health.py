"""Whether an engine answers on loopback: by HTTP, or in the language of a server.

A server that listens and is not ready yet, because it still reads its data, does not count as answering.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct

from .engines import HOST

ANSWER_SECONDS = 2.0
REDIS, POSTGRES = "redis", "postgres"
VERSION_3 = 196_608
"""The protocol of PostgreSQL that all servers of today speak."""


def answers(health: str, port: int) -> bool:
    """Whether an engine is there and ready; ``health`` is what to ask, a path of HTTP or a language."""
    try:
        if health == REDIS:
            return _said(port, b"PING\r\n", 5) in (b"+PONG", b"-NOAU")
        if health == POSTGRES:
            # It asks who we are, or lets us in; while it starts it says an error.
            return _said(port, _hello(), 1) == b"R"
        return _status(port, health) < 500
    except (OSError, http.client.HTTPException):
        return False


def _said(port: int, question: bytes, count: int) -> bytes:
    """The first bytes of an answer."""
    with socket.create_connection((HOST, port), timeout=ANSWER_SECONDS) as asked:
        asked.sendall(question)
        answer = b""
        while len(answer) < count and (more := asked.recv(count - len(answer))):
            answer += more
        asked.shutdown(socket.SHUT_WR)
        while asked.recv(4096):  # else the server would log that it was cut off
            pass
        return answer


def _hello() -> bytes:
    """The first message of a client of PostgreSQL."""
    body = struct.pack("!I", VERSION_3) + b"user\0postgres\0database\0postgres\0\0"
    return struct.pack("!I", len(body) + 4) + body


def _status(port: int, path: str) -> int:
    """Anything but an error of its own is an answer."""
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=ANSWER_SECONDS)) as asked:
        asked.request("GET", path)
        return asked.getresponse().status
