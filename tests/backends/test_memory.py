"""What the reference store promises beyond the waist: who is told, what a fork finds, whose image counts."""

import os
from typing import Any

import pytest

from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.repository_protocol import Absent, Cursor, Delete, Item, Key, Page, Put, Query, Row, Update
from zae_limiter.runtime.colour import run_sync

K = Key("p", "s")


def written(store: MemoryBackend, *writes: Any) -> list[Item | None]:
    """The images that the outcomes show."""
    return [outcome.item for outcome in run_sync(store.write_each(writes))]


def test_watchers_are_told_what_was_and_what_is() -> None:
    """Each write that happened, by any verb, in order; nothing of one that was refused."""
    store, told = MemoryBackend(), list[tuple[Key, Item | None, Item | None]]()
    store.watchers.append(lambda *seen: told.append(seen))
    (image,) = written(store, Put(K, {"n": 1}))
    written(store, Put(K, {"n": 9}, (Absent(),)))
    assert image is not None
    store.swap(K, image, {"n": 2})
    assert store.swap(K, image, {"n": 3}) is None
    run_sync(store.transact_write([Update(K, add={"n": 5})]))
    written(store, Delete(K))
    assert told == [
        (K, None, {"n": 1}),
        (K, {"n": 1}, {"n": 2}),
        (K, {"n": 2}, {"n": 7}),
        (K, {"n": 7}, None),
    ]


def test_a_watcher_is_told_before_it_can_be_read() -> None:
    """While it is told of a write the store still holds what was there before."""
    store, held = MemoryBackend(), list[Item | None]()
    store.watchers.append(lambda key, *_: held.append(store._shelf.items.get(key)))
    (image,) = written(store, Put(K, {"n": 1}))
    assert image is not None
    store.swap(K, image, {"n": 2})
    written(store, Delete(K))
    assert held == [None, {"n": 1}, {"n": 2}]


def test_a_transaction_that_is_interrupted_halfway_is_whole() -> None:
    """An exception out of a signal handler comes after it, or before any of it."""
    store, keys = MemoryBackend(), [Key("p", sort) for sort in "abc"]
    raises: list[type[BaseException]] = [KeyboardInterrupt]

    def interrupt(key: Key, *_: object) -> None:
        if key == keys[1] and raises:
            raise raises.pop()

    store.watchers.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_sync(store.transact_write([Put(key, {"n": 1}) for key in keys]))
    assert run_sync(store.batch_get(keys)) == [{"n": 1}] * 3


def test_an_image_that_only_looks_the_same_is_not_swapped() -> None:
    """To Python ``True`` equals 1; a swap that took one for the other would undo a write."""
    store = MemoryBackend()
    (image,) = written(store, Put(K, {"n": 1, "flag": True}))
    assert image is not None
    written(store, Update(K, set={"flag": 1}))
    assert store.swap(K, image, {"n": 2}) is None
    (item,) = run_sync(store.batch_get([K]))
    assert repr(item) == "{'n': 1, 'flag': 1}"


def test_a_forked_child_finds_no_lock_held() -> None:
    """Whoever held one in the parent does not exist in the child."""
    store = MemoryBackend()
    with store._shelf.lock:
        child = os.fork()
        if child == 0:
            os._exit(3 if store._shelf.lock.locked() else 4)
        assert store._shelf.lock.locked()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 4


@pytest.mark.parametrize(
    ("rows_max", "found", "after"),
    [(1, 1, Cursor(Key("p", "a"), "a")), (2, 2, None), (3, 2, None)],
)
def test_a_page_that_is_just_full_is_the_last(rows_max: int, found: int, after: Cursor | None) -> None:
    """Nobody is sent for a page in which there is nothing."""
    store = MemoryBackend()
    written(store, Put(Key("p", "a"), {"n": 1}), Put(Key("p", "b"), {}))
    rows = (Row(Key("p", "a"), {"n": 1}), Row(Key("p", "b"), {}))
    assert run_sync(store.query(Query("p", rows_max=rows_max))) == Page(rows[:found], after)
    if after is not None:
        assert run_sync(store.query(Query("p", rows_max=rows_max, after=after))) == Page(rows[1:], None)
