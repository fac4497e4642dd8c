"""Processes that hold seats are killed at random: never too many at work, and every seat comes back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.breaking.killed_holders import SEATS, Seen
from tests.stores import url_of

ROOT = Path(__file__).resolve().parents[2]
SECONDS = float(os.environ.get("KILLED_HOLDERS_SECONDS", "10"))


def run(kind: str, folder: Path, seconds: float, *bug: str) -> Seen:
    words = [url_of(kind, folder), str(folder), str(seconds), "1", *bug]
    command = [sys.executable, "-m", "tests.breaking.killed_holders", *words]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Seen(*map(int, done.stdout.split()))


@pytest.mark.parametrize("kind", ["sqlite", "dynamodb", "postgres", "redis"])
def test_killed_holders(kind: str, tmp_path: Path) -> None:
    """Whoever begins finds no more at work than there are seats; all are free when the last hold is over."""
    seen = run(kind, tmp_path, SECONDS)
    assert seen.killed > SECONDS
    assert seen.began > SEATS, "no seat of who was killed came back"
    assert seen.outlived > 0, "nobody worked for longer than a hold"
    assert 1 < seen.most <= SEATS
    assert seen.free == SEATS


def test_a_seat_given_away_too_early_is_found(tmp_path: Path) -> None:
    """The count of who is at work is exact enough to see it."""
    assert run("sqlite", tmp_path, 10, "early").most > SEATS
