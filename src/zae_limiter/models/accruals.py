"""How limits accrue that are no plain rates: their refill comes as a whole, at *steps*.

A limit names its steps by a text, which is what records keep: ``month@Europe/Berlin``, ``week@UTC``,
``cron(0 6 * * 1)@UTC``. Steps are instants in milliseconds, and all that the law asks of them is how many
there were and when one of them is.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Protocol, TypeGuard

from ..exceptions import ValidationError, shown
from .calendars import Calendar, WallClock
from .cron import Marks, longest_seconds

CONCURRENT = "concurrent"
"""No steps at all: what is taken comes back when its holder gives it back, or is not heard of any more."""

SESSION = "session"
"""Steps a window apart, from when the window began: a bucket knows that of its own."""

LASTING = {CONCURRENT: "hold", SESSION: "window"}
"""Limits that say themselves how long something lasts, and what that is called."""

STEP_MS_SPARE = 86_400_000
"""A change of a zone's clock makes a period longer by no more than this."""

PERIODS = {
    "hour": ("0 * * * *", 3_600),
    "day": ("0 0 * * *", 86_400),
    "week": ("0 0 * * 1", 7 * 86_400),
    "month": ("0 0 1 * *", 31 * 86_400),
    "year": ("0 0 1 1 *", 366 * 86_400),
}
"""Calendar periods: the marks at which they begin, and how many seconds the longest has."""

_WINDOW = re.compile(r"session\(([0-9]+)\)@([0-9]+)")
_CRON = re.compile(r"cron\((.*)\)")
_ZONE = re.compile(r"(?!localtime$)[A-Za-z][A-Za-z0-9_+\-]*(?:/[A-Za-z0-9_+\-]+){0,2}")
_RULE = f"use a period ({', '.join(PERIODS)}, or cron(...)) and a zone, such as 'month@Europe/Berlin'"


class Steps(Protocol):
    """Instants at which a refill comes."""

    def count(self, t_ms: int) -> int:
        """How many there were until an instant, and at it; never fewer later."""

    def instant(self, number: int) -> int:
        """The first instant at which so many are counted."""


class _NoSteps:
    """Of a limit that nothing is added to as time passes, or only once it is used."""

    def count(self, t_ms: int) -> int:  # noqa: ARG002 - none, whenever
        return 0

    def instant(self, number: int) -> int:
        raise AssertionError(f"step {number} of a limit that has none")


class _Windows:
    """Of a window that began at an instant; nothing else begins anew what nobody uses."""

    def __init__(self, period_ms: int, start_ms: int) -> None:
        self._period_ms, self._start_ms = period_ms, start_ms

    def count(self, t_ms: int) -> int:
        return max(0, (t_ms - self._start_ms) // self._period_ms)

    def instant(self, number: int) -> int:
        return self._start_ms + number * self._period_ms


def window(period_ms: int, start_ms: int) -> str:
    """The text for a session window that began at an instant; it is never stored as such."""
    return f"{SESSION}({period_ms})@{start_ms}"


def window_start(accrual: str) -> int | None:
    """When the window began that a text names."""
    found = _WINDOW.fullmatch(accrual)
    return None if found is None else int(found[2])


def kind_of(accrual: str | None) -> str | None:
    """An accrual as a limit has it: windows of all buckets are of one kind."""
    return SESSION if accrual is not None and window_start(accrual) is not None else accrual


def calendar(period: str, tz: str = "UTC") -> str:
    """The text for a calendar period in a time zone."""
    if not isinstance(tz, str):
        raise ValidationError("tz", tz, "write a time zone such as 'Europe/Berlin'")
    return f"{period}@{tz}"


def cron(expression: str, tz: str = "UTC") -> str:
    """The text for boundaries that are written like cron's."""
    Marks(expression)
    return calendar(f"cron({' '.join(expression.split())})", tz)


def check_period(period: str) -> str:
    """The name of a calendar period, or boundaries that are written like cron's."""
    if period not in PERIODS and not _CRON.fullmatch(period):
        raise ValidationError("period", period, f"use {', '.join(PERIODS)} or cron(...)")
    period_seconds(calendar(period))
    return period


def check_zone(tz: str) -> str:
    """The name of a time zone that is known here."""
    clock_of(tz)
    return tz


def period_and_zone(accrual: str) -> tuple[str, str]:
    """The period that a text names, and the zone."""
    period, _, tz = accrual.rpartition("@")
    return period, tz


@lru_cache(4096)
def period_seconds(accrual: str) -> int:
    """How long the longest period is that a text names."""
    period, _ = period_and_zone(accrual)
    if period in PERIODS:
        return PERIODS[period][1]
    if (found := _CRON.fullmatch(period)) is not None:
        return longest_seconds(found[1])
    raise ValidationError("accrual", accrual, _RULE)


@lru_cache(4096)
def steps_of(accrual: str) -> Steps:
    """The steps that a text names."""
    if accrual in LASTING:
        return _NoSteps()
    if (found := _WINDOW.fullmatch(accrual)) is not None:
        return _Windows(int(found[1]), int(found[2]))
    seconds, (period, tz) = period_seconds(accrual), period_and_zone(accrual)
    expression = PERIODS[period][0] if period in PERIODS else period[len("cron(") : -1]
    return Calendar(Marks(expression), clock_of(tz), seconds * 1000)


@lru_cache(1024)
def clock_of(tz: str) -> WallClock:
    """The clock of a time zone."""
    return WallClock(zone_of(tz))


def zone_of(tz: str) -> tzinfo:
    """A time zone by its name."""
    if tz == "UTC":
        return UTC  # which is there without a database
    from difflib import get_close_matches  # what only quotas need is not loaded for others
    from zoneinfo import ZoneInfo, available_timezones

    with suppress(KeyError, ValueError, OSError):  # whatever a database has against a name
        if isinstance(tz, str) and _ZONE.fullmatch(tz):
            return ZoneInfo(tz)
    names = {name.lower(): name for name in available_timezones()}
    near = get_close_matches(shown(tz).strip("'").lower(), names, 1)
    hint = f"did you mean {names[near[0]]!r}?" if near else "write one such as 'Europe/Berlin'"
    missing = "" if names else "; this machine has no time zones: pip install tzdata"
    raise ValidationError("tz", tz, f"no such time zone is known here; {hint}{missing}")


def check_accrual(field_name: str, accrual: str, seconds: int) -> None:
    """A text that names steps, for a limit with such a period."""
    longest = checked_seconds(field_name, accrual)
    if longest is not None and longest != seconds:
        reason = f"its longest period has {longest} seconds; say that, not {shown(seconds)}"
        raise ValidationError(field_name, accrual, reason)


def checked_seconds(field_name: str, accrual: str) -> int | None:
    """How long the longest period is of a text that names steps; ``None`` if the limit says that itself."""
    if not isinstance(accrual, str):
        raise ValidationError(field_name, accrual, f"it must be text, not {type(accrual).__name__}")
    try:
        steps_of(accrual)
    except ValidationError as error:
        if error.field != "accrual":
            raise
        raise ValidationError(field_name, accrual, error.reason) from None
    return None if accrual in LASTING else period_seconds(accrual)


def is_accrual(value: object, period_ms: int) -> TypeGuard[str]:
    """Whether a stored value names steps that this process knows, of a limit with such a period."""
    return isinstance(value, str) and _is_known(value, period_ms)


@lru_cache(4096)
def _is_known(accrual: str, period_ms: int) -> bool:
    with suppress(ValidationError):
        check_accrual("accrual", accrual, period_ms // 1000)
        return accrual in LASTING or period_ms % 1000 == 0
    return False
