"""To whom a lease belongs: to one entering, in one process."""

import asyncio
import os
import subprocess
import sys
import textwrap

import pytest

from tests.patience import PATIENCE_SECONDS
from zae_limiter import LeaseExpiredError, Limit, RateLimiter, SyncRateLimiter, ZAELimiterError

YEAR = 365 * 86_400
ONE = [Limit("jobs", 1, 1, YEAR)]
HUNDRED = [Limit("jobs", 100, 1, YEAR)]


# One entering.


def test_a_second_entering_gives_nothing_back(url: str) -> None:
    """It is refused, and the work of the first goes on, or has been done, for what it has paid."""
    with SyncRateLimiter.open(url) as limiter:
        for warm in range(3):
            entity = f"key-{warm}"
            acquisition = limiter.acquire(entity, "api", {"jobs": 1}, ONE)
            with acquisition:
                with pytest.raises(LeaseExpiredError, match="entered before; call acquire again"):
                    acquisition.__enter__()
                assert limiter.available(entity, "api", ONE) == {"jobs": 0}
            with pytest.raises(ZAELimiterError), acquisition:
                pass
            assert limiter.available(entity, "api", ONE) == {"jobs": 0}
        assert limiter.refunds_lost == 0


async def test_two_tasks_cannot_enter_one_acquisition(url: str) -> None:
    """Not even while the first still waits for the store."""
    async with RateLimiter.open(url) as limiter:
        acquisition = limiter.acquire("key", "api", {"jobs": 1}, HUNDRED)

        async def work() -> str:
            try:
                async with acquisition:
                    await asyncio.sleep(0)
            except LeaseExpiredError:
                return "refused"
            return "done"

        assert sorted(await asyncio.gather(work(), work())) == ["done", "refused"]
        assert await limiter.available("key", "api", HUNDRED) == {"jobs": 99}


def test_what_was_not_entered_cannot_be_left(url: str) -> None:
    with SyncRateLimiter.open(url) as limiter:
        acquisition = limiter.acquire("key", "api", {"jobs": 1}, ONE)
        with pytest.raises(LeaseExpiredError, match="was not entered"):
            acquisition.__exit__(None, None, None)
        with acquisition:
            pass


# One process.

FORKING = """
    import os, sys
    from zae_limiter import LeaseExpiredError, Limit, SyncRateLimiter

    LIMITS = [Limit("jobs", 100, 1, 365 * 86_400)]
    limiter = SyncRateLimiter.open(sys.argv[1])

    def forked():
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
        return child == 0

    def left(entity):
        return limiter.available(entity, "api", LIMITS)["jobs"]

    with limiter.acquire("spent", "api", {"jobs": 1}, LIMITS):
        pass

    # Both fail.
    child = False
    try:
        with limiter.acquire("fails", "api", {"jobs": 20}, LIMITS):
            child = forked()
            raise KeyError
    except KeyError:
        if child:
            os._exit(limiter.refunds_lost)
    assert left("fails") == 100, left("fails")

    # The child ends within the block, the parent works on.
    with limiter.acquire("exits", "api", {"jobs": 60}, LIMITS):
        if forked():
            sys.exit(0)
    assert left("exits") == 40, left("exits")

    # Both end well, with something to store.
    with limiter.acquire("notes", "api", {"jobs": 10}, LIMITS) as lease:
        lease.adjust(jobs=5)
        child = forked()
    if child:
        os._exit(limiter.refunds_lost)
    assert left("notes") == 85, left("notes")

    # The child drops it, and may not use it.
    with limiter.acquire("drops", "api", {"jobs": 10}, LIMITS) as lease:
        lease.adjust(jobs=5)
        if forked():
            for use in (lease.consume, lease.adjust, lease.settle, lease.release):
                try:
                    use(jobs=1)
                except LeaseExpiredError as error:
                    assert "belongs to the process that forked" in str(error)
                else:
                    os._exit(3)
            del lease
            with limiter.acquire("own", "api", {"jobs": 7}, LIMITS) as lease:
                lease.adjust(jobs=3)
            os._exit(limiter.refunds_lost)
    assert left("drops") == 85, left("drops")
    if not sys.argv[1].startswith("memory"):
        assert left("own") == 90, left("own")
    assert limiter.refunds_lost == 0
    limiter.close()
    print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_child_settles_nothing_of_its_parent(url: str) -> None:
    """A lease that was open at a fork is settled once, by the process that took it."""
    script = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORKING), url]
    done = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.stderr == ""
    assert done.stdout == "done\n"
