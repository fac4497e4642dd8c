"""Time that moves only when it is told to."""

from __future__ import annotations

import random

from ..runtime.world import World


class ManualClock:
    """A settable clock, and the ``World`` that runs on it.

    >>> clock = ManualClock()
    >>> before = clock.world.now_ms()
    >>> clock.advance(1.5)
    >>> clock.world.now_ms() - before
    1500
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, seed: int = 0) -> None:
        self.now_ms = now_ms
        self.world = World(lambda: self.now_ms, lambda: float(self.now_ms), random.Random(seed))

    def advance(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)
