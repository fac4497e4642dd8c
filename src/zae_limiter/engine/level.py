"""How one limit of a bucket stands: its rate, and what was stored when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..models.accruals import CONCURRENT, SESSION, kind_of, steps_of
from .law import Rate, balance, floored, gain, retry_after_ms
from .phases import held_at, wait_of


class Level(NamedTuple):
    """One limit of a bucket as its users see it: a rate, and what was stored when."""

    rate: Rate
    tokens_milli: int
    origin_ms: int
    cut_milli: int | None = None
    """What a cut that is still to be carried out takes away."""
    back_milli: int = 0
    """What came back for those who book later, and is there for all when everybody has had its turn."""
    over_ms: int = 0
    """When everybody has had its turn who waits for it; 0 if nobody does."""
    since_ms: int = 0
    """Since when it has the numbers of the rate, if these change with the time of day."""

    def balance(self, now_ms: int) -> int:
        tokens = self.tokens_milli
        if self.back_milli and now_ms >= self.over_ms:  # as much of it as there is room for then
            room = self.rate.capacity_milli - gain(self.rate, self.origin_ms, self.over_ms)
            tokens = max(tokens, min(tokens + self.back_milli, room))
        if self.rate.schedule is not None:
            held = held_at(self.rate, tokens, self.origin_ms, self.since_ms, now_ms)
        else:
            held = balance(self.rate, tokens, self.origin_ms, now_ms)
        if self.cut_milli is None:
            return held
        return floored(held, held + self.cut_milli, self.rate.capacity_milli)

    def retry_after_ms(self, need_milli: int, now_ms: int) -> float:
        return self._after_ms(need_milli, now_ms)

    def full_after_ms(self, now_ms: int) -> float:
        """How long until it is full, by the numbers that it has then."""
        if self.rate.schedule is None:
            return self.retry_after_ms(self.rate.capacity_milli, now_ms)
        return self._after_ms(None, now_ms)

    def _after_ms(self, need_milli: int | None, now_ms: int) -> float:
        wait = self._wait_ms(self.tokens_milli, need_milli, now_ms)
        if not self.back_milli:
            return wait
        whole = self._wait_ms(self.tokens_milli + self.back_milli, need_milli, now_ms)
        return min(wait, max(whole, self.over_ms - now_ms))

    def _wait_ms(self, tokens_milli: int, need_milli: int | None, now_ms: int) -> float:
        if self.rate.schedule is not None or need_milli is None:
            return wait_of(self.rate, tokens_milli, self.origin_ms, self.since_ms, need_milli, now_ms)
        return retry_after_ms(self.rate, tokens_milli, self.origin_ms, need_milli, now_ms)

    def reset_ms(self, now_ms: int) -> float:
        """How long until it begins anew, or is full."""
        return reset_ms([self.rate], self.full_after_ms(now_ms), now_ms)


def reset_ms(rates: Iterable[Rate], full_ms: float, now_ms: int) -> float:
    """How long until the next boundary, or the end of a window that was used.

    ``full_ms`` is how long it takes to be full, which is the answer for limits that have neither. The rates
    are those of all shards of one limit: each has a window of its own.
    """
    waits: list[float] = []
    for rate in rates:
        accrual = rate.accrual
        if accrual is None or accrual == CONCURRENT or (kind_of(accrual) == SESSION and full_ms == 0):
            return full_ms
        if accrual != SESSION:  # whose window is still to begin
            steps = steps_of(accrual)
            waits.append(steps.instant(steps.count(now_ms) + 1) - now_ms)
    return max(waits, default=0)
