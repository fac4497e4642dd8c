"""How limits are written on a command line: ``NAME:RATE[/UNIT][:BURST]``. Pure.

``rpm:60`` is 60 a minute with a burst of 60; ``rps:10/sec:50`` is 10 a second with a burst of 50.
``tpm:1.5M/min`` and ``tpm:10_000`` are large numbers. What the grammar cannot say, such as 5 every 30
seconds, is said in JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ..exceptions import ValidationError, shown
from ..models import Limit, check_limits

SECONDS = {"sec": 1, "min": 60, "hour": 3600, "day": 86400}
UNITS = {seconds: unit for unit, seconds in SECONDS.items()}
ALSO = {"second": "sec", "s": "sec", "minute": "min", "m": "min", "h": "hour", "d": "day"}
"""Other words for units, as people write them."""

_LIMIT = re.compile(r"(?P<name>[^:/]+):(?P<rate>[^:/]+)(?:/(?P<unit>[^:/]+))?(?::(?P<burst>[^:/]+))?")
_RULE = "write NAME:RATE[/sec|/min|/hour|/day][:BURST], such as rpm:60 or tokens:1000/sec:5000"
_PLAIN = re.compile(r"[0-9]{1,19}|[0-9]{1,3}(?:_[0-9]{3}){1,6}")
_TIMES = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,6}))?([kM])")
_FACTORS = {"k": 1_000, "M": 1_000_000}


def parse_limit(text: str) -> Limit:
    """Read one limit.

    >>> parse_limit("rps:10/sec:50")
    Limit(name='rps', capacity=50, refill_amount=10, refill_period_seconds=1)
    >>> parse_limit("tpm:1.5k/minute").capacity
    1500
    """
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise ValidationError("limit", text, _RULE)
    unit = ALSO.get(found["unit"], found["unit"] or "min")
    if unit not in SECONDS:
        raise ValidationError("limit", text, f"{shown(unit)} is no unit; use {', '.join(SECONDS)}")
    rate = _number(found["rate"], text)
    burst = rate if found["burst"] is None else _number(found["burst"], text)
    return Limit(found["name"], burst, rate, SECONDS[unit])


def _number(word: str, text: str) -> int:
    """A whole number; ``k`` and ``M`` mean thousands and millions, and nothing else is understood."""
    if _PLAIN.fullmatch(word):
        return int(word)
    if (found := _TIMES.fullmatch(word)) is not None:
        millionths = int(found[1] + (found[2] or "").ljust(6, "0"))
        number, rest = divmod(millionths * _FACTORS[found[3]], 1_000_000)
        if not rest:
            return number
    raise ValidationError(
        "limit", text, f"{shown(word)} is no whole number; write it as 60, 10_000, 10k or 1.5M"
    )


def limit_text(limit: Limit) -> str:
    """Write a limit so that ``parse_limit`` reads it, or with its period in seconds if none fits.

    >>> limit_text(Limit.per_second("rps", 10, burst=50))
    'rps:10/sec:50'
    """
    period = limit.refill_period_seconds
    burst = "" if limit.capacity == limit.refill_amount else f":{limit.capacity}"
    return f"{limit.name}:{limit.refill_amount}/{UNITS.get(period, f'{period}s')}{burst}"


def parse_limits_json(text: str) -> tuple[Limit, ...]:
    """Read limits as ``config get --output json`` writes them: a list of objects."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValidationError("limits", text, f"it is not JSON: {error}") from None
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        raise ValidationError(
            "limits",
            text,
            'write a list, such as [{"name": "rpm", "capacity": 60, "refill_amount": 60, '
            '"refill_period_seconds": 60}]',
        )
    return check_limits([Limit.from_dict(one) for one in data])
