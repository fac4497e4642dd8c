"""The stores that every test of a store's behaviour runs on: a name and how to open a fresh one.

A new store is one line in ``STORES``; ``opened`` gives it an event loop of its own or none.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

T = TypeVar("T")


def open_memory(path: Path, sync: bool) -> Backend:
    del path, sync
    return MemoryBackend()


def open_sqlite(path: Path, sync: bool) -> Backend:
    return SqliteBackend(path / "limits.db", sync=sync, timeout_ms=60_000, world=World())


def open_dynamodb(path: Path, sync: bool) -> Backend:
    from tests.dynamodb.stage import make_table, session
    from tests.engines import dynamodb_local
    from zae_limiter.backends import dynamodb

    del path
    url = dynamodb_local.url(make_table(), timeout_ms=10_000)
    return dynamodb.open_backend(url, sync=sync, world=World(), session=session(sync))


STORES: dict[str, Callable[[Path, bool], Backend]] = {
    "memory": open_memory,
    "sqlite": open_sqlite,
    "dynamodb": open_dynamodb,
}

CASES = [(name, sync) for name in STORES for sync in (False, True)]
IDS = [f"{name}-{'sync' if sync else 'async'}" for name, sync in CASES]


@dataclass(frozen=True)
class OpenStore:
    """A store that is set up, and what runs its coroutines."""

    backend: Backend
    run: Callable[[Coroutine[Any, Any, T]], T]


@contextlib.contextmanager
def opened(name: str, sync: bool, path: Path) -> Iterator[OpenStore]:
    with contextlib.ExitStack() as stack:
        run: Callable[..., Any] = run_sync if sync else stack.enter_context(asyncio.Runner()).run
        backend = STORES[name](path, sync)
        run(backend.setup())
        try:
            yield OpenStore(backend, run)
        finally:
            run(backend.close())
