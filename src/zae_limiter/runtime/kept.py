"""What goes on although nobody waits for it any more.

A coroutine that is thrown away while it is suspended may not await, but what it had begun must come to its
end: an acquire under way is undone, a lease is settled. So the event loop carries the rest out, in a task
that nobody else knows of. Without a loop it gets one of its own. What cannot be carried out even so is told
by calling ``lost``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Generator
from typing import Any, Generic, TypeVar

from .within import Lost, Work

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()
"""A loop holds its tasks by weak references only."""


class Kept(Generic[T]):
    """A coroutine that is cancelled and carried on by the loop if whoever awaits it is thrown away."""

    def __init__(self, coroutine: Work[T], lost: Lost) -> None:
        self._coroutine, self._lost = coroutine, lost
        self._begun = self._cancel = self._is_lost = False
        self._pending: Any = None
        """What the coroutine waits for: a future of its loop, or ``None`` for the next turn."""

    def __await__(self) -> Generator[Any, None, T]:
        """Run it, or what is left of it."""
        pending, resume, given = self._pending, self._coroutine.send, None
        if pending is not None:
            pending._asyncio_future_blocking = True  # as a task expects, if one had it before
        # What must not be cancelled is waited for, and the coroutine is told then.
        insisting = self._cancel and (pending is None or not pending.cancel())
        while True:
            if self._begun:
                try:
                    yield self._pending
                except GeneratorExit:
                    self._hand_over()
                    raise
                except BaseException as error:
                    resume, given = self._coroutine.throw, error
                else:
                    resume, given = self._coroutine.send, None
                    if insisting:
                        resume, given = self._coroutine.throw, asyncio.CancelledError()
                insisting = False
            self._begun = True
            try:
                self._pending = resume(given)
            except StopIteration as done:
                result: T = done.value
                return result

    def _hand_over(self) -> None:
        """Let the loop go on with what has begun, as if it had been cancelled."""
        self._cancel = True
        loop = running_loop() if self._pending is None else self._pending.get_loop()
        if loop is None or loop.is_closed():
            self._give_up()
        else:
            self.carry_on(loop)

    def carry_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let a loop do it."""
        rest = self._rest()
        rest.send(None)  # begun before a task has it, which else could be cancelled without anybody noticing
        if loop is running_loop():
            keep_running(loop, rest)
        else:
            loop.call_soon_threadsafe(keep_running, loop, rest)

    async def _rest(self) -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass  # it has to be done all the same
        except GeneratorExit:
            self._give_up()
            raise
        with contextlib.suppress(asyncio.CancelledError):
            await self

    def _give_up(self) -> None:
        self._coroutine.close()
        if not self._is_lost:
            self._is_lost = True
            self._lost()

    def in_a_loop_of_its_own(self) -> None:
        """Do it now, in a thread that runs no loop."""
        try:
            loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(self._rest())
                loop.run_until_complete(loop.shutdown_asyncgens())  # which closes its connections
            finally:
                loop.close()
        except BaseException:
            self._give_up()
            raise


def keep_running(loop: asyncio.AbstractEventLoop, coroutine: Work[Any]) -> asyncio.Task[Any]:
    """A task that lives until it is done, whoever forgets it."""
    task = loop.create_task(coroutine)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def may_wait(left_by: BaseException | None) -> bool:
    """Whether whoever leaves a block this way may await in its ``__aexit__``: not if it is thrown away.

    But an async generator that its reader leaves is closed by somebody who awaits that.
    """
    if not isinstance(left_by, GeneratorExit):
        return True
    trace = left_by.__traceback__  # whose first frame is the one whose block is left
    return trace is not None and bool(trace.tb_frame.f_code.co_flags & inspect.CO_ASYNC_GENERATOR)
