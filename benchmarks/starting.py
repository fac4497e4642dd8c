"""``make bench CASES=starting``: what programs cost that have just started, in CPU of whole processes.

The least of several runs of each counts, for whatever else a machine does only adds to it. Peers are measured
where they are installed, and left out elsewhere.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from . import engine
from .cases import ASYNCIO_START, BARE_START, HELP_START, IMPORT_START
from .process import PEERS

LEASE = """
limits = [Limit.per_minute("rpm", 60)]
with SyncRateLimiter.open("memory://") as limiter:
    with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, limits):
        pass
"""
ASYNC_LEASE = """
async def work():
    async with RateLimiter.open("memory://") as limiter:
        async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, [Limit.per_minute("rpm", 60)]):
            pass
asyncio.run(work())
"""
OURS = {
    BARE_START: ("-c", "pass"),
    ASYNCIO_START: ("-c", "import asyncio"),
    IMPORT_START: ("-c", "import zae_limiter"),
    "a first lease": ("-c", f"from zae_limiter import Limit, SyncRateLimiter\n{LEASE}"),
    "a first async lease": (
        "-c",
        f"import asyncio\nfrom zae_limiter import Limit, RateLimiter\n{ASYNC_LEASE}",
    ),
    HELP_START: ("-m", "zae_limiter", "--help"),
}
THEIRS = {f"import {name}": ("-c", f"import {name}") for name in ("limits", "pyrate_limiter", "throttled")}


def cpu_ms(python: str, words: tuple[str, ...], compiled: str) -> float:
    """CPU of one process, from its start to its end; modules are compiled to files once, as pip does."""
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONPATH": str(engine.ROOT / "src")}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, *words], env=variables, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def measured(runs: int) -> dict[str, list[float]]:
    """Milliseconds of each run of each program, which take turns."""
    programs = {name: (sys.executable, words) for name, words in OURS.items()}
    peers = engine.ROOT / PEERS
    if peers.exists():
        programs |= {name: (str(peers), words) for name, words in THEIRS.items()}
    spent: dict[str, list[float]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as compiled:
        for attempt in range(runs + 1):
            for name, (python, words) in programs.items():
                spent_ms = round(cpu_ms(python, words, compiled), 1)
                if attempt:  # the first one compiles
                    spent[name].append(spent_ms)
    return spent
