"""Expired items go, a bounded number at a time; what has not expired stays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import stores
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.repository_protocol import Backend, Check, Item, Key, Put, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

NOW_MS = 2_000_500
Open = Callable[[Path, World], Backend]
STORES: dict[str, Open] = {
    "memory": lambda _, world: MemoryBackend(world),
    "sqlite": lambda path, world: SqliteBackend(path / "x.db", sync=True, timeout_ms=60_000, world=world),
    "postgres": lambda path, world: stores.postgres(path, world)(sync=True),
    "redis": lambda path, world: stores.redis(path, world)(sync=True),
}


@pytest.fixture(params=STORES.values(), ids=list(STORES))
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


@pytest.mark.parametrize(("now_ms", "kept"), [(2_000_000, ["this", "next"]), (2_000_001, ["next"])])
@pytest.mark.parametrize("open_store", STORES.values(), ids=list(STORES))
def test_an_item_lasts_to_the_millisecond(
    open_store: Open, now_ms: int, kept: list[str], tmp_path: Path
) -> None:
    """In the millisecond of its ttl an item is still there, in the one after it has passed."""
    items: dict[str, Item] = {"last": {"ttl": 1999}, "this": {"ttl": 2000}, "next": {"ttl": 2001}}
    store = open_store(tmp_path, World(now_ms=lambda: now_ms))
    run_sync(store.setup())
    run_sync(store.write_each([Put(Key("p", name), item) for name, item in items.items()]))
    run_sync(store.setup())
    assert left(store, items) == kept
    run_sync(store.close())


@pytest.mark.parametrize(
    "store", [STORES["memory"], STORES["sqlite"]], indirect=True, ids=["memory", "sqlite"]
)
def test_a_swap_counts_like_any_write(store: Any) -> None:
    """Of 998 writes and two swaps the last one is the thousandth."""
    gone: dict[str, Item] = {"gone": {"ttl": 1}}
    put, _ = run_sync(store.write_each([Put(Key("p", "n"), {"n": 0}), Put(Key("p", "gone"), gone["gone"])]))
    run_sync(store.write_each([Check(Key("p", "n"))] * 996))
    image = store.swap(Key("p", "n"), put.item, {"n": 1})
    assert left(store, gone) == ["gone"]
    assert store.swap(Key("p", "n"), image, {"n": 2}) == {"n": 2}
    assert left(store, gone) == []
    run_sync(store.close())


def test_a_sweep_that_left_something_comes_again_soon(store: Backend) -> None:
    """After a hundred writes more; one that left nothing comes after a thousand."""
    items: dict[str, Item] = {f"{i}": {"ttl": 1} for i in range(250)}
    count = Update(Key("p", "n"), add={"n": 1})
    run_sync(store.write_each([Put(Key("p", name), item) for name, item in items.items()]))
    run_sync(store.write_each([count] * 749))
    assert len(left(store, items)) == 250
    run_sync(store.write_each([count]))
    assert len(left(store, items)) == 50
    run_sync(store.write_each([count] * 99))
    assert len(left(store, items)) == 50
    run_sync(store.write_each([count]))
    assert left(store, items) == []
    late: dict[str, Item] = {"late": {"ttl": 1}}
    run_sync(store.write_each([Put(Key("p", "late"), late["late"]), *[count] * 998]))
    assert left(store, late) == ["late"]
    run_sync(store.write_each([count]))
    assert left(store, late) == []
    run_sync(store.close())
