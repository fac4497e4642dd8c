"""The long session without AWS; see ``session_sqlite``."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_session(tmp_path: Path) -> None:
    """From an empty directory to a chart of usage and back to an empty namespace, without AWS."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ZAE"))}
    environment |= {"ZAE_LIMITER_STORE": "sqlite:///limits.db", "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.cli.session_sqlite"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    assert ran.stdout.endswith("done\n")
