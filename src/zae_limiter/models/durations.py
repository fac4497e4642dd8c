"""How long something lasts, as people write it."""

from __future__ import annotations

import re

from ..exceptions import ValidationError
from .checks import PERIOD_SECONDS_MAX, check_count

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PART = re.compile(r"([0-9]{1,9})([smhdw])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")

DURATION_HINT = "write seconds, or a text such as '30s', '5m' or '1h30m'"


def seconds_of(field_name: str, value: str | int) -> int:
    """Whole seconds of a text such as ``5m``, or of a number of them.

    >>> seconds_of("hold", "1h30m"), seconds_of("hold", 90)
    (5400, 90)
    """
    if isinstance(value, str):
        if not _WHOLE.fullmatch(value):
            raise ValidationError(field_name, value, DURATION_HINT)
        value = sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(value))
    return check_count(field_name, value, PERIOD_SECONDS_MAX)


def written(seconds: int) -> str:
    """The shortest such text.

    >>> written(5400), written(300)
    ('90m', '5m')
    """
    unit = next(unit for unit in reversed(_UNITS) if seconds % _UNITS[unit] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"
