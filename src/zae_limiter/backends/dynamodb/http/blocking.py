"""The network of threads: blocking sockets, without a thread for each call.

A single call never suspends. Calls that are made *together* do, where they would wait: each then lets the
next one send, and whichever answer comes first is read first. That takes a small event loop, which lives
only as long as the calls and knows nothing but sockets, questions and deadlines.

Connecting alone happens in a thread of its own: looking up a name has no timeout, and the caller's deadline
must hold.
"""

from __future__ import annotations

import math
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from ....runtime.colour import Blocking, Signal, aside, run_sync
from ...pool import arrivals_of
from ..transport import NoReply
from .endpoint import ADDRESSES_MAX, Target, untrusted
from .http1 import Malformed, Response

T = TypeVar("T")

RECEIVE_BYTES = 65_536
TIMEOUT_SLACK_S = 0.001
SENT_AT_ONCE_BYTES = 8_192
"""What the kernel takes at once on a connection that is idle, so that no time passes."""

NAP_MS = 1.0
"""How often the work of other threads is looked at while sockets are watched."""

_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Parked(NamedTuple):
    """What a call among others waits for: a socket, or the answer to a question, until a time."""

    until_ms: float
    readable: socket.socket | None = None
    is_ready: Callable[[], bool] | None = None

    def __await__(self) -> Generator[Parked, None, None]:
        yield self


class FanOut(Blocking):
    """Runs calls side by side in the thread that makes them."""

    def __init__(self, ticks_ms: Callable[[], float]) -> None:
        super().__init__()
        self._ticks_ms = ticks_ms
        self._local = threading.local()
        self.rounds: set[object] = set()
        """One for each thread in which calls run side by side; where there are none, nobody asks further.

        There is no lock, which could be held during a fork; the rounds that a child inherits make it ask.
        """

    def is_busy(self) -> bool:
        """Whether this thread runs calls side by side, so that one which waits must let the others go on."""
        return getattr(self._local, "depth", 0) > 0

    async def together(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        if len(coroutines) == 1:
            return [await coroutines[0]]
        return self._run(coroutines)

    async def sleep(self, seconds: float) -> None:
        if self.is_busy():
            await Parked(self._ticks_ms() + seconds * 1000)
        else:
            await super().sleep(seconds)

    async def until(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """Let the others go on until something in another thread is ready."""
        await Parked(self._ticks_ms() + seconds * 1000, is_ready=is_ready)

    def signal(self) -> Signal:
        """A signal for whoever runs now to wait for."""
        return _PolledSignal(self) if self.is_busy() else super().signal()

    def _run(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        results: dict[int, T] = {}
        errors: list[Exception] = []
        waiting: dict[int, Parked | None] = dict.fromkeys(range(len(coroutines)))
        round_ = object()
        depth = getattr(self._local, "depth", 0)
        try:
            self._local.depth = depth + 1
            self.rounds.add(round_)
            while waiting:
                for at in self._ready(waiting):
                    try:
                        waiting[at] = coroutines[at].send(None)
                    except StopIteration as done:
                        results[at] = done.value
                        del waiting[at]
                    except Exception as error:
                        # The others go on: each may have sent something whose answer counts.
                        errors.append(error)
                        del waiting[at]
        finally:
            self._local.depth = depth
            self.rounds.discard(round_)
            for at in waiting:
                coroutines[at].close()
        if errors:
            raise errors[0]
        return [results[at] for at in range(len(coroutines))]

    def _ready(self, waiting: dict[int, Parked | None]) -> list[int]:
        """Those that can go on; at least one, as every wait has an end."""
        if fresh := [at for at, wait in waiting.items() if wait is None]:
            return fresh
        waits = {at: wait for at, wait in waiting.items() if wait is not None}
        end_ms = min(wait.until_ms for wait in waits.values())
        nap_ms = NAP_MS if any(wait.is_ready for wait in waits.values()) else math.inf
        with _Selector() as selector:
            for at, wait in waits.items():
                if wait.readable is not None:
                    selector.register(wait.readable, selectors.EVENT_READ, at)
            while True:
                wait_ms = max(0.0, min(end_ms - self._ticks_ms(), nap_ms))
                ready = {key.data for key, _ in selector.select(wait_ms / 1000)}
                now_ms = self._ticks_ms()
                for at, wait in waits.items():
                    if wait.until_ms <= now_ms or (wait.is_ready and wait.is_ready()):
                        ready.add(at)
                if ready:
                    return sorted(ready)


class _PolledSignal:
    """A signal for which a call among others waits without holding these up."""

    def __init__(self, fanout: FanOut) -> None:
        self._fanout, self.given = fanout, False

    def give(self) -> None:
        self.given = True

    async def wait(self, seconds: float | None = None) -> None:
        await self._fanout.until(lambda: self.given, math.inf if seconds is None else seconds)


class BlockingConnection:
    """A connected socket."""

    def __init__(self, connected: socket.socket, fanout: FanOut, ticks_ms: Callable[[], float]) -> None:
        self._socket, self._fanout, self._ticks_ms = connected, fanout, ticks_ms
        self._timeout_s = 0.0
        self._arrivals = arrivals_of(connected.fileno())
        self.idle_since_ms: float = ticks_ms()

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
    """How threads connect and do work aside: what a ``LoopNetwork`` does, for blocking sockets."""

    def __init__(self, ticks_ms: Callable[[], float]) -> None:
        self._ticks_ms = ticks_ms
        self.colour: Final = Blocking()
        self.fanout: Final = FanOut(ticks_ms)
        self.home: Final = None

    async def aside(self, function: Callable[[], T]) -> T:
        return function()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return aside("aside", partial(run_sync, work))

    async def wait(self, job: Future[T], seconds: float) -> T:
        if self.fanout.is_busy():
            await self.fanout.until(job.done, seconds)
            seconds = 0
        return job.result(max(0.0, seconds))

    async def abandon(self, job: Future[Any] | None) -> None:
        """It comes to its end by itself."""

    async def connect(self, target: Target, until_ms: float, share_s: float) -> BlockingConnection:
        job = aside("connect", partial(open_socket, target, until_ms, share_s, self._ticks_ms), _close_late)
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
