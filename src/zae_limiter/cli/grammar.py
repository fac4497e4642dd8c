"""How limits are written on a command line: ``NAME:RATE[/sec|/min|/hour|/day][:BURST]``. Pure.

``rpm:60`` is 60 a minute with a burst of 60; ``rps:10/sec:50`` is 10 a second with a burst of 50.
What the grammar cannot say, such as 5 every 30 seconds, is said in JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ..exceptions import ValidationError
from ..models import Limit, check_limits

SECONDS = {"sec": 1, "min": 60, "hour": 3600, "day": 86400}
UNITS = {seconds: unit for unit, seconds in SECONDS.items()}

_LIMIT = re.compile(
    r"(?P<name>[^:/]+):(?P<rate>[0-9]{1,19})(?:/(?P<unit>[^:/]+))?(?::(?P<burst>[0-9]{1,19}))?"
)
_RULE = "write NAME:RATE[/sec|/min|/hour|/day][:BURST], such as rpm:60 or tokens:1000/sec:5000"


def parse_limit(text: str) -> Limit:
    """Read one limit.

    >>> parse_limit("rps:10/sec:50")
    Limit(name='rps', capacity=50, refill_amount=10, refill_period_seconds=1)
    """
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise ValidationError("limit", text, _RULE)
    unit = found["unit"] or "min"
    if unit not in SECONDS:
        raise ValidationError("limit", text, f"{unit!r} is no unit; use {', '.join(SECONDS)}")
    rate = int(found["rate"])
    burst = rate if found["burst"] is None else int(found["burst"])
    return Limit(found["name"], burst, rate, SECONDS[unit])


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
