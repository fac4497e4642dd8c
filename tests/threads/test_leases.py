"""Leases that threads share stay true when they come between any two steps of each other."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import pytest

from tests.patience import PATIENCE_SECONDS
from tests.threads.switching import together
from zae_limiter import LeaseExpiredError, Limit, SyncLease, SyncRateLimiter

TIMES, OFTEN = 20, 200
CAPACITY, SPENT, TAKEN = 10_000, 5_000, 100
LEASES = ("/lease.py", "/engine/holding.py", "/engine/settle.py")

Ending = Callable[[SyncLease], None]


def _commits(lease: SyncLease) -> None:
    lease.commit()


def _cancels(lease: SyncLease) -> None:
    lease.cancel()


def taken(limiter: SyncRateLimiter) -> SyncLease:
    """A lease of a bucket with room in it, so that what is given back twice is seen."""
    limiter.set_system_defaults([Limit.per_day("rpd", CAPACITY)])
    with limiter.acquire("key", "api", {"rpd": SPENT}):
        pass
    return limiter.acquire("key", "api", {"rpd": TAKEN}).open()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("notes", [0, TIMES], ids=["at once", "later"])
@pytest.mark.parametrize(("end", "is_kept"), [(_commits, True), (_cancels, False)], ids=["commit", "cancel"])
def test_what_is_noted_counts_or_comes_too_late(
    limiter: SyncRateLimiter, end: Ending, is_kept: bool, notes: int, seed: int
) -> None:
    """While two threads end a lease, others take more and note: a call counts, or says that it is over."""
    lease = taken(limiter)
    counted: list[int] = []
    far_enough = threading.Event()

    def uses(call: Callable[..., None], amount: int, cost: int) -> Callable[[], None]:
        def task() -> None:
            for _ in range(TIMES):
                try:
                    call(rpd=amount)
                except LeaseExpiredError:
                    return
                counted.append(cost)
                if len(counted) >= notes:
                    far_enough.set()

        return task

    def ends() -> None:
        assert not notes or far_enough.wait(PATIENCE_SECONDS)
        end(lease)

    users = [uses(lease.consume, 3, 3), uses(lease.adjust, 2, 2), uses(lease.release, 1, -1)]
    together([*users, ends, ends], LEASES, seed)
    cost = TAKEN + sum(counted) if is_kept else 0
    assert limiter.available("key", "api") == {"rpd": CAPACITY - SPENT - cost}
    assert limiter.refunds_lost == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_whole_cost_that_several_note_is_one_of_them(limiter: SyncRateLimiter, seed: int) -> None:
    """Each says what all of it cost; whoever was last is right, and nothing is added up."""
    lease = taken(limiter)

    def settles(total: int) -> Callable[[], None]:
        def task() -> None:
            for _ in range(TIMES):
                lease.settle(rpd=total)

        return task

    totals = (0, 50, 500)
    together([settles(total) for total in totals], LEASES, seed)
    assert lease.consumed["rpd"] in totals
    lease.commit()
    assert limiter.available("key", "api") == {"rpd": CAPACITY - SPENT - lease.consumed["rpd"]}


@pytest.mark.parametrize("end", [_commits, _cancels], ids=["commit", "cancel"])
def test_whoever_ends_it_second_finds_it_ended(limiter: SyncRateLimiter, end: Ending) -> None:
    """Two threads that end a lease in the same way are both content, and it is ended once."""
    taken(limiter).cancel()
    for seed in range(OFTEN):
        lease = limiter.acquire("key", "api", {"rpd": 1}).open()
        together([functools.partial(end, lease)] * 4, ("/lease.py",), seed)
    cost = OFTEN if end is _commits else 0
    assert limiter.available("key", "api") == {"rpd": CAPACITY - SPENT - cost}
