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

from zae_limiter import BucketState, SyncRateLimiter
from zae_limiter.bucket import Rate, gain

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
    span_ms: tuple[int, int] | None = None

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def listen(self) -> None:
        """Read all it has to say; what it wrote before it was killed is still there to read."""
        while text := self.line():
            first, *rest = text.split()
            if first == "done":
                self.span_ms = int(rest[0]), int(rest[1])
            else:
                self.admitted.append(int(first))
        self.process.wait(60)


@contextlib.contextmanager
def crew(url: str, limit: str, amount: int, seconds: float) -> Iterator[list[Worker]]:
    """Eight processes, ready to start together."""
    command = [sys.executable, str(WORKER), "spend", url, limit, str(amount), str(seconds)]
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
    with crew(url, f"{capacity}/1/{SLOW}", amount, 30) as workers:
        for worker in workers:
            worker.go()
        for worker in workers:
            worker.listen()
            assert worker.process.returncode == 0
    fits = capacity // amount * amount
    assert sum(sum(worker.admitted) for worker in workers) == fits
    state = stored(url)
    assert (state.total_consumed_milli, state.tokens_milli) == (fits * 1000, (capacity - fits) * 1000)
    assert sum(bool(worker.admitted) for worker in workers) > 1, "they ran at the same time"


def test_real_refill(url: str) -> None:
    """Over a measured span of real time they admit the capacity and what accrued, no more and hardly less."""
    with crew(url, "50/200/1", 1, 1.5) as workers:
        for worker in workers:
            worker.go()
        for worker in workers:
            worker.listen()
            assert worker.span_ms is not None
    admitted_milli = 1000 * sum(sum(worker.admitted) for worker in workers)
    state = stored(url)
    assert state.total_consumed_milli == admitted_milli
    spans = [worker.span_ms for worker in workers if worker.span_ms is not None]
    first_ms, last_ms = min(start for start, _ in spans), max(end for _, end in spans)
    accrued_milli = gain(Rate(50_000, 200_000, 1000), first_ms, last_ms)
    assert admitted_milli <= 50_000 + accrued_milli
    # As long as all of them ask all the time the bucket never fills up, so that nothing overflows.
    common_ms = max(start for start, _ in spans), min(end for _, end in spans)
    assert admitted_milli >= 0.8 * gain(Rate(50_000, 200_000, 1000), *common_ms)


@pytest.mark.parametrize("seed", range(2))
def test_killed_process_costs_its_last_request_at_most(url: str, seed: int) -> None:
    """SIGKILL in the middle: the survivors go on, and the books differ by one request at most."""
    rng = random.Random(seed)
    with crew(url, f"{PLENTY}/1/{SLOW}", 1, 1.2) as workers:
        for worker in workers:
            worker.go()
        victim = workers[seed]
        for _ in range(rng.randrange(1, 12)):
            victim.admitted.append(int(victim.line()))
        os.kill(victim.process.pid, signal.SIGKILL)
        for worker in workers:
            worker.listen()
        assert victim.process.returncode == -signal.SIGKILL
        survivors = [worker for worker in workers if worker is not victim]
        assert [worker.process.returncode for worker in survivors] == [0] * (PROCESSES - 1)
    assert victim.span_ms is None
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
