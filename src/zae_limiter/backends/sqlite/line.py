"""Who waits for the file, told across processes, so that nobody is passed over for long.

SQLite has no queue: whoever asks in the right instant gets the lock, and a process that has a processor
to itself writes a hundred times before the others are even asked. So who has to wait says so in a small file
beside the store: since when, and when it was last seen waiting. Those who wait are served in the order
in which they came, and who has written some times in a row goes to the end of the line, if there is one.

All of this is courtesy. No lock is ever taken on that file, and whatever stands in it may be wrong, lost or
overwritten: the worst that follows is an unfair share, for nobody is polite for long. Who has not been seen
for some milliseconds is passed over; it may be dead.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from ...runtime.world import World

PLACES = 32
SEEN_US_MAX = 20_000
"""How long somebody is taken to be waiting after having been seen."""

_ENTRY = Struct("<QQ")
"""Microseconds of the machine's monotonic clock: since when somebody waits, and when it was last seen."""


class Line:
    """The line before one file. It is opened, and made, when somebody of this process first has to wait."""

    def __init__(self, path: Path, world: World) -> None:
        self._path, self._world = path, world
        self._file: _File | None = None

    def is_anyone_waiting(self) -> bool:
        """Whether somebody else does; never, for a process that never had to."""
        file = self._file
        if file is None:
            return False
        now_us = _us(self._world.ticks_ms())
        return any(_is_seen(seen_us, now_us) for _, seen_us in file.entries())

    def stand(self, since_ms: float) -> Place:
        """A place in line, by the instant from which somebody waits."""
        if self._file is None and hasattr(os, "pread"):
            # Who cannot have it waits without a place, as everybody did before there were lines.
            with contextlib.suppress(OSError):
                self._file = _File(self._path)
        return Place(self._file, _us(since_ms), self._world)

    def close(self) -> None:
        """Forget the file; it is closed when the last who stands in line has left."""
        self._file = None


class Place:
    """Somebody in line."""

    def __init__(self, file: _File | None, since_us: int, world: World) -> None:
        self._file, self._since_us, self._world = file, since_us, world
        self._number: int | None = None

    def ahead(self) -> int:
        """Be seen, and count who came before."""
        if self._file is None:
            return 0
        now_us = _us(self._world.ticks_ms())
        entries = list(self._file.entries())
        if self._number is None:
            self._number = self._free(entries, now_us)
        if self._number is not None:
            self._file.write(self._number, self._since_us, now_us)
        return sum(
            since_us < self._since_us
            for since_us, seen_us in entries
            if since_us and _is_seen(seen_us, now_us)
        )

    def leave(self) -> None:
        if self._file is not None and self._number is not None:
            self._file.write(self._number, 0, 0)

    def _free(self, entries: list[tuple[int, int]], now_us: int) -> int | None:
        """A place that nobody has; two who find it at once are one to the others."""
        first = self._world.random.randrange(PLACES)
        for number in itertools.chain(range(first, PLACES), range(first)):
            if number >= len(entries) or not _is_seen(entries[number][1], now_us):
                return number
        return None


class _File:
    """The descriptor, which lives as long as somebody uses it: its number could be another file's by then."""

    def __init__(self, store: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        # As SQLite does with its log: who may use the store may stand in line for it.
        mode = stat.S_IMODE(store.stat().st_mode)
        self._descriptor = os.open(f"{store}-line", flags, mode)

    def entries(self) -> Iterator[tuple[int, int]]:
        try:
            data = os.pread(self._descriptor, PLACES * _ENTRY.size, 0)
        except OSError:
            data = b""
        if not data.strip(b"\0"):
            return iter(())
        return _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size])

    def write(self, number: int, since_us: int, seen_us: int) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, _ENTRY.pack(since_us, seen_us), number * _ENTRY.size)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._descriptor)


def _us(ticks_ms: float) -> int:
    return max(1, int(ticks_ms * 1000))


def _is_seen(seen_us: int, now_us: int) -> bool:
    """Clocks of before the last start of the machine are ahead."""
    return seen_us != 0 and 0 <= now_us - seen_us < SEEN_US_MAX
