"""Token bucket arithmetic: integers only, no clock, no store.

``accrued`` counts the millitokens of a rate since the epoch, so gains telescope: whatever the instants
between, they add up to the gain of the whole. Nothing drifts, and limits of any rates can share one origin
``rf``.

    balance(t) = min(cp, tk + accrued(t) - accrued(rf))      (t before rf counts as rf)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .exceptions import ValidationError
from .models import NUMBER_MAX, BucketState, Limit, LimitStatus, check_count, check_mapping

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


class Refill(NamedTuple):
    new_tokens_milli: int
    new_last_refill_ms: int


class Consumption(NamedTuple):
    success: bool
    new_tokens_milli: int
    new_last_refill_ms: int
    available: int
    retry_after_seconds: float


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

    def balance(self, now_ms: int) -> int:
        held = balance(self.rate, self.tokens_milli, self.origin_ms, now_ms)
        if self.cut_milli is None:
            return held
        return floored(held, held + self.cut_milli, self.rate.capacity_milli)

    def retry_after_ms(self, need_milli: int, now_ms: int) -> float:
        return retry_after_ms(self.rate, self.tokens_milli, self.origin_ms, need_milli, now_ms)


def refill_bucket(
    tokens_milli: int,
    last_refill_ms: int,
    now_ms: int,
    capacity_milli: int,
    refill_amount_milli: int,
    refill_period_ms: int,
) -> Refill:
    """Credit what has accrued and move the origin to now."""
    _check(tokens_milli=tokens_milli, last_refill_ms=last_refill_ms, now_ms=now_ms)
    rate = _check_rate(Rate(capacity_milli, refill_amount_milli, refill_period_ms))
    return _refilled(rate, tokens_milli, last_refill_ms, now_ms)


def try_consume(state: BucketState, requested: int, now_ms: int) -> Consumption:
    """Consume whole tokens if the balance covers them, else say how long that will take."""
    rate = rate_of(state)
    _check(requested=requested, now_ms=now_ms)
    held_milli, at_ms = _refilled(rate, state.tokens_milli, state.last_refill_ms, now_ms)
    if held_milli >= requested * 1000:
        return Consumption(True, held_milli - requested * 1000, at_ms, held_milli // 1000, 0.0)
    wait_seconds = calculate_time_until_available(state, requested, now_ms)
    return Consumption(False, held_milli, at_ms, held_milli // 1000, wait_seconds)


def force_consume(state: BucketState, amount: int, now_ms: int) -> Refill:
    """Consume whole tokens without asking; the balance may become negative."""
    rate = rate_of(state)
    _check(amount=amount, now_ms=now_ms)
    held_milli, at_ms = _refilled(rate, state.tokens_milli, state.last_refill_ms, now_ms)
    return Refill(held_milli - amount * 1000, at_ms)


def calculate_retry_after(deficit_milli: int, refill_amount_milli: int, refill_period_ms: int) -> float:
    """Seconds in which a deficit accrues, whenever one begins to wait."""
    rate = _check_rate(Rate(0, refill_amount_milli, refill_period_ms))
    _check(deficit_milli=deficit_milli)
    return _seconds(wait_ms(rate, deficit_milli, 0))


def calculate_time_until_available(state: BucketState, needed: int, now_ms: int) -> float:
    """Seconds until the request passes: at that millisecond it does, one earlier it does not."""
    rate = rate_of(state)
    _check(needed=needed, now_ms=now_ms)
    return _seconds(retry_after_ms(rate, state.tokens_milli, state.last_refill_ms, needed * 1000, now_ms))


def calculate_available(state: BucketState, now_ms: int) -> int:
    """Whole tokens that are there now; rounded down, negative while in debt."""
    rate = rate_of(state)
    _check(now_ms=now_ms)
    return balance(rate, state.tokens_milli, state.last_refill_ms, now_ms) // 1000


def build_limit_status(
    entity_id: str, resource: str, limit: Limit, state: BucketState, requested: int, now_ms: int
) -> LimitStatus:
    """What one request finds at one limit."""
    if not isinstance(limit, Limit):
        raise ValidationError("limit", limit, "pass a Limit")
    _check(requested=requested)
    available = calculate_available(state, now_ms)
    wait_seconds = calculate_time_until_available(state, requested, now_ms)
    exceeded = wait_seconds > 0
    return LimitStatus(entity_id, resource, limit.name, limit, available, requested, exceeded, wait_seconds)


def would_refill_satisfy(
    buckets: Sequence[BucketState], consume: Mapping[str, int], now_ms: int
) -> tuple[bool, list[LimitStatus]]:
    """Whether what has accrued by now covers the request, and what it finds at each limit."""
    if not isinstance(buckets, list | tuple):
        raise ValidationError("buckets", buckets, "pass a list of BucketState")
    wanted = check_mapping("consume", consume, "pass a mapping of whole numbers by limit")
    for state in buckets:
        rate_of(state)
    statuses = [
        build_limit_status(s.entity_id, s.resource, s.limit, s, wanted[s.limit_name], now_ms)
        for s in buckets
        if s.limit_name in wanted
    ]
    return not any(status.exceeded for status in statuses), statuses


def _seconds(at_ms: float) -> float:
    return at_ms / 1000


def _refilled(rate: Rate, tokens_milli: int, origin_ms: int, now_ms: int) -> Refill:
    return Refill(balance(rate, tokens_milli, origin_ms, now_ms), max(origin_ms, now_ms))


def rate_of(state: BucketState) -> Rate:
    """The rate of a state, all of whose numbers can be worked with."""
    if not isinstance(state, BucketState):
        raise ValidationError("state", state, "pass a BucketState")
    _check(tokens_milli=state.tokens_milli, last_refill_ms=state.last_refill_ms)
    return _check_rate(Rate(state.capacity_milli, state.refill_amount_milli, state.refill_period_ms))


def _check_rate(rate: Rate) -> Rate:
    _check(capacity_milli=rate.capacity_milli)
    check_count("refill_amount_milli", rate.refill_amount_milli, NUMBER_MAX)
    check_count("refill_period_ms", rate.refill_period_ms, NUMBER_MAX)
    return rate


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        check_count(name, number, NUMBER_MAX, -NUMBER_MAX)
