"""Expired items go, a bounded number at a time; what has not expired stays."""

from collections.abc import Callable
from pathlib import Path

import pytest

from zae_limiter._colour import run_sync
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.repository_protocol import Backend, Item, Key, Put, Update
from zae_limiter.world import World

NOW_MS = 2_000_500
Open = Callable[[Path, World], Backend]
STORES: dict[str, Open] = {
    "memory": lambda _, world: MemoryBackend(world),
    "sqlite": lambda path, world: SqliteBackend(path / "x.db", sync=True, timeout_ms=2000, world=world),
}


@pytest.fixture(params=STORES.values(), ids=STORES.keys())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """A blocking store in the year 1970."""
    backend: Backend = request.param(tmp_path, World(now_ms=lambda: NOW_MS))
    run_sync(backend.setup())
    return backend


def left(store: Backend, items: dict[str, Item]) -> list[str]:
    found = run_sync(store.batch_get([Key("p", name) for name in items]))
    return [name for name, item in zip(items, found, strict=True) if item is not None]


ITEMS: dict[str, Item] = {
    "long ago": {"ttl": 1},
    "last second": {"ttl": 1999},
    "this second began": {"ttl": 2000},
    "this second ends": {"ttl": 2001},
    "none": {},
    "text": {"ttl": "1"},
    "float": {"ttl": 1.5},
    "bool": {"ttl": True},
    "huge": {"ttl": 10**30},
}


def test_setup_drops_what_has_expired(store: Backend) -> None:
    """An item goes once the instant of its ttl has passed."""
    run_sync(store.write_each([Put(Key("p", name), item) for name, item in ITEMS.items()]))
    assert left(store, ITEMS) == list(ITEMS)
    run_sync(store.setup())
    assert left(store, ITEMS) == list(ITEMS)[3:]
    run_sync(store.close())


def test_sweep_is_bounded(store: Backend) -> None:
    """No sweep drops more than 200 items, and the next goes on."""
    items: dict[str, Item] = {f"{i}": {"ttl": 1} for i in range(250)}
    run_sync(store.write_each([Put(Key("p", name), item) for name, item in items.items()]))
    run_sync(store.setup())
    assert len(left(store, items)) == 50
    run_sync(store.setup())
    assert left(store, items) == []
    run_sync(store.close())


def test_every_thousand_writes(store: Backend) -> None:
    """A store that is only ever written to forgets as well, and extended items stay."""
    run_sync(store.write_each([Put(Key("p", "gone"), {"ttl": 1}), Put(Key("p", "kept"), {"ttl": 1})]))
    run_sync(store.transact_write([Update(Key("p", "kept"), set={"ttl": 3000})]))
    count = Update(Key("p", "n"), add={"n": 1})
    items: dict[str, Item] = {"gone": {}, "kept": {}}
    run_sync(store.write_each([count] * 996))
    assert left(store, items) == ["gone", "kept"]
    run_sync(store.write_each([count]))
    assert left(store, items) == ["kept"]
    run_sync(store.close())
