"""``make bench CASES=crowd``: processes on one SQLite file, beside others and beside SQLite itself.

Each contestant has a file of its own, and some processes that take one token of one bucket again and again
until the time is over. Contestants take turns, round by round, so that whatever else the machine does hits
all of them. A wait for somebody else's write is part of a latency; that is what the 99th percentile shows.

A bare process waits for the file as SQLite does, by asking again (``busy_timeout``).
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .cases import BARE_UPDATE, OURS, PLENTY, PYRATE_SQLITE
from .engine import ROOT
from .figures import compact
from .loops import Tally, sync_loop
from .process import environment_of, interpreter
from .tabular import table

PROCESSES = 4
BUSY_MS = 60_000
CONTESTANTS = (OURS, PYRATE_SQLITE, BARE_UPDATE)
Step = Callable[[], object]


def ours(file: Path) -> Step:
    from .embedded import ours_sync

    return ours_sync(f"sqlite:///{file}?timeout_ms={BUSY_MS}")


def pyrate(file: Path) -> Step:
    """As its documentation shows for several processes: a lock on a file beside it."""
    from pyrate_limiter import Duration, limiter_factory

    from .embedded import KEY, must

    limiter = limiter_factory.create_sqlite_limiter(
        PLENTY, Duration.SECOND, db_path=str(file), use_file_lock=True
    )
    return lambda: must(limiter.try_acquire(KEY))


def bare(file: Path) -> Step:
    database = sqlite3.connect(file, isolation_level=None, timeout=BUSY_MS / 1000)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE IF NOT EXISTS items (key TEXT PRIMARY KEY, tokens INTEGER) WITHOUT ROWID")
    database.execute("INSERT OR IGNORE INTO items VALUES ('key', 0)")
    update = "UPDATE items SET tokens = tokens - 1 WHERE key = 'key' AND tokens <= 1 RETURNING tokens"
    return lambda: database.execute(update).fetchone()


STEPS = {OURS: ours, PYRATE_SQLITE: pyrate, BARE_UPDATE: bare}


def work(contestant: str, file: Path) -> None:
    """One process of a crowd: it says that it is ready, and does a round for each line that it reads."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    step = STEPS[contestant](file)
    step()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        at_ns, seconds = json.loads(line)
        time.sleep(max(0.0, (at_ns - time.monotonic_ns()) / 1e9))
        print(json.dumps(sync_loop(step, seconds, Tally(PermissionError))), file=answers, flush=True)


class Crowd:
    """The processes of one contestant."""

    def __init__(self, contestant: str, file: Path, processes: int) -> None:
        command = [interpreter(contestant), "-m", "benchmarks.crowd", contestant, str(file)]
        self._crew = []
        for _ in range(processes):  # one after the other: only the first makes the file
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment_of(contestant),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._crew.append(process)
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                self.end()
                raise RuntimeError(f"a process of {contestant} ended with exit code {process.wait()}")

    def round(self, seconds: float) -> list[dict[str, Any]]:
        """All begin at the same moment."""
        at_ns = time.monotonic_ns() + 100_000_000
        for process in self._crew:
            assert process.stdin is not None
            process.stdin.write(json.dumps([at_ns, seconds]) + "\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in self._crew if process.stdout]

    def end(self) -> None:
        for process in self._crew:
            process.kill()
            process.communicate()


def measured(
    contestants: Sequence[str], processes: int, rounds: int, seconds: float
) -> dict[str, list[list[dict[str, Any]]]]:
    """What each process of each contestant did in each round."""
    crowds: dict[str, Crowd] = {}
    found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in contestants}
    with tempfile.TemporaryDirectory(prefix="zae-crowd-") as folder:
        try:
            for number, name in enumerate(contestants):
                crowds[name] = Crowd(name, Path(folder) / f"{number}.db", processes)
            for _ in range(rounds):
                for name, crowd in crowds.items():
                    found[name].append(crowd.round(seconds))
        finally:
            for crowd in crowds.values():
                crowd.end()
    return found


def throughput(samples: Sequence[dict[str, Any]]) -> float:
    return float(sum(it["operations"] / it["seconds"] for it in samples))


def p99_us(samples: Sequence[dict[str, Any]]) -> float:
    """The worst process's: nobody is to be starved."""
    return float(max(it["p99_us"] or float("inf") for it in samples))


def crowd_table(found: dict[str, list[list[dict[str, Any]]]]) -> str:
    """Medians of the rounds; ours is how many times theirs."""
    rows, mine = [], statistics.median(map(throughput, found[OURS]))
    for name, rounds in found.items():
        rates, worst = statistics.median(map(throughput, rounds)), statistics.median(map(p99_us, rounds))
        shares = [sum(it[place]["operations"] for it in rounds) for place in range(len(rounds[0]))]
        cells = [compact(rates), compact(worst / 1000), f"{min(shares) / max(1, *shares):.2f}"]
        failed = sum(it["unwanted"] for samples in rounds for it in samples)
        rows.append([name, *cells, str(failed), f"{compact(mine / rates)}×"])
    header = ["one SQLite file", "per second, all", "p99 of the worst, ms", "least share / largest", "failed"]
    return table([*header, "ours is"], rows)


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]))
