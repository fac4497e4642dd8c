"""Numbers, mappings and amounts that callers pass in, checked at the public edge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, Self

from ..exceptions import ValidationError, shown
from ..naming import plain

TOKENS_MAX = 10**12
"""The largest capacity, refill or amount: in millitokens still far from 64 bits, so sums stay exact."""

NUMBER_MAX = 10**27
"""The largest number that a record of ours can hold; whatever is larger was written by somebody else."""

PERIOD_SECONDS_MAX = 10 * 366 * 24 * 3600

SEATS_MAX = 99_999
"""The most that may be at work at once: a bucket keeps how many there are and until when in one number."""

HOLD_SECONDS_MAX = 86_400
"""The longest that a seat is held for somebody who is not heard of; who goes on for longer renews it."""


class Choice(StrEnum):
    """Some words, one of which a caller chooses."""

    @classmethod
    def chosen(cls, field_name: str, value: object) -> Self:
        if isinstance(value, str) and value in tuple(cls):
            return cls(value)
        *others, last = (repr(word.value) for word in cls)
        raise ValidationError(field_name, value, f"use {', '.join(others)} or {last}")


def check_count(field_name: str, value: int, value_max: int, value_min: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValidationError(field_name, value, f"it must be a whole number, not {type(value).__name__}")
    if value < value_min:
        raise ValidationError(field_name, value, f"it must be at least {value_min}")
    if value > value_max:
        raise ValidationError(field_name, value, f"it must be at most {value_max}")
    return value


def check_flag(field_name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise ValidationError(field_name, value, "use True or False")
    return value


def check_mapping(field_name: str, value: Mapping[Any, Any], reason: str) -> dict[Any, Any]:
    """A mapping as it is at this moment, whatever it says of itself later."""
    if isinstance(value, Mapping):
        with suppress(Exception):  # whatever a mapping of somebody else's making does instead of answering
            return dict(value)
    raise ValidationError(field_name, value, reason)


AMOUNTS_HINT = "pass amounts by limit, such as {'rpm': 1}"


def needs_milli(amounts: Mapping[str, int]) -> dict[str, int]:
    """Amounts to be taken, checked, in millitokens; nothing of a limit is no demand on it."""
    if type(amounts) is not dict:
        amounts = check_mapping("consume", amounts, AMOUNTS_HINT)
    needs = {}
    for name, amount in amounts.items():
        if type(amount) is not int or not 0 < amount <= TOKENS_MAX:
            check_count(f"amount of {shown(name)}", amount, TOKENS_MAX, 0)
        if amount:
            needs[name if type(name) is str else plain(name)] = amount * 1000
    return needs


def named_amounts(amounts: Mapping[str, int] | None, named: Mapping[str, int]) -> dict[str, int]:
    """Amounts from a mapping, for names that are no identifiers, and from keywords."""
    given = {} if amounts is None else check_mapping("amounts", amounts, AMOUNTS_HINT)
    both = {**given, **named}
    if twice := sorted(given.keys() & named.keys()):
        raise ValidationError("amounts", both, f"{', '.join(twice)} given twice")
    return both


WAIT_HINT = "pass seconds, such as 2.5, or math.inf for as long as it takes"


def wait_ms(seconds: float) -> int:
    """How long somebody waits at most, in milliseconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValidationError("wait", seconds, f"it must be a number; {WAIT_HINT}")
    if not seconds >= 0:
        raise ValidationError("wait", seconds, f"it must be 0 or more; {WAIT_HINT}")
    # What was told in seconds is a millisecond less if it is cut off.
    return math.ceil(round(min(seconds, PERIOD_SECONDS_MAX) * 1000, 6))
