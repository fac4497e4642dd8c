"""The furnished store as a SQLite file, copies of it, and what can be done to them past all of us."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.fuzz.tenants import Tenants, template
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.repository_protocol import Key, Put
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock


def furnish_file(path: Path) -> Path:
    backend = SqliteBackend(path, sync=True, timeout_ms=10_000, world=ManualClock().world)
    run_sync(backend.setup())
    run_sync(backend.write_each([Put(key, item) for key, item in template().contents.items()]))
    run_sync(backend.close())
    return path


@contextmanager
def in_file(furnished: Path) -> Iterator[tuple[Tenants, Path]]:
    """A stage on a copy of it."""
    path = furnished.with_name("copy.db")
    shutil.copyfile(furnished, path)
    clock = ManualClock(template().now_ms, seed=1)
    backend = SqliteBackend(path, sync=True, timeout_ms=10_000, world=clock.world)
    run_sync(backend.setup())
    try:
        yield Tenants("sync", backend, clock.world, template().ids), path
    finally:
        run_sync(backend.close())
        path.unlink()


def overwrite(path: Path, key: Key, body: str) -> None:
    """Put a text where a record was, past all of us."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("UPDATE items SET body = ? WHERE pk = ? AND sk = ?", (body, *key))


def stored(path: Path) -> dict[Key, Any]:
    with closing(sqlite3.connect(path)) as file:
        return {Key(pk, sk): body for pk, sk, body in file.execute("SELECT pk, sk, body FROM items")}
