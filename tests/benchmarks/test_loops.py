"""How a worker measures itself; nothing here depends on how long anything takes."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

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


def test_a_paced_loop_counts_only_its_steps_as_time() -> None:
    """The pauses between are not the limiter's."""

    async def step() -> None:
        pass

    taken = asyncio.run(paced_loop(step, 0.001, 0.05, Tally(Refused)))
    assert taken["operations"] > 0
    assert taken["seconds"] < 0.05


def test_a_loop_ends_when_its_time_is_over() -> None:
    """A step that always works is repeated, but not for ever."""
    assert sync_loop(lambda: None, 0.001, Tally(Refused))["operations"] > 0
