"""What a store forgot by itself: every bucket that is gone without a word must have had its time.

A bucket whose limits are nobody's own expires when it was full for long. What it had counted still was used,
so the books ask here for the last image of each that expired.
"""

from __future__ import annotations

from collections.abc import Iterable

from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.schema import is_deleted, number, sk_state


class Expiries:
    """A watcher of one store."""

    def __init__(self, store: MemoryBackend) -> None:
        self._store = store
        self._last: dict[Key, Item] = {}
        self._expired: dict[Key, list[Item]] = {}
        store.watchers.append(self.record)

    def record(self, key: Key, old: Item | None, new: Item | None) -> None:
        if key.sort != sk_state():
            return
        if old is None:
            self._note(key)
        self._last.pop(key, None)
        if new is not None and not is_deleted(new):
            self._last[key] = new

    def of(self, keys: Iterable[Key]) -> list[Item]:
        """The last images of those that expired, now that nobody writes any more."""
        present = self._store.snapshot()
        for key in [key for key in self._last if key not in present]:
            self._note(key)
        return [image for key in keys for image in self._expired.get(key, ())]

    def _note(self, key: Key) -> None:
        gone = self._last.pop(key, None)
        if gone is not None:
            now_ms, ttl = self._store._world.now_ms(), gone.get("ttl")
            assert ttl is not None, f"{key} is lost: {gone}"
            assert number(gone, "ttl") * 1000 < now_ms, f"{key} is lost: {gone}"
            self._expired.setdefault(key, []).append(gone)
