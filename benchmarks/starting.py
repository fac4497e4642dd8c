"""``python -m benchmarks.starting``: what programs cost that have just started, in CPU of whole processes.

The least of several runs of each is printed, for whatever else a machine does only adds to it, and beside it
how many times a bare interpreter and one that imports asyncio that is: these hardly depend on the machine.
Peers are measured where they are installed, and left out elsewhere.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from . import engine
from .process import PEERS

RUNS = 20
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
BARE, ASYNCIO = "a bare interpreter", "import asyncio"
OURS = {
    BARE: ("-c", "pass"),
    ASYNCIO: ("-c", "import asyncio"),
    "import zae_limiter": ("-c", "import zae_limiter"),
    "a first lease": ("-c", f"from zae_limiter import Limit, SyncRateLimiter\n{LEASE}"),
    "a first async lease": (
        "-c",
        f"import asyncio\nfrom zae_limiter import Limit, RateLimiter\n{ASYNC_LEASE}",
    ),
    "zae-limiter --help": ("-m", "zae_limiter", "--help"),
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


def measured(runs: int) -> dict[str, float]:
    """The least of each program, which take turns."""
    programs = {name: (sys.executable, words) for name, words in OURS.items()}
    peers = engine.ROOT / PEERS
    if peers.exists():
        programs |= {name: (str(peers), words) for name, words in THEIRS.items()}
    least: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as compiled:
        for attempt in range(runs + 1):
            for name, (python, words) in programs.items():
                spent_ms = cpu_ms(python, words, compiled)
                if attempt:  # the first one compiles
                    least[name] = min(spent_ms, least.get(name, spent_ms))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    least = measured(parser.parse_args().runs)
    print(f"{'':22}{'CPU, ms':>9}{'× bare':>9}{'× asyncio':>11}")
    for name, ms in least.items():
        print(f"{name:22}{ms:9.1f}{ms / least[BARE]:9.2f}{ms / least[ASYNCIO]:11.2f}")
    if not Path(engine.ROOT / PEERS).exists():
        print("\nthe peers are not installed here; make bench installs them")


if __name__ == "__main__":
    main()
