"""A limit whose numbers change with the time of day: what becomes of its balance. Pure, integers only.

Within a phase the law is that of a plain rate. At a boundary the numbers change as they do for any other
reason: a raise gives the difference at once, and a cut takes it without making debt. So what is missing until
a bucket is full never grows by itself, and a full bucket stays full.

    held(end of a phase) = min(cp, tk + accrued(end) - accrued(rf))       by the numbers of the phase
    held(next phase)     = held + difference of the capacities            by the next ones; a cut is floored
"""

from __future__ import annotations

import math

from ..models.schedules import Phase, schedule_of
from .law import Rate, balance, floored, is_cut, retry_after_ms

PHASES_MAX = 1_000
"""Through how many phases a bucket is followed that nobody used, and how many to come are looked at."""


def numbers_of(rate: Rate, phase: Phase) -> Rate:
    """A rate with the numbers of a phase."""
    return rate._replace(capacity_milli=phase.capacity, refill_amount_milli=phase.amount)


def rate_at(rate: Rate, t_ms: int) -> Rate:
    """A rate with the numbers of an instant."""
    return rate if rate.schedule is None else numbers_of(rate, schedule_of(rate.schedule).phase(t_ms))


def crossed(before: Rate, after: Rate, held_milli: int, *, waits: bool = False) -> int:
    """What a bucket holds when a phase begins, of what it held when the one before ended.

    While somebody waits what is owed is theirs: no cut lets it off.
    """
    moved = held_milli + after.capacity_milli - before.capacity_milli
    if waits or not is_cut(before, after):
        return moved
    return floored(moved, held_milli, after.capacity_milli)


def held_at(
    rate: Rate, tokens_milli: int, origin_ms: int, since_ms: int, t_ms: int, booked_ms: int = 0
) -> int:
    """What a limit holds at an instant that had so much at its origin.

    Its numbers were those of ``since_ms`` then, if that is later; somebody waits until ``booked_ms``. Of
    phases further back than can be followed the least is counted that can have accrued.
    """
    assert rate.schedule is not None, "a plain rate has no phases"
    schedule = schedule_of(rate.schedule)
    phase = schedule.phase(max(origin_ms, since_ms))
    at = numbers_of(rate, phase)
    for followed in range(3 * PHASES_MAX):
        if t_ms < phase.end_ms:
            break
        held = balance(at, tokens_milli, origin_ms, phase.end_ms)
        if held >= at.capacity_milli:
            return schedule.phase(t_ms).capacity
        before, phase = at, schedule.phase(phase.end_ms)
        if followed == PHASES_MAX:
            slowly, from_ms = at._replace(refill_amount_milli=schedule.amount_min), phase.start_ms
            phase = schedule.phase(t_ms)
            for _ in range(PHASES_MAX):
                if phase.start_ms <= from_ms:
                    break
                phase = schedule.phase(phase.start_ms - 1)
            held = balance(slowly, held, from_ms, max(from_ms, phase.start_ms))
        at = numbers_of(rate, phase)
        tokens_milli = crossed(before, at, held, waits=phase.start_ms < booked_ms)
        origin_ms = phase.start_ms
    return balance(at, tokens_milli, origin_ms, t_ms)


def wait_of(
    rate: Rate, tokens_milli: int, origin_ms: int, since_ms: int, need_milli: int | None, now_ms: int
) -> float:
    """The smallest wait after which the balance covers the need; ``inf`` if no phase allows that.

    Without a need it is until the limit is full by the numbers of that time. Whoever would wait for longer
    than the phases that are looked at is told to ask again then.
    """
    assert rate.schedule is not None, "a plain rate has no phases"
    schedule = schedule_of(rate.schedule)
    if need_milli is not None and need_milli > schedule.capacity_max:
        return math.inf
    at_ms = max(now_ms, origin_ms)
    held = held_at(rate, tokens_milli, origin_ms, since_ms, at_ms)
    phase = schedule.phase(max(at_ms, since_ms))
    enough = numbers_of(rate, phase).capacity_milli if need_milli is None else need_milli
    if held >= enough:  # also for a clock that is behind the origin
        return 0
    for _ in range(PHASES_MAX):
        at = numbers_of(rate, phase)
        need = at.capacity_milli if need_milli is None else need_milli
        turn_ms = at_ms + retry_after_ms(at, held, at_ms, need, at_ms)
        if turn_ms < phase.end_ms:
            return turn_ms - now_ms
        held, at_ms = balance(at, held, at_ms, phase.end_ms), phase.end_ms
        phase = schedule.phase(at_ms)
        held = crossed(at, numbers_of(rate, phase), held)
    return at_ms - now_ms
