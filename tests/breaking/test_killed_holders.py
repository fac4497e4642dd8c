"""Processes that hold seats are killed at random: never too many at work, and every seat comes back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.breaking.killed_holders import HOLD_SECONDS, SEATS, SECONDS_FOR_ONE, Seen
from tests.stores import url_of

ROOT = Path(__file__).resolve().parents[2]
SECONDS = float(os.environ.get("KILLED_HOLDERS_SECONDS", "10"))
RENEWAL_MS_LEFT = HOLD_SECONDS * 1000 / 2
"""How much time is left for a renewal when it is due."""


def run(kind: str, folder: Path, seconds: float, *bug: str) -> Seen:
    words = [url_of(kind, folder), str(folder), str(seconds), "1", *bug]
    command = [sys.executable, "-m", "tests.breaking.killed_holders", *words]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Seen(*map(int, done.stdout.split()))


@pytest.mark.parametrize("kind", ["sqlite", "dynamodb", "postgres", "redis"])
def test_killed_holders(kind: str, tmp_path: Path) -> None:
    """Whoever begins finds no more at work than there are seats; all are free whenever holds are over."""
    seen = run(kind, tmp_path, SECONDS)
    assert seen.killed > SECONDS
    assert seen.began > SEATS, "no seat of who was killed came back"
    assert seen.outlived > 0, "nobody worked for longer than a hold"
    assert seen.most > 1
    if seen.overslept_ms < RENEWAL_MS_LEFT / 2:  # else somebody at work may not have come to renew
        assert seen.most <= SEATS
        assert seen.lost == 0, "who lives has its seat, however long it works"
    assert seen.epochs == SECONDS // SECONDS_FOR_ONE + 1
    assert seen.free == SEATS


def test_a_seat_given_away_too_early_is_found(tmp_path: Path) -> None:
    """The count of who is at work is exact enough to see it."""
    assert run("sqlite", tmp_path, 10, "early").most > SEATS


def test_a_seat_that_is_not_renewed_is_found(tmp_path: Path) -> None:
    """Somebody else has it while its holder is still at work, who is told so in the end."""
    assert run("sqlite", tmp_path, 10, "unrenewed").lost > 0


def test_a_seat_that_comes_back_too_late_is_found(tmp_path: Path) -> None:
    """In every epoch, also one that ends before anybody renews; so late that no slow judge overlooks it."""
    seen = run("sqlite", tmp_path, SECONDS_FOR_ONE, "late")
    assert seen.epochs > 1
    assert seen.free_at_most < SEATS
