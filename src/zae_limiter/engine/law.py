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
from ..models.accruals import CONCURRENT, STEP_MS_SPARE, steps_of
from ..models.schedules import schedule_of, with_rest

TOKEN_MILLI = 1_000


class Rate(NamedTuple):
    """The numbers of one limit in the units of the arithmetic."""

    capacity_milli: int
    refill_amount_milli: int
    refill_period_ms: int
    accrual: str | None = None
    """When the refill comes: spread over the period, or as a whole at the steps that this text names."""
    schedule: str | None = None
    """When other numbers count; those of the rate are the ones of one phase. ``phases`` knows the others."""

    @classmethod
    def of(cls, limit: Limit) -> Rate:
        numbers = limit.capacity_milli, limit.refill_amount_milli, limit.refill_period_ms
        if limit.schedule is None:
            return cls(*numbers, limit.accrual)
        return cls(*numbers, limit.accrual, with_rest(limit.schedule, *numbers[:2]))

    @property
    def fill_ms(self) -> int:
        """How long an empty bucket takes to fill, rounded up."""
        if self.schedule is not None:
            return fill_ms(self, schedule_of(self.schedule).capacity_max)
        return fill_ms(self, self.capacity_milli)


def accrued(rate: Rate, t_ms: int) -> int:
    """What the rate has brought since the epoch, in millitokens."""
    if rate.accrual is not None:
        return steps_of(rate.accrual).count(t_ms) * rate.refill_amount_milli
    return t_ms * rate.refill_amount_milli // rate.refill_period_ms


def gain(rate: Rate, origin_ms: int, now_ms: int) -> int:
    """What a bucket has gained since its origin; time never runs backwards."""
    if now_ms <= origin_ms:
        return 0
    _, amount, period, accrual, _ = rate
    if accrual is not None:
        return accrued(rate, now_ms) - accrued(rate, origin_ms)
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
    if rate.accrual is not None:
        if rate.accrual == CONCURRENT:
            return fill_ms(rate, deficit_milli)
        steps = steps_of(rate.accrual)
        return steps.instant(steps.count(now_ms) - (-deficit_milli // rate.refill_amount_milli)) - now_ms
    target = accrued(rate, now_ms) + deficit_milli
    return -(-target * rate.refill_period_ms // rate.refill_amount_milli) - now_ms


def fill_ms(rate: Rate, missing_milli: int) -> int:
    """How long it takes at most until so much has accrued, whenever that begins."""
    if rate.accrual is not None:
        if rate.accrual == CONCURRENT:  # what nobody renews is back by then
            return -(-rate.refill_period_ms * 9 // 8) if missing_milli > 0 else 0
        return max(0, -(-missing_milli // rate.refill_amount_milli)) * rate.refill_period_ms + STEP_MS_SPARE
    amount = rate.refill_amount_milli if rate.schedule is None else schedule_of(rate.schedule).amount_min
    return max(0, -(-missing_milli * rate.refill_period_ms // amount))


def retry_after_ms(rate: Rate, tokens_milli: int, origin_ms: int, need_milli: int, now_ms: int) -> float:
    """The smallest wait after which the balance covers the need; ``inf`` if it never can."""
    if need_milli > rate.capacity_milli:
        return math.inf
    start_ms = max(now_ms, origin_ms)  # a clock behind the origin sees no gain before the origin is reached
    deficit_milli = need_milli - balance(rate, tokens_milli, origin_ms, start_ms)
    return start_ms - now_ms + wait_ms(rate, deficit_milli, start_ms) if deficit_milli > 0 else 0
