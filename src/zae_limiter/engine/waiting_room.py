"""Who of a process waits: for a turn that was booked, or for a seat, the first first. No I/O."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from ..repository_protocol import Key
from ..runtime.colour import Colour, ForkSafe, Signal

CLOSING_SECONDS = 0.005
"""How often whoever closes a store looks whether those who waited are gone."""


class WaitingRoom:
    """How many acquires wait for a turn, and how they are told that there will be none."""

    def __init__(self, colour: Colour) -> None:
        self.closing: Signal = colour.signal()
        self.waiting = 0


class SeatLine:
    """Those who wait, by bucket."""

    def __init__(self) -> None:
        self._waiting = ForkSafe(dict[Key, deque[SeatWaiter]])
        self.lock: Final = ForkSafe(threading.RLock)

    @property
    def by_key(self) -> dict[Key, deque[SeatWaiter]]:
        return self._waiting.get()

    def stir(self, key: Key | None = None) -> None:
        """Let whoever is first try again, because somebody gave a seat of a bucket back; or all look up."""
        if not self.by_key:
            return
        with self.lock.get():
            if key is not None:
                for place, waiter in enumerate(self.by_key.get(key, ())):
                    if not place or not waiter.is_aside:
                        waiter.signal.give()
                    if not waiter.is_aside:
                        return
                return
            for waiting in self.by_key.values():
                for waiter in waiting:
                    waiter.signal.give()


class SeatWaiter:
    """One who waits, for seats of one bucket or of several."""

    def __init__(self, line: SeatLine, keys: Sequence[Key], colour: Colour) -> None:
        self._line, self._keys, self._colour = line, keys, colour
        self.signal: Signal = colour.signal()
        self.is_aside: bool = False
        """Whether it lacks no seat but something else, so that those behind may have theirs meanwhile."""
        with line.lock.get():
            for key in keys:
                line.by_key.setdefault(key, deque()).append(self)

    @property
    def is_first(self) -> bool:
        """Whether all are aside who asked before."""
        with self._line.lock.get():
            return all(self._nearest(key) is self for key in self._keys)

    @property
    def is_head(self) -> bool:
        """Whether nobody asked before who is still here."""
        with self._line.lock.get():
            return all(self._line.by_key[key][0] is self for key in self._keys)

    def _nearest(self, key: Key) -> SeatWaiter:
        return next(it for it in self._line.by_key[key] if it is self or not it.is_aside)

    def step_aside(self) -> None:
        """Let those behind look for seats, and keep one's place."""
        if not self.is_aside:
            self.is_aside = True
            for key in self._keys:
                self._line.stir(key)

    async def wait(self, seconds: float) -> None:
        """Wait until one's turn may have come, and be there for the next one."""
        await self.signal.wait(seconds)
        if self.signal.given:
            self.signal = self._colour.signal()

    def leave(self) -> None:
        with self._line.lock.get():
            for key in self._keys:
                waiting = self._line.by_key[key]
                waiting.remove(self)
                if not waiting:
                    del self._line.by_key[key]
        for key in self._keys:
            self._line.stir(key)
