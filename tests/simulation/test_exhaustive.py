"""Everything of a little: all orders of a few steps, each fault in each place, bugs that must be found."""

import subprocess
import sys
from collections.abc import Iterator
from math import comb

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.simulation.bugs import planted
from tests.simulation.exhaustive import Story, explore, stories
from tests.simulation.exhaustive_bugs import PLANTED
from tests.simulation.search import Act, Event, Place, Redundant, Search
from zae_limiter.repository_protocol import Key

FOUND_IN = {
    "no_clamp": "at the brim: remote, two processes",
    "overdrawn_at_once": "take and take more: local, two processes",
    "tail_first": "three in line",
    "stale_swap": "settle and fail: local, two processes",
    "unpinned": "cut the limits: remote",
    "careless_creation": "first use: remote, two processes",
    "timid": "first use: remote, two processes",
    "deaf_line": "settle and fail: remote, one process",
    "refunded_in_full": "three wait: one process",
}
"""The story that brings a bug out, where that is not the plainest of all."""

STORIES = {story.name: story for story in stories()}
LONG_STORIES = {story.name: story for story in stories(long=True)}


@pytest.mark.parametrize("story", STORIES.values(), ids=list(STORIES))
def test_no_order_breaks_a_promise(story: Story) -> None:
    """Whatever comes first and whatever gets lost, every token is accounted for, and nobody waits."""
    tally = explore(story)
    assert not tally.failure, tally.failure
    assert tally.orders > 40
    assert tally.admitted > 10, "stories in which nothing happens prove nothing"
    assert story.calm or set(tally.faults) >= {"lost request", "lost reply", "unreachable", "cancel", "crash"}


def test_commit_of_a_swap_is_lost_too() -> None:
    """Where the store swaps images, a commit can be in doubt as well."""
    assert explore(STORIES["settle and fail: local, two processes"]).faults["lost commit"] > 5


def test_orders_without_a_fault_are_a_part_of_all() -> None:
    """Allowing faults only adds orders."""
    story = STORIES["settle and fail: remote, two processes"]
    calm = explore(story, faults_max=0)
    assert not calm.failure
    assert not calm.faults
    assert 1 < calm.orders < explore(story).orders


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_found(bug: str) -> None:
    """A core that is broken in one place breaks a promise in some order, and the order is told."""
    with planted(bug, PLANTED):
        found = explore(LONG_STORIES[FOUND_IN.get(bug, "settle and fail: remote, two processes")]).failure
    assert "AssertionError" in found, f"{bug} was not found"
    assert " after " in found


def orders_of(steps: tuple[int, int], *, in_store: bool) -> Iterator[tuple[int, ...]]:
    """All orders in which two processes can take so many steps."""
    search, changes = Search(), frozenset({Key("a", "b")} if in_store else ())
    for _ in search.runs():
        left, order = list(steps), []
        try:
            while any(left):
                ready = [Event(p, left[p], Act.GO, Place.STEP, changes=changes) for p in (0, 1) if left[p]]
                chosen = search.choose(ready).process
                left[chosen] -= 1
                order.append(chosen)
        except Redundant:
            continue
        yield tuple(order)


@pytest.mark.parametrize("steps", [(1, 1), (2, 3), (4, 4)])
def test_search_finds_every_order(steps: tuple[int, int]) -> None:
    """Steps that notice each other come in every order, each once."""
    found = list(orders_of(steps, in_store=True))
    assert len(found) == len(set(found)) == comb(sum(steps), steps[0])


def test_search_runs_one_of_many_equal_orders() -> None:
    """Steps that do not notice each other come in one order."""
    assert len(list(orders_of((4, 4), in_store=False))) == 1


def test_command_line() -> None:
    """One story can be run by name, and ends with a count."""
    command = [
        sys.executable,
        "-m",
        "tests.simulation.exhaustive",
        "--story",
        "three in line",
        "--faults",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout
    assert "orders of 1 stories" in done.stdout
    assert "0 broken" in done.stdout
