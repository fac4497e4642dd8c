"""Eight processes on one SQLite file and one bucket admit together what one would have admitted."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS
from zae_limiter import BucketState, Limit, SyncRateLimiter
from zae_limiter.engine.law import Rate, gain

WORKER = Path(__file__).with_name("worker.py")
PROCESSES = 8
SLOW = 10**6
"""A period in seconds so long that nothing refills within a test."""

PLENTY = 10**6


@dataclass
class Worker:
    """A process that spends, and what it has told so far."""

    process: subprocess.Popen[str]
    admitted: list[int] = field(default_factory=list)
    ended_ms: int | None = None

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def hear(self, admissions: int) -> None:
        """Wait until it has told of so many more."""
        for _ in range(admissions):
            self.admitted.append(int(self.line()))

    def enough(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def listen(self) -> None:
        """Read all it has to say; what it wrote before it was killed is still there to read."""
        while text := self.line():
            first, *rest = text.split()
            if first == "done":
                self.ended_ms = int(rest[0])
            else:
                self.admitted.append(int(first))
        self.process.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def crew(url: str, limit: str, amount: int) -> Iterator[list[Worker]]:
    """Eight processes, ready to start together."""
    command = [sys.executable, str(WORKER), "spend", url, limit, str(amount)]
    workers = [
        Worker(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for _ in range(PROCESSES)
    ]
    try:
        for worker in workers:
            assert worker.line() == "ready"
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
            for pipe in (worker.process.stdin, worker.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


def stored(url: str) -> BucketState:
    with SyncRateLimiter.open(url) as limiter:
        (state,) = limiter.repository.get_bucket("key", "api")
        return state


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/limits.db"


@pytest.mark.parametrize(("amount", "capacity"), [(1, 600), (7, 2000)])
def test_fixed_capacity(url: str, amount: int, capacity: int) -> None:
    """With no refill to speak of, eight processes admit exactly what fits, and the store's books agree."""
    with crew(url, f"{capacity}/1/{SLOW}", amount) as workers:
        for worker in workers:
            worker.go()
        for worker in workers:
            worker.listen()
            assert worker.process.returncode == 0
    fits = capacity // amount * amount
    assert sum(sum(worker.admitted) for worker in workers) == fits
    state = stored(url)
    assert (state.total_consumed_milli, state.tokens_milli) == (fits * 1000, (capacity - fits) * 1000)


def test_real_refill(url: str) -> None:
    """In real time they admit what was there and what accrued, and no token gets lost or made."""
    rate = Rate(PLENTY * 1000, 200_000, 1000)
    # So much room that nothing ever overflows, however long nobody takes anything; all but 50 are taken.
    with SyncRateLimiter.open(url, bucket_ttl_multiplier=0) as limiter:
        with limiter.acquire("key", "api", {"rpm": PLENTY - 50}, [Limit("rpm", PLENTY, 200, 1)]):
            pass
        began_ms = stored(url).last_refill_ms
    with crew(url, f"{PLENTY}/200/1", 1) as workers:
        for worker in workers:
            worker.go()
        for worker in workers:
            worker.hear(20)
        for worker in workers:
            worker.enough()
        for worker in workers:
            worker.listen()
            assert worker.ended_ms is not None
    admitted_milli = 1000 * sum(sum(worker.admitted) for worker in workers)
    state = stored(url)
    assert state.total_consumed_milli == (PLENTY - 50) * 1000 + admitted_milli
    ended_ms = max(worker.ended_ms for worker in workers if worker.ended_ms is not None)
    assert admitted_milli <= 50_000 + gain(rate, began_ms, ended_ms)
    assert state.tokens_milli + state.total_consumed_milli == PLENTY * 1000


@pytest.mark.parametrize("seed", range(2))
def test_killed_process_costs_its_last_request_at_most(url: str, seed: int) -> None:
    """SIGKILL in the middle: the survivors go on, and the books differ by one request at most."""
    rng = random.Random(seed)
    with crew(url, f"{PLENTY}/1/{SLOW}", 1) as workers:
        for worker in workers:
            worker.go()
        victim = workers[seed]
        victim.hear(rng.randrange(1, 12))
        os.kill(victim.process.pid, signal.SIGKILL)
        survivors = [worker for worker in workers if worker is not victim]
        for worker in survivors:
            worker.hear(20)
        for worker in survivors:
            worker.enough()
        for worker in workers:
            worker.listen()
        assert victim.process.returncode == -signal.SIGKILL
        assert [worker.process.returncode for worker in survivors] == [0] * (PROCESSES - 1)
    assert victim.ended_ms is None
    known = sum(sum(worker.admitted) for worker in workers)
    state = stored(url)
    assert state.total_consumed_milli in (known * 1000, (known + 1) * 1000)
    assert state.tokens_milli == PLENTY * 1000 - state.total_consumed_milli
    with SyncRateLimiter.open(url) as limiter:
        left = state.tokens_milli // 1000
        if left:
            with limiter.acquire("key", "api", {"rpm": left}, [state.limit]):
                pass
    assert stored(url).tokens_milli == 0
