"""The law of a token bucket: integers only, no clock, no store.

``accrued`` counts the millitokens of a rate since the epoch, so gains telescope: whatever the instants
between, they add up to the gain of the whole. Nothing drifts, and limits of any rates can share one origin
``rf``.

    balance(t) = min(cp, tk + accrued(t) - accrued(rf))      (t before rf counts as rf)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..models import Limit

TOKEN_MILLI = 1_000


class Rate(NamedTuple):
    """The numbers of one limit in the units of the arithmetic."""

    capacity_milli: int
    refill_amount_milli: int
    refill_period_ms: int

    @classmethod
    def of(cls, limit: Limit) -> Rate:
        return cls(limit.capacity_milli, limit.refill_amount_milli, limit.refill_period_ms)

    @property
    def fill_ms(self) -> int:
        """How long an empty bucket takes to fill, rounded up."""
        return -(-self.capacity_milli * self.refill_period_ms // self.refill_amount_milli)


def accrued(rate: Rate, t_ms: int) -> int:
    """What the rate has brought since the epoch, in millitokens."""
    return t_ms * rate.refill_amount_milli // rate.refill_period_ms


def gain(rate: Rate, origin_ms: int, now_ms: int) -> int:
    """What a bucket has gained since its origin; time never runs backwards."""
    if now_ms <= origin_ms:
        return 0
    amount, period = rate.refill_amount_milli, rate.refill_period_ms
    return now_ms * amount // period - origin_ms * amount // period


def balance(rate: Rate, tokens_milli: int, origin_ms: int, now_ms: int) -> int:
    """What a bucket holds now; negative while it is in debt."""
    return min(rate.capacity_milli, tokens_milli + gain(rate, origin_ms, now_ms))


def moved_origin(origin_ms: int, at_ms: int) -> int:
    """An origin that no write was shaped for: whoever moves it takes off what the new one would count again.

    It goes to the instant if that is far ahead, else back: ahead of the clock it would give out what has not
    accrued yet, and where it was before it would not tell old from new.
    """
    return at_ms if at_ms - origin_ms >= 1_000 else origin_ms - 1


def is_cut(before: Rate, after: Rate) -> bool:
    """Whether a change of numbers takes something away: capacity, or speed."""
    if after.capacity_milli < before.capacity_milli:
        return True
    slower = after.refill_amount_milli * before.refill_period_ms
    return slower < before.refill_amount_milli * after.refill_period_ms


def floored(balance_milli: int, before_milli: int, capacity_milli: int) -> int:
    """A balance after a cut, given the one before: no debt that was not there, and none beyond a refill."""
    return max(balance_milli, min(0, max(before_milli, TOKEN_MILLI - capacity_milli)))


def wait_ms(rate: Rate, deficit_milli: int, now_ms: int) -> int:
    """The smallest wait in which at least ``deficit_milli`` accrues, exactly."""
    if deficit_milli <= 0:
        return 0
    target = accrued(rate, now_ms) + deficit_milli
    return -(-target * rate.refill_period_ms // rate.refill_amount_milli) - now_ms


def retry_after_ms(rate: Rate, tokens_milli: int, origin_ms: int, need_milli: int, now_ms: int) -> float:
    """The smallest wait after which the balance covers the need; ``inf`` if it never can."""
    if need_milli > rate.capacity_milli:
        return math.inf
    start_ms = max(now_ms, origin_ms)  # a clock behind the origin sees no gain before the origin is reached
    deficit_milli = need_milli - balance(rate, tokens_milli, origin_ms, start_ms)
    return start_ms - now_ms + wait_ms(rate, deficit_milli, start_ms) if deficit_milli > 0 else 0


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
    """When everybody has had its turn."""

    def balance(self, now_ms: int) -> int:
        held = balance(self.rate, self.tokens_milli, self.origin_ms, now_ms)
        if self.cut_milli is None:
            return held
        return floored(held, held + self.cut_milli, self.rate.capacity_milli)

    def retry_after_ms(self, need_milli: int, now_ms: int) -> float:
        rate, tokens, origin_ms = self.rate, self.tokens_milli, self.origin_ms
        wait = retry_after_ms(rate, tokens, origin_ms, need_milli, now_ms)
        if not self.back_milli:
            return wait
        whole = retry_after_ms(rate, tokens + self.back_milli, origin_ms, need_milli, now_ms)
        return min(wait, max(whole, self.over_ms - now_ms))
