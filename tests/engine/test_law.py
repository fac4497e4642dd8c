"""The law with the accrual of a calendar: what holds for rates holds for quotas, to the millisecond."""

from datetime import datetime
from itertools import pairwise
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.quotas import ZONES, accruals, clock_changes, instant, moments, quota
from zae_limiter import Limit
from zae_limiter.engine.law import Rate, accrued, balance, gain, retry_after_ms, wait_ms
from zae_limiter.models.accruals import steps_of
from zae_limiter.models.calendars import WallClock

tokens = st.integers(1, 10**6)
quotas = st.builds(quota, tokens, tokens, accruals)
LONG_AGO_OR_FAR = st.integers(-(10**14), 10**14)


@given(quotas, st.lists(moments(), min_size=2, max_size=12))
@settings(max_examples=200, deadline=None)
def test_gains_telescope(rate: Rate, at: list[int]) -> None:
    """Over any instants the gains add up to the gain of the whole: no boundary counts twice."""
    at.sort()
    gains = [gain(rate, a, b) for a, b in pairwise(at)]
    assert min(gains) >= 0
    assert sum(gains) == gain(rate, at[0], at[-1]) == accrued(rate, at[-1]) - accrued(rate, at[0])


@given(quotas, st.integers(1, 5 * 10**6), moments())
@settings(max_examples=200, deadline=None)
def test_a_wait_is_the_smallest_that_brings_enough(rate: Rate, deficit: int, now: int) -> None:
    """In that many milliseconds the deficit accrues; in one less it does not."""
    wait = wait_ms(rate, deficit, now)
    assert gain(rate, now, now + wait) >= deficit > gain(rate, now, now + wait - 1)


@given(quotas, st.integers(-(10**6), 2 * 10**6), moments(), moments(), st.data())
@settings(max_examples=200, deadline=None)
def test_retry_after_is_tight_on_both_sides(
    rate: Rate, stored: int, origin: int, now: int, data: st.DataObject
) -> None:
    """At that millisecond the balance covers the need, one earlier it does not; also before the origin."""
    need = data.draw(st.integers(1, rate.capacity_milli))
    wait = retry_after_ms(rate, stored, origin, need, now)
    assert isinstance(wait, int)
    assert balance(rate, stored, origin, now + wait) >= need
    if wait:
        assert balance(rate, stored, origin, now + wait - 1) < need


@given(quotas, moments())
@settings(max_examples=200, deadline=None)
def test_an_empty_bucket_is_full_in_time(rate: Rate, now: int) -> None:
    """After ``fill_ms``, whenever that begins: an idle bucket that is kept for so long loses nothing."""
    assert gain(rate, now, now + rate.fill_ms) >= rate.capacity_milli


@given(accruals, LONG_AGO_OR_FAR, LONG_AGO_OR_FAR)
@example("month@Pacific/Apia", -(10**14), 10**14)
@settings(max_examples=50, deadline=None)
def test_time_goes_on_beyond_the_calendar(accrual: str, a: int, b: int) -> None:
    """A clock that is wrong by centuries finds a law too: counts never fall, and waits are exact."""
    rate = quota(1_000, 1_000, accrual)
    assert accrued(rate, min(a, b)) <= accrued(rate, max(a, b))
    wait = wait_ms(rate, 1, a)
    assert gain(rate, a, a + wait - 1) == 0 < gain(rate, a, a + wait)


@pytest.mark.parametrize("tz", ZONES)
@pytest.mark.parametrize("period", ["hour", "day", "week", "month"])
def test_waits_are_tight_whenever_clocks_are_set(tz: str, period: str) -> None:
    """At the boundary before each change of the clock, at the change and after it, on both sides."""
    rate, steps = quota(1_000, 1_000, f"{period}@{tz}"), steps_of(f"{period}@{tz}")
    for changed_ms in clock_changes(tz):
        first = steps.count(changed_ms - 1)
        at = [steps.instant(number) for number in range(first, first + 4)]
        assert at[0] < changed_ms <= at[1] < at[2] < at[3]
        for a, b in pairwise(at):
            assert [wait_ms(rate, 1, a), wait_ms(rate, 1, b - 1)] == [b - a, 1]
            assert [gain(rate, a, b - 1), gain(rate, a, b)] == [0, 1_000]


@given(st.sampled_from(ZONES), st.sampled_from(["day", "month", "year"]), moments())
@settings(max_examples=200, deadline=None)
def test_a_period_begins_with_the_first_instant_of_its_first_day(tz: str, period: str, now: int) -> None:
    """A millisecond earlier the wall clock shows an earlier date."""
    steps = steps_of(f"{period}@{tz}")
    boundary = steps.instant(steps.count(now))
    before, after = (
        datetime.fromtimestamp(ms / 1000, ZoneInfo(tz)).date() for ms in (boundary - 1, boundary)
    )
    unit = {"day": 3, "month": 2, "year": 1}[period]
    assert before.timetuple()[:unit] < after.timetuple()[:unit]


@pytest.mark.parametrize(
    ("accrual", "after", "boundaries"),
    [
        # The hour that is missing, the one that comes twice, and the days that have them.
        ("hour@Europe/Berlin", "2024-03-31T00:30Z", ["2024-03-31T01:00Z", "2024-03-31T02:00Z"]),
        ("hour@Europe/Berlin", "2024-10-27T00:00Z", ["2024-10-27T01:00Z", "2024-10-27T02:00Z"]),
        ("day@Europe/Berlin", "2024-03-30T23:00Z", ["2024-03-31T22:00Z", "2024-04-01T22:00Z"]),
        ("day@Europe/Berlin", "2024-10-26T22:00Z", ["2024-10-27T23:00Z", "2024-10-28T23:00Z"]),
        ("cron(30 2 * * *)@Europe/Berlin", "2024-03-30T12:00Z", ["2024-03-31T01:00Z", "2024-04-01T00:30Z"]),
        ("cron(30 2 * * *)@Europe/Berlin", "2024-10-26T12:00Z", ["2024-10-27T00:30Z", "2024-10-28T01:30Z"]),
        # Half an hour less, half an hour more.
        ("hour@Australia/Lord_Howe", "2023-09-30T14:30Z", ["2023-09-30T15:30Z", "2023-09-30T16:00Z"]),
        ("hour@Australia/Lord_Howe", "2024-04-06T14:00Z", ["2024-04-06T15:30Z", "2024-04-06T16:30Z"]),
        ("day@Australia/Lord_Howe", "2024-04-05T13:00Z", ["2024-04-06T13:00Z", "2024-04-07T13:30Z"]),
        # A day that was left out, by which a week and a month lost it too.
        ("day@Pacific/Apia", "2011-12-29T10:00Z", ["2011-12-30T10:00Z", "2011-12-31T10:00Z"]),
        ("week@Pacific/Apia", "2011-12-26T10:00Z", ["2012-01-01T10:00Z", "2012-01-08T10:00Z"]),
        ("month@Pacific/Apia", "2011-12-01T10:00Z", ["2011-12-31T10:00Z", "2012-01-31T10:00Z"]),
        ("cron(0 12 30 * *)@Pacific/Apia", "2011-12-01T10:00Z", ["2011-12-30T10:00Z", "2012-01-29T22:00Z"]),
        # Midnights that did not exist.
        ("day@America/Sao_Paulo", "2017-10-14T03:00Z", ["2017-10-15T03:00Z", "2017-10-16T02:00Z"]),
        ("day@Africa/Cairo", "2023-04-26T22:00Z", ["2023-04-27T22:00Z", "2023-04-28T21:00Z"]),
        ("day@Asia/Beirut", "2022-03-25T22:00Z", ["2022-03-26T22:00Z", "2022-03-27T21:00Z"]),
        # A midnight that came twice.
        ("day@America/St_Johns", "2006-10-28T02:30Z", ["2006-10-29T02:30Z", "2006-10-30T03:30Z"]),
        # Months and leap days.
        ("month@Europe/Berlin", "2024-02-29T12:00Z", ["2024-02-29T23:00Z", "2024-03-31T22:00Z"]),
        ("month@UTC", "2023-02-28T23:59Z", ["2023-03-01T00:00Z", "2023-04-01T00:00Z"]),
        ("day@UTC", "2024-02-28T12:00Z", ["2024-02-29T00:00Z", "2024-03-01T00:00Z"]),
        ("cron(0 0 29 2 *)@UTC", "2023-01-01T00:00Z", ["2024-02-29T00:00Z", "2028-02-29T00:00Z"]),
        ("cron(0 0 31 * *)@UTC", "2024-01-31T00:00Z", ["2024-03-31T00:00Z", "2024-05-31T00:00Z"]),
        ("week@UTC", "2024-12-30T00:00Z", ["2025-01-06T00:00Z", "2025-01-13T00:00Z"]),
        ("year@Asia/Kathmandu", "2023-12-31T18:14Z", ["2023-12-31T18:15Z", "2024-12-31T18:15Z"]),
        ("cron(0 9 13 * 5)@UTC", "2024-09-06T09:00Z", ["2024-09-13T09:00Z", "2024-09-20T09:00Z"]),
    ],
)
def test_boundaries_that_can_be_looked_up(accrual: str, after: str, boundaries: list[str]) -> None:
    """The next two after an instant, counted one by one and each to the millisecond."""
    steps, first = steps_of(accrual), instant(after)
    at = [instant(text) for text in boundaries]
    number = steps.count(first)
    assert [steps.instant(number + 1), steps.instant(number + 2)] == at
    assert [steps.count(ms) - number for ms in (at[0] - 1, at[0], at[1] - 1, at[1])] == [0, 1, 1, 2]


def test_nobody_asks_the_time_zone_twice() -> None:
    """Within a period that is known the law is as fast for a quota as a comparison."""
    rate, now = Rate.of(Limit.per_month("usd", 100, tz="Asia/Tokyo")), instant("2026-05-17T12:00Z")
    asked: list[Any] = []
    gain(rate, now - 10**10, now)
    with mock.patch.object(WallClock, "offset_ms", asked.append):
        for ms in range(0, 10**9, 10**7):
            gain(rate, now - 10**10, now + ms)
    assert asked == []


def test_what_was_saved_up_is_kept_to_the_capacity() -> None:
    """A quota that holds more than it gains saves up to that; one that does not begins anew each time."""
    saving, plain = Limit.per_day("a", 10, burst=25, calendar=True), Limit.per_day("a", 10, calendar=True)
    origin, day_ms = instant("2026-01-01T12:00Z"), 86_400_000
    for limit, held in ((saving, [0, 10, 20, 25]), (plain, [0, 10, 10, 10])):
        found = [balance(Rate.of(limit), 0, origin, origin + day * day_ms) // 1000 for day in range(4)]
        assert found == held
