"""What a memory store holds: its items, and the log of what became of its buckets."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, TypeAlias
from weakref import WeakSet

from ..repository_protocol import Item, Key
from ..runtime.colour import at_fork
from ..schema import is_deleted
from .change_log import HOUR_MS, MARKS_MAX, LogEntry, says_other_things

Watcher: TypeAlias = Callable[[Key, Item | None, Item | None], None]
"""Is told the key of a write, the image before it and the one after."""

_shelves: WeakSet[Shelf] = WeakSet()


class Mark(NamedTuple):
    """What a bucket was before a write, and when; ``gone`` if it was swept then."""

    image: Item | None
    at_ms: int
    gone: bool = False


class Shelf:
    """The items of one store and its change log, however many views of it are open."""

    def __init__(self) -> None:
        self.items: dict[Key, Item] = {}
        self.lock: threading.Lock = threading.Lock()
        _shelves.add(self)
        self.writes = 0
        self.changes = 0  # how often a record was changed that clients remember
        self.watchers: list[Watcher] = []
        self.marks: dict[Key, list[Mark]] = {}
        self.hours: dict[Key, int] = {}  # in which a bucket was last marked, unless it is to be marked again
        self._marks_length = self._position = 0
        self._entries: deque[LogEntry] = deque()

    # The change log, for its readers.

    def read(self, entries_max: int) -> list[LogEntry]:
        with self.lock:
            if not self._entries:
                for key, old, new, at_ms in self._became():
                    self._position += 1
                    self._entries.append(LogEntry(self._position, key, old, new, at_ms))
                self.marks.clear()
                self.hours.clear()  # so that the next write to each bucket marks it again
                self._marks_length = 0
            return list(islice(self._entries, entries_max))

    def waits(self) -> bool:
        with self.lock:
            return bool(self._entries) or any(True for _ in self._became())

    def trim(self, position: int) -> None:
        with self.lock:
            while self._entries and self._entries[0].position <= position:
                self._entries.popleft()

    def close(self) -> None:
        """The log lives as long as the store."""

    # The change log, for its writers, who hold the lock.

    def note(self, key: Key, old: Item | None, new: Item | None, now_ms: int) -> None:
        """Note a write to a bucket, before it is made."""
        if new is None or is_deleted(new):
            self._unmark(key)
            if self._entries:
                self._entries = deque(entry for entry in self._entries if entry.key != key)
        elif old is None:
            self.mark(key, Mark(None, now_ms))
            self.hours.pop(key)  # what is made may have been used elsewhere, and is told from its use here
        elif self.hours.get(key) != now_ms // HOUR_MS or says_other_things(old, new):
            self.mark(key, Mark(old, now_ms))

    def mark(self, key: Key, mark: Mark) -> None:
        if self._marks_length >= MARKS_MAX:  # before it is marked, for it may be the oldest itself
            self._unmark(next(iter(self.marks)))
        self.marks.setdefault(key, []).append(mark)
        self.hours[key] = mark.at_ms // HOUR_MS
        self._marks_length += 1

    def _unmark(self, key: Key) -> None:
        self._marks_length -= len(self.marks.pop(key, ()))
        self.hours.pop(key, None)

    def _became(self) -> Iterator[tuple[Key, Item | None, Item, int]]:
        """What became of the buckets that were marked: before, after, and when."""
        for key, marks in self.marks.items():
            images = [*(mark.image for mark in marks[1:]), self.items.get(key)]
            for mark, after in zip(marks, images, strict=True):
                if after is not None and after is not mark.image and not mark.gone:
                    yield key, mark.image, after, mark.at_ms


def _unlock_shelves() -> None:
    """Give a forked child locks of its own: those it inherited may be held by threads it has not."""
    for shelf in _shelves:
        shelf.lock = threading.Lock()


at_fork(after_in_child=_unlock_shelves)
