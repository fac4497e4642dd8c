"""An event loop that counts what it runs, so that something can happen between any two of its callbacks.

Turns would be too coarse: a call that is cancelled between two callbacks of one turn is woken by the one and
cancelled by the other, and that is where things get lost.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from tests.dynamodb.peer import Peer, ask, connected
from zae_limiter.backends.dynamodb.transport import Transport


class StepLoop(asyncio.SelectorEventLoop):
    """Its steps are its callbacks: tasks that go on, timers, and sockets that are ready."""

    _left = 0
    _blow: Callable[[], object] | None = None

    def strike(self, after: int, blow: Callable[[], object]) -> None:
        """Do something after so many more steps; at once after none."""
        self._left, self._blow = after, blow
        self._look()

    def _look(self) -> None:
        if self._blow is not None and self._left <= 0:
            blow, self._blow = self._blow, None
            blow()

    def _step(self, callback: Callable[..., Any], *args: Any) -> None:
        try:
            callback(*args)
        finally:
            self._left -= 1
            self._look()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon(self._step, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._step, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return super().call_at(when, self._step, callback, *args, context=context)

    def _add_reader(self, fd: Any, callback: Any, *args: Any) -> Any:
        return super()._add_reader(fd, self._step, callback, *args)  # type: ignore[misc]

    def _add_writer(self, fd: Any, callback: Any, *args: Any) -> Any:
        return super()._add_writer(fd, self._step, callback, *args)  # type: ignore[misc]


async def cold(transport: Transport) -> asyncio.Task[Any]:
    """Connect and ask."""
    await transport.close()
    return asyncio.create_task(ask(transport))


Scene = Callable[[Transport], Coroutine[Any, Any, asyncio.Task[Any]]]


async def interrupted(scene: Scene, peer: Peer, after: int, blows: int = 1) -> bool:
    """Whether a call ended before it was hit. Afterwards the transport works, and is closed."""
    loop = cast(StepLoop, asyncio.get_running_loop())
    async with connected(False, peer, pool=1) as transport:
        await transport._prepare()  # type: ignore[attr-defined]
        task = await scene(transport)
        hits = 0

        def hit() -> None:
            nonlocal hits
            hits += not task.done()
            task.cancel()
            if hits and hits < blows:
                loop.strike(1, hit)

        loop.strike(after, hit)
        (result,) = await asyncio.gather(task, return_exceptions=True)
        loop.strike(0, lambda: None)
        assert result == {} or isinstance(result, asyncio.CancelledError), f"step {after}: {result!r}"
        assert await ask(transport) == {}, "the only place is free"
    return hits == 0
