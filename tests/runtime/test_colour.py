"""How coroutines wait for each other under asyncio: to the end whoever is cancelled, or within a time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.patience import PATIENCE_SECONDS
from zae_limiter.runtime.loops import Asyncio

COLOUR = Asyncio()


def in_python(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **named: Any) -> Any:
    """A task of the implementation that debuggers and other interpreters use."""
    return asyncio.tasks._PyTask(coroutine, loop=loop, **named)  # type: ignore[attr-defined]


@pytest.fixture(params=["C", "Python"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    def go(coroutine: Coroutine[Any, Any, Any]) -> Any:
        async def main() -> Any:
            if request.param == "Python":
                asyncio.get_running_loop().set_task_factory(in_python)
            return await asyncio.create_task(coroutine)

        return asyncio.run(main(), debug=True)

    return go


Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Work:
    """A coroutine that takes a few turns and can be seen."""

    def __init__(self) -> None:
        self.gate = asyncio.get_running_loop().create_future()
        self.steps: list[str] = []
        self.hurried = 0

    async def carry_out(self) -> str:
        try:
            self.steps.append("begun")
            await asyncio.sleep(0)
            await self.gate
            await asyncio.sleep(0.001)
            self.steps.append("done")
            return "result"
        except BaseException as error:
            self.steps.append(type(error).__name__)
            raise

    def hurry(self) -> None:
        self.hurried += 1

    def begin(self) -> asyncio.Task[Any]:
        return asyncio.ensure_future(COLOUR.finish(self.carry_out(), self.hurry))


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_undisturbed_work_returns_its_result(run: Run) -> None:
    async def story() -> None:
        work = Work()
        task = work.begin()
        await turns(3)
        work.gate.set_result(None)
        assert await task == ("result", None)
        assert (work.steps, work.hurried) == (["begun", "done"], 0)

    run(story())


@pytest.mark.parametrize("turn", range(6))
def test_cancelled_work_is_finished_and_the_cancellation_returned(run: Run, turn: int) -> None:
    """Whenever it comes after the first step, and however often."""

    async def story() -> None:
        work = Work()
        task = work.begin()
        await turns(1 + turn)
        task.cancel()
        await turns(2)
        task.cancel("again")
        await turns(2)
        assert not task.done()
        work.gate.set_result(None)
        result, interruption = await task
        assert result == "result"
        assert isinstance(interruption, asyncio.CancelledError)
        assert work.steps == ["begun", "done"]
        assert work.hurried >= 1

    run(story())


def test_a_cancellation_hurries_the_work_up(run: Run) -> None:
    async def story() -> None:
        work = Work()
        task = asyncio.ensure_future(COLOUR.finish(work.carry_out(), lambda: work.gate.set_result(None)))
        await turns(3)
        task.cancel()
        result, interruption = await asyncio.wait_for(task, PATIENCE_SECONDS)
        assert result == "result"
        assert isinstance(interruption, asyncio.CancelledError)

    run(story())


def test_a_cancellation_before_the_first_step_is_obeyed(run: Run) -> None:
    async def story() -> None:
        work = Work()
        coroutine = work.carry_out()
        task = asyncio.ensure_future(COLOUR.finish(coroutine, work.hurry))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.steps == []
        coroutine.close()

    run(story())


def test_a_failure_is_raised_and_a_cancellation_wins_over_it(run: Run) -> None:
    async def story(cancelled: bool) -> None:
        work = Work()
        task = work.begin()
        await turns(3)
        if cancelled:
            task.cancel()
        work.gate.set_exception(OSError("broken"))
        with pytest.raises(asyncio.CancelledError if cancelled else OSError):
            await task
        assert work.steps == ["begun", "OSError"]

    run(story(False))
    run(story(True))


def test_a_future_that_somebody_else_cancels_is_a_failure_of_the_work(run: Run) -> None:
    async def story() -> None:
        work = Work()
        task = work.begin()
        await turns(3)
        work.gate.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (work.steps, work.hurried) == (["begun", "CancelledError"], 0)

    run(story())


def test_a_timeout_around_it_waits_and_then_counts(run: Run) -> None:
    async def story() -> None:
        work = Work()

        async def obey() -> None:
            async with asyncio.timeout(0.01):
                # The work ends after the time is over, and because of it.
                _, interruption = await COLOUR.finish(work.carry_out(), lambda: work.gate.set_result(None))
                assert interruption is not None
                raise interruption

        with pytest.raises(TimeoutError):
            await obey()
        assert work.steps == ["begun", "done"]

    run(story())


def test_work_that_is_thrown_away_is_closed() -> None:
    async def story() -> None:
        work = Work()
        finishing = COLOUR.finish(work.carry_out(), work.hurry)
        finishing.send(None)
        finishing.close()
        assert work.steps == ["begun", "GeneratorExit"]

    asyncio.run(story())


def test_within_a_time(run: Run) -> None:
    async def story() -> None:
        work = Work()
        with pytest.raises(TimeoutError):
            await COLOUR.within(0.01, work.carry_out())
        assert work.steps == ["begun", "CancelledError"]
        prompt = Work()
        prompt.gate.set_result(None)
        assert await COLOUR.within(PATIENCE_SECONDS, prompt.carry_out()) == "result"
        broken = Work()
        broken.gate.set_exception(OSError("broken"))
        with pytest.raises(OSError, match="broken"):
            await COLOUR.within(PATIENCE_SECONDS, broken.carry_out())

    run(story())


def test_a_time_ends_what_a_cancellation_must_not(run: Run) -> None:
    """A deadline inside of work that is finished come what may: else it would hang."""

    async def story() -> None:
        work = Work()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(COLOUR.finish(COLOUR.within(0.01, work.carry_out())), PATIENCE_SECONDS)
        assert work.steps == ["begun", "CancelledError"]

    run(story())


def test_who_is_cancelled_within_a_time_takes_the_work_along(run: Run) -> None:
    async def story() -> None:
        work = Work()
        task = asyncio.ensure_future(COLOUR.within(PATIENCE_SECONDS, work.carry_out()))
        await turns(4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.steps == ["begun", "CancelledError"]

    run(story())


def test_signal_keeps_nobody_who_has_left(run: Run) -> None:
    """Who waited in vain, was cancelled, or came when it was given already, leaves nothing in the signal."""

    async def main() -> None:
        signal = COLOUR.signal()
        tasks = [asyncio.create_task(signal.wait(seconds)) for seconds in (0, 0, None)]
        tasks[2].cancel()
        await asyncio.wait(tasks)
        signal.give()
        await signal.wait()
        left = [it for it in gc.get_referents(signal, *gc.get_referents(signal)) if asyncio.isfuture(it)]
        assert left == []

    run(main())
