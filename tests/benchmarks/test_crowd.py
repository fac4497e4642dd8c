"""Processes on one SQLite file are measured beside SQLite itself."""

from typing import Any

from benchmarks.cases import BARE_UPDATE, OURS
from benchmarks.crowd import crowd_table, measured
from tests.benchmarks.stored import sample


def test_every_process_has_its_turn() -> None:
    """Two processes of ours and two bare ones, on a file each: none fails, and all are told."""
    found = measured((OURS, BARE_UPDATE), processes=2, rounds=1, seconds=0.5)
    for rounds in found.values():
        assert [len(samples) for samples in rounds] == [2]
        assert [(it["unwanted"], it["messages"]) for it in rounds[0]] == [(0, [])] * 2
    assert sum(it["operations"] for it in found[OURS][0]) > 0


def test_the_table_adds_processes_up() -> None:
    """Throughput of all, latency of the worst, the least share, and what failed."""
    uneven: list[list[dict[str, Any]]] = [[sample(1_000, 10.0), sample(500, 20.0)]]
    peer = [[sample(100, 100.0), sample(50, 300.0) | {"unwanted": 2}]]
    shown = crowd_table({OURS: uneven, BARE_UPDATE: peer})
    assert f"| {OURS} | 1,500 | 0.2 | 0.50 | 0 | 1× |" in shown
    assert f"| {BARE_UPDATE} | 150 | 3 | 0.50 | 2 | 10× |" in shown
