"""A running fleet of processes on one store: off binds each of them as soon as `docs/changes.md` says."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.stores import url_of
from zae_limiter import Limit, SyncRateLimiter

WORKER = Path(__file__).with_name("worker.py")
FLEET = 4
REASON = "maintenance until 15:00"
TTL_S, HOUR_S = 1, 3_600
"""For how long the processes remember what nobody tells them of, on DynamoDB; and elsewhere."""


class Bound(NamedTuple):
    """When a process goes by a switch at the latest: after so many acquires, or so long."""

    acquires: int = 0
    seconds: float = 0


# Who listens on PostgreSQL may be asked before it has heard.
OFF = {"sqlite": Bound(), "dynamodb": Bound(seconds=TTL_S), "postgres": Bound(1), "redis": Bound(1)}
ON = {kind: Bound() if kind == "sqlite" else Bound(seconds=1) for kind in OFF}


@contextlib.contextmanager
def fleet(url: str, ttl_s: float) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, str(WORKER), "ask", url, str(ttl_s)]
    with contextlib.ExitStack() as stack:  # which closes what they read, and waits for them
        yield [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(FLEET)
        ]


def ask(worker: subprocess.Popen[str]) -> str:
    """What a process says of one acquire."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    return worker.stdout.readline().strip()


def ask_until(worker: subprocess.Popen[str], expected: str, bound: Bound, changed_s: float) -> int:
    """How many acquires were still answered as before; all of them within the bound."""
    late = 0
    while True:
        asked_s = time.monotonic()
        if (answer := ask(worker)) == expected:
            return late
        late += 1
        assert late <= bound.acquires or asked_s - changed_s < bound.seconds, answer


def taken(admin: SyncRateLimiter) -> int:
    (state,) = admin.repository.get_buckets("key", "api")
    return state.total_consumed_milli // 1000


@pytest.mark.parametrize("kind", OFF)
def test_a_fleet_is_switched_off_and_on(kind: str, tmp_path: Path) -> None:
    """Every process, each time, warm as it is, when its store says; and nothing is taken while it is off."""
    url = url_of(kind, tmp_path)
    with SyncRateLimiter.open(url) as admin, fleet(url, TTL_S if kind == "dynamodb" else HOUR_S) as workers:
        admin.set_system_defaults([Limit.per_minute("rpm", 10**9)])
        for worker in workers:
            assert ask(worker) == "admitted"
        for _ in range(2):
            before = taken(admin)
            admin.disable(resource="api", reason=REASON)
            changed_s, off = time.monotonic(), f"resource_disabled {REASON}"
            late = sum(ask_until(worker, off, OFF[kind], changed_s) for worker in workers)
            assert [ask(worker) for worker in workers] == [off] * FLEET
            assert taken(admin) == before + late
            admin.enable(resource="api")
            changed_s = time.monotonic()
            for worker in workers:
                ask_until(worker, "admitted", ON[kind], changed_s)
            for _ in range(3):
                assert [ask(worker) for worker in workers] == ["admitted"] * FLEET
