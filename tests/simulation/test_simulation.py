"""The theorem under attack: the seeds of every test run, the bugs that must be found, and replay."""

import os
import re
import subprocess
import sys
from unittest import mock

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.simulation.__main__ import Tally, simulate, simulate_range
from tests.simulation.bugs import BUGS
from tests.simulation.found_at import BUG_SEEDS, FOUND_AT, failing_seed
from tests.simulation.schedules import Schedules
from tests.simulation.theorem import Scenario
from tests.simulation.turns import Turns

pytestmark = pytest.mark.filterwarnings("ignore:.* was forgotten:ResourceWarning")
"""A world that ends by a violation leaves leases open."""

ROUGH_SEEDS = 100
SEEDS = 250
"""The worlds of a test run; the first are looked at for trouble too. `make nightly` simulates 20,000."""
CHUNK = 25


@pytest.mark.parametrize("first", range(ROUGH_SEEDS, SEEDS, CHUNK))
def test_no_seed_breaks_the_theorem(first: int) -> None:
    """Whatever is lost, delayed, cancelled or crashed, the store holds what the textbook says."""
    checked(first, count=CHUNK)


def checked(first: int, count: int) -> Tally:
    """What happened in some worlds, in all of which the theorem holds."""
    tally = simulate_range(first, count=count)
    assert tally.failures == [], "replay with: make sim SEED=" + str(tally.failures[0][0])
    assert tally.seeds == count
    assert tally.steps > 1000
    assert min(tally.admitted, tally.refused) > 10, "a world where nothing happens proves nothing"
    return tally


@pytest.mark.parametrize(
    "seed",
    [
        34,  # a client took a store that did not answer for one without older records
        48,
        67,  # a lone write was refused under older limits, and tried again under them
        829,  # a renewal of who had crashed was begun anew
        819,  # the judge did not know of a refund that was lost, and counted, before the acquire succeeded
        1327,  # a wait was told from when the question was asked, and not from when it was answered
        1653,  # a wait was told as if all shards went by the new limits at once
        3055,  # a clock was set back by as much as had passed, which its next look did not notice
        5079,  # the parent of a child was not read, and what the child used by itself later was counted first
    ],
)
def test_seed_that_found_a_bug(seed: int) -> None:
    """What a seed once found stays mended, in the world that it was then."""
    simulate(seed, waits=False)


@pytest.mark.parametrize(
    ("world", "seed"),
    [
        (Schedules, 13889),  # a bucket was put right that lay ahead in a later phase
        (
            Schedules,
            15194,
        ),  # limits had changed before a bucket was made, and its maker was refused by others
        (
            Scenario,
            1407,
        ),  # the judge let who need not wait begin after a gift that was written later, and flowed over
        (Scenario, 1889),  # the judge forgot what one booking of a write holds up for the next
        (
            Scenario,
            3067,
        ),  # a booking had not seen what came back, and more was set aside than there was room for
        (Turns, 15143),  # a seat was kept for somebody who slept, and others had their turns with the rest
    ],
)
def test_world_that_found_something(world: type[Scenario | Schedules | Turns], seed: int) -> None:
    """What a seed once found of a bucket or of its judge stays mended."""
    with mock.patch("zae_limiter.runtime.colour.time.sleep"):
        world(seed).run()


def test_simulated_world_is_rough() -> None:
    """Every kind of trouble happens in the first hundred seeds, and the theorem holds in them."""
    tally = checked(0, count=ROUGH_SEEDS)
    expected = {
        *("lost request", "lost reply", "unreachable", "throttled", "store gone", "partition", "long delay"),
        *("clock step", "clock drift", "cancelled", "crashed"),
        *("limits changed", "limits deleted", "parent changed", "cascade changed"),
        *("chain changed", "policy changed"),
        *("namespace deleted", "namespace recovered", "namespace registered", "purged"),
        *("bucket moved", "bucket charged", "let in", "migrated", "migration interrupted"),
        *("waited", "wait refused", "slept until a boundary", "slept in vain", "sleepers crashed"),
        *("given", "bookings ended", "verb lost", "verb repeated"),
        *("swaps", "splits", "refills", "proactive splits", "batches repeated", "batches out of order"),
        *("admitted jointly", "refused jointly"),
        *("no seat", "holders crashed", "outlived a hold", "seats lost"),
        *("stepped back", "waiters crashed"),
        *("calendar changed", "jumped to a boundary", "quota refused", "waited for a boundary"),
        *("schedule changed", "jumped to a phase", "schedule refused", "waited for a phase"),
        *("waited by a schedule", "crashed beside a schedule"),
        *("failovers", "split brains", "transactions lost", "admitted beyond the law"),
        *("given", "given again", "seats failed over", "more at work than seats"),
    }
    assert {name for name in expected if tally.faults[name] < 3} == set()


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(bug: str) -> None:
    """A core that is broken in one place does not survive two hundred seeds."""
    found = failing_seed(bug)
    assert found is not None, f"{bug} was not found in {BUG_SEEDS} seeds"


def test_where_bugs_were_found_is_within_two_hundred_seeds() -> None:
    """What is tried first claims no more than a search from the beginning would."""
    assert FOUND_AT.keys() <= BUGS.keys()
    assert max(FOUND_AT.values()) < BUG_SEEDS


def test_planted_bug_leaves_no_trace() -> None:
    """A bug is gone when its simulation is over."""
    seed = failing_seed("no_refund")
    assert seed is not None
    assert simulate(seed).simulation.steps > 0


@pytest.mark.parametrize("seed", [0, 7, 11, 123, 499])
def test_one_seed_is_one_run(seed: int) -> None:
    """The same seed takes the same steps, meets the same faults and leaves the same store."""
    one, other = simulate(seed), simulate(seed)
    assert (one.simulation.steps, one.simulation.now_ms) == (other.simulation.steps, other.simulation.now_ms)
    assert one.simulation.faults == other.simulation.faults
    assert (one.admitted, one.refused) == (other.admitted, other.refused)
    assert one.store._shelf.items == other.store._shelf.items
    assert one.store._shelf.items, "there is something to compare"


def test_what_a_seed_does_depends_on_no_other_seed() -> None:
    """Garbage settles leases, and when it is collected depends on what was run before; not on this."""
    alone = simulate(10443)
    simulate(10442)
    after = simulate(10443)
    assert alone.simulation.steps == after.simulation.steps
    assert alone.store._shelf.items == after.store._shelf.items


def test_other_seeds_are_other_runs() -> None:
    """Seeds differ, or many of them would prove no more than one."""
    assert len({simulate(seed).simulation.steps for seed in range(10)}) > 5


def command_line(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env={**os.environ}
    )


def test_replay_of_a_good_seed() -> None:
    """One seed is replayed by its number; the steps are those of the run that it repeats."""
    done = command_line("--seed", 7)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"seed 7: {simulate(7).simulation.steps} steps, no violation\n"


def test_replay_of_a_bad_seed() -> None:
    """A seed that fails fails again, with the place where it went wrong."""
    seed = failing_seed("no_floor")
    assert seed is not None
    done = command_line("--seed", seed, "--bug", "no_floor")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    with pytest.raises(AssertionError) as found:
        simulate(seed, "no_floor")
    assert f"AssertionError: {found.value}" in done.stderr


def test_failures_are_printed_with_the_way_to_replay_them() -> None:
    """A run of many seeds names those that failed, each with the command that shows it."""
    seed = failing_seed("no_floor")
    done = command_line("--seeds", 10, "--bug", "no_floor")
    assert done.returncode == 1
    assert "seeds, " in done.stdout
    assert f"make sim SEED={seed}" in done.stdout


def test_run_of_many_seeds() -> None:
    """A run without a violation ends well and says how rough it was."""
    done = command_line("--seeds", 10)
    assert done.returncode == 0, done.stdout
    assert re.match(r"10 seeds, \d+ steps, .+, 0 violations$", done.stdout.splitlines()[0])
    assert "faults: " in done.stdout
