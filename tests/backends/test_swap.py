"""``swap``: the verb of stores that can answer at once."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from zae_limiter.backends import open_backend
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Item, Key, Put, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

KEY = Key("ns/BUCKET#e#r#0", "#STATE")
ITEM: dict[str, Any] = {"b_a_tk": 12, "b_a_tc": 1, "note": 'a "b_a_tk":12 in a text', "b_ab_tk": 12, "rf": 1}


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/swap.db"
    backend: Any = open_backend(url, sync=True, world=World())
    run_sync(backend.setup())
    yield backend
    run_sync(backend.close())


def put(store: Any, item: Item) -> Item:
    (outcome,) = run_sync(store.write_each([Put(KEY, item)]))
    assert outcome.item is not None
    return outcome.item


def read(store: Any) -> Item | None:
    (item,) = run_sync(store.batch_get([KEY]))
    return item


@pytest.mark.parametrize("seen", ["as written", "as read", "as swapped"])
def test_integers_change_and_nothing_else(store: Any, seen: str) -> None:
    """Whatever verb returned the image; a text that looks like the attribute stays."""
    image = put(store, ITEM)
    if seen == "as read":
        image = read(store) or {}
    if seen == "as swapped":
        image = store.swap(KEY, image, {"rf": 7})
        assert image["rf"] == 7
    new = store.swap(KEY, image, {"b_a_tk": -3, "b_a_tc": 100})
    assert new == {**image, "b_a_tk": -3, "b_a_tc": 100}
    assert read(store) == new
    assert image["b_a_tk"] == 12, "an image that was given out does not change"


@pytest.mark.parametrize("item", [{**ITEM, "b_a_tk": 1, "b_ab_tk": 120}, {"b_a_tk": 120, "b_a_tc": 0}])
def test_numbers_that_begin_alike_are_told_apart(store: Any, item: dict[str, Any]) -> None:
    new = store.swap(KEY, put(store, item), {"b_a_tk": 9})
    assert new == read(store) == {**item, "b_a_tk": 9}


def test_an_image_that_is_out_of_date_changes_nothing(store: Any) -> None:
    """Somebody else wrote in between, or the item is gone."""
    image = put(store, ITEM)
    run_sync(store.write_each([Update(KEY, add={"b_a_tk": -1})]))
    assert store.swap(KEY, image, {"b_a_tk": 5}) is None
    assert (read(store) or {})["b_a_tk"] == 11
    assert store.swap(Key("ns/nobody", "#STATE"), image, {"b_a_tk": 5}) is None


def test_two_who_saw_the_same_image_do_not_both_succeed(store: Any) -> None:
    image = put(store, ITEM)
    answers = [store.swap(KEY, image, {"b_a_tk": 11}), store.swap(KEY, image, {"b_a_tk": 11})]
    assert [answer is not None for answer in answers] == [True, False]


def test_nested_values_are_never_cut_in_two(tmp_path: Path) -> None:
    """An item that is not flat may have the name twice, so the other verbs are left to change it."""
    store: Any = open_backend(f"sqlite:///{tmp_path}/nested.db", sync=True, world=World())
    run_sync(store.setup())
    image = put(store, {"other": {"b_a_tk": 12}, "b_a_tk": 12})
    assert store.swap(KEY, image, {"b_a_tk": 5}) is None
    assert read(store) == image
    run_sync(store.close())


def test_a_file_that_is_busy_is_not_waited_for(tmp_path: Path) -> None:
    store: Any = open_backend(f"sqlite:///{tmp_path}/busy.db", sync=False, world=World())

    async def work() -> None:
        await store.setup()
        (outcome,) = await store.write_each([Put(KEY, ITEM)])
        other = sqlite3.connect(tmp_path / "busy.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert store.swap(KEY, outcome.item, {"b_a_tk": 5}) is None
        other.execute("ROLLBACK")
        other.close()
        assert store.swap(KEY, outcome.item, {"b_a_tk": 5}) is not None
        await store.close()

    asyncio.run(work())


def test_an_error_that_leaves_the_commit_in_doubt_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an I/O error nobody knows; the write may have happened."""
    store: Any = open_backend(f"sqlite:///{tmp_path}/broken.db", sync=True, world=World())
    run_sync(store.setup())
    image = put(store, ITEM)

    class Broken:
        in_transaction = False

        def execute(self, *_: object) -> None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

        def close(self) -> None:
            """Nothing is open."""

    store._database.close()
    monkeypatch.setattr(store._database, "_connection", Broken())
    with pytest.raises(RateLimiterUnavailable) as told:
        store.swap(KEY, image, {"b_a_tk": 5})
    assert told.value.ambiguous
    assert read(store) == ITEM, "the store opens its file again"
    run_sync(store.close())
