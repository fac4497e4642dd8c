"""Each test that asks for ``store`` runs once for every store; a test may be a coroutine.

A new store is one line in ``STORES``: how to open client after client of one fresh store.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.dynamodb.stage import make_table, open_table
from tests.flow.stage import OpenBackend, Store
from zae_limiter.backends.memory import MemoryBackend, Shelf
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.world import World
from zae_limiter.testing import ManualClock


def memory(path: Path, world: World) -> OpenBackend:
    del path
    shelf = Shelf()

    def open_backend(*, sync: bool = False) -> Backend:
        del sync
        return MemoryBackend(world, shelf)

    return open_backend


def sqlite(path: Path, world: World) -> OpenBackend:
    def open_backend(*, sync: bool = False) -> Backend:
        return SqliteBackend(path / "limits.db", sync=sync, timeout_ms=10_000, world=world)

    return open_backend


def dynamodb(path: Path, world: World) -> OpenBackend:
    del path
    table = make_table()

    def open_backend(*, sync: bool = False) -> Backend:
        return open_table(sync, table, world)

    return open_backend


STORES: dict[str, Callable[[Path, World], OpenBackend]] = {
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All stores, unless the module of a test says with which it can be run."""
    if "store" in metafunc.fixturenames:
        metafunc.parametrize("store", getattr(metafunc.module, "STORES", list(STORES)), indirect=True)


@pytest.fixture
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock, runner: asyncio.Runner
) -> Iterator[Store]:
    it = Store(request.param, STORES[request.param](tmp_path, clock.world), clock, runner.run)
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
