"""The network of threads: blocking sockets, without a thread for each call.

A call never suspends unless it is made together with others. Connecting alone happens in a thread of its
own: looking up a name has no timeout, and the caller's deadline must hold.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ....runtime.colour import Blocking, ForkSafe, run_sync
from ..transport import NoReply
from .endpoint import ADDRESSES_MAX, Target, untrusted
from .http1 import Malformed, Response
from .pool import arrivals_of
from .sync_fanout import FanOut, Parked

T = TypeVar("T")

RECEIVE_BYTES = 65_536
THREADS_MAX = 16
TIMEOUT_SLACK_S = 0.001
SENT_AT_ONCE_BYTES = 8_192
"""What the kernel takes at once on a connection that is idle, so that no time passes."""


class BlockingConnection:
    """A connected socket."""

    def __init__(self, connected: socket.socket, fanout: FanOut, ticks_ms: Callable[[], float]) -> None:
        self._socket, self._fanout, self._ticks_ms = connected, fanout, ticks_ms
        self._timeout_s = 0.0
        self._arrivals = arrivals_of(connected.fileno())
        self.idle_since_ms = ticks_ms()

    def is_quiet(self) -> bool:
        # What was decrypted already is out of the kernel's sight.
        is_read = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        return not is_read and not self._arrivals(0)

    async def exchange(self, request: bytes, until_ms: float) -> Response:
        try:
            self._limit(until_ms)
            sent = self._socket.send(request)
            while sent < len(request):
                self._go_on(until_ms)
                sent += self._socket.send(memoryview(request)[sent:])
            if self._fanout.rounds and self._fanout.is_busy():
                await Parked(until_ms, self._socket)
                self._limit(until_ms)
            elif len(request) > SENT_AT_ONCE_BYTES:
                self._limit(until_ms)
            response = Response()
            while True:
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise NoReply("the connection was closed before the answer was whole", ambiguous=True)
                if response.feed(data):
                    return response
                self._go_on(until_ms)
        except TimeoutError as error:
            raise NoReply("no answer in time", ambiguous=True) from error
        except (OSError, Malformed) as error:
            raise NoReply(f"{type(error).__name__}: {error}", ambiguous=True) from error

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        # A child that was forked drops the connections of its parent, and must not be warned of that.
        if hasattr(self, "_socket"):
            self.close()

    async def closed(self) -> None:
        """Closing is immediate."""

    def _go_on(self, until_ms: float) -> None:
        """Allow another piece to be sent or read, if there is time: each has a timeout of its own."""
        if self._ticks_ms() >= until_ms:
            raise TimeoutError
        self._limit(until_ms)

    def _limit(self, until_ms: float) -> None:
        # Not zero, which would mean not to wait for what is already there.
        timeout_s = max(0.001, (until_ms - self._ticks_ms()) / 1000)
        # Setting it takes a system call, which is not worth a millisecond.
        if not 0 <= self._timeout_s - timeout_s < TIMEOUT_SLACK_S:
            self._timeout_s = timeout_s
            self._socket.settimeout(timeout_s)


class BlockingNetwork:
    """Sockets for any number of threads."""

    def __init__(self, ticks_ms: Callable[[], float]) -> None:
        self._ticks_ms = ticks_ms
        self.colour = Blocking()
        self.fanout = FanOut(ticks_ms)
        self.home = None
        self._threads = ForkSafe(lambda: ThreadPoolExecutor(THREADS_MAX, "zae-limiter-aside"))

    async def aside(self, function: Callable[[], T]) -> T:
        return function()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return self._submit(run_sync, work)

    async def wait(self, job: Future[T], seconds: float) -> T:
        if self.fanout.is_busy():
            await self.fanout.until(job.done, seconds)
            seconds = 0
        return job.result(max(0.0, seconds))

    async def abandon(self, job: Future[Any] | None) -> None:
        if job is not None:
            job.cancel()
        if threads := self._threads.forget():
            threads.shutdown(wait=False)

    def _submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        try:
            return self._threads.get().submit(function, *args)
        except RuntimeError:
            # An interpreter that is shutting down starts no threads, but a last refund may still be due.
            job: Future[T] = Future()
            try:
                job.set_result(function(*args))
            except Exception as error:
                job.set_exception(error)
            return job

    async def connect(self, target: Target, until_ms: float, share_s: float) -> BlockingConnection:
        job = self._submit(open_socket, target, until_ms, share_s, self._ticks_ms)
        try:
            connected = await self.wait(job, (until_ms - self._ticks_ms()) / 1000)
            return BlockingConnection(connected, self.fanout, self._ticks_ms)
        except BaseException as error:
            # It may still come, and then nobody wants it any more.
            job.add_done_callback(_close_late)
            if isinstance(error, TimeoutError):
                raise NoReply(f"no connection to {target.authority} in time", ambiguous=False) from error
            raise


def open_socket(
    target: Target, until_ms: float, share_s: float, ticks_ms: Callable[[], float]
) -> socket.socket:
    """A connection to the first address that takes one."""
    try:
        addresses = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NoReply(f"cannot find {target.host!r}: {error}", ambiguous=False) from error
    failed: OSError = TimeoutError("no address answers")
    for family, kind, protocol, _, address in addresses[:ADDRESSES_MAX]:
        fresh = socket.socket(family, kind, protocol)
        try:
            target.prepare(fresh)
            fresh.settimeout(max(0.001, min(share_s, (until_ms - ticks_ms()) / 1000)))
            fresh.connect(address)
            if target.tls is None:
                return fresh
            fresh.settimeout(max(0.001, (until_ms - ticks_ms()) / 1000))
            return target.tls.wrap_socket(fresh, server_hostname=target.host)
        except ssl.SSLCertVerificationError as error:
            fresh.close()
            raise untrusted(target, error) from error
        except OSError as error:
            fresh.close()
            failed = error
    raise NoReply(f"cannot connect to {target.authority}: {failed!r}", ambiguous=False) from failed


def _close_late(job: Future[socket.socket]) -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().close()
