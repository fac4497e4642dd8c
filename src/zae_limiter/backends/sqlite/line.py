"""Who waits for the file, told across processes, so that nobody is passed over for long.

SQLite has no queue: whoever asks in the right instant gets the lock, and a process that has a processor
to itself writes a hundred times before the others are even asked. So who has to wait says so in a small file
beside the store: since when, and when it was last seen waiting. Those who wait are served in the order
in which they came, and who has written some times in a row goes to the end of the line, if there is one.

All of this is courtesy. No lock is ever taken on that file, and whatever stands in it may be wrong, lost or
overwritten: the worst that follows is an unfair share, for nobody is polite for long. Who has not been seen
for some milliseconds is passed over; it may be dead. Where the file cannot be had, everybody is first.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from ...runtime.world import World

PLACES = 32
SEEN_US_MAX = 20_000  # how long somebody is taken to be waiting after having been seen
_ENTRY = Struct("<QQ")
"""Microseconds of the machine's monotonic clock: since when somebody waits, and when it was last seen."""


class WaitingLine:
    """The line before one file, which is made when somebody of this process first has to wait."""

    def __init__(self, path: Path, world: World) -> None:
        self._path, self._world, self._is_used = path, world, False

    def is_anyone_waiting(self) -> bool:
        """Whether somebody else does; never, for a process that never had to."""
        if not self._is_used:
            return False
        with contextlib.suppress(OSError), _opened(self._path) as file:
            return any(_waiting(file, _us(self._world.ticks_ms())))
        return False

    def stand(self, since_ms: float) -> PlaceInLine:
        """A place in line, by the instant from which somebody waits."""
        self._is_used = True
        return PlaceInLine(self._path, _us(since_ms), self._world)


class PlaceInLine:
    """Somebody in line."""

    def __init__(self, path: Path, since_us: int, world: World) -> None:
        self._path, self._since_us, self._world = path, since_us, world
        self._place: int | None = None

    def ahead(self) -> int:
        """Be seen, and count who came before."""
        now_us = _us(self._world.ticks_ms())
        with contextlib.suppress(OSError), _opened(self._path) as file:
            waiting = _waiting(file, now_us)
            if self._place is None and not all(waiting):
                # Two who find the same place at once are one to the others.
                first = self._world.random.randrange(PLACES)
                self._place = next(
                    n % PLACES for n in range(first, first + PLACES) if not waiting[n % PLACES]
                )
            self._write(file, self._since_us, now_us)
            return sum(0 < since_us < self._since_us for since_us in waiting)
        return 0

    def leave(self) -> None:
        with contextlib.suppress(OSError), _opened(self._path) as file:
            self._write(file, 0, 0)

    def _write(self, file: int, since_us: int, seen_us: int) -> None:
        if self._place is not None:
            os.pwrite(file, _ENTRY.pack(since_us, seen_us), self._place * _ENTRY.size)


@contextlib.contextmanager
def _opened(store: Path) -> Iterator[int]:
    if not hasattr(os, "pread"):
        raise OSError("there are no lines on this system")
    # As SQLite does with its log: who may use the store may stand in line for it.
    mode = stat.S_IMODE(store.stat().st_mode)
    file = os.open(f"{store}-line", os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), mode)
    try:
        yield file
    finally:
        os.close(file)


def _waiting(file: int, now_us: int) -> list[int]:
    """Since when somebody waits, by place; 0 where nobody was seen lately."""
    entries = _ENTRY.iter_unpack(os.pread(file, PLACES * _ENTRY.size, 0).ljust(PLACES * _ENTRY.size, b"\0"))
    # Clocks of before the last start of the machine are ahead.
    return [since_us if 0 <= now_us - seen_us < SEEN_US_MAX else 0 for since_us, seen_us in entries]


def _us(ticks_ms: float) -> int:
    return max(1, int(ticks_ms * 1000))
