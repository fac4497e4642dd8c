"""The colour of event loops: coroutines suspend, and wait for each other on the loop that runs.

What it promises is said in ``colour``. This module loads asyncio, which takes longer than all else that an
embedded store needs, so only those import it who have a loop or open an async store.
"""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeVar

from . import kept
from .colour import Finished, HomeLoop, Signal, never, nothing
from .kept import Kept, keep_running, running_loop
from .within import Lost, Work, in_thread_of_its_own, is_within_ourselves

T = TypeVar("T")


@types.coroutine
def _undisturbed(
    coroutine: Work[T], on_cancel: Callable[[], None] = nothing
) -> Generator[Any, None, Finished[T]]:
    """Let the task that awaits this run a coroutine to its end, even if that task is cancelled.

    It takes no task of its own, which would cost several turns of the loop for each acquire.
    """
    interruption: BaseException | None = None
    while True:
        try:
            future = coroutine.send(None)
        except StopIteration as done:
            return done.value, interruption
        except Exception:
            if interruption is not None:
                raise interruption from None
            raise
        try:
            yield None if future is None else _StandIn(future, on_cancel)
        except GeneratorExit:
            coroutine.close()
            raise
        except asyncio.CancelledError as error:
            if future is None:
                on_cancel()
            if future is None or not future.cancelled():
                interruption = error
        except BaseException:
            pass  # the future's own, which the coroutine finds there


class _StandIn:
    """What a task waits for instead of a future that it must not cancel.

    A task asks what it waits for to be cancelled. Told no, it is woken by the future all the same, and the
    cancellation is thrown into it then.
    """

    _asyncio_future_blocking = True

    def __init__(self, future: asyncio.Future[Any], on_cancel: Callable[[], None]) -> None:
        future._asyncio_future_blocking = False
        self._on_cancel = on_cancel
        self.add_done_callback, self.get_loop = future.add_done_callback, future.get_loop
        self.cancelled = future.cancelled  # asked by whoever finishes something within which we finish this

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - tasks pass it
        self._on_cancel()
        return False


class Asyncio:
    """The same where coroutines suspend on the running event loop."""

    home: Callable[[], HomeLoop] | None = staticmethod(asyncio.get_running_loop)
    """What connections and futures cannot leave, for ``ForkSafe``."""

    async def together(self, coroutines: Sequence[Work[T]]) -> list[T]:
        if len(coroutines) == 1:
            return [await coroutines[0]]
        return await asyncio.gather(*coroutines)

    finish: Final = staticmethod(_undisturbed)

    async def within(self, seconds: float, coroutine: Work[T]) -> T:
        # A task of its own can be cancelled, which ``finish`` does not allow to whom it runs.
        task = asyncio.ensure_future(coroutine)
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:
            in_time = task.done()
            if not in_time:
                task.cancel()
                await asyncio.wait([task])
        if not in_time and task.cancelled():
            raise TimeoutError
        return task.result()

    async def at_most(self, seconds: float, coroutine: Work[T]) -> T | None:
        task = keep_running(asyncio.get_running_loop(), coroutine)
        await asyncio.wait([task], timeout=seconds)
        return task.result() if task.done() else None

    keep = Kept

    def may_wait(self, left_by: BaseException | None) -> bool:
        return running_loop() is not None and kept.may_wait(left_by)

    def carry_out(self, coroutine: Work[None], lost: Lost) -> None:
        rest, loop = Kept(coroutine, lost), running_loop()
        if loop is not None:
            rest.carry_on(loop)
        elif is_within_ourselves():
            in_thread_of_its_own(rest.in_a_loop_of_its_own, lost)
        else:
            rest.in_a_loop_of_its_own()

    def later(self, seconds: float, work: Callable[[], Work[None]]) -> Callable[[], None]:
        loop = running_loop()
        if loop is None:  # somebody steps a coroutine by hand
            return nothing
        return loop.call_later(seconds, lambda: Kept(work(), nothing).carry_on(loop)).cancel

    def signal(self) -> Signal:
        return _LoopSignal()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def gone(self) -> Callable[[], bool]:
        loop = asyncio._get_running_loop()
        return never if loop is None else loop.is_closed  # somebody may step a coroutine by hand


class _LoopSignal:
    """Waited for on any number of event loops, each of which is told in its own thread."""

    def __init__(self) -> None:
        self.given = False
        self._waiters: dict[asyncio.Future[None], None] = {}

    def give(self) -> None:
        self.given = True
        if not self._waiters:
            return
        here = running_loop()
        for waiter in tuple(self._waiters):
            loop = waiter.get_loop()
            if loop is here:
                _stir(waiter)
            else:
                with contextlib.suppress(RuntimeError):  # a loop that was closed has nobody left who waits
                    loop.call_soon_threadsafe(_stir, waiter)

    async def wait(self, seconds: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = None
        self._waiters[waiter] = None
        try:
            if self.given:  # asked only now, for another thread may give it any time
                return
            timer = None if seconds is None else loop.call_later(seconds, _stir, waiter)
            await waiter
        finally:
            self._waiters.pop(waiter, None)  # for a signal may outlive many who wait
            if timer is not None:
                timer.cancel()


def _stir(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
