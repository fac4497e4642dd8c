"""Who of a process waits: for a booked turn, a seat, or others to be done; the first first. No I/O."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
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


class Turnstile:
    """Those who wait, by bucket."""

    def __init__(self) -> None:
        self._waiting = ForkSafe(dict[Key, deque[Comer]])
        self.lock: Final = ForkSafe(threading.RLock)

    @property
    def by_key(self) -> dict[Key, deque[Comer]]:
        return self._waiting.get()

    def stir(self, key: Key | None = None) -> None:
        """Let whoever is first try again, because somebody has left a bucket or a seat; or all look up."""
        if not self.by_key:
            return
        with self.lock.get():
            if key is not None:
                here = (waiter for waiter in tuple(self.by_key.get(key, ())) if not waiter.is_gone)
                for place, waiter in enumerate(here):
                    if not place or not waiter.is_aside:
                        waiter.signal.give()
                    if not waiter.is_aside:
                        return
                return
            for waiter in itertools.chain(*map(tuple, self.by_key.values())):
                waiter.signal.give()


class Courtesy:
    """How long somebody who takes from several buckets waits for others who do, and until when it did."""

    __slots__ = ("in_line", "over_ms", "until_ms")

    def __init__(self, until_ms: float) -> None:
        self.until_ms: float = until_ms
        """Until which tick it waits at most."""
        self.in_line: bool = False
        """Whether it stands in line although nobody else does."""
        self.over_ms: int = 0
        """When it went on, if it waited."""


class Comer:
    """One who waits, at one bucket or at several."""

    def __init__(self, line: Turnstile, keys: Sequence[Key], colour: Colour) -> None:
        self._line, self._keys, self._colour = line, keys, colour
        self.signal: Signal = colour.signal()
        self._gone, self._joined = colour.gone(), False
        self.has_left: bool = False
        """Says that others need not wait for it, before all that is done besides when it goes."""
        self.is_aside: bool = False
        """Whether it lacks no seat but something else, so that those behind may have theirs meanwhile."""

    @property
    def is_first(self) -> bool:
        """Whether all are aside who asked before."""
        with self._line.lock.get():
            return all(
                next((it for it in line if it is self or not (it.is_aside or it.is_gone)), self) is self
                for line in self._lines
            )

    @property
    def ahead(self) -> list[Comer]:
        """Those at whose turn it is where it is not this one's: nobody asked before who is still here."""
        with self._line.lock.get():
            heads = [next((it for it in line if it is self or not it.is_gone), self) for line in self._lines]
        return [head for head in heads if head is not self]

    @property
    def is_gone(self) -> bool:
        """Whether it will never go on: it has left, or its event loop has ended."""
        return self.has_left or self._gone()

    @property
    def is_expected(self) -> bool:
        """Whether others stand where it wants to go."""
        by_key = self._line.by_key
        return any(key in by_key for key in self._keys)

    @property
    def _lines(self) -> list[tuple[Comer, ...]]:
        return [tuple(self._line.by_key.get(key, ())) for key in self._keys]  # garbage may leave meanwhile

    def step_aside(self) -> None:
        """Let those behind look for seats, and keep one's place."""
        if not self.is_aside:
            self.is_aside = True
            for key in self._keys:
                self._line.stir(key)

    async def wait(self, seconds: float) -> bool:
        """Wait until one's turn may have come, and be there for the next one; false if it took too long."""
        await self.signal.wait(seconds)
        if given := self.signal.given:
            self.signal = self._colour.signal()
        return given

    def join(self) -> None:
        """Stand in line, behind all who are there."""
        self._joined = True
        with self._line.lock.get():
            for key in self._keys:
                self._line.by_key.setdefault(key, deque()).append(self)

    def leave(self) -> None:
        """Make way for others, also if only half of it was done before something interrupted it."""
        self.has_left = True
        if not self._joined:
            return
        with self._line.lock.get():
            for key in self._keys:
                waiting = self._line.by_key.get(key, deque())
                for waiter in tuple(waiting):  # garbage that is collected meanwhile may leave, too
                    if waiter is not self and not waiter.is_gone:
                        break
                    with suppress(ValueError):
                        waiting.remove(waiter)
                with suppress(ValueError):
                    waiting.remove(self)
                if not waiting:
                    self._line.by_key.pop(key, None)
        for key in self._keys:
            self._line.stir(key)
