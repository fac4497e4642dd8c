"""The advice on fill factors is counted by PostgreSQL itself."""

from pathlib import Path

import pytest

from benchmarks.fillfactor import (
    APART,
    FILL_FACTORS,
    NEVER,
    TOGETHER,
    VACUUMS,
    Seen,
    fill_table,
    measured,
    vacuum_table,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "postgresql.md"
BUCKETS, TASKS, UPDATES = 60, 20, 600


def one_run(factor: int, stride: int) -> Seen:
    return measured(f"SET (fillfactor = {factor}, {NEVER})", BUCKETS, TASKS, UPDATES, stride)


def test_neighbours_need_room() -> None:
    """In full pages more of their updates touch indexes than in half-empty ones."""
    full, half = one_run(100, TOGETHER), one_run(50, TOGETHER)
    # Whoever reads elsewhere on the server for long keeps old rows alive, so no figure is asked for.
    assert full.hot_percent < half.hot_percent
    assert full.updates > UPDATES / 2
    assert half.updates > UPDATES / 2
    assert half.vacuums == full.vacuums == 0


def test_buckets_that_are_apart_are_measured_too() -> None:
    """Seven apart is another order; every bucket still gets its share."""
    assert one_run(50, APART).updates > UPDATES / 2


def test_tables_have_a_row_for_each_setting() -> None:
    """With percent, and megabytes of table and indexes."""
    seen = Seen(updates=200, hot=150, dead=7, vacuums=3, heap_bytes=2_100_000, index_bytes=500_000)
    filled = fill_table(dict.fromkeys(FILL_FACTORS, (seen, seen)), 200)
    assert filled.count("\n") == 2 + len(FILL_FACTORS)
    assert "| 50 | 75 % | 75 % | 2.1 MB + 0.5 MB | 2.1 MB + 0.5 MB |" in filled
    assert "| 50 | never | 3 | 75 % | 7 | 2.1 MB + 0.5 MB |" in vacuum_table({(50, "never"): seen}, 200)


@pytest.mark.parametrize("factor", FILL_FACTORS)
def test_the_page_shows_every_setting(factor: int) -> None:
    """The tables of the page are those that the program prints."""
    page = PAGE.read_text(encoding="utf-8")
    assert f"\n| {factor} | " in page
    assert all(f" | {name} | " in page for name in VACUUMS)
