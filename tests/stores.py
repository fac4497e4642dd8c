"""The kinds of store that tests run on, and tests that are coroutines on the loop of such a store.

A new kind is one line in ``STORES``. With ``STORE_URL`` in the environment there is one kind, ``given``: the
store of that URL, whoever offers its scheme. ``{folder}`` in it is a fresh folder, ``{name}`` a fresh name.
A ``conftest.py`` imports what it needs of the fixtures below. Where it has a fixture ``store``, each test
that asks for it runs once for every kind.
"""

import asyncio
import inspect
import os
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from zae_limiter.backends import open_backend as open_url
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.shelf import Shelf
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.testing import ManualClock

T = TypeVar("T")

GIVEN = os.environ.get("STORE_URL")


class OpenBackend(Protocol):
    """Opens one more client of the store under test."""

    def __call__(self, *, sync: bool = False) -> Backend: ...


def memory(path: Path, world: World) -> OpenBackend:
    del path
    shelf = Shelf()

    def open_backend(*, sync: bool = False) -> Backend:
        del sync
        return MemoryBackend(world, shelf)

    return open_backend


def sqlite(path: Path, world: World) -> OpenBackend:
    def open_backend(*, sync: bool = False) -> Backend:
        return SqliteBackend(path / "limits.db", sync=sync, timeout_ms=60_000, world=world)

    return open_backend


def dynamodb(path: Path, world: World) -> OpenBackend:
    # Whoever leaves this kind out does without its drivers.
    from tests.dynamodb.tables import lent_table, open_table

    del path
    table = lent_table()

    def open_backend(*, sync: bool = False) -> Backend:
        return open_table(sync, table, world)

    return open_backend


def postgres(path: Path, world: World) -> OpenBackend:
    from tests.postgres.schemas import lent_schema, open_schema

    del path
    schema = lent_schema()

    def open_backend(*, sync: bool = False) -> Backend:
        return open_schema(sync, schema, world)

    return open_backend


def redis(path: Path, world: World) -> OpenBackend:
    from tests.engines import redis_server
    from zae_limiter.backends.redis import open_backend as open_redis

    del path
    url = redis_server.url(redis_server.fresh_prefix(), timeout_ms=60_000)

    def open_backend(*, sync: bool = False) -> Backend:
        return open_redis(url, sync=sync, world=world)

    return open_backend


def given(path: Path, world: World) -> OpenBackend:
    url = url_of("given", path)

    def open_backend(*, sync: bool = False) -> Backend:
        return open_url(url, sync=sync, world=world, timeout_ms=60_000)

    return open_backend


STORES: dict[str, Callable[[Path, World], OpenBackend]] = {
    "memory": memory,
    "sqlite": sqlite,
    "dynamodb": dynamodb,
    "postgres": postgres,
    "redis": redis,
}
if GIVEN is not None:
    STORES = {"given": given}
"""How to open client after client of one fresh store in a folder."""


def url_of(kind: str, folder: Path) -> str:
    """A fresh store of a kind, by its URL; its deadline is far away, because the machine may be busy."""
    if kind == "given":
        assert GIVEN is not None
        return GIVEN.format(folder=folder, name=f"n{uuid.uuid4().hex}")
    if kind == "memory":
        return f"memory://{folder.name}"
    if kind == "sqlite":
        return f"sqlite:///{folder}/limits.db?timeout_ms=60000"
    if kind == "postgres":
        from tests.engines import postgres as server
        from tests.postgres.schemas import lent_schema

        return server.url(lent_schema(), timeout_ms=60_000)
    if kind == "redis":
        from tests.engines import redis_server

        return redis_server.url(redis_server.fresh_prefix(), timeout_ms=60_000)
    from tests.dynamodb.tables import make_table
    from tests.engines import dynamodb_local

    return dynamodb_local.url(make_table(), timeout_ms=60_000)


def drive(sync: bool, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a scenario in one of the two colours."""
    return run_sync(coroutine) if sync else asyncio.run(coroutine)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as it:
        yield it


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
