"""The change log of an embedded store: what became of its buckets by the hour, for whoever counts usage.

A store on a server has a stream of its own. An embedded one *marks* what every bucket was before its first
write of an hour: two such images differ by what was used between them, so marks tell by the hour what a log
of all writes would tell, and cost a write next to nothing. A bucket also gets a mark when it is made, when it
says other things than before and not only other numbers, and when it expires. What is deleted is forgotten.
Whoever reads has the marks worked out as entries, which stay until they are trimmed: what is still there was
not counted, whatever happened to the reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ..exceptions import ValidationError
from ..repository_protocol import Backend, Item, Key

HOUR_MS = 3_600_000
MARKS_MAX = 20_000  # how many marks are kept for a reader who does not come; then the oldest go


class LogEntry(NamedTuple):
    """What some writes to a bucket, all of one hour, made of it. Positions grow for ever."""

    position: int
    key: Key
    old: Item | None
    new: Item
    at_ms: int


class ChangeLog(Protocol):
    def read(self, entries_max: int) -> list[LogEntry]:
        """The oldest entries, in order; where there are none, what the marks tell by now."""

    def waits(self) -> bool:
        """Whether there is anything to read; nothing changes by asking."""

    def trim(self, position: int) -> None:
        """Drop what stands up to a position."""

    def close(self) -> None: ...


def log_of(backend: Backend) -> ChangeLog:
    """The log of an embedded store."""
    open_log: Callable[[], ChangeLog] | None = getattr(backend, "change_log", None)
    if open_log is None:
        raise ValidationError(
            "store", backend.capabilities.name, "only embedded stores keep a log of changes"
        )
    return open_log()


def says_other_things(old: Item, new: Item) -> bool:
    """Whether more than numbers changed: limits that come or go, another family."""
    family = ("parent_id", "cascade")
    return old.keys() != new.keys() or any(old.get(name) != new.get(name) for name in family)
