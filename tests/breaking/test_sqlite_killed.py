"""Processes on one SQLite file are killed in the middle of everything, and the books agree."""

import subprocess
import sys
from pathlib import Path

from tests.breaking.books import KILLED, read_books
from tests.breaking.contested_buckets import furnish
from tests.breaking.final_checks import buckets_of_file, by_entity, complaints, use_complaints
from tests.breaking.killed_clients import TASKS
from zae_limiter import SyncRateLimiter
from zae_limiter.runtime.colour import run_sync

ROOT = Path(__file__).resolve().parents[2]
KILLS = 24


def killed_on(path: Path, kills: int, *bug: str) -> tuple[int, int]:
    """How many clients of a file were killed, and how many of them not by themselves."""
    url = url_of(path)
    with SyncRateLimiter.open(url) as limiter:
        run_sync(furnish(limiter._async))
    command = [
        sys.executable,
        "-m",
        "tests.breaking.killed_clients",
        url,
        str(path.parent),
        str(kills),
        "1",
        *bug,
    ]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    killed, by_us, _, _ = map(int, done.stdout.split())
    assert killed >= kills
    return killed, by_us


def url_of(path: Path) -> str:
    return f"sqlite:///{path}?timeout_ms=20000"


def test_killed_again_and_again(tmp_path: Path) -> None:
    """Each of them costs what it was just doing, at most; refunds, cascades and swaps included."""
    path = tmp_path / "limits.db"
    killed, by_us = killed_on(path, KILLS)
    assert by_us < killed, "nobody was killed inside a statement"

    ledger, buckets = read_books(tmp_path.glob("book-*")), buckets_of_file(path)
    assert ledger.how["admitted"] > KILLS, "they were killed before they did anything"
    assert 0 < ledger.how[KILLED] <= killed * TASKS
    assert complaints(ledger, buckets) == []
    with SyncRateLimiter.open(url_of(path)) as limiter:
        assert use_complaints(limiter, list(by_entity(buckets))) == []


def test_a_refund_that_is_forgotten_is_found(tmp_path: Path) -> None:
    """The books of killed clients are not so vague that they would hide one."""
    killed_on(tmp_path / "limits.db", 6, "forget")
    found = complaints(read_books(tmp_path.glob("book-*")), buckets_of_file(tmp_path / "limits.db"))
    assert any("by the store" in complaint for complaint in found)
