"""The network of event loops: asyncio's transports, one protocol for each connection.

The bytes of an answer are read where they arrive, so that a task is woken once for each call. A call that is
cancelled or runs out of time takes its connection with it: half an answer is nobody's. At every moment
exactly one of us closes a connection if all ends there: who makes it, the call that has it, or the pool.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, cast

from ....runtime.loops import Asyncio
from ...pool import arrivals_of
from ..transport import NoReply
from .endpoint import ADDRESSES_MAX, Target, untrusted
from .http1 import Malformed, Response

T = TypeVar("T")


class LoopConnection(asyncio.Protocol):
    """One connection, and the call that uses it."""

    def __init__(self, connected: socket.socket, ticks_ms: Callable[[], float]) -> None:
        self._socket, self._ticks_ms = connected, ticks_ms
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = self._until_ms = math.inf
        self.idle_since_ms: float = ticks_ms()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._arrivals = arrivals_of(self._socket.fileno())

    async def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Go on in TLS."""
        if self._transport.is_closing():
            raise ConnectionResetError("the connection was closed before the handshake")
        secured = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        self._transport = cast(asyncio.Transport, secured)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None or self._answer is None or self._answer.done():
            # Nothing was asked, or nobody wants to know any more.
            self._transport.abort()
            return
        try:
            if response.feed(data):
                self._response = None
                self._answer.set_result(response)
        except Malformed as error:
            self._fail(f"Malformed: {error}", error)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._fail("the connection was closed before the answer was whole")
        else:
            self._fail(f"{type(exc).__name__}: {exc}", exc)
        if not self._gone.done():
            self._gone.set_result(None)

    def is_quiet(self) -> bool:
        # A busy loop may not have got round to what the kernel already knows.
        return not self._transport.is_closing() and not self._arrivals(0)

    def exchange(self, request: bytes, until_ms: float) -> asyncio.Future[Response]:
        """What is returned is awaited by the caller, which saves a coroutine for each call."""
        if self._transport.is_closing():
            raise NoReply("the connection was closed before it was used", ambiguous=False)
        self._response = Response()
        answer = self._answer = self._loop.create_future()
        self._until_ms = until_ms
        if until_ms < self._alarm_ms:
            self._set_alarm()
        self._transport.write(request)
        return answer

    def close(self) -> None:
        """Also from another loop, whose thread may be another, and after its own loop has ended."""
        if asyncio.get_running_loop() is self._loop:
            self._abort()
            return
        try:
            self._loop.call_soon_threadsafe(self._abort)
        except RuntimeError:
            # Nobody runs that loop any more, so nobody else uses the socket.
            self._socket.close()

    def _abort(self) -> None:
        self._transport.abort()
        if self._alarm is not None:
            self._alarm.cancel()

    def _set_alarm(self) -> None:
        """Wake up for this deadline. The next one is usually later, and then this alarm serves it too."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ms = self._until_ms
        self._alarm = self._loop.call_later((self._until_ms - self._ticks_ms()) / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_ms = None, math.inf
        if self._response is None:
            return
        if self._ticks_ms() < self._until_ms:
            self._set_alarm()
        else:
            self._fail("no answer in time")

    async def closed(self) -> None:
        await self._gone

    def _fail(self, message: str, cause: Exception | None = None) -> None:
        self._response = None
        self.close()
        if self._answer is not None and not self._answer.done():
            error = NoReply(message, ambiguous=True)
            error.__cause__ = cause
            self._answer.set_exception(error)


class LoopNetwork:
    """How event loops connect, each to connections of its own, and do work aside."""

    def __init__(self, ticks_ms: Callable[[], float]) -> None:
        self._ticks_ms = ticks_ms
        self.colour: Asyncio = Asyncio()
        self.fanout: Asyncio = self.colour
        self.home: Final = self.colour.home

    async def aside(self, function: Callable[[], T]) -> T:
        """Call a function that may block."""
        # What a session of aiobotocore does is to make a coroutine, which debug mode forbids by the name.
        return await asyncio.get_running_loop().run_in_executor(None, lambda: function())  # noqa: PLW0108

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin work that does not end with its caller: a job."""
        task = asyncio.get_running_loop().create_task(work)
        # Whoever waits for it is told of its failure; if nobody does, the next call will fail by itself.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def wait(self, job: asyncio.Task[T], seconds: float) -> T:
        """The result of a job; ``TimeoutError`` if it takes longer."""
        await asyncio.wait([job], timeout=seconds)
        if not job.done():
            raise TimeoutError
        return job.result()

    async def abandon(self, job: asyncio.Task[Any] | None) -> None:
        """Let go of a job, and of what did it."""
        if job is not None and not job.done():
            job.cancel()
            await asyncio.wait([job])

    async def connect(self, target: Target, until_ms: float, share_s: float) -> LoopConnection:
        """A new connection; no address may take longer than its share to accept one."""
        # In a task of its own, for its deadlines end it by cancelling, and the caller must not be.
        task = asyncio.ensure_future(self._connected(target, until_ms, share_s))
        try:
            return await task
        except BaseException:
            # It may be there already: who is cancelled is woken only in the next turn.
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            raise

    async def _connected(self, target: Target, until_ms: float, share_s: float) -> LoopConnection:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + (until_ms - self._ticks_ms()) / 1000
        try:
            async with asyncio.timeout_at(until_s):
                addresses = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NoReply(f"cannot find {target.host!r}: {error!r}", ambiguous=False) from error
        failed: OSError = TimeoutError("no address answers")
        for family, kind, protocol, _, address in addresses[:ADDRESSES_MAX]:
            fresh = socket.socket(family, kind, protocol)
            try:
                async with asyncio.timeout_at(until_s):
                    return await self._connect(target, fresh, address, share_s)
            except ssl.SSLCertVerificationError as error:
                raise untrusted(target, error) from error
            except OSError as error:
                failed = error
        raise NoReply(f"cannot connect to {target.authority}: {failed!r}", ambiguous=False) from failed

    async def _connect(
        self, target: Target, fresh: socket.socket, address: Any, share_s: float
    ) -> LoopConnection:
        loop = asyncio.get_running_loop()
        try:
            target.prepare(fresh)
            fresh.setblocking(False)
            async with asyncio.timeout(share_s):
                await loop.sock_connect(fresh, address)
        except BaseException:
            fresh.close()
            raise
        connection = LoopConnection(fresh, self._ticks_ms)
        # From here on the socket is the loop's, which closes it when one of these fails or is cancelled.
        # Asked for both at once it would not, if the handshake has yet to begin.
        await loop.create_connection(lambda: connection, sock=fresh)
        if target.tls is not None:
            await connection.secure(target.tls, target.host)
        return connection
