"""How limits are written as one word: ``NAME:RATE[/UNIT[@ZONE]][:BURST][:soft]``. Pure.

``rpm:60`` is 60 a minute with a burst of 60; ``rps:10/sec:50`` is 10 a second with a burst of 50.
``tpm:1.5M/min`` and ``tpm:10_000`` are large numbers. A unit with a time zone is a calendar quota:
``runs:100/month@Europe/Berlin``, ``runs:5/day@UTC``, ``runs:5/cron(0 6 * * 1)@UTC``; weeks, months and years
always are. ``msgs:50/session(5h)`` is a window that begins with the first use, ``jobs:10/concurrent(5m)`` is
ten at once, ``usd:99.50USD/month`` is money. ``rpm:60:soft`` is counted and refuses nobody.
``rpm:60;600(* 9-16 * * mon-fri)@Europe/Berlin`` has other numbers at other times. What the grammar
cannot say, such as 5 every 30 seconds, is said in JSON.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from ..exceptions import ValidationError, shown
from . import Limit, check_limits
from .accruals import LASTING, PERIODS, calendar, cron, period_seconds
from .durations import seconds_of, written
from .money import MICRO, currency_of, decimal, unit_of

SECONDS = {"sec": 1, "min": 60, "hour": 3600, "day": 86400}
UNITS = {seconds: unit for unit, seconds in SECONDS.items()}
ALSO = {"second": "sec", "s": "sec", "minute": "min", "m": "min", "h": "hour", "d": "day"}
"""Other words for units, as people write them."""

_LIMIT = re.compile(
    r"(?P<name>[^:/]+):(?P<rate>[^:/]+)"
    r"(?:/(?P<unit>cron\((?P<cron>[^():]+)\)|(?P<kind>concurrent|session)\((?P<lasts>[^():/]+)\)|[^:/@]+)"
    r"(?:@(?P<zone>[^:@]+))?)?(?::(?!soft$)(?P<burst>[^:/]+))?(?P<soft>:soft)?"
)
_PLAIN = re.compile(r"[0-9]{1,19}|[0-9]{1,3}(?:_[0-9]{3}){1,6}")
_TIMES = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,6}))?([kM])")
_MONEY = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,6}))?([A-Z]{3})")
_FACTORS = {"k": 1_000, "M": 1_000_000}
_DECIMAL = re.compile(r"[0-9]+\.[0-9]{1,6}")
_NOTHING = re.compile(r"0+[smhdw]?")
_NEEDS = {"concurrent": "concurrent(5m)", "session": "session(5h)", "cron": "cron(0 6 * * 1)"}
"""Units that say more in parentheses, as they are written."""

_KNOWN = tuple(dict.fromkeys((*SECONDS, *PERIODS, *_NEEDS.values())))
_RULE = (
    f"write NAME:RATE[/{'|'.join(_KNOWN)}[@ZONE]][:BURST][:soft], such as rpm:60, "
    "tokens:1000/sec:5000 or runs:100/month@Europe/Berlin"
)

EXAMPLES = """\b
How a limit is written; UNIT is sec, min (default), hour, day, or as here:
  rpm:60                         60 a minute, at most 60 at once
  rps:10/sec:50                  10 a second, at most 50 at once
  tpm:1.5M/day                   1,500,000 a day; also 10k and 10_000
  runs:5/day@UTC                 a quota, full again when a day begins there
  msgs:900/month@Europe/Berlin   of a week, month or year; UTC without @ZONE
  'runs:5/cron(0 6 * * 1)@UTC'   full again at boundaries like cron's
  'msgs:50/session(5h)'          50 within five hours of the first
  'jobs:10/concurrent(5m)'       ten at work at once
  usd:99.50USD/month             money
  rpm:60:soft                    counted, and nobody is refused
  'rpm:60;600(* 9-16 * * *)@UTC' 600 while the clock there shows nine to five
"""
"""What help shows of all this."""


def parse_limit(text: str) -> Limit:
    """Read one limit.

    >>> parse_limit("rps:10/sec:50")
    Limit(name='rps', capacity=50, refill_amount=10, refill_period_seconds=1)
    >>> parse_limit("tpm:1.5k/minute").capacity
    1500
    >>> parse_limit("usd:99.50USD/month@Europe/Berlin").accrual
    'month@Europe/Berlin'
    """
    plain, semicolon, schedule = text.partition(";")
    if semicolon:
        if schedule.endswith(":soft"):
            reason = f"soft stands before the windows: {plain}:soft;{schedule.removesuffix(':soft')}"
            raise ValidationError("limit", text, reason)
        try:
            return replace(parse_limit(plain), schedule=schedule)
        except ValidationError as error:
            raise ValidationError("limit", text, error.reason) from None
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise ValidationError("limit", text, _RULE)
    seconds, accrual = _period(found, text)
    rate, unit = _amount(found["rate"], text)
    if found["kind"] is not None and found["burst"] is not None:
        reason = f"{found['kind']} has no burst; write {found['name']}:{found['rate']}/{found['unit']}"
        raise ValidationError("limit", text, reason)
    burst, other = (rate, unit) if found["burst"] is None else _amount(found["burst"], text)
    if other != unit:
        raise ValidationError("limit", text, "its rate and its burst are of different units")
    return Limit(found["name"], burst, rate, seconds, accrual, unit, soft=found["soft"] is not None)


def _period(found: re.Match[str], text: str) -> tuple[int, str | None]:
    """How long a period is, and the text of its calendar if it has one."""
    unit, zone = ALSO.get(found["unit"], found["unit"] or "min"), found["zone"]
    try:
        if found["kind"] is not None:
            if zone is not None:
                raise ValidationError("zone", zone, f"{found['kind']} has no time zone; leave it out")
            return _lasting(found["kind"], found["lasts"]), found["kind"]
        if found["cron"] is not None:
            accrual = cron(found["cron"], zone or "UTC")
            return period_seconds(accrual), accrual
        if unit in PERIODS and (zone is not None or unit not in SECONDS):
            return PERIODS[unit][1], calendar(unit, zone or "UTC")
    except ValidationError as error:
        raise ValidationError("limit", text, f"{error.field} {shown(error.value)}: {error.reason}") from None
    if unit not in SECONDS:
        if unit in _NEEDS:
            reason = f"{shown(unit)} wants to know more; write it as {_NEEDS[unit]}"
            raise ValidationError("limit", text, reason)
        raise ValidationError("limit", text, f"{shown(unit)} is no unit; use {', '.join(_KNOWN)}")
    if zone is not None:
        reason = f"{shown(unit)} has no time zone; use one with {', '.join(PERIODS)}"
        raise ValidationError("limit", text, reason)
    return SECONDS[unit], None


def _lasting(kind: str, lasts: str) -> int:
    """How many seconds a seat is held, or a window is open."""
    field = LASTING[kind]
    if _NOTHING.fullmatch(lasts):
        raise ValidationError(field, lasts, f"it is at least 1 second; write it as {_NEEDS[kind]}")
    if _PLAIN.fullmatch(lasts):
        raise ValidationError(field, lasts, f"say of what; seconds are {kind}({lasts}s)")
    return seconds_of(field, lasts)


def parse_amount(text: str) -> tuple[str, int, str | None]:
    """Read how many tokens of which limit, and the unit if it is money.

    >>> parse_amount("tpm:1.5k"), parse_amount("usd:25USD")
    (('tpm', 1500, None), ('usd', 25000000, 'usd_micro'))
    """
    name, colon, amount = text.partition(":")
    if not name or not colon:
        raise ValidationError("amount", text, "write NAME:AMOUNT, such as tpm:500")
    return name, *_amount(amount, text)


def _amount(word: str, text: str) -> tuple[int, str | None]:
    """A whole number, or money in millionths; ``k`` and ``M`` mean thousands and millions."""
    if _PLAIN.fullmatch(word):
        return int(word), None
    if (money := _MONEY.fullmatch(word)) is not None:
        return int(money[1]) * MICRO + int((money[2] or "").ljust(6, "0")), unit_of(money[3])
    if (found := _TIMES.fullmatch(word)) is not None:
        millionths = int(found[1] + (found[2] or "").ljust(6, "0"))
        number, rest = divmod(millionths * _FACTORS[found[3]], 1_000_000)
        if not rest:
            return number, None
    if word.startswith("-"):
        raise ValidationError("limit", text, f"{shown(word)} is below zero; write how many, such as 60")
    as_money = f"{word if _DECIMAL.fullmatch(word) else '99.50'}USD"
    reason = f"{shown(word)} is no whole number; write it as 60, 10_000, 10k or 1.5M, and money as {as_money}"
    raise ValidationError("limit", text, reason)


def limit_text(limit: Limit) -> str:
    """Write a limit so that ``parse_limit`` reads it, or with its period in seconds if none fits.

    >>> limit_text(Limit.per_second("rps", 10, burst=50))
    'rps:10/sec:50'
    """
    seconds, unit = limit.refill_period_seconds, limit.unit
    rate, capacity = (
        str(amount) if unit is None else f"{decimal(amount)}{currency_of(unit)}"
        for amount in (limit.refill_amount, limit.capacity)
    )
    period = UNITS.get(seconds, f"{seconds}s") if limit.accrual is None else limit.accrual
    if limit.accrual in LASTING:
        period = f"{limit.accrual}({written(seconds)})"
    burst, soft = "" if capacity == rate else f":{capacity}", ":soft" if limit.soft else ""
    schedule = "" if limit.schedule is None else f";{limit.schedule}"
    return f"{limit.name}:{rate}/{period}{burst}{soft}{schedule}"


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
