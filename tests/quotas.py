"""Calendar quotas for tests: zones whose clocks do odd things, and the instants at which they do them."""

from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from zae_limiter.engine.law import Rate
from zae_limiter.models.accruals import PERIODS, period_seconds
from zae_limiter.models.calendars import WallClock
from zae_limiter.models.cron import DAY_MS

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # which sets its clocks by half an hour
    "Pacific/Apia",  # which left a day out
    "America/Sao_Paulo",  # where midnight did not exist once a year
)
CRONS = ("cron(0 6 * * 1)", "cron(*/20 2 * * *)", "cron(0 0,12 29 2 *)")

accruals = st.builds("{}@{}".format, st.sampled_from((*PERIODS, *CRONS)), st.sampled_from(ZONES))


def quota(capacity_milli: int, amount_milli: int, accrual: str) -> Rate:
    return Rate(capacity_milli, amount_milli, period_seconds(accrual) * 1000, accrual)


def instant(text: str) -> int:
    """``2024-03-31T01:00Z`` in milliseconds."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@cache
def clock_changes(tz: str) -> tuple[int, ...]:
    """When the clocks of a zone were set, in the years in which all of these zones did so."""
    clock, t_ms, found = WallClock(ZoneInfo(tz)), instant("2010-01-01T00:00Z"), list[int]()
    while (t_ms := _next_change(clock, t_ms)) < instant("2025-01-01T00:00Z"):
        found.append(t_ms)
    return tuple(found)


def _next_change(clock: WallClock, t_ms: int) -> int:
    offset_ms, end_ms = clock.offset_ms(t_ms), instant("2025-01-01T00:00Z")
    while t_ms < end_ms and clock.offset_ms(t_ms + DAY_MS) == offset_ms:
        t_ms += DAY_MS
    return clock.changes_ms(t_ms, t_ms + DAY_MS)


@st.composite
def moments(draw: st.DrawFn) -> int:
    """An instant at which a calendar may go wrong: clocks are set, a month ends; or any other."""
    tz = draw(st.sampled_from(ZONES))
    months = st.builds(
        lambda year, month: datetime(year, month, 1, tzinfo=ZoneInfo(tz)), years, st.integers(1, 12)
    )
    ends = months.map(lambda start: round(start.timestamp() * 1000))
    near = st.sampled_from((-1, 0, 1)) | st.integers(-3 * DAY_MS, 3 * DAY_MS)
    there = st.sampled_from(clock_changes(tz)) | ends
    return draw(st.builds(int.__add__, there, near) | st.integers(instant("2009-01-01T00:00Z"), FAR_MS))


years = st.integers(2009, 2026)
FAR_MS = round(datetime(2040, 1, 1, tzinfo=UTC).timestamp() * 1000)
