"""What happened to the buckets of an embedded store, in order, for whoever wants to count it.

A store on a server has a stream of its own. An embedded one keeps a log only once somebody asks for it,
so that nobody else pays for it. The log is read from its beginning and trimmed behind what was counted;
what is still in it was not, whatever happened to the reader.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ..backends.memory import MemoryBackend
from ..backends.sqlite import SqliteBackend
from ..exceptions import ValidationError
from ..repository_protocol import Backend, Item, Key
from ..world import World

ENTRIES_MAX = 100_000
"""How many changes a log keeps for a reader who does not come; then the oldest are dropped."""


class Entry(NamedTuple):
    """One write to a bucket. Positions grow, also when a log is ended and begun again."""

    position: int
    key: Key
    old: Item | None
    new: Item | None
    at_ms: int


class ChangeLog(Protocol):
    def start(self) -> None:
        """Keep a log from now on. Idempotent."""
        ...

    def read(self, entries_max: int) -> list[Entry]:
        """The oldest entries, in order."""
        ...

    def trim(self, position: int) -> None:
        """Drop what stands up to a position."""
        ...

    def stop(self) -> None:
        """Keep no log any more, and drop what is in it."""
        ...

    def close(self) -> None: ...


def log_of(backend: Backend, world: World) -> ChangeLog:
    """The log of an embedded store."""
    if isinstance(backend, SqliteBackend):
        from .sqlite import SqliteLog

        return SqliteLog(backend.path)
    if isinstance(backend, MemoryBackend):
        from .memory import memory_log

        return memory_log(backend, world)
    name = backend.capabilities.name
    raise ValidationError("store", name, "only embedded stores keep a log of changes")
