"""Connections of event loops, and calls that travel together there.

The bytes of an answer are read where they arrive, so that a task is woken once for each request. One that is
cancelled or runs out of time takes its connection with it: half an answer is nobody's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import psycopg

from ...runtime.loops import Asyncio
from ..convoy import Convoy
from .trouble import LostReply, NobodyWaits, Trouble, no_connection
from .wire import Wire

T = TypeVar("T")
A = TypeVar("A")


class _RawLooped(psycopg.AsyncConnection[tuple[str]]):
    """One that may be forgotten without a word: a forked child drops those of its parent."""

    def __del__(self, _: Any = None) -> None: ...


class LoopLink:
    """A connection, and the call that waits for an answer on it."""

    def __init__(self, wire: Wire, ticks_ms: Callable[[], float]) -> None:
        self.wire = wire
        self._ticks_ms = ticks_ms
        self.is_quiet: Final = wire.is_quiet
        self.idle_since_ms: float = 0.0
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[bytes] | None = None
        self._reading = self._writing = False

    async def exchange(self, statement: bytes, arguments: list[bytes], until_ms: float) -> bytes:
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._answer = answer
        alarm = None
        try:
            if not self.wire.send(statement, arguments):
                self._loop.add_writer(self.wire.descriptor, self._go_on)
                self._writing = True
            if not self._reading:
                self._loop.add_reader(self.wire.descriptor, self._read)
                self._reading = True
            alarm = self._loop.call_later(max(0.0, until_ms - self._ticks_ms()) / 1000, self._ring)
            return await answer
        except BaseException:
            if not answer.done() or answer.cancelled():
                self.wire.usable = False
            raise
        finally:
            self._answer = None
            if alarm is not None:
                alarm.cancel()
            if self._writing:
                self._end_writing()

    def close(self) -> None:
        """Also from another loop, whose thread may be another, and after its own loop has ended."""
        self.wire.usable = False
        if self._loop.is_closed():
            self.wire.close()
        elif asyncio._get_running_loop() is self._loop:
            self._close()
        else:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._close)

    async def closed(self) -> None:
        """Closing takes no time."""

    def _close(self) -> None:
        if self._reading:
            self._loop.remove_reader(self.wire.descriptor)
            self._reading = False
        if self._writing:
            self._end_writing()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LostReply("the connection was closed", ambiguous=True))
        self.wire.close()

    def _end_writing(self) -> None:
        self._loop.remove_writer(self.wire.descriptor)
        self._writing = False

    def _go_on(self) -> None:
        try:
            if self.wire.flush():
                self._end_writing()
        except Trouble as trouble:
            self._fail(trouble)

    def _read(self) -> None:
        answer = self._answer
        if answer is None or answer.done():
            # Nothing was asked: it is not used again, and closed by whoever finds it.
            self.wire.usable = False
            self._loop.remove_reader(self.wire.descriptor)
            self._reading = False
            return
        try:
            if self.wire.receive():
                answer.set_result(self.wire.answer())
        except Trouble as trouble:
            self._fail(trouble)

    def _ring(self) -> None:
        self.wire.usable = False
        self._fail(LostReply("no answer in time", ambiguous=True))

    def _fail(self, trouble: Trouble) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(trouble)


class LoopLinks:
    """How event loops connect, each to connections of its own."""

    def __init__(self, conninfo: str, ticks_ms: Callable[[], float]) -> None:
        self._conninfo, self._ticks_ms = conninfo, ticks_ms
        self.colour: Final = Asyncio()

    async def connect(self, until_ms: float) -> LoopLink:
        # In a task of its own, for its deadline ends it by cancelling, and the caller must not be.
        task = asyncio.ensure_future(self._connected(until_ms))
        try:
            return await task
        except BaseException:
            # It may be there already: who is cancelled is woken only in the next turn.
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            raise

    async def _connected(self, until_ms: float) -> LoopLink:
        try:
            async with asyncio.timeout((until_ms - self._ticks_ms()) / 1000):
                raw = await _RawLooped.connect(self._conninfo, autocommit=True)
        except TimeoutError as error:
            raise LostReply("no connection in time", ambiguous=False) from error
        except psycopg.Error as error:
            raise no_connection(error) from error
        return LoopLink(Wire(raw), self._ticks_ms)


@dataclass(slots=True, eq=False)
class Ride(Generic[T, A]):
    """One call in a convoy: what it asks, until when, whether it has set out, and who waits for it."""

    asked: T
    until_ms: float
    sent: bool = False
    answer: asyncio.Future[A] | None = None

    @property
    def is_over(self) -> bool:
        """Whether somebody was told what became of it, or gave up."""
        return self.answer is not None and self.answer.done()


class Aboard(Generic[T, A]):
    """Those of a convoy who are still waited for when it sets out.

    Finding a connection takes time. Whose time is over meanwhile was told that nothing was sent, so nothing
    of it may be sent any more.
    """

    def __init__(self, rides: Sequence[Ride[T, A]]) -> None:
        self.rides: Sequence[Ride[T, A]] = rides

    def set_out(self, yes: bool) -> None:
        """Note that they set out, or that nothing has become of that."""
        if yes:
            self.rides = [ride for ride in self.rides if not ride.is_over]
            if not self.rides:
                raise NobodyWaits
        for ride in self.rides:
            ride.sent = yes


class Convoys(Generic[T, A]):
    """FunctionCalls of one loop that travel together, each with a deadline of its own."""

    def __init__(
        self,
        send: Callable[[Sequence[Ride[T, A]]], Awaitable[Sequence[A]]],
        ways: int,
        weight_max: int,
        ticks_ms: Callable[[], float],
    ) -> None:
        self._convoy: Convoy[Ride[T, A], A] = Convoy(send, ways, weight_max)
        self._ticks_ms = ticks_ms
        self._loop = asyncio.get_running_loop()

    async def ask(self, asked: T, weight: int, until_ms: float) -> A:
        ride = Ride[T, A](asked, until_ms)
        answer = ride.answer = self._convoy.ride(ride, weight)
        alarm = self._loop.call_later((until_ms - self._ticks_ms()) / 1000, _ring, ride, answer)
        try:
            return await answer
        finally:
            alarm.cancel()


def _ring(ride: Ride[T, A], answer: asyncio.Future[A]) -> None:
    if not answer.done():
        answer.set_exception(LostReply("no answer in time", ambiguous=ride.sent))
