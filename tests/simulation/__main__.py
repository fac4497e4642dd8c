"""``python -m tests.simulation``: simulate many seeds, or replay one."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from typing import NamedTuple
from unittest import mock

from tests.simulation.boundaries import Boundaries
from tests.simulation.bugs import BUGS, planted
from tests.simulation.calendars import Calendars
from tests.simulation.failover_seats import FailoverSeats
from tests.simulation.failovers import Failovers
from tests.simulation.parties import Parties
from tests.simulation.rivals import Rivals
from tests.simulation.schedules import Schedules
from tests.simulation.seating import Seating
from tests.simulation.switching import Switching
from tests.simulation.theorem import Scenario
from tests.simulation.turns import Turns

CHUNK = 50


class Tally(NamedTuple):
    seeds: int
    steps: int
    admitted: int
    refused: int
    faults: Counter[str]
    failures: list[tuple[int, str]]


def simulate(seed: int, bug: str | None = None, *, waits: bool = True) -> Scenario:
    """Run one seed; an ``AssertionError`` says what went wrong."""
    loggers = [logging.getLogger(name) for name in ("zae_limiter", "zae_limiter_aggregator")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)  # lost refunds and rows are part of the plan
    collects = gc.isenabled()
    gc.collect()
    gc.disable()  # what other seeds left behind would decide when garbage of this one settles its leases
    try:
        # Who looks at a world at rest asks in the blocking colour, and must not wait for real time.
        with planted(bug), mock.patch("zae_limiter.runtime.colour.time.sleep"):
            scenario = Scenario(seed, waits=waits)
            scenario.run()
            Rivals(seed).run()
            Parties(seed).run()
            seating = Seating(seed)
            seating.run()
            turns = Turns(seed)
            turns.run()
            calendars = Calendars(seed)
            calendars.run()
            switching = Switching(seed)
            switching.run()
            schedules = Schedules(seed)
            schedules.run()
            boundaries = Boundaries(seed)
            boundaries.run()
            failovers = Failovers(seed)
            failovers.run()
            seats = FailoverSeats(seed)
            seats.run()
            others = seating, turns, calendars, switching, schedules, boundaries, failovers, seats
            for world in others:
                scenario.simulation.faults += world.simulation.faults
    finally:
        if collects:
            gc.enable()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    return scenario


def simulate_range(first: int, bug: str | None = None, count: int = CHUNK) -> Tally:
    steps, admitted, refused, faults, failures = 0, 0, 0, Counter[str](), []
    for seed in range(first, first + count):
        try:
            scenario = simulate(seed, bug)
        except Exception as error:
            failures.append((seed, repr(error)))
            continue
        steps += scenario.simulation.steps
        admitted += scenario.admitted
        refused += scenario.refused
        faults += scenario.simulation.faults
    return Tally(count, steps, admitted, refused, faults, failures)


def simulate_many(seeds: int, bug: str | None = None, workers: int | None = None) -> Tally:
    """Run seeds 0 to ``seeds`` on all cores; one worker is this process itself."""
    starts = range(0, seeds, CHUNK)
    counts = [min(CHUNK, seeds - first) for first in starts]
    if workers == 1:
        parts = list(map(simulate_range, starts, repeat(bug), counts))
    else:
        with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
            parts = list(pool.map(simulate_range, starts, repeat(bug), counts))
    return Tally(
        sum(part.seeds for part in parts),
        sum(part.steps for part in parts),
        sum(part.admitted for part in parts),
        sum(part.refused for part in parts),
        sum((part.faults for part in parts), Counter[str]()),
        [failure for part in parts for failure in part.failures],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds to run")
    parser.add_argument("--seed", type=int, help="replay this one and show where it fails")
    parser.add_argument("--workers", type=int, help="how many processes to use; all cores if not said")
    parser.add_argument("--bug", choices=BUGS, help="plant a bug that must be found")
    options = parser.parse_args()
    if options.seed is not None:
        try:
            scenario = simulate(options.seed, options.bug)
        except AssertionError:
            traceback.print_exc()
            return 1
        print(f"seed {options.seed}: {scenario.simulation.steps} steps, no violation")
        return 0
    started = time.perf_counter()
    tally = simulate_many(options.seeds, options.bug, options.workers)
    print(
        f"{tally.seeds} seeds, {tally.steps} steps, {time.perf_counter() - started:.1f} s: "
        f"{tally.admitted} admitted, {tally.refused} refused, {len(tally.failures)} violations"
    )
    print("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(tally.faults.items())))
    replanted = f" BUG={options.bug}" if options.bug else ""
    for seed, message in tally.failures:
        print(f"seed {seed}: {message}\n  replay: make sim SEED={seed}{replanted}")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
