"""Leases over real sockets while workers are killed: the books are right. Counts are asserted, no times."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from benchmarks.serve import LoadPlan, Tally, lacking, measure

SECONDS = float(os.environ.get("SERVE_SECONDS", "8"))


def test_leases_while_workers_are_killed(tmp_path: Path) -> None:
    """No lease is counted twice and none is lost, whoever was killed; nobody stays without an answer."""
    plan = LoadPlan(seconds=SECONDS, connections=24, workers=3, kill_every=1.5, bare_seconds=0)
    tally = asyncio.run(measure(plan, tmp_path, lambda _: None))
    assert tally.events["kills"] >= 2


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ({"leases": 9}, "no worker was killed"),
        ({"kills": 1}, "no lease was taken"),
        (
            {"kills": 1, "leases": 9, "refusals 429": 1},
            "nobody should be refused, but there were refusals 429",
        ),
        ({"kills": 1, "leases": 9}, ""),
    ],
)
def test_a_run_that_shows_nothing_fails(events: dict[str, int], why: str) -> None:
    """Books that nobody disturbed are no evidence."""
    tally = Tally()
    tally.events.update(events)
    assert lacking(LoadPlan(), tally) == why
