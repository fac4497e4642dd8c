"""The log of a store in memory: its diary, which is the store's own, however many views are followed."""

from __future__ import annotations

from ...backends.memory import MemoryBackend
from . import Entry


class MemoryLog:
    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    def read(self, entries_max: int) -> list[Entry]:
        return [Entry(*entry) for entry in self._backend.read_diary(entries_max)]

    def waits(self) -> bool:
        return self._backend.diary_waits()

    def trim(self, position: int) -> None:
        self._backend.trim_diary(position)

    def close(self) -> None:
        """The diary lives as long as the store."""
