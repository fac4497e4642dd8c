"""Tables at any width: no word is broken, no line is wider than the terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests.cli.conftest import Run
from tests.records.store import count_usage
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.cli.output import grid
from zae_limiter.runtime.colour import run_sync

START = 1_704_067_200_000
"""The first of January 2024."""


def printed(table: Any, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, markup=False).print(table)
    return out.getvalue()


words = st.text("abcdefgh日本", min_size=1, max_size=12)
texts = st.lists(words, min_size=1, max_size=6).map(" ".join)


@given(
    st.lists(words, min_size=1, max_size=6, unique=True).flatmap(
        lambda names: st.tuples(
            st.just(names),
            st.lists(st.tuples(*(texts for _ in names)), min_size=1, max_size=3),
        )
    ),
    st.integers(30, 120),
)
def test_no_word_is_broken(table: tuple[list[str], list[tuple[str, ...]]], width: int) -> None:
    """Every word of every cell is printed whole, whether as a table or as records."""
    names, rows = table
    shown = printed(grid(names, rows), width)
    assert max(map(cell_len, shown.split("\n"))) <= width
    found = shown.split()
    for cell in (*names, *(cell for row in rows for cell in row)):
        for word in cell.split():
            assert word in found, shown


@pytest.mark.parametrize("width", [40, 80, 120])
def test_usage_at_any_width(
    run: Run, limiter: SyncRateLimiter, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Names and times are whole; charts have a line for the limit and show who used how much."""
    monkeypatch.setenv("COLUMNS", str(width))
    limiter.repository.set_resource_defaults("gpt-4", [Limit.per_hour("rpm", 40)])
    for hour in range(24):
        for entity_id, amount in (("auth0|ann", hour), ("arn:role/bob", 24 - hour)):
            at_ms = START + hour * 3_600_000
            run_sync(count_usage(limiter.repository._async, entity_id, "gpt-4", "hourly", at_ms, rpm=amount))
    table = run("usage", "list", "-r", "gpt-4", "--limit", "3").stdout
    assert "2024-01-01T00:00:00Z" in table
    assert "arn:role/bob" in table
    of_one = run("usage", "list", "-e", "auth0|ann", "-r", "gpt-4", "--plot").stdout
    assert "╌╌ rpm lets 40 through in one hour" in of_one
    of_all = run("usage", "list", "-r", "gpt-4", "--plot").stdout
    assert "rpm: 576 used" in of_all
    rows = [line.split() for line in of_all.splitlines()]
    assert ["█", "arn:role/bob", "300", "52%"] in rows
    assert ["▓", "auth0|ann", "276", "48%"] in rows
    for shown in (table, of_one, of_all):
        assert max(map(len, shown.splitlines())) <= width


def test_a_far_limit_is_told_and_not_drawn(run: Run, limiter: SyncRateLimiter) -> None:
    """Bars are not pressed flat by a limit that nobody comes near."""
    limiter.repository.set_resource_defaults("gpt-4", [Limit.per_minute("rpm", 60)])
    run_sync(count_usage(limiter.repository._async, "ann", "gpt-4", "hourly", START, rpm=7))
    chart = run("usage", "list", "-e", "ann", "-r", "gpt-4", "--plot").stdout
    assert "\nrpm lets 3,600 through in one hour\n" in chart
    assert "╌" not in chart


def test_plain_characters_only(run: Run, limiter: SyncRateLimiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for them gets no others, in charts, bars and tables; so does a terminal that is dumb."""
    limiter.repository.set_resource_defaults("gpt-4", [Limit.per_hour("rpm", 40)])
    for hour in range(3):
        at_ms = START + hour * 3_600_000
        for who in ("ann", "bob"):
            run_sync(count_usage(limiter.repository._async, who, "gpt-4", "hourly", at_ms, rpm=9))
    with limiter.acquire("ann", "gpt-4", {"rpm": 9}):
        pass
    commands = (
        "usage list -r gpt-4 --plot",
        "usage list -r gpt-4 -e ann --plot",
        "usage list -r gpt-4 --plot",
        "entity buckets ann",
    )
    for command in commands:
        assert not run(*command.split()).stdout.isascii()
        plain = run(*command.split(), "--ascii").stdout
        assert plain.isascii()
        assert "##" in plain
    monkeypatch.setenv("FORCE_COLOR", "1")  # it is taken for a terminal
    monkeypatch.setenv("TERM", "dumb")
    for command in commands:
        assert run(*command.split()).stdout.isascii()
