"""A short soak of every store; ``make soak`` makes a long one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.breaking.soak import LEAKS
from tests.engines import dynamodb_local
from zae_limiter import Limit, RateLimiter, Repository
from zae_limiter.backends import open_backend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock

ROOT = Path(__file__).resolve().parents[2]


def soak(*options: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """In a process of its own, whose memory nobody else uses, and where every warning is an error."""
    command = [sys.executable, *python, "-W", "error", "-m", "tests.breaking.soak", "--quick", *options]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


@pytest.mark.timeout(900)
def test_nothing_grows() -> None:
    """Memory, descriptors, threads, caches, files and logs stay as they are under a mixed load."""
    dynamodb_local.endpoint()  # so that the soak finds an engine that runs
    done = soak()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("nothing grows")
    assert done.stderr == ""


def test_every_leak_is_found() -> None:
    """Each of them is planted, and each is named."""
    options = [word for leak in LEAKS if leak != "loop" for word in ("--leak", leak)]
    done = soak(*options, python=("-X", "dev"))
    assert done.returncode == 1, done.stdout + done.stderr
    for words in ("blocks grows", "descriptors grows", "threads reached", "never awaited", "log reached"):
        assert words in done.stdout, done.stdout
    assert "connections reached" in done.stdout, done.stdout
    assert all(f"{cache} reached" in done.stdout for cache in ("images", "records", "plans"))


def test_a_loop_that_does_not_hear_another_one_is_found() -> None:
    """It ends the soak, for nobody can end what waits for ever."""
    done = soak("--leak", "loop")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "somebody waits for ever" in done.stdout


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_newcomers_do_not_pile_up(store: str, tmp_path: Path) -> None:
    """When every caller comes only once, as with a limit for each address, expired buckets go as fast."""
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/limits.db"
    clock, limit = ManualClock(), Limit("rps", 1, 1, 1)
    backend = open_backend(url, sync=True, world=clock.world)
    limiter = RateLimiter(run_sync(Repository.over(backend, world=clock.world)))

    async def come(number: int) -> None:
        async with limiter.acquire(f"address-{number}", "api", {"rps": 1}, [limit]):
            clock.advance(0.1)

    for number in range(4_000):
        run_sync(come(number))
    left = run_sync(limiter.repository.get_resource_capacity("api", "rps")).entities
    assert len(left) < 1_500
    run_sync(limiter.close())
