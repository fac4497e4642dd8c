"""What happened to the buckets of an embedded store, in order, for whoever wants to count it.

A store on a server has a stream of its own. An embedded one keeps a *diary* from its first write on: what
every bucket was before its first write of an hour. Two such images differ by what was used between them, so a
diary tells by the hour what a log of all writes would tell, and costs a write next to nothing. Who reads has
what became of the buckets worked out as entries, which stay until they are trimmed: what is still there was
not counted, whatever happened to the reader.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ...backends.memory import MemoryBackend
from ...backends.sqlite import SqliteBackend
from ...exceptions import ValidationError
from ...repository_protocol import Backend, Item, Key


class Entry(NamedTuple):
    """What some writes to a bucket, all of one hour, made of it. Positions grow for ever."""

    position: int
    key: Key
    old: Item | None
    new: Item
    at_ms: int


class ChangeLog(Protocol):
    def read(self, entries_max: int) -> list[Entry]:
        """The oldest entries, in order; where there are none, what the diary has by now."""
        ...

    def waits(self) -> bool:
        """Whether there is anything to read; nothing changes by asking."""
        ...

    def trim(self, position: int) -> None:
        """Drop what stands up to a position."""
        ...

    def close(self) -> None: ...


def log_of(backend: Backend) -> ChangeLog:
    """The log of an embedded store."""
    if isinstance(backend, SqliteBackend):
        from .sqlite import SqliteLog

        return SqliteLog(backend.path)
    if isinstance(backend, MemoryBackend):
        from .memory import MemoryLog

        return MemoryLog(backend)
    name = backend.capabilities.name
    raise ValidationError("store", name, "only embedded stores keep a log of changes")
