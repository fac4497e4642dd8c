"""Processes that want the same file at the same time get about the same share of it."""

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from tests.backends.machine import HELD_MS, Machine
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.backends.sqlite import SqliteBackend, backend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

PROCESSES, TOKENS = 8, 2000
ADMITTED_PER_MS_MIN = 50
"""About what eight processes got without lines: what is fair must not be slow."""


def shares(path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine, seed: int) -> Counter[int]:
    """How many of the tokens of one bucket each of eight processes gets."""
    got = Counter[int]()
    monkeypatch.setattr(sqlite3, "connect", machine.connect)
    monkeypatch.setattr(backend, "time", SimpleNamespace(sleep=machine.sleep))
    limits = [Limit("rpm", TOKENS, 1, 10**6)]

    def process(number: int) -> Callable[[], None]:
        world = World(lambda: 10**12, lambda: machine.now_ms, Random(f"{seed}/{number}"))
        store = SqliteBackend(path, sync=True, timeout_ms=600_000, world=world)
        limiter = RateLimiter(run_sync(Repository.over(store, world=world)))

        async def take() -> None:
            async with limiter.acquire("key", "api", {"rpm": 1}, limits):
                machine.work(HELD_MS)
                got[number] += 1

        def run() -> None:
            try:
                while True:
                    run_sync(take())
            except RateLimitExceeded:
                run_sync(limiter.close())

        return run

    machine.run(*[process(number) for number in range(PROCESSES)])
    return got


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("processors", "slice_ms"), [(2, 3.0), (2, 0.1), (4, 3.0), (8, 3.0)])
def test_shares_are_fair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processors: int, slice_ms: float, seed: int
) -> None:
    """Of the tokens of one bucket nobody gets more than twice as many as another, and it takes no longer."""
    machine = Machine(processors, slice_ms)
    got = shares(tmp_path / "limits.db", monkeypatch, machine, seed)
    assert got.total() == TOKENS
    assert len(got) == PROCESSES
    assert max(got.values()) <= 2 * min(got.values()), sorted(got.values())
    assert machine.now_ms <= TOKENS / ADMITTED_PER_MS_MIN
