"""Connections that are kept: a bounded number, the warmest first, and nobody overtakes who waits.

A connection is only ever in one of two places: with the call that uses it, or idle in here. One that has
something to read although nothing was asked was closed by the server or has lost its way, and one that
nobody used for a minute may be dead without having said so; neither is used again.

A place in the pool belongs to something that exists: a connection, or a call that makes one. So whatever is
lost on its way, because a signal handler ended a call just there, leaves its place by being forgotten.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

from ..runtime.colour import Signal

IDLE_MAX_MS = 60_000


def arrivals_of(descriptor: int) -> Callable[[int], object]:
    """A question to ask again and again, with 0 for its timeout: is there something to read?"""
    if not hasattr(select, "poll"):  # Windows
        return lambda _: select.select([descriptor], [], [], 0)[0]
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll.poll


class Pooled(Protocol):
    """A connection of whatever kind."""

    idle_since_ms: float

    def is_quiet(self) -> bool:
        """Whether it can be used, and nothing has come although nothing was asked."""

    def close(self) -> None: ...

    async def closed(self) -> None:
        """Return when nothing is left of it after it was closed."""


C = TypeVar("C", bound=Pooled)


class _Maker:
    """A call that makes a connection, and has the place of that until it is there."""


class _Waiter(_Maker, Generic[C]):
    """A call that waits for its turn: it gets a connection, or leave to make one."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.connection: C | None = None
        self.served = False

    def serve(self, connection: C | None) -> None:
        self.connection, self.served = connection, True
        self.signal.give()


class Pool(Generic[C]):
    """Connections to one server. Safe for threads; under an event loop the lock is never waited for."""

    def __init__(
        self,
        connect: Callable[[float], Awaitable[C]],
        size: int,
        signal: Callable[[], Signal],
        ticks_ms: Callable[[], float],
        busy: Callable[[str], Exception],
    ) -> None:
        """``connect`` is told until when; ``busy`` makes the error of who got none in time."""
        self._connect, self._size, self._signal, self._ticks_ms = connect, size, signal, ticks_ms
        self._busy = busy
        self._idle: list[C] = []
        self._waiters: deque[_Waiter[C]] = deque()
        self._places: WeakSet[C | _Maker] = WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        self.guard: AsyncGenerator[None, None] | None = None
        """What closes the connections when the event loop that they belong to shuts down."""

    def take_idle(self, now_ms: float) -> C | None:
        """A connection that is at hand."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if now_ms - connection.idle_since_ms < IDLE_MAX_MS and connection.is_quiet():
                return connection
            self.drop(connection)

    async def take(self, until_ms: float) -> C:
        """A connection that is at hand, or a new one, or the next that gets free."""
        while True:
            connection = self.take_idle(self._ticks_ms())
            if connection is not None:
                return connection
            maker = _Maker()
            with self._lock:
                if self._idle:  # another thread gave it back since we looked
                    continue
                if len(self._places) < self._size:
                    self._places.add(maker)
                else:
                    maker = _Waiter[C](self._signal())
                    self._waiters.append(maker)
            if isinstance(maker, _Waiter):
                connection = await self._wait(maker, until_ms)
            if connection is None:
                return await self._open(maker, until_ms)
            # It may have been closed on the way from one call to the other.
            if connection.is_quiet():
                return connection
            self.drop(connection)

    def give(self, connection: C, now_ms: float) -> None:
        """Keep a connection whose answer was read to the end."""
        with self._lock:
            if self._waiters:
                self._waiters.popleft().serve(connection)
                return
            connection.idle_since_ms = now_ms
            self._idle.append(connection)
            # The coldest one is at the bottom, and may never come up again.
            is_useless = self._closed or now_ms - self._idle[0].idle_since_ms > IDLE_MAX_MS
            useless = self._idle.pop(0) if is_useless else None
        if useless is not None:
            self.drop(useless)

    def drop(self, connection: C) -> None:
        """Close a connection; its place is free."""
        connection.close()
        self._leave(connection)

    def close(self) -> list[C]:
        """Close what is idle now, and what is in use as soon as it is given back."""
        idle: list[C] = []
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, idle
        for connection in idle:
            self.drop(connection)
        return idle

    async def shut(self) -> None:
        """Close the idle connections of this home, and wait until nothing is left of them."""
        for connection in self.close():
            await connection.closed()

    async def _open(self, maker: _Maker, until_ms: float) -> C:
        try:
            connection = await self._connect(until_ms)
            with self._lock:
                self._places.add(connection)
                self._places.discard(maker)
            return connection
        except BaseException:
            self._leave(maker)
            raise

    def _leave(self, whose: C | _Maker) -> None:
        with self._lock:
            self._places.discard(whose)
            if self._waiters and len(self._places) < self._size:
                waiter = self._waiters.popleft()
                self._places.add(waiter)
                waiter.serve(None)

    async def _wait(self, waiter: _Waiter[C], until_ms: float) -> C | None:
        try:
            await waiter.signal.wait(max(0.0, until_ms - self._ticks_ms()) / 1000)
        except BaseException:
            # Pass on what was already got.
            if self._has_left(waiter):
                raise
            if waiter.connection is not None:
                self.give(waiter.connection, self._ticks_ms())
            else:
                self._leave(waiter)
            raise
        if self._has_left(waiter):
            raise self._busy(f"all {self._size} connections were busy; give the URL a larger pool=")
        return waiter.connection

    def _has_left(self, waiter: _Waiter[C]) -> bool:
        """Whether a call that gives up has got nothing; it is not in the queue any more."""
        with self._lock:
            # Who was to serve it may have been interrupted after it had taken it from the queue.
            if not waiter.served and waiter in self._waiters:
                self._waiters.remove(waiter)
            return not waiter.served
