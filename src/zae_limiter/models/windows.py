"""What limits let through in the windows by which usage is counted. Pure."""

from __future__ import annotations

from .accruals import period_and_zone
from .limits import Limit, LimitKind
from .usage import UsageWindow

UNITS = {UsageWindow.HOURLY: "hour", UsageWindow.DAILY: "day", UsageWindow.MONTHLY: "month"}

SECONDS = {UsageWindow.HOURLY: 3600, UsageWindow.DAILY: 86_400, UsageWindow.MONTHLY: 30 * 86_400}
"""How long windows are; a month is taken for 30 days."""


def lets_through(limit: Limit, window: UsageWindow) -> int | None:
    """What a limit lets through in a window, without its burst; ``None`` if it comes back at other times.

    >>> lets_through(Limit.per_minute("rpm", 60), UsageWindow.HOURLY)
    3600
    """
    if limit.kind is LimitKind.CONCURRENT:
        return None
    if limit.accrual is not None and period_and_zone(limit.accrual)[0] == UNITS[window]:
        return limit.refill_amount
    if limit.kind is not LimitKind.RATE and limit.refill_period_seconds > SECONDS[window]:
        return None
    return limit.refill_amount * SECONDS[window] // limit.refill_period_seconds
