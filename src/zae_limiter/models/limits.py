"""A limit: a name, and the numbers by which its buckets hold and gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from ..exceptions import ValidationError, shown
from ..naming import validate_limit_name
from .accruals import CONCURRENT, check_accrual
from .checks import HOLD_SECONDS_MAX, PERIOD_SECONDS_MAX, SEATS_MAX, TOKENS_MAX, check_count, check_mapping
from .durations import seconds_of

if TYPE_CHECKING:
    from . import BucketState


@dataclass(frozen=True, slots=True, repr=False)
class Limit:
    """A token bucket: it holds ``capacity`` and gains ``refill_amount`` every ``refill_period_seconds``.

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

    def __post_init__(self) -> None:
        validate_limit_name(self.name)
        check_count(f"capacity of {self.name!r}", self.capacity, TOKENS_MAX)
        check_count(f"refill_amount of {self.name!r}", self.refill_amount, TOKENS_MAX)
        check_count(f"refill_period_seconds of {self.name!r}", self.refill_period_seconds, PERIOD_SECONDS_MAX)
        if self.accrual is not None:
            check_accrual(f"accrual of {self.name!r}", self.accrual)
        if self.accrual == CONCURRENT:
            check_count(f"capacity of {self.name!r}", self.capacity, SEATS_MAX)
            check_count(f"hold of {self.name!r}, in seconds,", self.refill_period_seconds, HOLD_SECONDS_MAX)
            check_count(f"refill_amount of {self.name!r}", self.refill_amount, self.capacity, self.capacity)

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
    def per_hour(cls, name: str, rate: int, burst: int | None = None) -> Self:
        """``rate`` tokens a hour, in a bucket that holds ``burst``, or ``rate`` if no burst is given."""
        return cls._per(name, rate, burst, 3600)

    @classmethod
    def per_day(cls, name: str, rate: int, burst: int | None = None) -> Self:
        """``rate`` tokens a day, in a bucket that holds ``burst``, or ``rate`` if no burst is given."""
        return cls._per(name, rate, burst, 86400)

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
        return cls(state.limit_name, state.capacity_milli // 1000, amount, period, state.accrual)

    @classmethod
    def _per(cls, name: str, rate: int, burst: int | None, seconds: int) -> Self:
        return cls(name, rate if burst is None else burst, rate, seconds)

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
        return {name: value for name, value in said.items() if value is not None}

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
