"""The wire for threads: blocking sockets, and several calls at once without a thread for each.

A single call never suspends. Calls that are made *together* do: each sends its request and lets the next
one send, and whichever answer comes first is read first. That takes a small event loop, which lives only
as long as the calls and knows nothing but sockets, questions and deadlines.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ...._colour import Blocking, ForkSafe, Signal, run_sync
from ..transport import NoReply
from .http1 import Malformed, Reader, Response
from .pool import silence_of
from .target import Target, untrusted

T = TypeVar("T")

RECEIVE_BYTES = 65_536
SENT_AT_ONCE_BYTES = 8_192
"""What the kernel takes without waiting on a connection that is idle, so that no time passes."""

THREADS_MAX = 16
NAP_MS = 1.0
"""How often the work of other threads is looked at while sockets are watched."""

_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class _Parked:
    """What a call among others waits for: a socket, or the answer to a question, until a time."""

    __slots__ = ("is_ready", "socket", "until_ms")

    def __init__(
        self, until_ms: float, socket: socket.socket | None = None, is_ready: Callable[[], bool] | None = None
    ) -> None:
        self.until_ms, self.socket, self.is_ready = until_ms, socket, is_ready

    def __await__(self) -> Generator[_Parked, None, None]:
        yield self


class Lanes(Blocking):
    """Runs calls side by side in the thread that makes them."""

    def __init__(self, ticks_ms: Callable[[], float]) -> None:
        super().__init__()
        self._ticks_ms = ticks_ms
        self._local = threading.local()

    @property
    def busy(self) -> bool:
        """Whether this thread runs calls side by side, so that one which waits must let the others go on."""
        return getattr(self._local, "depth", 0) > 0

    async def together(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        if len(coroutines) == 1:
            return [await coroutines[0]]
        return self._run(coroutines)

    async def sleep(self, seconds: float) -> None:
        if self.busy:
            await _Parked(self._ticks_ms() + seconds * 1000)
        else:
            await super().sleep(seconds)

    async def until(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """Let the others go on until something in another thread is ready."""
        await _Parked(self._ticks_ms() + seconds * 1000, is_ready=is_ready)

    def signal(self) -> Signal:
        return _LaneSignal(self, super().signal())

    def _run(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        results: dict[int, T] = {}
        errors: list[Exception] = []
        waiting: dict[int, _Parked | None] = dict.fromkeys(range(len(coroutines)))
        self._local.depth = getattr(self._local, "depth", 0) + 1
        try:
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
            self._local.depth -= 1
            for at in waiting:
                coroutines[at].close()
        if errors:
            raise errors[0]
        return [results[at] for at in range(len(coroutines))]

    def _ready(self, waiting: dict[int, _Parked | None]) -> list[int]:
        """Those that can go on; at least one, as every wait has an end."""
        if fresh := [at for at, parked in waiting.items() if parked is None]:
            return fresh
        parked_now = {at: parked for at, parked in waiting.items() if parked is not None}
        with _Selector() as selector:
            for at, parked in parked_now.items():
                if parked.socket is not None:
                    selector.register(parked.socket, selectors.EVENT_READ, at)
            while True:
                now_ms = self._ticks_ms()
                wait_ms = min(parked.until_ms for parked in parked_now.values()) - now_ms
                if any(parked.is_ready is not None for parked in parked_now.values()):
                    wait_ms = min(wait_ms, NAP_MS)
                ready = [key.data for key, _ in selector.select(max(0.0, wait_ms) / 1000)]
                now_ms = self._ticks_ms()
                for at, parked in parked_now.items():
                    if at not in ready and (
                        parked.until_ms <= now_ms or (parked.is_ready is not None and parked.is_ready())
                    ):
                        ready.append(at)
                if ready:
                    return ready


class _LaneSignal:
    """A signal for which a call among others waits without holding these up."""

    def __init__(self, lanes: Lanes, inner: Signal) -> None:
        self._lanes, self._inner = lanes, inner

    @property
    def given(self) -> bool:
        return self._inner.given

    def give(self) -> None:
        self._inner.give()

    async def wait(self, seconds: float | None = None) -> None:
        if self._lanes.busy and seconds is not None:
            await self._lanes.until(lambda: self._inner.given, seconds)
        else:
            await self._inner.wait(seconds)


class BlockingConnection:
    """A connected socket."""

    def __init__(self, connected: socket.socket, lanes: Lanes, ticks_ms: Callable[[], float]) -> None:
        self._socket, self._lanes, self._ticks_ms = connected, lanes, ticks_ms
        self._is_silent = silence_of(connected.fileno())
        self.idle_since_ms = ticks_ms()

    def is_quiet(self) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return False
        return self._is_silent()

    async def exchange(self, request: bytes, until_ms: float) -> Response:
        try:
            self._limit(until_ms)
            self._socket.sendall(request)
            if self._lanes.busy:
                await _Parked(until_ms, self._socket)
                self._limit(until_ms)
            elif len(request) > SENT_AT_ONCE_BYTES:
                self._limit(until_ms)
            reader = Reader()
            while True:
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise NoReply("the connection was closed before the answer was whole", ambiguous=True)
                response = reader.feed(data)
                if response is not None:
                    return response
                self._limit(until_ms)
        except TimeoutError as error:
            raise NoReply("no answer in time", ambiguous=True) from error
        except (OSError, Malformed) as error:
            raise NoReply(f"{type(error).__name__}: {error}", ambiguous=True) from error

    def close(self) -> None:
        self._socket.close()

    # A child that was forked drops the connections of its parent, and must not be warned of that.
    __del__ = close

    async def closed(self) -> None:
        """Closing is immediate."""

    def _limit(self, until_ms: float) -> None:
        # Not zero, which would mean not to wait for what is already there.
        self._socket.settimeout(max(0.001, (until_ms - self._ticks_ms()) / 1000))


class BlockingWire:
    """Sockets for any number of threads. Connecting happens aside: looking up a name has no timeout."""

    def __init__(self, ticks_ms: Callable[[], float]) -> None:
        self._ticks_ms = ticks_ms
        self.colour = Blocking()
        self.lanes = Lanes(ticks_ms)
        self.home = None
        self._threads = ForkSafe(lambda: ThreadPoolExecutor(THREADS_MAX, "zae-limiter-aside"))

    def signal(self) -> Signal:
        return self.lanes.signal()

    async def aside(self, function: Callable[[], T]) -> T:
        return function()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return self._submit(run_sync, work)

    def is_done(self, job: Future[Any]) -> bool:
        return job.done()

    async def wait(self, job: Future[T], seconds: float) -> T:
        if self.lanes.busy:
            await self.lanes.until(job.done, seconds)
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

    async def connect(self, target: Target, until_ms: float, seconds_max: float) -> BlockingConnection:
        until_ms = min(until_ms, self._ticks_ms() + seconds_max * 1000)
        job = self._submit(open_socket, target, until_ms, self._ticks_ms)
        try:
            connected = await self.wait(job, (until_ms - self._ticks_ms()) / 1000)
        except BaseException as error:
            # It may still come, and then nobody wants it any more.
            job.add_done_callback(_close_late)
            if isinstance(error, TimeoutError):
                raise NoReply(f"no connection to {target.authority} in time", ambiguous=False) from error
            raise
        return BlockingConnection(connected, self.lanes, self._ticks_ms)


def open_socket(target: Target, until_ms: float, ticks_ms: Callable[[], float]) -> socket.socket:
    """A connection to the first address that takes one."""
    try:
        addresses = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NoReply(f"cannot find {target.host!r}: {error}", ambiguous=False) from error
    failed: OSError = TimeoutError("no address answers")
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        # Each address gets its share of the time, lest a dead one use up that of the others.
        share_s = (until_ms - ticks_ms()) / 1000 / (len(addresses) - tried)
        fresh = socket.socket(family, kind, protocol)
        try:
            fresh.settimeout(max(0.001, share_s))
            set_options(fresh, target)
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


def set_options(fresh: socket.socket, target: Target) -> None:
    fresh.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if target.keep_alive:
        fresh.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _close_late(job: Future[socket.socket]) -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().close()
