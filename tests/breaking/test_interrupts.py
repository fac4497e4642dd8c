"""Exceptions out of signal handlers at every instant of an acquire; ``--every`` on DynamoDB takes minutes."""

import gc
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.breaking.interrupts import STORES, STORIES, at_every_instant, at_random, opened

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="such signals are of POSIX"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

STEPS = {"memory": 9, "sqlite": 13, "dynamodb": 61, "postgres": 41, "redis": 41}
"""Of how many instants one is tried; INTERRUPTS=all tries each, as `make nightly` does."""


@pytest.fixture(autouse=True)
def _leave_no_garbage() -> Iterator[None]:
    """What was never awaited is collected here, and not in the test of somebody else."""
    yield
    gc.collect()


ACQUIRES = {"memory": 2_000, "sqlite": 500, "dynamodb": 100, "postgres": 100, "redis": 100}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("store", STORES)
def test_whatever_is_interrupted_nothing_stays_taken(
    store: str, story: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A later acquire works, no lock is held, and the books agree or the loss is counted."""
    step = 1 if os.environ.get("INTERRUPTS") == "all" else STEPS[store]
    caplog.set_level(logging.CRITICAL)
    with opened(store, str(tmp_path)) as stage:
        tally = at_every_instant(stage, story, step, random.Random(story).randrange(step) + 1)
    assert tally.wrong == []
    assert tally.instants > 5, "a story in which nothing can happen proves nothing"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", STORES)
def test_a_clock_may_interrupt_at_any_time(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever the code is when the time is up: in a call, in the kernel, between two steps."""
    caplog.set_level(logging.CRITICAL)
    with opened(store, str(tmp_path)) as stage:
        tally = at_random(stage, ACQUIRES[store], random.Random(1))
    assert tally.wrong == []
