"""Processes that take one seat again and again: nobody is kept out."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores import url_of

ROOT = Path(__file__).resolve().parents[2]
TURNS = 60


@pytest.mark.parametrize("kind", ["sqlite", "dynamodb", "postgres", "redis"])
def test_turns_of_processes(kind: str, tmp_path: Path) -> None:
    """Whoever gives a seat back and wants it again comes after those who wait for it."""
    command = [
        sys.executable,
        "-m",
        "tests.breaking.turns",
        url_of(kind, tmp_path),
        str(tmp_path),
        str(TURNS),
    ]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    turns = [int(count) for count in done.stdout.split()]
    assert sum(turns) >= TURNS
    assert min(turns) * 2 >= max(turns), turns
