"""All nondeterminism in one value: the clock, randomness and fresh ids.

Nothing else in the package reads a clock or rolls dice, so who passes a ``World`` of its own decides
everything that happens. ``ticks_ms`` is for how long something lasts: setting a machine's clock does not move
it. ``now_ms`` is for the instants in buckets and records. All who use a bucket compare these, so they should
be the store's: a store with a clock is opened with ``World.for_store()`` and tells its time by ``observe``
with each reply, to where the machine's time is pushed.
"""

from __future__ import annotations

import math
import random
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

AHEAD_MS_MAX = 5_000
"""How far an instant may lie ahead of the store's time and still be an honest mistake.

The coarsest store tells its time by the second, and a reply may take some seconds more. A clock ahead by no
more than this stands still until the store's has caught up; one further ahead goes back.
"""

DRIFT = 500e-6
"""How far the ticks of a machine may stray: what a daemon that keeps the time allows itself."""

LOOK_MS = 10
"""How long, by itself and by the ticks, the machine's clock is taken at its word before the next look."""

ULID_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ULID = re.compile(f"[{ULID_LETTERS}]{{26}}")


def ulid_of(at_ms: int, rest: int) -> str:
    """An id of 26 letters that sorts by its millisecond first and then by 80 bits more."""
    number = at_ms << 80 | rest
    return "".join(ULID_LETTERS[number >> shift & 31] for shift in range(125, -1, -5))


class Bounds(NamedTuple):
    """Between what the store's time less the ticks lay, at a tick."""

    least_ms: float
    most_ms: float
    at_ms: float

    def by(self, ticks_ms: float) -> tuple[float, float]:
        """The same at a later tick: what is known of a clock is worth less as time goes by."""
        stray_ms = DRIFT * (ticks_ms - self.at_ms)
        return self.least_ms - stray_ms, self.most_ms + stray_ms


class StoreClock:
    """The time of a store, as well as a process can know it; without a word from one, the machine's.

    A machine's clock that is set back does not take this one along: it goes on by the ticks. One that is
    set forward does, for that is how a machine wakes up. What a store says of its time overrules both.

    Threads may share it: every step is one assignment, and losing one of two costs a millisecond at most.
    """

    def __init__(self, wall_ns: Callable[[], int], ticks_ns: Callable[[], float]) -> None:
        self._wall_ns, self._ticks_ns = wall_ns, ticks_ns
        self._shift_ms = 0  # what is added to the machine's time
        self._told_ms = self._look_at_ms = 0
        self._trusted_ns = 0.0
        self._lead_ms, self._looked_ms = -math.inf, 0.0  # how far this clock was before the ticks, and when
        self._bounds: Bounds | None = None

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        now_ms = self._wall_ns() // 1_000_000 + self._shift_ms
        # The ticks too: a clock that was set back by as much as has passed shows what it showed before.
        if self._told_ms <= now_ms < self._look_at_ms and self._ticks_ns() < self._trusted_ns:
            self._told_ms = now_ms
            return now_ms
        return self._look()

    def observe(self, earliest_ms: float, latest_ms: float, sent_ms: float, received_ms: float) -> None:
        """Learn what a reply says, see ``World.observe``; what contradicts earlier ones replaces them."""
        least_ms, most_ms, at_ms = earliest_ms - received_ms, latest_ms - sent_ms, received_ms
        if self._bounds is None:
            self._told_ms = 0  # what was told before was a guess
        else:
            at_ms = max(at_ms, self._bounds.at_ms)
            known_least_ms, known_most_ms = self._bounds.by(at_ms)
            if least_ms <= known_least_ms and known_most_ms <= most_ms:
                return  # it tells nothing new
            if least_ms <= known_most_ms and known_least_ms <= most_ms:
                least_ms, most_ms = max(least_ms, known_least_ms), min(most_ms, known_most_ms)
        self._bounds = Bounds(least_ms, most_ms, at_ms)
        self._look_at_ms = 0

    def _look(self) -> int:
        """Compare the machine's clock with the ticks, and with what the store has said."""
        wall_ms, ticks_ms = self._wall_ns() // 1_000_000, self._ticks_ns() / 1e6
        now_ms = wall_ms + self._shift_ms
        # A millisecond less may be rounding.
        steady_ms = ticks_ms + self._lead_ms - DRIFT * (ticks_ms - self._looked_ms) - 1
        if now_ms < steady_ms:
            now_ms = math.ceil(steady_ms)
        if self._bounds is not None:
            least_ms, most_ms = self._bounds.by(ticks_ms)
            now_ms = max(min(now_ms, math.floor(most_ms + ticks_ms)), math.ceil(least_ms + ticks_ms))
        self._shift_ms = now_ms - wall_ms
        self._lead_ms, self._looked_ms = now_ms - ticks_ms, ticks_ms
        self._look_at_ms, self._trusted_ns = now_ms + LOOK_MS, (ticks_ms + LOOK_MS) * 1e6
        if 0 < self._told_ms - now_ms <= AHEAD_MS_MAX:
            return self._told_ms
        self._told_ms = now_ms
        return now_ms


def _ticks_ms(monotonic: Callable[[], float] = time.monotonic) -> float:
    return monotonic() * 1000


_MACHINE = StoreClock(time.time_ns, time.monotonic_ns)
"""One for the whole process, so that all who share a store in it have the same time."""


def _nothing_to_learn(earliest_ms: float, latest_ms: float, sent_ms: float, received_ms: float) -> None:
    """The clock of this world goes by no store."""


@dataclass(frozen=True, slots=True)
class World:
    """``now_ms`` counts milliseconds since the epoch; ``ticks_ms`` never runs backwards."""

    now_ms: Callable[[], int] = _MACHINE.now_ms
    ticks_ms: Callable[[], float] = _ticks_ms
    random: random.Random = field(default_factory=random.SystemRandom)
    observe: Callable[[float, float, float, float], None] = _nothing_to_learn
    """How a store tells its time: its clock showed something between the first two, in milliseconds since
    the epoch, at some instant between the other two, which are ticks."""
    nap: Callable[[float], None] | None = None
    """How seconds pass for whoever sleeps, where a clock is set by hand."""

    def for_store(self) -> World:
        """This world for one store that has a clock of its own, and the store's time as its ``now_ms``."""
        if self.now_ms == _MACHINE.now_ms and self.ticks_ms is _ticks_ms:
            clock = StoreClock(time.time_ns, time.monotonic_ns)
        else:
            clock = StoreClock(lambda: self.now_ms() * 1_000_000, lambda: self.ticks_ms() * 1e6)
        return replace(self, now_ms=clock.now_ms, observe=clock.observe)

    def new_ulid(self) -> str:
        """An id of 26 letters that sorts by the millisecond in which it was made."""
        return ulid_of(self.now_ms(), self.random.getrandbits(80))

    def new_token(self) -> str:
        """Eleven letters that nobody can guess, safe in keys, URLs and commands: none begins with a dash."""
        while True:
            token = urlsafe_b64encode(self.random.getrandbits(64).to_bytes(8)).decode().rstrip("=")
            if token[0].isalnum():
                return token
