"""Connections of threads: whoever waits for an answer sleeps until its socket has something.

Connecting alone happens in a thread of its own: looking up a name has no timeout, and the caller's deadline
must hold.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import psycopg

from ...runtime.colour import Blocking, aside
from .trouble import LostReply, no_connection
from .wire import Wire


class _RawThreaded(psycopg.Connection[tuple[str]]):
    """One that may be forgotten without a word: a forked child drops those of its parent."""

    def __del__(self, _: Any = None) -> None: ...


class ThreadLink:
    def __init__(self, wire: Wire, ticks_ms: Callable[[], float]) -> None:
        self.wire = wire
        self._ticks_ms = ticks_ms
        self.is_quiet: Final = wire.is_quiet
        self.idle_since_ms: float = 0.0

    async def exchange(self, statement: bytes, arguments: list[bytes], until_ms: float) -> bytes:
        wire, is_sent = self.wire, False
        try:
            is_sent = wire.send(statement, arguments)
            while True:
                self._wait(until_ms, writing=not is_sent)
                if wire.receive():
                    return wire.answer()
                is_sent = is_sent or wire.flush()
        except BaseException:
            if wire.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                wire.usable = False  # half an answer is nobody's
            raise

    def close(self) -> None:
        self.wire.close()

    async def closed(self) -> None:
        """Closing takes no time."""

    def _wait(self, until_ms: float, *, writing: bool) -> None:
        left_ms = until_ms - self._ticks_ms()
        if left_ms > 0 and is_ready(self.wire.descriptor, left_ms, writing=writing):
            return
        raise LostReply("no answer in time", ambiguous=True)


def is_ready(descriptor: int, wait_ms: float, *, writing: bool = False) -> bool:
    """Whether there is something to read, or room to write, within this time."""
    if not hasattr(select, "poll"):  # Windows
        return any(select.select([descriptor], [descriptor] if writing else [], [], wait_ms / 1000))
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | (select.POLLOUT if writing else 0))
    return bool(poll.poll(wait_ms))


class ThreadLinks:
    """How threads connect."""

    def __init__(self, conninfo: str, ticks_ms: Callable[[], float]) -> None:
        self._conninfo, self._ticks_ms = conninfo, ticks_ms
        self.colour: Final = Blocking()

    async def connect(self, until_ms: float) -> ThreadLink:
        left_s = (until_ms - self._ticks_ms()) / 1000
        job = aside("connect", self._connected, _close_late)
        try:
            return ThreadLink(job.result(max(0.0, left_s)), self._ticks_ms)
        except BaseException as error:
            job.add_done_callback(_close_late)  # it may still come, and then nobody wants it any more
            if isinstance(error, psycopg.Error):
                raise no_connection(error) from error
            if isinstance(error, TimeoutError):
                raise LostReply("no connection in time", ambiguous=False) from error
            raise

    def _connected(self) -> Wire:
        return Wire(_RawThreaded.connect(self._conninfo, autocommit=True))


def _close_late(job: Future[Wire]) -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().close()
