"""Something that is listened for while other work goes on, and ends that work when it comes.

What listens is never cut off before its time is over: whatever it has heard belongs to somebody. The work is
cancelled, which undoes it; what was done nevertheless, and nobody is left to have, is undone by ``undo``. It
knows neither who is listened to nor what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from .kept import Kept, keep_running
from .within import Work

T = TypeVar("T")


class Listener:
    """A coroutine in a task of its own; true is what it returns once it has heard what ends other work."""

    def __init__(self, listening: Work[bool]) -> None:
        self._task = asyncio.ensure_future(listening)

    @property
    def is_over(self) -> bool:
        """Whether it listens no more."""
        return self._task.done()

    @property
    def has_heard(self) -> bool:
        """Whether it has heard it; who fails to listen has not."""
        task = self._task
        return task.done() and not task.cancelled() and task.exception() is None and task.result()

    async def wait(self) -> None:
        """Wait until it is over; who is cancelled meanwhile leaves it alone. Raises what it failed by."""
        await asyncio.wait([self._task])
        self._task.result()

    def stop(self) -> None:
        """Listen no more, for nobody wants to hear anything."""
        if not self._task.get_loop().is_closed():
            self._task.cancel()

    async def unless_heard(self, work: Work[T], undo: Callable[[T], Work[None]]) -> T | None:
        """What the work gives; ``None`` if it was given up, since that was heard which ends it."""
        loop = asyncio.get_running_loop()
        task = keep_running(loop, work)
        try:
            await asyncio.wait([task, self._task], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                if self.has_heard:
                    task.cancel()
                await asyncio.wait([task])
        except BaseException as error:

            def undone(done: asyncio.Task[T]) -> None:
                if not done.cancelled() and done.exception() is None:
                    Kept(undo(done.result()), _nothing).carry_on(loop)

            task.add_done_callback(undone)
            task.cancel()
            if not isinstance(error, GeneratorExit):
                await asyncio.wait([task])
            raise
        return None if task.cancelled() and self.has_heard else task.result()


def _nothing() -> None:
    """What could not be undone is told by whoever undoes it."""
