"""How limits accrue that are no plain rates: their refill comes as a whole, at *steps*.

A limit names its steps by a text, which is what records keep. Steps are instants in milliseconds, and all
that the law asks of them is how many there were and when one of them is.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Protocol, TypeGuard

from ..exceptions import ValidationError

CONCURRENT = "concurrent"
"""No steps at all: what is taken comes back when its holder gives it back, or is not heard of any more."""

STEP_MS_SPARE = 86_400_000
"""A change of a zone's clock makes a period longer by no more than this."""


class Steps(Protocol):
    """Instants at which a refill comes."""

    def count(self, t_ms: int) -> int:
        """How many there were until an instant, and at it; never fewer later."""

    def instant(self, number: int) -> int:
        """The first instant at which so many are counted."""


class _NoSteps:
    """Of a limit that nothing is added to as time passes."""

    def count(self, t_ms: int) -> int:  # noqa: ARG002 - none, whenever
        return 0

    def instant(self, number: int) -> int:
        raise AssertionError(f"step {number} of a limit that has none")


@lru_cache(4096)
def steps_of(accrual: str) -> Steps:
    """The steps that a text names."""
    if accrual == CONCURRENT:
        return _NoSteps()
    raise ValidationError("accrual", accrual, "nobody knows it; leave it out for a plain rate")


def check_accrual(field_name: str, accrual: str) -> str:
    """A text that names steps."""
    if not isinstance(accrual, str):
        raise ValidationError(field_name, accrual, f"it must be text, not {type(accrual).__name__}")
    try:
        steps_of(accrual)
    except ValidationError as error:
        raise ValidationError(field_name, accrual, error.reason) from None
    return accrual


def is_accrual(value: object) -> TypeGuard[str]:
    """Whether a stored value names steps that this process knows."""
    with suppress(ValidationError):
        return isinstance(value, str) and bool(steps_of(value))
    return False
