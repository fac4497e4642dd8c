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
    def __init__(self, backend: MemoryBackend, world: World) -> None:
        self._backend, self._world = backend, world
        self._entries: deque[Entry] = deque(maxlen=ENTRIES_MAX)
        self._position = 0
        self._watching = self._started = False

    def start(self) -> None:
        self._started = True
        if not self._watching:
            self._watching = True
            self._backend.watch(self._note)

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

    def _note(self, key: Key, old: Item | None, new: Item | None) -> None:
        if self._started and key.sort == sk_state():
            self._position += 1
            self._entries.append(Entry(self._position, key, old, new, self._world.now_ms()))
