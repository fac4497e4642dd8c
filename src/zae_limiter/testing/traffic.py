"""Time that moves only when it is told to, and what limits would do to some traffic meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ..backends.memory import MemoryBackend
from ..exceptions import RateLimitExceeded, ValidationError
from ..models import Limit
from ..runtime.world import World
from ..sync import SyncRateLimiter, SyncRepository


class ManualClock:
    """A settable clock, and the ``World`` that runs on it.

    >>> clock = ManualClock()
    >>> before = clock.world.now_ms()
    >>> clock.advance(1.5)
    >>> clock.world.now_ms() - before
    1500
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, seed: int = 0) -> None:
        self.now_ms: int = now_ms
        # Whoever waits for its turn moves the clock there, for nobody else would.
        ticks, now = lambda: float(self.now_ms), lambda: self.now_ms
        self.world: Final = World(now, ticks, random.Random(seed), nap=self.advance)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.now_ms += round(seconds * 1000)


class Answer(NamedTuple):
    """What became of one request. A refused one is told how long to wait, ``inf`` for ever."""

    at_seconds: float
    amounts: Mapping[str, int]
    admitted: bool
    retry_after_seconds: float = 0.0


def simulate(limits: Sequence[Limit], requests: Iterable[tuple[float, Mapping[str, int]]]) -> list[Answer]:
    """Answer requests of one key as a limiter would: each is an instant in seconds, and amounts by limit.

    They come in the order of their instants. Each is over at once; one that is refused does not come again.

    >>> requests = [(0, {"rpm": 60}), (1, {"rpm": 2}), (2, {"rpm": 2})]
    >>> answers = simulate([Limit.per_minute("rpm", 60)], requests)
    >>> [(answer.admitted, answer.retry_after_seconds) for answer in answers]
    [(True, 0.0), (False, 1.0), (True, 0.0)]
    """
    clock = ManualClock()
    limiter = SyncRateLimiter(SyncRepository.over(MemoryBackend(clock.world), world=clock.world))
    since_ms, answers = clock.now_ms, list[Answer]()
    for at_seconds, amounts in requests:
        at_ms = since_ms + round(at_seconds * 1000)
        if at_ms < clock.now_ms:
            raise ValidationError("instant", at_seconds, "it is before the last one; sort the requests")
        clock.now_ms = at_ms
        try:
            with limiter.acquire("key", "traffic", amounts, limits):
                answers.append(Answer(at_seconds, amounts, True))
        except RateLimitExceeded as refusal:
            answers.append(Answer(at_seconds, amounts, False, refusal.retry_after_seconds))
    return answers
