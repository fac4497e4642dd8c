"""Usage over time: windows are numbered, gaps count as nothing, folding loses nothing."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter import UsageSnapshot, UsageWindow
from zae_limiter.visualization.timeline import Fold, folded, number_of, start_of, timeline

HOURLY, DAILY, MONTHLY = UsageWindow
moments = st.integers(0, 29_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
uses = st.dictionaries(st.integers(0, 5000), st.integers(-50, 10**9), min_size=1, max_size=40)


def snapshot(window: UsageWindow, start: datetime, entity_id: str = "a", /, **used: int) -> UsageSnapshot:
    following = start_of(window, number_of(window, start) + 1)
    return UsageSnapshot(
        entity_id, "gpt-4", window, f"{start:%Y-%m-%dT%H:%M:%SZ}", f"{following:%Y-%m-%dT%H:%M:%SZ}", used
    )


def hour(n: int) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=n)


@given(st.sampled_from(UsageWindow), moments)
def test_windows_are_numbered(window: UsageWindow, moment: datetime) -> None:
    """The number leads back to the start; the next window is the next number."""
    number = number_of(window, moment)
    assert start_of(window, number) <= moment < start_of(window, number + 1)
    assert number_of(window, start_of(window, number)) == number


def test_snapshots_of_several_are_added_up() -> None:
    """Of entities, resources and limits; nothing in, nothing out."""
    line = timeline(
        [
            snapshot(HOURLY, hour(5), "a", tpm=100, rpm=1),
            snapshot(HOURLY, hour(2), "b", rpm=2),
            snapshot(HOURLY, hour(5), "b", rpm=4),
        ]
    )
    assert line is not None
    assert (line.last - line.first, start_of(HOURLY, line.first)) == (3, hour(2))
    assert {name: list(used.values()) for name, used in line.used.items()} == {"rpm": [5, 2], "tpm": [100]}
    assert list(line.used) == ["rpm", "tpm"]
    assert timeline([]) is None


def test_windows_of_different_kinds_do_not_add_up() -> None:
    """The same use would count twice."""
    with pytest.raises(AssertionError, match="hourly and daily windows do not add up"):
        timeline([snapshot(HOURLY, hour(0)), snapshot(DAILY, hour(0))])


def test_folding() -> None:
    """Sums or peaks of as many windows as it takes."""
    line = timeline([snapshot(HOURLY, hour(n), rpm=n) for n in (0, 1, 2, 3, 6)])
    assert line is not None
    assert folded(line, 100).heights == {"rpm": (0, 1, 2, 3, 0, 0, 6)}
    three = folded(line, 3)
    assert (three.each, three.length, three.heights) == (3, 3, {"rpm": (3, 3, 6)})
    assert folded(line, 3, Fold.MAX).heights == {"rpm": (2, 3, 6)}
    assert three.start_of(1) == hour(3)


@pytest.mark.parametrize(
    ("window", "windows", "each", "start"),
    [
        (HOURLY, 26, 2, "2024-05-30 14:00"),
        (HOURLY, 100, 6, "2024-05-30 12:00"),
        (HOURLY, 400, 24, "2024-05-30 00:00"),
        (HOURLY, 6000, 336, "2024-05-27 00:00"),
        (DAILY, 50, 7, "2024-05-27 00:00"),
        (DAILY, 3000, 168, "2024-04-15 00:00"),
        (MONTHLY, 30, 2, "2024-05-01 00:00"),
        (MONTHLY, 100, 6, "2024-01-01 00:00"),
        (MONTHLY, 1000, 60, "2020-01-01 00:00"),
    ],
)
def test_bars_are_of_lengths_that_people_know(
    window: UsageWindow, windows: int, each: int, start: str
) -> None:
    """They start at midnight, on Mondays, in January."""
    first = number_of(window, datetime(2024, 5, 30, 15, tzinfo=UTC))
    line = timeline([snapshot(window, start_of(window, first + n), rpm=1) for n in (0, windows)])
    assert line is not None
    bars = folded(line, 20)
    assert (bars.each, f"{bars.start_of(0):%Y-%m-%d %H:%M}") == (each, start)
    assert bars.length <= 20


def test_a_peak_of_what_was_given_back() -> None:
    """Windows without a snapshot used nothing, which is more than less than nothing."""
    line = timeline([snapshot(HOURLY, hour(n), rpm=-n) for n in (1, 2, 5)])
    assert line is not None
    assert folded(line, 2, Fold.MAX).heights == {"rpm": (0, 0)}
    whole = timeline([snapshot(HOURLY, hour(n), rpm=-n) for n in (2, 3, 4, 5)])
    assert whole is not None
    assert folded(whole, 2, Fold.MAX).heights == {"rpm": (-2, -4)}


@given(uses, st.integers(1, 200))
def test_folding_loses_nothing(used: dict[int, int], bars_max: int) -> None:
    """The sum stays, the peak stays, and there are never more bars than fit."""
    line = timeline([snapshot(HOURLY, hour(n), rpm=amount) for n, amount in used.items()])
    assert line is not None
    summed, peaks = folded(line, bars_max), folded(line, bars_max, Fold.MAX)
    assert summed.length == len(summed.heights["rpm"]) <= max(2, bars_max)
    assert sum(summed.heights["rpm"]) == sum(used.values())
    if max(used.values()) > 0:
        assert max(peaks.heights["rpm"]) == max(used.values())
