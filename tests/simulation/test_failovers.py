"""A store that loses its last writes: its model, the bound of what that costs, and what must be found."""

from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.bugs import planted
from tests.simulation.failover_bugs import FAILOVER_BUGS
from tests.simulation.failover_judge import Promise
from tests.simulation.failovers import Failovers
from tests.simulation.found_at import BUG_SEEDS, FOUND_AT
from tests.simulation.replicated import Replicated
from tests.simulation.simulation import Process, Simulation
from zae_limiter.engine.law import Rate, balance
from zae_limiter.repository_protocol import Absent, Key, Update
from zae_limiter.runtime.colour import run_sync

pytestmark = pytest.mark.filterwarnings("ignore:.* was forgotten:ResourceWarning")
"""A world that ends by a violation leaves leases open."""

ONE, OTHER = Key("a", "1"), Key("a", "2")
START_MS = 1_700_000_000_000


def test_last_transactions_are_undone_as_wholes() -> None:
    """What is lost is a suffix; a transaction goes with all its items, be they changed or made."""
    simulation = Simulation(0)
    store = Replicated(simulation)
    client = store.open(Process(simulation))
    run_sync(client.write_each([Update(ONE, {"n": 1})]))
    simulation.now_ms += 100
    run_sync(client.transact_write([Update(ONE, {"n": 1}), Update(OTHER, {"n": 1})]))
    (refused,) = run_sync(client.write_each([Update(ONE, {"n": 1}, when=(Absent(),))]))
    assert not refused.applied
    assert (store.behind(99, 10), store.behind(1_000, 10), store.behind(1_000, 1)) == (1, 2, 1)
    failover = store.fail_over(1)
    assert run_sync(client.batch_get([ONE, OTHER])) == [{"n": 1}, None]
    assert [entry.before for entry in failover.undone] == [{ONE: {"n": 1}, OTHER: None}]


def test_former_primary_answers_some_for_a_while() -> None:
    """Nobody else sees what it does, and in the end nobody does; the replica has lost less than nothing."""
    simulation = Simulation(0)
    store = Replicated(simulation)
    here, there = store.open(Process(simulation)), store.open(Process(simulation))
    run_sync(here.write_each([Update(ONE, {"n": 1})]))
    stays = iter((True, False))
    store.fail_over(0, stays=lambda: next(stays))
    assert store.is_split
    for client in (here, there, there):
        run_sync(client.write_each([Update(ONE, {"n": 1})]))
    assert [run_sync(client.batch_get([ONE]))[0] for client in (here, there)] == [{"n": 2}, {"n": 3}]
    store.heal()
    assert [run_sync(client.batch_get([ONE]))[0] for client in (here, there)] == [{"n": 3}, {"n": 3}]


class Greedy:
    """A bucket as its store has it, and somebody who takes whatever is there, token by token."""

    def __init__(self, rate: Rate) -> None:
        self.rate, self.now_ms, self.taken = rate, START_MS, 0
        self.promise = Promise("a bucket", rate, START_MS)
        self.log = [(rate.capacity_milli, START_MS)]

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.promise.advance(self.now_ms, 0)

    def take_all(self) -> None:
        while (held := balance(self.rate, *self.log[-1], self.now_ms)) >= 1_000:
            self.promise.admit(1_000, 1_000)
            self.log.append((held - 1_000, self.now_ms))
            self.taken += 1

    def fail_over(self, lost: int, more_milli: int = 0) -> int:
        """Undo some takes; returns how many these were."""
        lost = min(lost, len(self.log) - 1)
        for _ in range(lost):
            self.log.pop()
            self.promise.lose(1_000)
        tokens, at_ms = self.log[-1]
        self.log.append((tokens + more_milli, at_ms))
        return lost


@given(
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 90_000), st.integers(0, 40)), min_size=1, max_size=6),
)
def test_no_history_breaks_the_promise(capacity: int, steps: Sequence[tuple[int, int]]) -> None:
    """Whoever takes all there is from a store that goes back as often as it likes stays within it."""
    greedy = Greedy(Rate(capacity * 1_000, 7_000, 60_000))
    for by_ms, lost in steps:
        greedy.advance(by_ms)
        greedy.take_all()
        greedy.fail_over(lost)
        greedy.take_all()


@given(st.integers(1, 30), st.integers(0, 30))
def test_promise_is_reached_and_not_by_a_token_too_generous(capacity: int, lost: int) -> None:
    """Capacity and what was lost can be had, to the token; one more is found."""
    greedy = Greedy(Rate(capacity * 1_000, 1_000, 10**12))
    greedy.take_all()
    lost = greedy.fail_over(lost)
    greedy.take_all()
    assert greedy.taken == capacity + lost
    greedy.fail_over(0, more_milli=1_000)
    with pytest.raises(AssertionError, match="is the most that was promised"):
        greedy.take_all()


@pytest.mark.parametrize("bug", FAILOVER_BUGS)
def test_bug_is_found_where_a_store_fails_over(bug: str) -> None:
    """The judges of this very world see it, whatever other worlds see."""
    with planted(bug), mock.patch("zae_limiter.runtime.colour.time.sleep"):
        for seed in (FOUND_AT.get(bug, 0), *range(BUG_SEEDS)):
            try:
                Failovers(seed).run()
            except AssertionError:
                return
    raise AssertionError(f"{bug} was not found in {BUG_SEEDS} seeds")


def test_one_seed_is_one_run() -> None:
    """The same seed meets the same failovers and leaves the same store."""
    with mock.patch("zae_limiter.runtime.colour.time.sleep"):
        one, other = Failovers(30), Failovers(30)
        for world in (one, other):
            world.run()
    assert one.simulation.faults == other.simulation.faults
    assert one.store.primary.items == other.store.primary.items
    assert one.store.primary.items
