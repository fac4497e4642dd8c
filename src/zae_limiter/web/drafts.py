"""How headers spell what there is to say of limits: each draft and each older style as data.

A ``LimitReading`` is one limit as a header tells it; ``reading_of`` makes it from the status of a lease or a
refusal. Its numbers keep one law: ``remaining`` within ``effective`` seconds is never more than ``quota``
within ``window``, so nobody who goes by them is refused for it. Nothing here knows whose limit it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from ..engine.remaining import Standing
from ..models import Limit, LimitKind, LimitStatus
from ..models.leases import LeaseStatus
from .structured import INTEGER_MAX, item, text_of

Status: TypeAlias = Standing | LeaseStatus | LimitStatus
Header: TypeAlias = tuple[str, str]

UNITS: Mapping[str, str] = {
    **dict.fromkeys(("rps", "rpm", "rph", "rpd", "requests"), "requests"),
    **dict.fromkeys(("tps", "tpm", "tph", "tpd", "tokens"), "tokens"),
    **dict.fromkeys(("itpm", "input_tokens"), "input-tokens"),
    **dict.fromkeys(("otpm", "output_tokens"), "output-tokens"),
}
"""What limits of customary names count; a draft takes it for requests where nothing is said."""

SEAT_SECONDS_MAX = 1
"""Nobody knows when work ends, so who is refused a seat asks again soon."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LimitReading(NamedTuple):
    """One limit as headers tell it, in whole tokens and whole seconds."""

    name: str
    quota: int
    window: int | None
    """In how many seconds the quota is let through; ``None`` for a limit of concurrency."""
    unit: str | None
    remaining: int
    effective: int | None
    """Within how many seconds no more than what remains may be used."""
    capacity: int
    reset: int | None
    """Seconds until it is full or begins anew; ``None`` if that never comes."""
    reset_at_ms: int | None


def whole_seconds(seconds: float) -> int:
    """Seconds rounded up; what came from whole milliseconds is not rounded twice."""
    return -(-math.ceil(round(seconds * 1000, 3)) // 1000)


def unit_of_limit(limit: Limit, units: Mapping[str, str]) -> str | None:
    """What a limit counts, as far as that is known."""
    if limit.kind is LimitKind.CONCURRENT:
        return "concurrent-requests"
    return limit.unit or units.get(limit.name)


def left_of(status: Status) -> int:
    """The whole tokens that one request left or found; negative in debt."""
    return status.available if isinstance(status, LimitStatus) else status.remaining


def share_of(status: Status) -> tuple[int, int | None]:
    """What remains, and within how many seconds no more than that may be used."""
    limit, remaining = status.limit, max(0, left_of(status))
    quota, window = limit.refill_amount, limit.window_seconds
    if window is None:
        return remaining, None
    # Beyond the largest integer there is no such time, so less is told than there is.
    remaining = min(remaining, INTEGER_MAX * quota // window)
    if not remaining:
        wait = _told(status.next_after_seconds)
        return 0, None if wait is None else max(1, wait)
    effective = -(-remaining * window // quota)
    if limit.kind is not LimitKind.RATE:  # nothing comes before the boundary
        effective = max(effective, _told(status.reset_after_seconds) or 0)
    return remaining, effective


def reading_of(status: Status, units: Mapping[str, str] = UNITS) -> LimitReading:
    """What headers tell of a limit, by how one request found it."""
    limit, (remaining, effective) = status.limit, share_of(status)
    return LimitReading(
        *(limit.name, limit.refill_amount, limit.window_seconds, unit_of_limit(limit, units), remaining),
        *(effective, limit.capacity, _told(status.reset_after_seconds), status.reset_at_ms),
    )


def _told(seconds: float) -> int | None:
    return None if math.isinf(seconds) else min(whole_seconds(seconds), INTEGER_MAX)


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft of the IETF: the names of its two fields and of their parameters."""

    policy: str = "RateLimit-Policy"
    values: str = "RateLimit"
    quota: str = "q"
    window: str = "w"
    unit: str = "qu"
    remaining: str = "r"
    effective: str = "t"

    def policy_item(self, limit: Limit, units: Mapping[str, str]) -> str:
        """What a limit lets through: the same for every request."""
        told: dict[str, str | int] = {self.quota: limit.refill_amount}
        if (window := limit.window_seconds) is not None:
            told[self.window] = window
        unit = unit_of_limit(limit, units)
        if unit is not None and unit != "requests":  # which is what it means without
            told[self.unit] = unit
        return item(limit.name, told)

    def values_item(self, name: str, status: Status) -> str:
        """What is left of a limit, and for how long; its name as ``text_of`` writes it."""
        remaining, effective = share_of(status)
        told = f"{name};{self.remaining}={text_of(remaining)}"
        return told if effective is None else f"{told};{self.effective}={text_of(effective)}"


DRAFTS: Mapping[str, Draft] = {"draft-11": Draft(), "pr-166": Draft(remaining="a", effective="w")}
"""Those that can be chosen: the newest draft, and it with the names that are proposed for the next."""


def binding(readings: Sequence[LimitReading]) -> LimitReading:
    """The limit that has the least left of what it can hold, for styles that tell of one.

    Seats come back when work ends, and a client that waits for less than its own would wait for itself. So
    they are told where there is nothing else, and when to ask again is what a refusal says.
    """
    those = [one for one in readings if one.window is not None] or [_asked_soon(one) for one in readings]
    return min(those, key=lambda one: (one.remaining / one.capacity, -(one.reset or 0)))


def _asked_soon(seats: LimitReading) -> LimitReading:
    """A limit of concurrency, whose hold is no time that anybody has to wait."""
    if seats.reset is None or (later := seats.reset - SEAT_SECONDS_MAX) <= 0:
        return seats
    at_ms = None if seats.reset_at_ms is None else seats.reset_at_ms - later * 1000
    return seats._replace(reset=SEAT_SECONDS_MAX, reset_at_ms=at_ms)


def _triple(readings: Sequence[LimitReading]) -> list[Header]:
    one = binding(readings)
    numbers = one.capacity, one.remaining, one.reset
    names = "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"
    return [(name, str(number)) for name, number in zip(names, numbers, strict=True) if number is not None]


def _x_ratelimit(readings: Sequence[LimitReading]) -> list[Header]:
    one = binding(readings)
    at = None if one.reset_at_ms is None else -(-one.reset_at_ms // 1000)
    names = "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"
    numbers = one.capacity, one.remaining, at
    return [(name, str(number)) for name, number in zip(names, numbers, strict=True) if number is not None]


def duration(seconds: int) -> str:
    """Seconds as OpenAI writes them.

    >>> duration(0), duration(59), duration(360), duration(3_661)
    ('0s', '59s', '6m0s', '1h1m1s')
    """
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _by_unit(readings: Sequence[LimitReading], units: Iterable[str]) -> Iterable[LimitReading]:
    """For each unit the limit that binds, if one counts it."""
    for unit in units:
        if those := [one for one in readings if one.unit == unit]:
            yield binding(those)


def _openai(readings: Sequence[LimitReading]) -> list[Header]:
    told: list[Header] = []
    for one in _by_unit(readings, ("requests", "tokens")):
        told.append((f"x-ratelimit-limit-{one.unit}", str(one.capacity)))
        told.append((f"x-ratelimit-remaining-{one.unit}", str(one.remaining)))
        if one.reset is not None:
            told.append((f"x-ratelimit-reset-{one.unit}", duration(one.reset)))
    return told


def _anthropic(readings: Sequence[LimitReading]) -> list[Header]:
    told: list[Header] = []
    for one in _by_unit(readings, ("requests", "tokens", "input-tokens", "output-tokens")):
        told.append((f"anthropic-ratelimit-{one.unit}-limit", str(one.capacity)))
        told.append((f"anthropic-ratelimit-{one.unit}-remaining", str(one.remaining)))
        if (at := _instant(one.reset_at_ms)) is not None:
            told.append((f"anthropic-ratelimit-{one.unit}-reset", at))
    return told


def _instant(at_ms: int | None) -> str | None:
    """An instant as RFC 3339 writes it, rounded up; nothing if no calendar has it."""
    if at_ms is None:
        return None
    try:
        return f"{_EPOCH + timedelta(seconds=-(-at_ms // 1000)):%Y-%m-%dT%H:%M:%SZ}"
    except OverflowError:
        return None


LEGACY: Mapping[str, Callable[[Sequence[LimitReading]], list[Header]]] = {
    "triple": _triple,
    "x-ratelimit": _x_ratelimit,
    "openai": _openai,
    "anthropic": _anthropic,
}
"""Older styles that can be sent beside a draft, or instead of it."""
