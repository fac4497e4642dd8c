"""How 0.11 to 0.17 spelled quotas, soft limits and switches, and what these are called today. Pure.

    a calendar quota     l_{name}_rsched   when it is full again, like cron, but compact: ``1m0h6w1``
                         sched_tz          the time zone of all of a record
    a schedule           …_sched           see ``schedules``
    a session quota      w_{name}_…        the numbers of a limit, and ``rsa``, how many seconds a window has
    a soft limit         …_soft            true; false says nothing
    a switch             disabled          true; false, which is on in any case; or ``bypass``

What has no spelling of today stays as it is, so that it is refused by its name.
"""

from __future__ import annotations

import re

from ...engine.law import Rate
from ...exceptions import ValidationError
from ...models import Bypass, Limit
from ...models.accruals import PERIODS, SESSION, calendar, check_zone, cron, period_seconds, window
from ...repository_protocol import Item, Value
from ...schema import number
from .schedules import cron_of, level_limit

REASON = "disabled before the upgrade"
"""Why something is off that an older version switched off: it asked for no reason."""

_COMPACT = re.compile(r"1" + "".join(rf"(?:{letter}([0-9,*/\-]+))?" for letter in "mhDMw"))
_NAMES = {expression: period for period, (expression, _) in PERIODS.items()}
_LEVEL = re.compile(r"([lw])_(.+)_(rsched|rsa|sched|soft)", re.DOTALL)


def calendar_of(name: str, compact: Value, tz: Value) -> str:
    """How a calendar quota accrues, from what a record says of it."""
    field = f"quota {name!r}"
    found = _COMPACT.fullmatch(compact) if isinstance(compact, str) else None
    if found is None or not isinstance(tz, str):
        several = isinstance(compact, str) and ";" in compact
        raise ValidationError(
            field, compact, "it is reset by more than one rule" if several else "no such rule"
        )
    expression = cron_of(found.groups())
    check_zone(tz)
    return calendar(_NAMES[expression], tz) if expression in _NAMES else cron(expression, tz)


def level_of_today(item: Item) -> dict[str, Value]:
    """A config level in the spelling of today; a ``ValidationError`` if it has a quota without one."""
    said = dict(item)
    for attribute in sorted(item):
        found = _LEVEL.fullmatch(attribute)
        if found is None:
            continue
        letter, name, field = found.groups()
        if field == "rsa" and letter == "w" and f"l_{name}_cp" not in item and type(item[attribute]) is int:
            seconds, capacity = said.pop(attribute), said.get(f"w_{name}_cp")
            said |= _limit(name, capacity, seconds, SESSION)
            for part in ("cp", "ra", "rp"):
                said.pop(f"w_{name}_{part}", None)
        elif field == "rsched" and letter == "l":
            accrual = calendar_of(name, said.pop(attribute), item.get("sched_tz"))
            said |= _limit(name, item.get(f"l_{name}_cp"), period_seconds(accrual), accrual)
        elif field == "sched":
            limit = level_limit(item, name)
            said |= {f"l_{name}_{part}": value for part, value in _numbers(limit).items()}
            said.pop(attribute)
        elif field == "soft" and isinstance(item[attribute], bool):
            said |= {f"l_{name}_so": 1} if said.pop(attribute) else {}
    said.pop("sched_tz", None)
    return said | _switch(said.pop("disabled", None))


def _switch(disabled: Value) -> dict[str, Value]:
    match disabled:
        case None:
            return {}
        case True:
            return {"off": REASON}
        case False:
            return {"off": False}
        case "bypass":
            return {"bypass": Bypass.COUNTED.value}
    return {"disabled": disabled}


def _numbers(limit: Limit) -> dict[str, Value]:
    """What a level says of a limit with a schedule, which may come to none."""
    numbers = {"cp": limit.capacity, "ra": limit.refill_amount, "rp": limit.refill_period_seconds}
    return numbers | ({} if limit.schedule is None else {"sd": limit.schedule})


def _limit(name: str, capacity: Value, seconds: Value, accrual: str) -> dict[str, Value]:
    """A quota, which gains all that it holds at once."""
    numbers = {"cp": capacity, "ra": capacity, "rp": seconds, "ac": accrual}
    return {f"l_{name}_{part}": value for part, value in numbers.items()}


def is_quota(item: Item, name: str) -> bool:
    """Whether a limit of a bucket gains nothing as time passes."""
    return item.get(f"b_{name}_ra") == 0


def quota_rate(item: Item, name: str) -> Rate:
    """The rate of a quota that a bucket holds, with the window that it is in."""
    capacity, seconds = number(item, f"b_{name}_cp"), item.get(f"b_{name}_rsa")
    if capacity <= 0:
        raise ValidationError("limit", name, f"its bucket holds {capacity} at most")
    if seconds is None:
        accrual = calendar_of(name, item.get(f"b_{name}_rsched", item.get("rsched")), item.get("sched_tz"))
        return Rate(capacity, capacity, period_seconds(accrual) * 1000, accrual)
    if type(seconds) is not int or seconds <= 0:
        raise ValidationError("limit", name, f"its window has {seconds!r} seconds")
    began_ms = number(item, f"b_{name}_ws")
    accrual = window(seconds * 1000, began_ms) if began_ms > 0 else SESSION
    return Rate(capacity, capacity, seconds * 1000, accrual)
