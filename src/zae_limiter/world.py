"""All nondeterminism in one value: the clock, randomness and fresh ids.

Nothing else in the package reads a clock or rolls dice, so a test or a simulation that passes its
own ``World`` decides everything that happens.
"""

from __future__ import annotations

import random
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field


def _system_now_ms() -> int:
    return time.time_ns() // 1_000_000


_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass(frozen=True, slots=True)
class World:
    """``now_ms`` counts milliseconds since the epoch; ``ticks_ms`` never runs backwards."""

    now_ms: Callable[[], int] = _system_now_ms
    ticks_ms: Callable[[], float] = lambda: time.monotonic() * 1000
    random: random.Random = field(default_factory=random.SystemRandom)

    def new_ulid(self) -> str:
        """An id of 26 letters that sorts by the millisecond in which it was made."""
        number = self.now_ms() << 80 | self.random.getrandbits(80)
        return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))

    def new_token(self) -> str:
        """Eleven letters that nobody can guess, safe in keys, URLs and commands: none begins with a dash."""
        while True:
            token = urlsafe_b64encode(self.random.getrandbits(64).to_bytes(8)).decode().rstrip("=")
            if token[0].isalnum():
                return token
