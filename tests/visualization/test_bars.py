"""Bars: never longer than they may be, never empty when there is something."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter.visualization.bars import ASCII, BLOCKS, Ink, bar, debt_width, diverging, level


@pytest.mark.parametrize(
    ("value", "drawn"),
    [(0, "...."), (1, "#..."), (50, "##.."), (99, "###."), (100, "####"), (200, "####"), (-5, "....")],
)
def test_a_gauge_shows_how_full_a_bucket_is(value: int, drawn: str) -> None:
    """Full is shown only when it is full, empty only when nothing is left."""
    assert level(value, 100, 4, 0, ASCII) == drawn


@pytest.mark.parametrize(
    ("value", "drawn"), [(-5, ""), (0, ""), (1, "#"), (50, "##"), (99, "###"), (100, "####"), (200, "####")]
)
def test_a_bar_is_as_long_as_its_value(value: int, drawn: str) -> None:
    """Nothing has no bar, and something has one."""
    assert bar(value, 100, 4, ASCII) == drawn


@pytest.mark.parametrize(
    ("value", "drawn"),
    [
        (-4, "####|    "),
        (-1, "   #|    "),
        (0, "    |    "),
        (1, "    |#   "),
        (4, "    |####"),
        (9, "    |####"),
    ],
)
def test_a_diverging_bar_starts_at_zero(value: int, drawn: str) -> None:
    """Debt goes to the left, what is there to the right."""
    assert diverging(value, -4, 4, 8, ASCII) == drawn


@given(
    st.integers(-(10**15), 10**15),
    st.integers(-(10**12), 0),
    st.integers(0, 10**12),
    st.integers(1, 80),
    st.sampled_from([BLOCKS, ASCII]),
)
def test_bars_have_the_same_length(value: int, bottom: int, top: int, width: int, ink: Ink) -> None:
    """A chart stays in its columns; a plain bar may be shorter."""
    assert len(bar(value, top, width, ink)) <= width
    assert len(level(value, top, width, 0, ink)) == width
    assert len(diverging(value, bottom, top, width, ink)) == width + 1


@pytest.mark.parametrize(
    ("value", "drawn"),
    [
        (100, "    |########"),
        (50, "    |####...."),
        (0, "    |........"),
        (-1, "   #|........"),
        (-25, "  ##|........"),
        (-50, "####|........"),
        (-51, "####|........"),
        (-90, "<###|........"),
    ],
)
def test_a_level_has_room_for_debt(value: int, drawn: str) -> None:
    """On the same scale as what is there; more than there is room for is marked."""
    assert level(value, 100, 8, 4, ASCII) == drawn


def test_room_for_debt_is_made_where_there_is_any() -> None:
    """As much as the largest debt needs, and never more than the gauge itself."""
    assert debt_width([(5, 10), (0, 10)], 20) == 0
    assert debt_width([], 20) == 0
    assert debt_width([(5, 10), (-1, 10), (-5, 1000)], 20) == 2
    assert debt_width([(-1, 10**9)], 20) == 1
    assert debt_width([(-50, 10)], 20) == 20
    assert level(5, 10, 8, 0, ASCII) == "####...."


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6), st.integers(1, 40))
def test_levels_stay_in_their_columns(value: int, top: int, width: int) -> None:
    """Whatever the debt."""
    room = debt_width([(value, top)], width)
    drawn = level(value, top, width, room)
    assert len(drawn) == width + (room + 1 if room else 0)
    assert bool(set(drawn) & set("▏▎▍▌▋▊▉█<")) == (value != 0)


@pytest.mark.parametrize(
    ("value", "drawn"), [(1, "▏░░░"), (30, "█▏░░"), (99, "███▉"), (100, "████"), (0, "░░░░")]
)
def test_a_gauge_ends_in_eighths(value: int, drawn: str) -> None:
    """Where blocks can be shown; full is shown only when it is full."""
    assert level(value, 100, 4) == drawn


def test_a_diverging_bar_ends_in_eighths() -> None:
    """To the right; there are no blocks for the other side."""
    assert diverging(1.25, -4, 4, 8) == "    │█▎  "
    assert diverging(-1.25, -4, 4, 8) == "   █│    "
