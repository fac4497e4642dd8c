"""Leases over real sockets while workers are killed: the books are right. Counts are asserted, no times."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from benchmarks.serve import LoadPlan, measure

SECONDS = float(os.environ.get("SERVE_SECONDS", "8"))


def test_leases_while_workers_are_killed(tmp_path: Path) -> None:
    """No lease is counted twice and none is lost, whoever was killed; nobody stays without an answer."""
    plan = LoadPlan(seconds=SECONDS, connections=24, workers=3, kill_every=1.5, bare_seconds=0)
    tally = asyncio.run(measure(plan, tmp_path, lambda _: None))
    assert tally.events["kills"] >= 2
    assert tally.events["leases"] > 0
    assert not [name for name in tally.events if name.startswith("refusals")]
