"""Several calls at once in one thread: each sends, and whichever answer comes first is read first.

A single call over a blocking socket never suspends. Calls that are made *together* do, where they would
wait: each then lets the next one send. That takes a small event loop, which lives only as long as the
calls and knows nothing but sockets, questions and deadlines.
"""

from __future__ import annotations

import math
import selectors
import socket
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from ....runtime.colour import Blocking, Signal

T = TypeVar("T")

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
