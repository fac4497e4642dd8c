"""Several processes wait for one bucket: in the order of their bookings, and never ahead of the rate.

How much of the rate they use, and how few writes that takes, depends on the machine, so ``make waiting``
measures that.
"""

import os
import signal
from pathlib import Path

import pytest

from benchmarks.waiters import CANCELLED, ENOUGH, ENTITY, GO, HALF_BACK, LIMIT, PLAIN, RESOURCE, Orders
from benchmarks.waiting import answer, begun, emptied, fleet, put_together, run, say
from tests.patience import wait_until
from tests.stores import url_of
from zae_limiter import SyncRateLimiter

PROCESSES, WAITERS, SECONDS, STARTS_MIN = 3, 5, 2.0, 60
KINDS = ["sqlite", "dynamodb", "postgres", "redis"]


def orders(kind: str, folder: Path, variant: str = PLAIN) -> Orders:
    return Orders(url_of(kind, folder), variant, WAITERS, capacity=100, refill=50, seed=1)


@pytest.mark.parametrize("variant", [PLAIN, HALF_BACK, CANCELLED])
@pytest.mark.parametrize("kind", KINDS)
def test_turns_of_processes(kind: str, variant: str, tmp_path: Path) -> None:
    """Who books first has the earlier turn, nobody begins before its own, nor more than has accrued."""
    seen = run(orders(kind, tmp_path, variant), PROCESSES, SECONDS, STARTS_MIN)
    assert seen.failures == []
    assert (seen.overtaken, seen.early, seen.lost) == ([], 0, 0)
    assert seen.excess <= 0
    assert (seen.cancelled > 0) <= (variant == CANCELLED)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_process_does_not_block(kind: str, tmp_path: Path) -> None:
    """The places of a process that was killed pass by, and the others have their turns."""
    asked = orders(kind, tmp_path)
    emptied(asked)
    with fleet(asked, 2) as (victim, survivor):
        began = emptied(asked)
        say(victim, GO)
        with SyncRateLimiter.open(asked.url) as limiter:
            wait_until(lambda: limiter.available(ENTITY, RESOURCE, asked.limits)[LIMIT] < 0, "nobody waits")
        os.kill(victim.pid, signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL
        say(survivor, GO)
        wait_until(lambda: begun(survivor) >= 2 * WAITERS, "it is blocked")
        say(survivor, ENOUGH)
        seen = put_together(asked, began, [answer(survivor)])
    assert (seen.overtaken, seen.early, seen.lost, seen.failures) == ([], 0, 0, [])
