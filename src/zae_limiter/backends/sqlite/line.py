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
import os
import stat
from pathlib import Path
from struct import Struct

from ...runtime.world import World

PLACES = 32
SEEN_US_MAX = 20_000  # how long somebody is taken to be waiting after having been seen
_ENTRY = Struct("<QQ")
"""Microseconds of the machine's monotonic clock: since when somebody waits, and when it was last seen."""


class WaitingLine:
    """The line before one file. It is opened, and made, when somebody of this process first has to wait."""

    def __init__(self, path: Path, world: World) -> None:
        self._path, self._world = path, world
        self._file: _LineFile | None = None

    def is_anyone_waiting(self) -> bool:
        """Whether somebody else does; never, for a process that never had to."""
        file = self._file
        return file is not None and any(file.waiting(_us(self._world.ticks_ms())))

    def stand(self, since_ms: float) -> Waiter:
        """A place in line, by the instant from which somebody waits."""
        if self._file is None and hasattr(os, "pread"):
            # Who cannot have it waits without a place, as everybody did before there were lines.
            with contextlib.suppress(OSError):
                self._file = _LineFile(self._path)
        return Waiter(self._file, _us(since_ms), self._world)

    def close(self) -> None:
        """Forget the file; it is closed when the last who stands in line has left."""
        self._file = None


class Waiter:
    """Somebody in line."""

    def __init__(self, file: _LineFile | None, since_us: int, world: World) -> None:
        self._file, self._since_us, self._world = file, since_us, world
        self._place: int | None = None

    def ahead(self) -> int:
        """Be seen, and count who came before."""
        if self._file is None:
            return 0
        now_us = _us(self._world.ticks_ms())
        waiting = self._file.waiting(now_us)
        if self._place is None and not all(waiting):
            # Two who find the same place at once are one to the others.
            first = self._world.random.randrange(PLACES)
            self._place = next(n % PLACES for n in range(first, first + PLACES) if not waiting[n % PLACES])
        if self._place is not None:
            self._file.write(self._place, self._since_us, now_us)
        return sum(0 < since_us < self._since_us for since_us in waiting)

    def leave(self) -> None:
        if self._file is not None and self._place is not None:
            self._file.write(self._place, 0, 0)


class _LineFile:
    """The descriptor, which lives as long as somebody uses it: its number could be another file's by then."""

    def __init__(self, store: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        # As SQLite does with its log: who may use the store may stand in line for it.
        self._descriptor = os.open(f"{store}-line", flags, stat.S_IMODE(store.stat().st_mode))

    def waiting(self, now_us: int) -> list[int]:
        """Since when somebody waits, by place; 0 where nobody was seen lately.

        Clocks of before the last start of the machine are ahead.
        """
        try:
            data = os.pread(self._descriptor, PLACES * _ENTRY.size, 0)
        except OSError:
            data = b""
        entries = _ENTRY.iter_unpack(data.ljust(PLACES * _ENTRY.size, b"\0"))
        return [since_us if 0 <= now_us - seen_us < SEEN_US_MAX else 0 for since_us, seen_us in entries]

    def write(self, place: int, since_us: int, seen_us: int) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, _ENTRY.pack(since_us, seen_us), place * _ENTRY.size)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._descriptor)


def _us(ticks_ms: float) -> int:
    return max(1, int(ticks_ms * 1000))
