"""Killed, cut off, or run twice at once: the table ends as one undisturbed run would have left it."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from tests.migrations.old_store import OldStore, assert_same, fill, old_rows
from tests.migrations.older import SHAPES, Truth
from tests.odd_stores import Crash, Crashing, Yielding
from zae_limiter import RateLimiterUnavailable
from zae_limiter.operate.migrations import Migration, moving
from zae_limiter.repository_protocol import Row
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import Fault, FaultyBackend

SEEDS = 12
"""How many interrupted migrations each shape goes through."""


def finished(stage: OldStore, attempt: Callable[[], Migration], attempts_max: int = 60) -> int:
    """Run migration after migration until one comes to its end; returns how many did not."""
    for broken in range(attempts_max):
        try:
            run_sync(attempt().run())
        except (Crash, RateLimiterUnavailable):
            continue
        return broken
    raise AssertionError(f"{attempts_max} migrations of {stage.name} were interrupted")


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("shape", SHAPES)
def test_killed_again_and_again(in_memory: OldStore, shape: str, seed: int) -> None:
    """Before or after any call: the next run goes on, and the table is what one run would have made."""
    dice = random.Random(seed)
    table = SHAPES[shape](40, seed)
    in_memory.fill(table)

    def attempt() -> Migration:
        crashing = Crashing(in_memory.backend)
        crashing.arm(dice.randint(1, 60), late=dice.random() < 0.5)
        return in_memory.migration(lambda _: crashing)

    assert finished(in_memory, attempt) >= 1
    rows = in_memory.rows()
    assert old_rows(rows) == set()
    assert_same(rows, table.truth)


@pytest.mark.parametrize("shape", SHAPES)
def test_killed_on_a_real_store(stage: OldStore, shape: str) -> None:
    """The same where transactions are real."""
    dice = random.Random(1)
    table = SHAPES[shape](12)
    stage.fill(table)

    def attempt() -> Migration:
        crashing = Crashing(stage.backend)
        crashing.arm(dice.randint(3, 30), late=dice.random() < 0.5)
        return stage.migration(lambda _: crashing)

    finished(stage, attempt)
    rows = stage.rows()
    assert old_rows(rows) == set()
    assert_same(rows, table.truth)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("shape", SHAPES)
def test_requests_and_replies_are_lost(in_memory: OldStore, shape: str, seed: int) -> None:
    """A transaction whose reply was lost may have happened; the next run finds out."""
    dice = random.Random(seed)
    table = SHAPES[shape](30, seed)
    in_memory.fill(table)

    def attempt() -> Migration:
        faults = [
            dice.choice([None, None, None, None, *Fault]) if dice.random() < 0.2 else None for _ in range(40)
        ]
        return in_memory.migration(lambda backend: FaultyBackend(backend, faults))

    finished(in_memory, attempt)
    rows = in_memory.rows()
    assert old_rows(rows) == set()
    assert_same(rows, table.truth)


@pytest.mark.parametrize("shape", SHAPES)
def test_two_at_once(in_memory: OldStore, shape: str) -> None:
    """Call by call in turns: each record is moved by one of them."""
    table = SHAPES[shape](120)
    in_memory.fill(table)
    two = [in_memory.migration(Yielding) for _ in range(2)]

    async def race() -> None:
        await asyncio.gather(*(migration.run() for migration in two))

    asyncio.run(race())
    rows = in_memory.rows()
    assert old_rows(rows) == set()
    assert_same(rows, table.truth)
    assert sum(migration.report.moved.total() for migration in two) == len(table.items) - 1
    assert all(migration.report.superseded.total() == 0 for migration in two)


@pytest.mark.parametrize("keep_old", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_read_before_another_one_moved_it(
    in_memory: OldStore, shape: str, keep_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record as it was, beside a table where everything is done: nothing is done again."""
    monkeypatch.setattr(moving, "TRANSACT_WRITES_MAX", 1)  # no record is saved by another's conditions
    table = SHAPES[shape](40)
    in_memory.fill(table)
    before = in_memory.rows()
    in_memory.migrate(keep_old=keep_old)
    rows = in_memory.rows()

    async def as_it_was() -> AsyncIterator[Row]:
        for key, item in sorted(before.items()):
            yield Row(key, item)

    late = Migration(in_memory.backend, in_memory.clock.world, scan=as_it_was, keep_old=keep_old)
    run_sync(late.move())
    run_sync(late.follow())
    in_memory.migrate(keep_old=keep_old)
    assert in_memory.rows() == rows
    assert_same(rows, table.truth)


def test_children_are_counted_once(in_memory: OldStore) -> None:
    """By two that count at the same time, and nothing but children to count."""
    table = SHAPES["composite"](60)
    entities = {key: item for key, item in table.items.items() if key.sort == "#META"}
    fill(in_memory.backend, entities)
    run_sync(in_memory.migration().move())
    two = [in_memory.migration(Yielding) for _ in range(2)]

    async def race() -> None:
        await asyncio.gather(*(migration.follow() for migration in two))

    asyncio.run(race())
    assert_same(in_memory.rows(), Truth(entities=table.truth.entities))
