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

from ..models import Limit, LimitKind, LimitStatus
from ..models.leases import LeaseStatus
from .structured import INTEGER_MAX, item, listed

Status: TypeAlias = LeaseStatus | LimitStatus
Header: TypeAlias = tuple[str, str]

UNITS: Mapping[str, str] = {
    **dict.fromkeys(("rps", "rpm", "rph", "rpd", "requests"), "requests"),
    **dict.fromkeys(("tps", "tpm", "tph", "tpd", "tokens"), "tokens"),
    **dict.fromkeys(("itpm", "input_tokens"), "input-tokens"),
    **dict.fromkeys(("otpm", "output_tokens"), "output-tokens"),
}
"""What limits of customary names count; a draft takes it for requests where nothing is said."""

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


def reading_of(status: Status, units: Mapping[str, str] = UNITS) -> LimitReading:
    """What headers tell of a limit, by how one request found it."""
    limit, left = status.limit, status.remaining if isinstance(status, LeaseStatus) else status.available
    quota, window, remaining = limit.refill_amount, limit.window_seconds, max(0, left)
    effective: int | None = None
    if window is not None:
        # Beyond the largest integer there is no such time, so less is told than there is.
        remaining = min(remaining, INTEGER_MAX * quota // window)
        if remaining:
            effective = -(-remaining * window // quota)
            if limit.kind is not LimitKind.RATE:  # nothing comes before the boundary
                effective = max(effective, _told(status.reset_after_seconds) or 0)
        else:
            effective = _told(status.next_after_seconds)
            effective = None if effective is None else max(1, effective)
    return LimitReading(
        *(status.limit_name, quota, window, unit_of_limit(limit, units), remaining, effective),
        *(limit.capacity, _told(status.reset_after_seconds), status.reset_at_ms),
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

    def policy_item(self, reading: LimitReading) -> str:
        """What a limit lets through: the same for every request."""
        told: dict[str, str | int] = {self.quota: reading.quota}
        if reading.window is not None:
            told[self.window] = reading.window
        if reading.unit is not None and reading.unit != "requests":  # which is what it means without
            told[self.unit] = reading.unit
        return item(reading.name, told)

    def values_item(self, reading: LimitReading) -> str:
        """What is left of it, and for how long."""
        told: dict[str, str | int] = {self.remaining: reading.remaining}
        if reading.effective is not None:
            told[self.effective] = reading.effective
        return item(reading.name, told)

    def values_of(self, readings: Iterable[LimitReading]) -> str:
        """The field that changes from request to request."""
        return listed(map(self.values_item, readings))


DRAFTS: Mapping[str, Draft] = {
    "draft-11": Draft(),
    "pr-166": Draft(remaining="a", effective="w"),
}
"""Those that can be chosen: the newest draft, and it with the names that are proposed for the next."""


def binding(readings: Sequence[LimitReading]) -> LimitReading:
    """The limit that has the least left of what it can hold, for styles that tell of one."""
    return min(readings, key=lambda one: (one.remaining / one.capacity, -(one.reset or 0)))


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
