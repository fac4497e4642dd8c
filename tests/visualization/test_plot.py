"""Charts of usage, letter for letter; ``UPDATE_SNAPSHOTS=1`` draws them anew."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.visualization.test_timeline import DAILY, HOURLY, MONTHLY, hour, snapshot
from zae_limiter import InfrastructureError, UsageSnapshot, UsageWindow
from zae_limiter.visualization.bars import ASCII, BLOCKS, Ink
from zae_limiter.visualization.plot import WIDTH_MIN, usage_chart
from zae_limiter.visualization.timeline import Fold, number_of, start_of, timeline

CHARTS = Path(__file__).parent / "charts"


def series(window: UsageWindow, *used: int, name: str = "rpm") -> list[UsageSnapshot]:
    """One snapshot for each window from the start of 2024, without those of nothing."""
    first = number_of(window, hour(0))
    return [
        snapshot(window, start_of(window, first + n), "a", **{name: amount})
        for n, amount in enumerate(used)
        if amount
    ]


DAY = [3, 0, 0, 1, 2, 5, 9, 14, 22, 31, 38, 40, 37, 41, 44, 39, 30, 26, 18, 12, 9, 6, 4, 49]
CASES: dict[str, tuple[list[UsageSnapshot], int, Fold, Ink]] = {
    "a-day": (series(HOURLY, *DAY), 80, Fold.SUM, BLOCKS),
    "a-day-in-ascii": (series(HOURLY, *DAY), 60, Fold.SUM, ASCII),
    "a-month-summed": (series(HOURLY, *DAY * 31), 80, Fold.SUM, BLOCKS),
    "a-month-at-its-busiest": (series(HOURLY, *DAY * 31), 80, Fold.MAX, BLOCKS),
    "two-limits": (
        series(DAILY, 5, 80, 3) + series(DAILY, 12_345, 0, 1_234_567, name="tokens.in"),
        40,
        Fold.SUM,
        BLOCKS,
    ),
    "months": (series(MONTHLY, *range(1, 15)), 80, Fold.SUM, BLOCKS),
    "one-hour": (series(HOURLY, 7), 80, Fold.SUM, BLOCKS),
    "given-back": (series(HOURLY, 50, -20, 30), 60, Fold.SUM, BLOCKS),
    "nothing-but-given-back": (series(HOURLY, -1, -20), 60, Fold.SUM, BLOCKS),
    "little-given-back": (series(HOURLY, 5000, -1), 60, Fold.SUM, BLOCKS),
    "narrow": (series(HOURLY, *DAY), 10, Fold.SUM, BLOCKS),
}


@pytest.mark.parametrize("name", CASES)
def test_charts(name: str) -> None:
    """What a reader sees."""
    snapshots, width, fold, ink = CASES[name]
    line = timeline(snapshots)
    assert line is not None
    drawn = usage_chart(line, width, fold, ink) + "\n"
    file = CHARTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(drawn, encoding="utf-8")
    assert drawn == file.read_text(encoding="utf-8")
    assert ink is BLOCKS or drawn.isascii()


def test_no_chart_is_left_over() -> None:
    """A file that nothing is compared with is removed."""
    assert {file.stem for file in CHARTS.iterdir()} == set(CASES)


@settings(max_examples=60)
@given(
    st.dictionaries(st.integers(0, 3000), st.integers(-(10**13), 10**15), min_size=1, max_size=30),
    st.integers(1, 200),
    st.sampled_from(UsageWindow),
    st.sampled_from(Fold),
)
def test_a_chart_fits(used: dict[int, int], width: int, window: UsageWindow, fold: Fold) -> None:
    """No line is wider than the terminal, no colour is in it, and every bar of something is seen."""
    first = number_of(window, hour(0))
    line = timeline([snapshot(window, start_of(window, first + n), rpm=amount) for n, amount in used.items()])
    assert line is not None
    drawn = usage_chart(line, width, fold)
    assert max(map(len, drawn.split("\n"))) <= max(width, WIDTH_MIN)
    assert "\x1b" not in drawn
    assert f"{sum(used.values()):,} used" in " ".join(drawn.split())
    assert "█" in drawn or set(used.values()) <= {0} or fold is Fold.MAX or sum(used.values()) == 0


def test_equal_bars_look_equal() -> None:
    """Each has the same columns, wherever it stands."""
    line = timeline(series(HOURLY, *[5] * 20))
    assert line is not None
    (row,) = {part for part in usage_chart(line, 80).split("\n") if "█" in part and "┤" not in part}
    assert row.strip().strip("│") == "██ " * 20


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without plotext there is a command to get it."""
    monkeypatch.setitem(sys.modules, "plotext", None)
    line = timeline(series(HOURLY, 1))
    assert line is not None
    with pytest.raises(InfrastructureError, match="charts need plotext, which is not installed; run: pip"):
        usage_chart(line, 80)
