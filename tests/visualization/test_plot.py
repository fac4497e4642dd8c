"""Charts of usage, letter for letter; ``UPDATE_SNAPSHOTS=1`` draws them anew."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.visualization.test_timeline import DAILY, HOURLY, MONTHLY, hour, snapshot
from zae_limiter import UsageSnapshot, UsageWindow
from zae_limiter.visualization.bars import ASCII, BLOCKS, Ink
from zae_limiter.visualization.panel import scale_of
from zae_limiter.visualization.plot import WIDTH_MIN
from zae_limiter.visualization.plot import usage_chart as coloured_chart
from zae_limiter.visualization.timeline import Fold, number_of, start_of, timeline

CHARTS = Path(__file__).parent / "charts"


def usage_chart(*args: Any, **settings: Any) -> str:
    """A chart as it is without colours."""
    return coloured_chart(*args, **settings).plain


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
    assert {file.stem for file in CHARTS.iterdir()} == {*CASES, *SHARED, *BY_ENTITY}


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
    may_be_empty = fold is Fold.MAX or not sum(used.values())
    assert may_be_empty or set(drawn) & set("▁▂▃▄▅▆▇█")


def test_equal_bars_look_equal() -> None:
    """Each has the same columns, wherever it stands."""
    line = timeline(series(HOURLY, *[5] * 20))
    assert line is not None
    (row,) = {part for part in usage_chart(line, 80).split("\n") if "█" in part and "┤" not in part}
    assert row.strip().strip("│") == ("██ " * 20).rstrip()


SHARED: dict[str, tuple[int, Ink, dict[str, int]]] = {
    "a-limit-40": (40, BLOCKS, {"rpm": 60}),
    "a-limit-80": (80, BLOCKS, {"rpm": 60}),
    "a-limit-120": (120, BLOCKS, {"rpm": 60}),
    "a-limit-200": (200, BLOCKS, {"rpm": 60}),
    "a-limit-in-ascii": (60, ASCII, {"rpm": 60}),
    "a-limit-far-above": (60, BLOCKS, {"rpm": 3_600}),
}


@pytest.mark.parametrize("name", SHARED)
def test_limits_and_shares(name: str) -> None:
    """A line for what the limit lets through, and who used how much, at any width."""
    width, ink, allowed = SHARED[name]
    parts = {f"user-{n}": [amount * n // 28 for amount in DAY] for n in range(1, 8)}
    parts["somebody whose name is longer than a narrow terminal is wide"] = DAY
    lines = {who: timeline(series(HOURLY, *used)) for who, used in parts.items()}
    whole = timeline(series(HOURLY, *map(sum, zip(*parts.values(), strict=True))))
    assert whole is not None
    shares = {who: line for who, line in lines.items() if line is not None}
    drawn = usage_chart(whole, width, Fold.SUM, ink, allowed | {"unknown": 5}, shares) + "\n"
    file = CHARTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(drawn, encoding="utf-8")
    assert drawn == file.read_text(encoding="utf-8")
    assert max(map(len, drawn.split("\n"))) <= width
    assert ink is BLOCKS or drawn.isascii()


ODD = {"日本語の顧客": [8, 3, 1], "🦄👩\u200d🔬": [5, 0, 2], "Zoe\u0301": [2, 2, 2], "auth0|ann": [1, 1, 1]}
LONG = "tenant-{:03}-of-some-company-in-production"
BY_ENTITY: dict[str, tuple[int, Ink, dict[str, list[int]]]] = {
    "first-hour-24": (24, BLOCKS, {"alice": [8], "alan": [5], "bob": [2]}),
    "first-hour-100": (100, BLOCKS, {"alice": [8], "alan": [5], "bob": [2]}),
    "first-hour-in-ascii": (60, ASCII, {"alice": [8], "alan": [5], "bob": [2]}),
    "first-hour-given-back": (60, BLOCKS, {"alice": [800], "alan": [-50], "bob": [-300]}),
    "first-hour-of-many-60": (60, BLOCKS, {LONG.format(n): [n**2 * 123_456_789] for n in range(1, 21)}),
    "first-hour-of-many-80": (80, BLOCKS, {LONG.format(n): [n**2 * 123_456_789] for n in range(1, 21)}),
    "first-hours-80": (80, BLOCKS, {LONG.format(1): [8, 0, 3], "alan": [5, 1, 1], "bob": [2, 2, 2]}),
    "odd-names-40": (40, BLOCKS, ODD),
    "odd-names-100": (100, BLOCKS, ODD),
    "one-hour-of-odd-names": (60, BLOCKS, {who: used[:1] for who, used in ODD.items()}),
    "first-hours-given-back": (60, BLOCKS, {"alice": [-8, 4, 4], "alan": [5, -20, 17]}),
}


def by_entity(width: int, ink: Ink, parts: dict[str, list[int]]) -> str:
    lines = {who: timeline(series(HOURLY, *used)) for who, used in parts.items()}
    whole = timeline([one for used in parts.values() for one in series(HOURLY, *used)])
    assert whole is not None
    return usage_chart(whole, width, ink=ink, shares={who: line for who, line in lines.items() if line})


@pytest.mark.parametrize("name", BY_ENTITY)
def test_who_used_it_in_the_first_hours(name: str) -> None:
    """Names are whole where they fit a line, and bars of two entities are on one scale, which is told."""
    width, ink, parts = BY_ENTITY[name]
    drawn = by_entity(width, ink, parts) + "\n"
    file = CHARTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(drawn, encoding="utf-8")
    assert drawn == file.read_text(encoding="utf-8")
    assert max(map(cell_len, drawn.split("\n"))) <= width
    assert ink is BLOCKS or drawn.isascii()


def test_bars_of_entities_compare() -> None:
    """Who used less has the shorter bar, in one window and in several."""
    drawn = by_entity(100, BLOCKS, {"alice": [8], "alan": [5], "bob": [2]}).split("\n")
    assert "by entity, all on one scale; the largest bar is 8" in drawn
    lengths = [
        next(line for line in drawn if line.startswith(who)).count("█") for who in ("alice", "alan", "bob")
    ]
    assert lengths == [40, 25, 10]
    drawn = by_entity(100, BLOCKS, {"alice": [8, 8], "alan": [5, 5], "bob": [2, 2]}).split("\n")
    below = [drawn[drawn.index(next(line for line in drawn if who in line)) + 1] for who in ("alice", "alan")]
    assert [line.split() for line in below] == [["█████"] * 2, ["▅▅▅▅▅"] * 2]


@given(
    st.dictionaries(
        st.text("abcxyz-é\u0301日本🦄", min_size=1, max_size=70),
        st.lists(st.integers(-(10**13), 10**15).filter(bool), min_size=1, max_size=4),
        min_size=2,
        max_size=14,
    ),
    st.integers(1, 130),
    st.sampled_from([ASCII, BLOCKS]),
)
@settings(max_examples=60)
@example({"a": [-1_582_105], "a" * 15: [1]}, 24, ASCII)
def test_a_chart_by_entity_fits(parts: dict[str, list[int]], width: int, ink: Ink) -> None:
    """No line is wider than the terminal, and no name is cut that had room beside its number."""
    width = max(width, WIDTH_MIN)
    drawn = by_entity(width, ink, parts).split("\n")
    assert max(map(cell_len, drawn)) <= width
    shown = sorted(parts, key=lambda who: (-sum(parts[who]), who))[:5]
    for who in shown:
        # The sign of its layer, a blank, its number and how much of all that is.
        if 2 + cell_len(who) + 1 + width // 3 + 5 <= width:
            assert any(f"{who} " in line for line in drawn)


@given(st.lists(st.integers(-(10**9), 10**12), min_size=1, max_size=9), st.none() | st.integers(1, 10**12))
def test_a_scale_reads_well(heights: list[int], lets: int | None) -> None:
    """Few numbers, at equal steps of one, two or five, around all that is drawn; nought is one of them."""
    ticks = scale_of(heights, lets)
    low, high = ticks[0], ticks[-1]
    assert low <= min(0, *heights) <= max(0, *heights) <= high
    assert 2 <= len(ticks) <= 6
    assert 0 in ticks
    steps = {after - before for before, after in pairwise(ticks)}
    assert len(steps) == 1
    assert str(steps.pop()).rstrip("0") in ("1", "2", "5")


@given(
    st.lists(st.lists(st.integers(1, 10**9), min_size=4, max_size=4), min_size=2, max_size=9),
    st.sampled_from([ASCII, BLOCKS]),
)
def test_layers_are_as_high_as_what_they_stand_for(parts: list[list[int]], ink: Ink) -> None:
    """Those who used more lie below, and each has its own fill, to a row; together they are the bar."""
    names = {f"user-{n}": used for n, used in enumerate(parts)}
    rows = by_entity(60, ink, names).split("\n")
    rows = rows[1 : next(n for n, row in enumerate(rows) if ink.corner in row[:6] and ink.edge in row)]
    by_use = sorted(names, key=lambda who: (-sum(names[who]), who))
    shown = by_use if len(by_use) == 6 else by_use[:5]
    layers = [names[who] for who in shown]
    if rest := [names[who] for who in by_use if who not in shown]:
        layers += [[0] * 4] * (5 - len(layers)) + [list(map(sum, zip(*rest, strict=True)))]
    top = scale_of([sum(bar) for bar in zip(*parts, strict=True)])[-1]
    start = rows[0].index(ink.tick) + 1
    for bar in range(4):
        column = [row[start + bar * 6 : start + bar * 6 + 1].strip() for row in reversed(rows)]
        full = [ink.fills.index(sign) for sign in column if sign and sign in ink.fills]
        assert full == sorted(full)
        for layer, used in enumerate(layers):
            assert abs(full.count(layer) - used[bar] * len(rows) / top) < 2
        tall = sum(bar for bar in (used[bar] for used in layers)) * len(rows) / top
        assert abs(len("".join(column)) - tall) <= 1


@pytest.mark.parametrize("ink", [BLOCKS, ASCII])
def test_heights_are_told_in_eighths(ink: Ink) -> None:
    """Of a row each, and never less than one."""
    line = timeline(series(HOURLY, *range(1, 65)))
    assert line is not None
    rows = usage_chart(line, 80, ink=ink).split("\n")[1:11]
    columns = ["".join(row[3 + n : 4 + n].strip() for row in rows[:-1]) for n in range(64)]
    full = ink.parts[8]
    assert [len(column) for column in columns] == sorted(len(column) for column in columns)
    assert columns[-1].count(full) > columns[0].count(full) == 0
    assert len({column[0] for column in columns}) == len(set(ink.parts)) - 1


@given(
    st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=30),
    st.integers(24, 120),
    st.sampled_from(["usd_micro", "chf_micro"]),
)
def test_money_fits_like_any_number(amounts: list[int], width: int, unit: str) -> None:
    """Amounts of money have more letters at the side, and no line is wider than the terminal for that."""
    line = timeline(series(HOURLY, 1, *amounts))
    assert line is not None
    drawn = usage_chart(
        line, width, units=dict.fromkeys(line.used, unit), allowed=dict.fromkeys(line.used, 10**6)
    )
    assert max(map(len, drawn.split("\n"))) <= width
