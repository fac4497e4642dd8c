"""The log of a store in memory: a queue that the store fills."""

from __future__ import annotations

from collections import deque
from itertools import islice

from ..backends.memory import MemoryBackend
from ..repository_protocol import Item, Key
from ..schema import sk_state
from ..world import World
from . import ENTRIES_MAX, Entry


class MemoryLog:
    """One for each store, however many views of it are followed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._entries: deque[Entry] = deque(maxlen=ENTRIES_MAX)
        self._position = 0
        self._started = False

    def start(self) -> None:
        self._started = True

    def read(self, entries_max: int) -> list[Entry]:
        return list(islice(self._entries.copy(), entries_max))

    def trim(self, position: int) -> None:
        while self._entries and self._entries[0].position <= position:
            self._entries.popleft()

    def stop(self) -> None:
        self._started = False
        self._entries.clear()

    def close(self) -> None:
        """The log lives as long as the store."""

    def __call__(self, key: Key, old: Item | None, new: Item | None) -> None:
        """Note a write, if it was to a bucket."""
        if self._started and key.sort == sk_state():
            self._position += 1
            self._entries.append(Entry(self._position, key, old, new, self._world.now_ms()))


def memory_log(backend: MemoryBackend, world: World) -> MemoryLog:
    """The log of a store, which is made when it is first asked for."""
    for watcher in backend.watchers:
        if isinstance(watcher, MemoryLog):
            return watcher
    log = MemoryLog(world)
    backend.watchers.append(log)
    return log
