"""What limits let through in the windows by which usage is counted."""

import pytest

from zae_limiter import Limit, UsageWindow
from zae_limiter.models.windows import lets_through

HOURLY, DAILY, MONTHLY = UsageWindow.HOURLY, UsageWindow.DAILY, UsageWindow.MONTHLY


@pytest.mark.parametrize(
    ("limit", "window", "amount"),
    [
        (Limit.per_minute("rpm", 60), HOURLY, 3600),
        (Limit.per_minute("rpm", 60, burst=6000), HOURLY, 3600),
        (Limit.per_day("rpd", 24), HOURLY, 1),
        (Limit.per_month("usd", 100), MONTHLY, 100),
        (Limit.per_month("usd", 100), DAILY, None),
        (Limit.per_day("runs", 5, calendar=True), MONTHLY, 150),
        (Limit.session("msgs", 50, "5h"), HOURLY, None),
        (Limit.session("msgs", 50, "5h"), DAILY, 240),
        (Limit.concurrent("jobs", 10), DAILY, None),
    ],
)
def test_what_a_limit_lets_through(limit: Limit, window: UsageWindow, amount: int | None) -> None:
    """A quota of just this window all of it, what comes back at other times nothing that can be said."""
    assert lets_through(limit, window) == amount
