"""The reference store: a dictionary and ``apply``. One process, nothing kept.

It is also what other stores are compared with, so it does nothing clever. ``memory://`` opens a store of its
own each time; ``memory://name`` opens the one of that name, which lives as long as the process.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from urllib.parse import urlsplit

from ..exceptions import ValidationError
from ..models import BackendCapabilities
from ..repository_protocol import (
    PAGE_ROWS_MAX,
    Cursor,
    Item,
    Key,
    Outcome,
    Page,
    Query,
    Row,
    Write,
    apply,
    apply_all,
)
from ..runtime.colour import Blocking, Colour, colour_of
from ..runtime.world import World
from ..schema import is_deleted, is_remembered, sk_state
from .change_log import HOUR_MS
from .shelf import Mark, Shelf, Watcher

_STATE = sk_state()

SWEEP_ITEMS_MAX, SWEEP_EVERY_WRITES = 200, 1000
SWEEP_AGAIN_WRITES = 100  # if something was left: twice as fast as writes could make new items

_named: dict[str, Shelf] = {}


def open_backend(url: str, *, sync: bool, world: World, timeout_ms: int | None = None) -> MemoryBackend:
    """Open ``memory://`` or ``memory://name``; there is nothing to wait for, so nothing to time out."""
    del timeout_ms
    parts = urlsplit(url)
    if parts.path or parts.query or parts.fragment:
        raise ValidationError("store", url, "use memory:// or memory://name, which take no options")
    # The name is cut from the text because a host name would lose its case.
    name = url[len("memory://") :]
    shelf = _named.setdefault(name, Shelf()) if name else None
    return MemoryBackend(world, shelf, colour_of(sync=sync))


class MemoryBackend:
    """Items in a dictionary, safe for threads and tasks of one process."""

    capabilities: BackendCapabilities = BackendCapabilities("memory", shared=False, atomic_batches=True)
    news = None  # ``changes`` tells more

    def __init__(
        self, world: World | None = None, shelf: Shelf | None = None, colour: Colour | None = None
    ) -> None:
        # No call suspends, so the blocking colour serves coroutines as well, but for those who wait.
        self.colour: Colour = colour or Blocking()
        self._world = world or World()
        self._shelf = shelf or Shelf()
        self._own_changes = 0

    async def setup(self) -> None:
        with self._shelf.lock:
            self._sweep()

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        with self._shelf.lock:
            return [self._image(key) for key in keys]

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        with self._shelf.lock:
            self._count(len(writes))
            return [self._keep([write], [apply(write, self._image(write.key))])[0] for write in writes]

    def swap(
        self,
        key: Key,
        image: Item,
        changed: Mapping[str, int],
        changes: int | None = None,
        at_ms: int | None = None,
    ) -> Item | None:
        shelf = self._shelf
        with shelf.lock:
            if shelf.items.get(key) is not image:
                return None
            if changes is not None and shelf.changes - self._own_changes != changes:
                return None
            new: Item = {**image, **changed}
            shelf.writes += 1
            if shelf.writes >= SWEEP_EVERY_WRITES:
                self._count(0)
            at_ms = self._world.now_ms() if at_ms is None else at_ms
            if shelf.hours.get(key) != at_ms // HOUR_MS and key.sort == _STATE:
                shelf.mark(key, Mark(image, at_ms))
            for watcher in shelf.watchers:
                watcher(key, image, new)
            shelf.items[key] = new
        return new

    async def changes(self) -> int:
        with self._shelf.lock:
            return self._shelf.changes - self._own_changes

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        with self._shelf.lock:
            self._count(len(writes))
            return self._keep(writes, apply_all(writes, [self._image(write.key) for write in writes]))

    async def query(self, query: Query) -> Page:
        assert 0 < query.rows_max <= PAGE_ROWS_MAX, f"{query.rows_max} rows in one page"
        assert not (query.index and query.when), "an index yields keys: there is nothing to filter"
        with self._shelf.lock:
            found = sorted(self._matching(query), reverse=query.backwards)
            keys = [key for _, key in found[: query.rows_max]]
            rows = tuple(Row(key, {} if query.index else _own(self._shelf.items[key])) for key in keys)
        more = len(found) > query.rows_max
        return Page(rows, Cursor(keys[-1], found[query.rows_max - 1][0]) if more else None)

    async def close(self) -> None:
        """The items stay: views of one store may be closed one by one."""

    def snapshot(self) -> dict[Key, Item]:
        """Everything there is, for those who have to see it all."""
        with self._shelf.lock:
            return {key: _own(item) for key, item in self._shelf.items.items()}

    def change_log(self) -> Shelf:
        return self._shelf

    @property
    def watchers(self) -> list[Watcher]:
        """Who is told of every write to this store, through whichever view."""
        return self._shelf.watchers

    def _matching(self, query: Query) -> Iterator[tuple[str, Key]]:
        index = query.index
        for key, item in self._shelf.items.items():
            partition, sort = (item.get(f"{index}PK"), item.get(f"{index}SK")) if index else key
            if partition != query.partition or not isinstance(sort, str) or not query.accepts(sort, key):
                continue
            if all(condition.holds(item) for condition in query.when):
                yield sort, key

    def _image(self, key: Key) -> Item | None:
        item = self._shelf.items.get(key)
        return None if item is None else _own(item)

    def _keep(self, writes: Sequence[Write], outcomes: list[Outcome]) -> list[Outcome]:
        """Put what was written in its place: all of it, even if a signal handler raises halfway."""
        decided = zip(writes, outcomes, strict=True)
        kept = [(write.key, outcome.item) for write, outcome in decided if outcome.applied][::-1]
        try:
            self._put(kept)
        finally:
            self._put(kept)
        return outcomes

    def _put(self, kept: list[tuple[Key, Item | None]]) -> None:
        """Put images in their places, from the last to the first, and drop each when it is there."""
        while kept:
            key, item = kept[-1]
            old = self._shelf.items.get(key)
            for watcher in self._shelf.watchers:
                watcher(key, old, item)
            if key.sort == _STATE:
                self._shelf.note(key, old, item, self._world.now_ms())
            if is_remembered(key):
                self._shelf.changes += 1
                self._own_changes += 1
            if item is None:
                self._shelf.items.pop(key, None)
            else:
                self._shelf.items[key] = _own(item)
            kept.pop()

    def _count(self, writes: int) -> None:
        self._shelf.writes += writes
        if self._shelf.writes >= SWEEP_EVERY_WRITES:
            more = self._sweep() == SWEEP_ITEMS_MAX
            self._shelf.writes = SWEEP_EVERY_WRITES - SWEEP_AGAIN_WRITES if more else 0

    def _sweep(self) -> int:
        now_ms, items = self._world.now_ms(), self._shelf.items
        times = ((key, item.get("ttl")) for key, item in items.items())
        expired = (key for key, ttl in times if type(ttl) is int and ttl * 1000 < now_ms)
        swept = list(islice(expired, SWEEP_ITEMS_MAX))
        for key in swept:
            if key.sort == _STATE and not is_deleted(items[key]):
                self._shelf.mark(key, Mark(items[key], now_ms, gone=True))
            del items[key]
        return len(swept)


def _own(item: Item) -> Item:
    """The item, safe from whoever changes a list or dictionary that went in or came out."""
    for value in item.values():
        if isinstance(value, (dict, list)):
            return copy.deepcopy(item)
    return item
