"""A running fleet of processes on one SQLite file: off binds every one of them at its next acquire."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from zae_limiter import Limit, SyncRateLimiter

WORKER = Path(__file__).with_name("worker.py")
FLEET = 4
REASON = "maintenance until 15:00"


@contextlib.contextmanager
def fleet(url: str) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, str(WORKER), "ask", url]
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


def test_a_fleet_is_switched_off_and_on_at_its_next_acquire(tmp_path: Path) -> None:
    """Every process, each time, warm as it is; and nothing is taken while it is off."""
    url = f"sqlite:///{tmp_path / 'limits.db'}"
    with SyncRateLimiter.open(url) as admin, fleet(url) as workers:
        admin.set_system_defaults([Limit.per_minute("rpm", 10**9)])
        for _ in range(3):
            for _ in range(3):
                assert [ask(worker) for worker in workers] == ["admitted"] * FLEET
            before = admin.repository.get_bucket("key", "api", "rpm")
            admin.disable(resource="api", reason=REASON)
            assert [ask(worker) for worker in workers] == [f"resource_disabled {REASON}"] * FLEET
            assert admin.repository.get_bucket("key", "api", "rpm") == before
            admin.enable(resource="api")
        assert [ask(worker) for worker in workers] == ["admitted"] * FLEET
