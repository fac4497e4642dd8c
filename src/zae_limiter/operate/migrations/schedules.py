"""How 0.11 to 0.17 spelled schedules, and what these are today. Pure.

    1h9-16w1-5s500;h0-4c100a20p30     windows, one after another, behind the number of the spelling
    m h D M w                         a field of cron each; one that is not there is any
    s                                 thousandths of the limit's capacity and refill
    c a p                             capacity, refill and seconds of its period; the others stay

There the first window that holds counts too. Here the period is the same at all times, so all amounts
are told for one that they have in common, which changes no instant. Only what can be held must be whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from ...engine.law import Rate
from ...exceptions import ValidationError
from ...models import Limit
from ...models.accruals import check_zone
from ...models.cron import Marks
from ...models.schedules import Window, places_reached, schedule_text, window_at
from ...repository_protocol import Item, Value
from ...schema import number

NONE = "-"
"""How the limit of a bucket says that it has no schedule, though the bucket has one."""

_FIELDS = "".join(rf"(?:{letter}([0-9,*/\-]+))?" for letter in "mhDMw")
_NUMBERS = "(?:sN|(?:cN)?(?:aN)?(?:pN)?)".replace("N", "([1-9][0-9]{0,14})")
_WINDOW = re.compile(_FIELDS + _NUMBERS)
_ENDLESS = re.compile(r"\b([0-9]+)-\1(/[0-9]+)")
_ALWAYS = "* * * * *"


class OldWindow(NamedTuple):
    """When it holds, in the fields of cron, and the numbers that a limit has then."""

    expression: str
    numbers: Rate


def old_windows(name: str, base: Rate, compact: Value, tz: Value) -> list[OldWindow]:
    """The windows of a limit in their order, and in the end its own numbers, which always hold."""
    if not isinstance(compact, str) or not compact.startswith("1") or not isinstance(tz, str):
        raise ValidationError(f"schedule of {name!r}", compact, "no such schedule is known")
    check_zone(tz)
    windows = []
    for part in compact[1:].split(";"):
        found = _WINDOW.fullmatch(part)
        if found is None or not any(found.groups()[5:]):
            raise ValidationError(f"schedule of {name!r}", compact, f"no such window is known: {part!r}")
        numbers = [None if it is None else int(it) for it in found.groups()[5:]]
        expression = cron_of(found.groups()[:5])
        Marks(expression)  # which refuses what is none
        windows.append(OldWindow(expression, _within(base, *numbers)))
    return [*windows, OldWindow(_ALWAYS, base)]


def cron_of(compact: Sequence[str | None]) -> str:
    """The five fields of cron; to that release a range from a number to itself with a step has no end."""
    return " ".join(_ENDLESS.sub(r"\1\2", field or "*") for field in compact)


def _within(base: Rate, scale: int | None, cp: int | None, ra: int | None, rp: int | None) -> Rate:
    """What that release makes of the numbers of a limit in a window."""
    if scale is None:
        own = base.capacity_milli, base.refill_amount_milli, base.refill_period_ms
        said = zip((cp, ra, rp), own, strict=True)
        capacity, amount, period = (mine if it is None else it * 1000 for it, mine in said)
        return Rate(capacity, amount, period)
    # It multiplies as floating point does, so that 0.29 of 100 is a thousandth less than 29.
    capacity, amount = (max(1, int(it * (scale / 1000))) for it in base[:2])
    return base._replace(capacity_milli=capacity, refill_amount_milli=amount)


def numbers_at(windows: Sequence[OldWindow], tz: Value, at_ms: int) -> Rate:
    """The numbers that counted at an instant."""
    text = schedule_text([Window(1, 1, window.expression) for window in windows], str(tz))
    holding = window_at(text, at_ms)
    return next(window.numbers for window in windows if window.expression == holding)


def limit_of_today(name: str, windows: Sequence[OldWindow], tz: Value) -> Limit:
    """A limit that has the same numbers at every instant; a ``ValidationError`` if there is none.

    What never counts is left out. If that is what the limit says itself, the last window that counts is
    what holds whenever the others do not.
    """
    places = places_reached(tuple(window.expression for window in windows[:-1]))
    *inside, rest = (windows[place] for place in sorted(places))
    for expression, numbers in (*inside, rest):
        if numbers.capacity_milli % 1000:
            held = f"in the window {expression!r} it can hold {numbers.capacity_milli / 1000}"
            way = "which is not whole; give the window a whole capacity and refill instead of a scale"
            raise ValidationError("limit", name, f"{held}, {way}")
    period_ms = math.lcm(*(window.numbers.refill_period_ms for window in (*inside, rest)))
    amounts = [
        window.numbers.refill_amount_milli * (period_ms // window.numbers.refill_period_ms)
        for window in (*inside, rest)
    ]
    times = math.lcm(*(1000 // math.gcd(1000, amount) for amount in amounts))
    *tokens, own = (amount * times // 1000 for amount in amounts)
    schedule = [
        Window(window.numbers.capacity_milli // 1000, amount, window.expression)
        for window, amount in zip(inside, tokens, strict=True)
    ]
    return Limit(
        name,
        rest.numbers.capacity_milli // 1000,
        own,
        period_ms * times // 1000,
        schedule=schedule_text(schedule, str(tz)) if schedule else None,
    )


def level_limit(item: Item, name: str) -> Limit:
    """A limit with a schedule as a config level has it, in the words of today."""
    if f"l_{name}_rsched" in item or f"w_{name}_cp" in item:
        reason = "it is a quota with a schedule, which only a plain rate can have; take one of the two away"
        raise ValidationError("limit", name, reason)
    numbers = [number(item, f"l_{name}_{part}") for part in ("cp", "ra", "rp")]
    if min(numbers) <= 0:
        raise ValidationError("limit", name, f"it has a schedule, and numbers that nobody can use: {numbers}")
    capacity, amount, seconds = numbers
    base = Rate(capacity * 1000, amount * 1000, seconds * 1000)
    tz = item.get("sched_tz")
    return limit_of_today(name, old_windows(name, base, item.get(f"l_{name}_sched"), tz), tz)


def bucket_windows(item: Item, name: str, base: Rate) -> list[OldWindow]:
    """The windows of a limit that a bucket holds, of its own or of all; none if it has no schedule."""
    compact = item.get(f"b_{name}_sched", item.get("sched"))
    return [] if compact in (None, NONE) else old_windows(name, base, compact, item.get("sched_tz"))
