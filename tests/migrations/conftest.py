"""Each test that asks for ``stage`` runs once for every store; ``embedded`` leaves DynamoDB out."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dynamodb.stage import make_table, open_table
from tests.migrations.stage import Stage
from zae_limiter.backends.memory import MemoryBackend, Shelf
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock


def memory(path: Path, clock: ManualClock) -> Stage:
    del path
    shelf = Shelf()
    return Stage("memory", lambda: MemoryBackend(clock.world, shelf), clock)


def sqlite(path: Path, clock: ManualClock) -> Stage:
    file = path / "limits.db"
    return Stage(
        "sqlite", lambda: SqliteBackend(file, sync=True, timeout_ms=10_000, world=clock.world), clock
    )


def dynamodb(path: Path, clock: ManualClock) -> Stage:
    del path
    table = make_table()
    return Stage("dynamodb", lambda: open_table(True, table, clock.world), clock)


STORES: dict[str, Callable[[Path, ManualClock], Stage]] = {
    "memory": memory,
    "sqlite": sqlite,
    "dynamodb": dynamodb,
}


def made(name: str, path: Path) -> Stage:
    from tests.migrations.older import NOW_MS

    return STORES[name](path, ManualClock(NOW_MS))


@pytest.fixture(params=list(STORES))
def stage(request: pytest.FixtureRequest, tmp_path: Path):
    it = made(request.param, tmp_path)
    yield it
    run_sync(it.backend.close())


@pytest.fixture(params=["memory", "sqlite"])
def embedded(request: pytest.FixtureRequest, tmp_path: Path):
    it = made(request.param, tmp_path)
    yield it
    run_sync(it.backend.close())


@pytest.fixture
def in_memory(tmp_path: Path) -> Stage:
    return made("memory", tmp_path)
