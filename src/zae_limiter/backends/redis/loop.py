"""Connections of event loops: asyncio's transports, one request under way on each at a time.

Replies are read where they arrive, so that a task is woken once for each request. A request that runs out of
time takes its connection with it: half an answer is nobody's. Calls of many tasks travel together.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from ...runtime.colour import until_shutdown
from ...runtime.loops import Asyncio
from ..pool import arrivals_of
from .address import NO_CONNECTION, RedisAddress
from .resp import MalformedReply, Replies, Reply
from .trouble import no_reply, not_sent


class RedisProtocol(asyncio.Protocol):
    def __init__(self, ticks_ms: Callable[[], float]) -> None:
        self._ticks_ms, self._loop = ticks_ms, asyncio.get_running_loop()
        self._answer: asyncio.Future[list[Reply]] | None = None
        self._replies: Replies | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = self._until_ms = math.inf
        self.idle_since_ms: float = ticks_ms()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._arrivals = arrivals_of(self._socket.fileno())

    def data_received(self, data: bytes) -> None:
        if self._replies is None or self._answer is None:
            self._transport.abort()  # nothing was asked
            return
        try:
            found = self._replies.feed(data)
        except MalformedReply as error:
            self._fail(str(error))
            return
        if found is not None:
            self._replies = None
            if not self._answer.done():
                self._answer.set_result(found)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection was closed" if exc is None else f"{type(exc).__name__}: {exc}")
        if not self._gone.done():
            self._gone.set_result(None)

    def is_quiet(self) -> bool:
        # A busy loop may not have got round to what the kernel already knows.
        return self._replies is None and not self._transport.is_closing() and not self._arrivals(0)

    async def exchange(self, request: bytes, count: int, until_ms: float) -> list[Reply]:
        if self._transport.is_closing():
            raise not_sent("the connection was closed before it was used")
        self._replies = Replies(count)
        answer: asyncio.Future[list[Reply]] = self._loop.create_future()
        self._answer = answer
        self._until_ms = until_ms
        if until_ms < self._alarm_ms:
            self._set_alarm()
        self._transport.write(request)
        return await answer

    def close(self) -> None:
        """Also from another loop, whose thread may be another, and after its own loop has ended."""
        try:
            if asyncio.get_running_loop() is self._loop:
                self._abort()
                return
        except RuntimeError:
            pass
        try:
            self._loop.call_soon_threadsafe(self._abort)
        except RuntimeError:
            self._abandon()

    def _abandon(self) -> None:
        """Nobody runs that loop any more, so nobody else uses the socket."""
        # The transport would tell its loop, and warn of itself.
        transport: Any = self._transport
        inner = getattr(transport, "_ssl_protocol", None)
        raw = getattr(inner, "_transport", None) or transport
        if (held := getattr(raw, "_sock", None)) is not None:
            held.close()
            raw._sock = None

    def _abort(self) -> None:
        self._transport.abort()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _set_alarm(self) -> None:
        """Wake up for this deadline. The next one is usually later, and then this alarm serves it too."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ms = self._until_ms
        wait_s = max(0.0, (self._until_ms - self._ticks_ms()) / 1000)
        self._alarm = self._loop.call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_ms = None, math.inf
        if self._replies is None:
            return
        if self._ticks_ms() < self._until_ms:
            self._set_alarm()
        else:
            self._fail("no answer in time")

    async def closed(self) -> None:
        await self._gone

    def _fail(self, why: str) -> None:
        self._replies = None
        self._abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(no_reply(why))
            self._answer.exception()  # it may be that nobody awaits it any more


class LoopToRedis:
    """How event loops connect."""

    def __init__(self, ticks_ms: Callable[[], float]) -> None:
        self._ticks_ms = ticks_ms
        self.colour: Final = Asyncio()
        self.guarded = until_shutdown

    async def connect(self, address: RedisAddress, until_ms: float) -> RedisProtocol:
        # In a task of its own, for its deadline ends it by cancelling, and the caller must not be.
        task = asyncio.ensure_future(self._connect(address, until_ms))
        try:
            return await task
        except BaseException:
            # It may be there already: who is cancelled is woken only in the next turn.
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            raise

    async def _connect(self, address: RedisAddress, until_ms: float) -> RedisProtocol:
        loop = asyncio.get_running_loop()
        connection = RedisProtocol(self._ticks_ms)
        name = address.host if address.tls is not None and address.tls.check_hostname else None
        if address.tls is not None and name is None:
            name = ""
        try:
            async with asyncio.timeout(max(0.001, (until_ms - self._ticks_ms()) / 1000)):
                await loop.create_connection(
                    lambda: connection, address.host, address.port, ssl=address.tls, server_hostname=name
                )
        except TimeoutError as error:
            raise address.too_late() from error
        except NO_CONNECTION as error:
            raise address.trouble(error) from error
        return connection
