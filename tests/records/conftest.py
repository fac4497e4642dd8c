"""Each test that asks for ``store`` runs once for every store; a test may be a coroutine.

A new store is one line in ``STORES``: how to open backend after backend of one fresh store.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.dynamodb.stage import make_table, open_table
from tests.records.stage import Store
from zae_limiter.backends.memory import MemoryBackend, Shelf
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.world import World
from zae_limiter.testing import ManualClock


def memory(path: Path, world: World) -> Callable[[bool], Backend]:
    del path
    shelf = Shelf()
    return lambda _: MemoryBackend(world, shelf)


def sqlite(path: Path, world: World) -> Callable[[bool], Backend]:
    return lambda sync: SqliteBackend(path / "limits.db", sync=sync, timeout_ms=10_000, world=world)


def dynamodb(path: Path, world: World) -> Callable[[bool], Backend]:
    del path
    table = make_table()
    return lambda sync: open_table(sync, table, world)


STORES: dict[str, Callable[[Path, World], Callable[[bool], Backend]]] = {
    "memory": memory,
    "sqlite": sqlite,
    "dynamodb": dynamodb,
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as it:
        yield it


@pytest.fixture(params=list(STORES))
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock, runner: asyncio.Runner
) -> Iterator[Store]:
    it = Store(request.param, STORES[request.param](tmp_path, clock.world), clock)
    yield it
    runner.run(it.close())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, on the loop of its store if it has one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asked = inspect.signature(pyfuncitem.obj).parameters
    coroutine = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in asked})
    it = pyfuncitem.funcargs.get("runner")
    (asyncio.run if it is None else it.run)(coroutine)
    return True
