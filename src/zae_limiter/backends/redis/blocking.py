"""Connections of threads: blocking sockets, each used by one call at a time."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

from ...runtime.colour import Blocking
from ..pool import arrivals_of
from .address import NO_CONNECTION, RedisAddress
from .resp import MalformedReply, Replies, Reply
from .trouble import no_reply

RECEIVE_BYTES = 65_536
TIMEOUT_SLACK_S = 0.001


class RedisSocket:
    def __init__(self, connected: socket.socket, ticks_ms: Callable[[], float]) -> None:
        self._socket, self._ticks_ms = connected, ticks_ms
        self._arrivals = arrivals_of(connected.fileno())
        self._timeout_s = 0.0
        self._is_busy = False
        self.idle_since_ms: float = ticks_ms()

    def is_quiet(self) -> bool:
        # What was decrypted already is out of the kernel's sight.
        is_read = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        return not self._is_busy and not is_read and not self._arrivals(0)

    async def exchange(self, request: bytes, count: int, until_ms: float) -> list[Reply]:
        replies, self._is_busy = Replies(count), True
        try:
            self._limit(until_ms)
            sent = self._socket.send(request)
            while sent < len(request):
                self._limit(until_ms)
                sent += self._socket.send(memoryview(request)[sent:])
            while True:
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise no_reply("the connection was closed")
                if (found := replies.feed(data)) is not None:
                    self._is_busy = False
                    return found
                self._limit(until_ms)
        except TimeoutError as error:
            raise no_reply("no answer in time") from error
        except (OSError, MalformedReply) as error:
            raise no_reply(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        # A child that was forked drops the connections of its parent, and must not be warned of that.
        if hasattr(self, "_socket"):
            self.close()

    async def closed(self) -> None:
        """Closing is immediate."""

    def _limit(self, until_ms: float) -> None:
        left_s = (until_ms - self._ticks_ms()) / 1000
        if left_s <= 0:
            raise TimeoutError
        timeout_s = max(0.001, left_s)
        # Setting it takes a system call, which is not worth a millisecond.
        if not 0 <= self._timeout_s - timeout_s < TIMEOUT_SLACK_S:
            self._timeout_s = timeout_s
            self._socket.settimeout(timeout_s)


class ThreadsToRedis:
    """How threads connect."""

    guarded = None

    def __init__(self, ticks_ms: Callable[[], float]) -> None:
        self._ticks_ms = ticks_ms
        self.colour: Blocking = Blocking()

    async def connect(self, address: RedisAddress, until_ms: float) -> RedisSocket:
        left_s = max(0.001, (until_ms - self._ticks_ms()) / 1000)
        connected: socket.socket | None = None
        try:
            connected = socket.create_connection((address.host, address.port), left_s)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is not None:
                connected = address.tls.wrap_socket(connected, server_hostname=address.host)
        except TimeoutError as error:
            _close(connected)
            raise address.too_late() from error
        except NO_CONNECTION as error:
            _close(connected)
            raise address.trouble(error) from error
        except BaseException:
            _close(connected)
            raise
        return RedisSocket(connected, self._ticks_ms)


def _close(connected: socket.socket | None) -> None:
    if connected is not None:
        connected.close()
