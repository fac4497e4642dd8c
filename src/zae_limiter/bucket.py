"""Token bucket arithmetic on states, as programs call it; the law itself is in ``engine.law``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .engine.law import TOKEN_MILLI, Rate, balance, retry_after_ms, wait_ms
from .engine.level import Level
from .exceptions import ValidationError
from .models import NUMBER_MAX, BucketState, Limit, LimitStatus, check_count, check_mapping


class Refill(NamedTuple):
    new_tokens_milli: int
    new_last_refill_ms: int


class Consumption(NamedTuple):
    success: bool
    new_tokens_milli: int
    new_last_refill_ms: int
    available: int
    retry_after_seconds: float


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
    wait_seconds = 0.0 if limit.soft else calculate_time_until_available(state, requested, now_ms)
    exceeded = wait_seconds > 0
    found = entity_id, resource, limit.name, limit, available, requested, exceeded, wait_seconds
    at = Level(rate_of(state), state.tokens_milli, state.last_refill_ms)
    waits = _seconds(at.reset_ms(now_ms)), _seconds(at.retry_after_ms(TOKEN_MILLI, now_ms))
    return LimitStatus(*found, *waits, now_ms)


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
    numbers = state.capacity_milli, state.refill_amount_milli, state.refill_period_ms
    return _check_rate(Rate(*numbers, state.accrual))


def _check_rate(rate: Rate) -> Rate:
    _check(capacity_milli=rate.capacity_milli)
    check_count("refill_amount_milli", rate.refill_amount_milli, NUMBER_MAX)
    check_count("refill_period_ms", rate.refill_period_ms, NUMBER_MAX)
    return rate


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        check_count(name, number, NUMBER_MAX, -NUMBER_MAX)
