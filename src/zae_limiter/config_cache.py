"""What this process remembers of stored records, and for how long: no I/O.

One entry for each record, so that a change of a resource's limits reaches all of its entities with
one read. A record that is known to be missing is remembered too. An entry past its time is a miss,
but it is kept: while the store is down the last known value still serves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from .models import CacheStats
from .repository_protocol import Item, Key

ENTRIES_MAX = 100_000


class Entry(NamedTuple):
    item: Item | None
    expires_ms: float


class ConfigCache:
    """Records by key, for ``ttl_ms`` each; a ``ttl_ms`` of 0 remembers for emergencies only."""

    def __init__(self, ttl_ms: float, entries_max: int = ENTRIES_MAX) -> None:
        self.ttl_ms = ttl_ms
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._entries_max = entries_max
        self._hits = 0
        self._misses = 0

    def get(self, key: Key, now_ms: float) -> Entry | None:
        """The entry if it is fresh."""
        entry = self._entries.get(key)
        if entry is not None and now_ms < entry.expires_ms:
            self._hits += 1
            return entry
        self._misses += 1
        return None

    def last_known(self, key: Key) -> Entry | None:
        """The entry however old."""
        return self._entries.get(key)

    def put(self, key: Key, item: Item | None, now_ms: float) -> None:
        self._entries[key] = Entry(item, now_ms + self.ttl_ms)
        self._entries.move_to_end(key)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def invalidate(self, matches: Callable[[Key], bool]) -> None:
        """Let entries expire; their last known value stays for emergencies."""
        for key, entry in list(self._entries.items()):
            if matches(key):
                self._entries[key] = Entry(entry.item, 0)

    def stats(self) -> CacheStats:
        return CacheStats(self._hits, self._misses, len(self._entries), self.ttl_ms / 1000)
