"""How a worker measures itself; nothing here depends on how long anything takes."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import loops
from benchmarks.loops import Exhausted, Tally, async_loop, paced_loop, sync_loop, threads_loop


class Refused(Exception):
    pass


def script(*ends: type[Exception] | None) -> Callable[[], None]:
    """A step that ends in these ways, one after the other, and then has nothing left to do."""
    remaining = itertools.chain(ends, itertools.repeat(Exhausted))

    def step() -> None:
        end = next(remaining)
        if end is not None:
            raise end

    return step


def in_sync(step: Callable[[], None], tally: Tally) -> dict[str, Any]:
    return sync_loop(step, 60, tally)


def in_threads(step: Callable[[], None], tally: Tally) -> dict[str, Any]:
    return threads_loop(step, 2, 60, tally)


def in_tasks(step: Callable[[], None], tally: Tally) -> dict[str, Any]:
    async def step_async() -> None:
        step()

    return asyncio.run(async_loop(step_async, 2, 60, tally))


@pytest.mark.parametrize("loop", [in_sync, in_threads, in_tasks])
def test_only_what_the_case_wants_is_an_operation(
    loop: Callable[[Callable[[], None], Tally], dict[str, Any]],
) -> None:
    """A refusal is a failure of most cases and the point of others; other errors never count as done."""
    ends = (None, Refused, None, KeyError)
    granted = loop(script(*ends), Tally(Refused))
    assert (granted["operations"], granted["unwanted"]) == (2, 2)
    refused = loop(script(*ends), Tally(Refused, is_refusal_wanted=True))
    assert (refused["operations"], refused["unwanted"]) == (1, 3)
    assert any(message.startswith("KeyError") for message in refused["messages"])


class Clock:
    """A clock in the place of the module ``time``, which only moves when it is told."""

    def __init__(self) -> None:
        self.now_ns = 0

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def process_time(self) -> float:
        return 0.0

    def pass_ms(self, ms: int) -> None:
        self.now_ns += ms * 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    it = Clock()
    monkeypatch.setattr(loops, "time", it)
    return it


def test_a_paced_loop_counts_only_its_steps_as_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between are not the limiter's."""

    async def step() -> None:
        clock.pass_ms(1)

    async def sleep(seconds: float) -> None:
        clock.pass_ms(round(seconds * 1000))

    monkeypatch.setattr(loops.asyncio, "sleep", sleep)
    taken = asyncio.run(paced_loop(step, 0.009, 0.05, Tally(Refused)))
    assert (taken["operations"], taken["seconds"]) == (5, 0.005)


@pytest.mark.parametrize("loop", ["sync", "tasks", "threads"])
def test_a_loop_ends_when_its_time_is_over(clock: Clock, loop: str) -> None:
    """A step that always works is repeated, but not for ever."""
    tally = Tally(Refused)

    async def step() -> None:
        clock.pass_ms(1)

    match loop:
        case "sync":
            taken = sync_loop(lambda: clock.pass_ms(1), 0.02, tally)
        case "threads":
            taken = threads_loop(lambda: clock.pass_ms(1), 1, 0.02, tally)
        case _:
            taken = asyncio.run(async_loop(step, 1, 0.02, tally))
    assert (taken["operations"], taken["seconds"]) == (20, 0.02)
