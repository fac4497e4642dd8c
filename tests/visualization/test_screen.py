"""Frames of ``zae-limiter watch``, letter for letter; ``UPDATE_SNAPSHOTS=1`` draws them anew."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from zae_limiter.visualization.bars import ASCII, BLOCKS, Ink
from zae_limiter.visualization.screen import Gauge, RefusalLine, Scene, frame

FRAMES = Path(__file__).parent / "frames"

NEAR = [
    Gauge("acme/support/bot", "gpt-4", "rpm", 0.0, "     0 of 60", "again in 1.2 s", refuses=True),
    Gauge("acme/support", "gpt-4", "tpm", -0.3, "  -12k of 40k", "again in 18 s", refuses=True),
    Gauge(
        "東京の顧客 of a company with a long name",
        "claude-sonnet-4",
        "tpm",
        0.17,
        "  1.7k of 10k",
        "full in 48 s",
    ),
    Gauge("globex/research", "gpt-4", "usd", 0.08, " $8.10 of $100", "full in 12 d 4 h"),
    Gauge("globex", "embeddings", "parallel", 0.9, "     1 of 10 held"),
    Gauge("initech", "gpt-4", "rpm (soft)", 1.0, "    60 of 60", "off: maintenance until 15:00"),
]
REFUSALS = [
    RefusalLine("20:15:01", "acme/support/bot", "gpt-4", "rpm", "1.2 s", 12),
    RefusalLine(
        "20:14:59", "東京の顧客 of a company with a long name", "claude-sonnet-4", "rpm, tpm", "12 s"
    ),
    RefusalLine("20:14:58", "globex", "embeddings", "tpm, never passes"),
]
TITLE = "zae-limiter watch  sqlite:////srv/limits.db"
HEADING = ["24 buckets", "2 refuse", "31.2 admitted/s", "4.0 refused/s"]
SCENE = Scene(TITLE, "20:15:03 UTC", HEADING, NEAR, REFUSALS)
FAMILY = Scene(
    f"{TITLE}  acme/support",
    "20:15:03 UTC",
    ["3 buckets", "1 refuses"],
    [
        Gauge(who, "gpt-4", limit, ratio, left, refuses=ratio <= 0, depth=depth)
        for depth, who in enumerate(["acme", "acme/support", "acme/support/bot"])
        for limit, ratio, left in (
            ("rpm", 1 - depth / 2, f"{60 - 30 * depth:6} of 60"),
            ("tpm", 0.5, "   20k of 40k"),
        )
    ],
    [],
)
EMPTY = Scene(TITLE, "20:15:03 UTC", ["no buckets yet"], [])
GONE = SCENE._replace(trouble="file '/srv/limits.db' does not exist; this is from 20:14:07 UTC")

CASES: dict[str, tuple[Scene, int, int | None, Ink]] = {
    "near-120": (SCENE, 120, None, BLOCKS),
    "near-80": (SCENE, 80, None, BLOCKS),
    "near-60-ascii": (SCENE, 60, None, ASCII),
    "near-40": (SCENE, 40, None, BLOCKS),
    "near-24": (SCENE, 24, None, BLOCKS),
    "near-80x12": (SCENE, 80, 12, BLOCKS),
    "near-40x12": (SCENE, 40, 12, BLOCKS),
    "family-80": (FAMILY, 80, None, BLOCKS),
    "family-40": (FAMILY, 40, None, BLOCKS),
    "empty-40": (EMPTY, 40, 5, BLOCKS),
    "gone-60": (GONE, 60, 20, BLOCKS),
}


@pytest.mark.parametrize("name", CASES)
def test_frames(name: str) -> None:
    """What somebody sees."""
    scene, width, height, ink = CASES[name]
    drawn = frame(scene, width, height, ink).plain + "\n"
    file = FRAMES / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(drawn, encoding="utf-8")
    assert drawn == file.read_text(encoding="utf-8")


def test_a_resource_never_stands_for_an_entity() -> None:
    """In a narrow window the line above a bar names whose it is, also for the second resource of somebody."""
    two = [Gauge("globex", what, "rpm", 0.5, "30 of 60", "") for what in ("embeddings", "gpt-4")]
    lines = frame(Scene(TITLE, "20:15:03 UTC", ["2 buckets"], two), 40).plain.splitlines()
    assert {"globex  embeddings", "globex  gpt-4"} <= {line.rstrip() for line in lines}


def test_no_frame_is_left_over() -> None:
    """A file that nothing is compared with is removed."""
    assert {file.stem for file in FRAMES.iterdir()} == set(CASES)


names = st.text("abcxyz-/é\u0301日本🦄", min_size=1, max_size=40)
gauges = st.builds(
    Gauge,
    names,
    names,
    st.text("abcdef._-", min_size=1, max_size=20),
    st.floats(-1, 1),
    st.sampled_from(["     1 of 60", "-1.34k of 10k", "$0.000001 of $10,000"]),
    st.sampled_from(["", "again in 1.2 s", "full in 12 d 4 h"]),
    st.booleans(),
    st.integers(0, 8),
)
refusals = st.builds(RefusalLine, st.just("20:15:01"), names, names, names, names, st.integers(1, 10**6))
scenes = st.builds(
    Scene,
    names,
    st.just("20:15:03 UTC"),
    st.lists(names, min_size=1, max_size=4),
    st.lists(gauges, max_size=12),
    st.none() | st.lists(refusals, max_size=12),
    st.just("") | names,
)


@given(scenes, st.integers(1, 140), st.none() | st.integers(1, 40), st.sampled_from([ASCII, BLOCKS]))
@settings(max_examples=200)
def test_a_frame_fits(scene: Scene, width: int, height: int | None, ink: Ink) -> None:
    """However narrow or low the screen, no line is wider and no frame higher."""
    lines = frame(scene, width, height, ink).plain.split("\n")
    assert max(map(cell_len, lines)) <= width
    assert height is None or len(lines) <= height


@given(st.lists(gauges, min_size=1, max_size=12), st.integers(40, 140))
def test_numbers_are_whole(given_gauges: list[Gauge], width: int) -> None:
    """Names may be cut, and what is left is not; where there is no room for bars, they go first."""
    drawn = frame(Scene("watch", "20:15:03 UTC", ["1 bucket"], given_gauges), width).plain
    for one in given_gauges:
        if len(one.limit) + len(one.left) + 2 * min(one.depth, 3) + 2 <= width:
            assert one.left.strip() in drawn


def test_a_debt_and_a_level_do_not_look_the_same() -> None:
    """One token is seen, and so is a debt of one; a full bucket has no gap."""

    def bar_of(ratio: float, ink: Ink = BLOCKS) -> str:
        drawn = frame(Scene("w", "1", [""], [Gauge("a", "b", "rpm", ratio, "1 of 9")]), 80, None, ink)
        return drawn.plain.split("\n")[-1].split()[3]

    assert bar_of(1.0) == "█" * 32
    assert bar_of(0.0) == "░" * 32
    assert bar_of(0.001)[:2] == "▏░"
    assert bar_of(-0.001)[:2] == "▒░"
    assert bar_of(-1.0) == "▒" * 32
    assert bar_of(-0.5, ASCII) == "=" * 16 + "." * 16


def test_colours_say_nothing_alone() -> None:
    """What refuses is red, and says when it lets somebody through; text is the same without colours."""
    drawn = frame(SCENE, 120)
    spans = {str(span.style) for span in drawn.spans}
    assert {"red", "yellow", "green"} <= spans
    for one in NEAR:
        if one.refuses:
            assert f"{one.left.strip()}  {one.when}" in drawn.plain


def test_what_has_no_room_is_counted() -> None:
    """Whoever does not see all rows is told how many are missing, and refusals keep some lines."""
    many = SCENE._replace(gauges=NEAR * 10, refusals=REFUSALS * 10)
    lines = frame(many, 80, 30).plain.split("\n")
    assert len(lines) == 30
    told = next(line for line in lines if line.startswith("and "))
    shown = lines.index(told) - 2
    assert told == f"and {60 - shown} more"
    assert "refused lately" in lines
