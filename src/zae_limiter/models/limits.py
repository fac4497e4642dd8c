"""A limit: a name, and the numbers by which its buckets hold and gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from ..exceptions import ValidationError, shown
from ..naming import plain, validate_limit_name
from . import accruals
from .accruals import CONCURRENT, check_zone
from .checks import (
    HOLD_SECONDS_MAX,
    PERIOD_SECONDS_MAX,
    SEATS_MAX,
    TOKENS_MAX,
    check_count,
    check_flag,
    check_mapping,
)
from .durations import seconds_of
from .money import check_unit
from .schedules import Window, check_schedule, schedule_of, schedule_text, windows_of, with_rest

if TYPE_CHECKING:
    from . import BucketState

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LimitKind(StrEnum):
    """How what was used of a limit comes back."""

    RATE = "rate"
    """Bit by bit."""
    QUOTA = "quota"
    """As a whole, at the boundaries of calendar periods."""
    SESSION = "session"
    """As a whole, when the window is over that the first use began."""
    CONCURRENT = "concurrent"
    """When whoever took it gives it back."""


@dataclass(frozen=True, slots=True, repr=False)
class Limit:
    """A token bucket: it holds ``capacity`` and gains ``refill_amount`` every ``refill_period_seconds``.

    With an ``accrual`` it is a quota: it gains the amount as a whole, when a period of the calendar begins.

    >>> Limit.per_minute("rpm", 60)
    Limit(name='rpm', capacity=60, refill_amount=60, refill_period_seconds=60)
    >>> Limit.per_second("rps", 10, burst=50).capacity
    50
    """

    name: str
    capacity: int
    refill_amount: int
    refill_period_seconds: int
    accrual: str | None = None
    """When the refill comes as a whole, as text; ``None`` if it is spread over the period."""
    unit: str | None = None
    """What is counted, if that is money: ``usd_micro`` for millionths of a dollar."""
    soft: bool = field(default=False, kw_only=True)
    """Whether it is counted and refuses nobody."""
    schedule: str | None = field(default=None, kw_only=True)
    """When other numbers count, as text; ``None`` if these always do. See ``during``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", plain(validate_limit_name(self.name)))
        check_count(f"capacity of {self.name!r}", self.capacity, TOKENS_MAX)
        check_count(f"refill_amount of {self.name!r}", self.refill_amount, TOKENS_MAX)
        check_count(f"refill_period_seconds of {self.name!r}", self.refill_period_seconds, PERIOD_SECONDS_MAX)
        if self.accrual is not None:
            accruals.check_accrual(f"accrual of {self.name!r}", self.accrual, self.refill_period_seconds)
        if self.accrual == CONCURRENT:
            check_count(f"capacity of {self.name!r}", self.capacity, SEATS_MAX)
            check_count(f"hold of {self.name!r}, in seconds,", self.refill_period_seconds, HOLD_SECONDS_MAX)
            check_count(f"refill_amount of {self.name!r}", self.refill_amount, self.capacity, self.capacity)
        if self.accrual == accruals.SESSION:
            check_count(f"refill_amount of {self.name!r}", self.refill_amount, self.capacity, self.capacity)
        if self.unit is not None:
            check_unit(f"unit of {self.name!r}", self.unit)
        check_flag(f"soft of {self.name!r}", self.soft)
        if self.schedule is not None:
            kept = check_schedule(f"schedule of {self.name!r}", self.schedule)
            if self.accrual is not None:
                reason = f"only a plain rate can have one, not {self.accrual!r}; leave out one of the two"
                raise ValidationError(f"schedule of {self.name!r}", self.schedule, reason)
            object.__setattr__(self, "schedule", kept)

    def __repr__(self) -> str:
        return f"Limit({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    @classmethod
    def per_second(cls, name: str, rate: int, burst: int | None = None) -> Self:
        """``rate`` tokens a second, in a bucket that holds ``burst``, or ``rate`` if no burst is given."""
        return cls._per(name, rate, burst, 1)

    @classmethod
    def per_minute(cls, name: str, rate: int, burst: int | None = None) -> Self:
        """``rate`` tokens a minute, in a bucket that holds ``burst``, or ``rate`` if no burst is given."""
        return cls._per(name, rate, burst, 60)

    @classmethod
    def per_hour(
        cls,
        name: str,
        rate: int,
        burst: int | None = None,
        *,
        calendar: bool = False,
        tz: str | None = None,
        unit: str | None = None,
    ) -> Self:
        """``rate`` tokens a hour, in a bucket that holds ``burst``, or ``rate`` if no burst is given.

        With ``calendar`` they come as a whole, when an hour begins in the time zone.
        """
        return cls._per_hour_or_day("hour", name, rate, burst, calendar, tz, unit)

    @classmethod
    def per_day(
        cls,
        name: str,
        rate: int,
        burst: int | None = None,
        *,
        calendar: bool = False,
        tz: str | None = None,
        unit: str | None = None,
    ) -> Self:
        """``rate`` tokens a day, in a bucket that holds ``burst``, or ``rate`` if no burst is given.

        With ``calendar`` they come as a whole, when a day begins in the time zone.
        """
        return cls._per_hour_or_day("day", name, rate, burst, calendar, tz, unit)

    @classmethod
    def per_week(
        cls, name: str, amount: int, burst: int | None = None, *, tz: str = "UTC", unit: str | None = None
    ) -> Self:
        """``amount`` tokens for each week, which begins on Monday in the time zone."""
        return cls._quota(name, amount, burst, accruals.calendar("week", tz), unit)

    @classmethod
    def per_month(
        cls, name: str, amount: int, burst: int | None = None, *, tz: str = "UTC", unit: str | None = None
    ) -> Self:
        """``amount`` tokens for each calendar month of the time zone.

        What was not used is gone when the next begins; a ``burst`` above the amount is what can be saved up.

        >>> Limit.per_month("usd", 100_000_000, tz="Europe/Berlin", unit="usd_micro").accrual
        'month@Europe/Berlin'
        """
        return cls._quota(name, amount, burst, accruals.calendar("month", tz), unit)

    @classmethod
    def per_year(
        cls, name: str, amount: int, burst: int | None = None, *, tz: str = "UTC", unit: str | None = None
    ) -> Self:
        """``amount`` tokens for each calendar year of the time zone."""
        return cls._quota(name, amount, burst, accruals.calendar("year", tz), unit)

    @classmethod
    def cron(
        cls,
        name: str,
        amount: int,
        expression: str,
        burst: int | None = None,
        *,
        tz: str = "UTC",
        unit: str | None = None,
    ) -> Self:
        """``amount`` tokens each time that the wall clock of the zone shows what the five fields say.

        >>> Limit.cron("reports", 20, "0 6 * * mon", tz="Europe/Berlin").refill_period_seconds
        604800
        """
        return cls._quota(name, amount, burst, accruals.cron(expression, tz), unit)

    @classmethod
    def session(cls, name: str, amount: int, window: str | int, *, unit: str | None = None) -> Self:
        """``amount`` tokens for each window, which begins with the first use and is as long as ``"5h"`` says.

        >>> Limit.session("msgs", 50, "5h").refill_period_seconds
        18000
        """
        return cls(
            name, amount, amount, seconds_of(f"window of {shown(name)}", window), accruals.SESSION, unit
        )

    @classmethod
    def concurrent(cls, name: str, capacity: int, hold: str | int = "5m") -> Self:
        """At most ``capacity`` at work at once: each lease takes a seat, and gives it back when it ends.

        The seat of somebody who crashed is free again after ``hold``, a text such as ``"5m"`` or seconds;
        work that takes longer renews it by itself.

        >>> Limit.concurrent("parallel", 10, hold="30s")
        Limit(name='parallel', capacity=10, refill_amount=10, refill_period_seconds=30, accrual='concurrent')
        """
        return cls(name, capacity, capacity, seconds_of(f"hold of {shown(name)}", hold), CONCURRENT)

    @classmethod
    def custom(cls, name: str, capacity: int, refill_amount: int, refill_period_seconds: int) -> Self:
        """A bucket of any numbers, such as 10 tokens every 90 seconds."""
        return cls(name, capacity, refill_amount, refill_period_seconds)

    @classmethod
    def from_bucket_state(cls, state: BucketState) -> Self:
        """The limit that a stored bucket was filled by."""
        amount, period = state.refill_amount_milli // 1000, state.refill_period_ms // 1000
        return cls(
            state.limit_name, state.capacity_milli // 1000, amount, period, accruals.kind_of(state.accrual)
        )

    @classmethod
    def _per(cls, name: str, rate: int, burst: int | None, seconds: int) -> Self:
        return cls(name, rate if burst is None else burst, rate, seconds)

    @classmethod
    def _per_hour_or_day(cls, period: str, *given: Any) -> Self:
        name, rate, burst, calendar, tz, unit = given
        check_flag("calendar", calendar)
        if calendar:
            return cls._quota(name, rate, burst, accruals.calendar(period, "UTC" if tz is None else tz), unit)
        if tz is not None:
            raise ValidationError("tz", tz, "a plain rate has no time zone; pass calendar=True for a quota")
        return cls(name, rate if burst is None else burst, rate, accruals.PERIODS[period][1], unit=unit)

    @classmethod
    def _quota(cls, name: str, amount: int, burst: int | None, accrual: str, unit: str | None) -> Self:
        accruals.checked_seconds(f"accrual of {shown(name)}", accrual)
        seconds = accruals.period_seconds(accrual)
        return cls(name, amount if burst is None else burst, amount, seconds, accrual, unit)

    def softly(self) -> Self:
        """The same limit, counted as ever, but it refuses nobody.

        >>> Limit.per_minute("rpm", 60).softly()
        Limit(name='rpm', capacity=60, refill_amount=60, refill_period_seconds=60, soft=True)
        """
        return replace(self, soft=True)

    def during(self, window: str, amount: int, burst: int | None = None, *, tz: str | None = None) -> Self:
        """The same limit with other numbers while a window holds: an amount, in a bucket of ``burst``.

        A window is written in the five fields of cron, and holds while the wall clock of the zone shows a
        minute that it names. All windows of a limit are of one zone, UTC if none is named; the first that
        holds wins.

        >>> Limit.per_minute("rpm", 60).during("* 9-16 * * mon-fri", 600, tz="Europe/Berlin").schedule
        '600(* 9-16 * * mon-fri)@Europe/Berlin'
        """
        field_name = f"schedule of {self.name!r}"
        if not isinstance(window, str) or not set("();@").isdisjoint(window):
            raise ValidationError(
                "window", window, "write it in the five fields of cron, '* 9-16 * * mon-fri'"
            )
        for what, number in (("amount", amount), ("burst", amount if burst is None else burst)):
            check_count(f"{what} of {self.name!r} during {window!r}", number, TOKENS_MAX)
        before, zone = ((), tz) if self.schedule is None else windows_of(self.schedule)
        if tz is not None and (not isinstance(tz, str) or "@" in tz or tz != zone):
            if self.schedule is not None:
                raise ValidationError(
                    "tz", tz, f"all windows of a limit are of one zone; this one has {zone!r}"
                )
            check_zone(tz)
        added = Window(amount if burst is None else burst, amount, " ".join(window.lower().split()))
        return replace(
            self, schedule=check_schedule(field_name, schedule_text([*before, added], zone or "UTC"))
        )

    def at(self, instant: datetime) -> Self:
        """The numbers that count at an instant, as a limit without a schedule.

        >>> noon = datetime(2026, 3, 30, 12, tzinfo=UTC)
        >>> Limit.per_minute("rpm", 60).during("* 9-16 * * mon-fri", 600).at(noon).refill_amount
        600
        """
        if not isinstance(instant, datetime) or instant.utcoffset() is None:
            raise ValidationError(
                "instant", instant, "pass a datetime with a zone, such as datetime.now(UTC)"
            )
        if self.schedule is None:
            return self
        text = with_rest(self.schedule, self.capacity_milli, self.refill_amount_milli)
        phase = schedule_of(text).phase((instant - _EPOCH) // timedelta(milliseconds=1))
        capacity, amount = phase.capacity // 1000, phase.amount // 1000
        return replace(self, capacity=capacity, refill_amount=amount, schedule=None)

    @property
    def kind(self) -> LimitKind:
        """Which kind of limit it is."""
        if self.accrual is None:
            return LimitKind.RATE
        return LimitKind(self.accrual) if self.accrual in accruals.LASTING else LimitKind.QUOTA

    @property
    def window_seconds(self) -> int | None:
        """In how many seconds it lets its refill through; the longest period of a quota.

        ``None`` for a limit of concurrency, which has no window.
        """
        return None if self.accrual == CONCURRENT else self.refill_period_seconds

    @property
    def refill_rate(self) -> float:
        """Tokens per second."""
        return self.refill_amount / self.refill_period_seconds

    @property
    def capacity_milli(self) -> int:
        """The capacity in millitokens."""
        return self.capacity * 1000

    @property
    def refill_amount_milli(self) -> int:
        """The refill in millitokens."""
        return self.refill_amount * 1000

    @property
    def refill_period_ms(self) -> int:
        """The period in milliseconds."""
        return self.refill_period_seconds * 1000

    def to_dict(self) -> dict[str, Any]:
        """The limit as plain JSON; what only some limits have is there if this one has it."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in said.items() if value is not None and value is not False}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The limit that ``to_dict`` told."""
        names = [one.name for one in fields(cls)]
        needed = [one.name for one in fields(cls) if one.default is MISSING]
        given = check_mapping("limit", data, f"pass a mapping of {', '.join(needed)}")
        if missing := [name for name in needed if name not in given]:
            raise ValidationError("limit", given, f"{', '.join(missing)} missing")
        if unknown := sorted(shown(key).strip("'") for key in given if key not in names):
            raise ValidationError("limit", given, f"unknown keys {', '.join(unknown)}")
        return cls(**given)
