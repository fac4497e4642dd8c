"""Clients of a SQLite file, killed: ``python -m tests.breaking.killed_clients URL FOLDER KILLS SEED BUG``.

It loads everything once and lets children do the work. Most are killed wherever they are, when they have
written so much into their books; some kill themselves in front of or right behind a statement of a write,
where that rarely strikes. The last ones may finish. It prints how many died in which way.
"""

import functools
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from tests.breaking import client

ALIVE = 3
TASKS = 4
PAUSE_SECONDS = 0.002
LIFE_BYTES = (500, 6_000)
"""What they write in their lives: some five to fifty operations, however slow the machine."""

STATEMENTS = ("BEGIN IMMEDIATE", "UPDATE items", "INSERT INTO items", "COMMIT")
SELF_KILL_SHARE = 0.4


class DoomedConnection(sqlite3.Connection):
    """Kills its process in front of or behind one statement of a write."""

    statement = STATEMENTS[0]
    left = 1
    behind = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if not sql.startswith(self.statement):
            return super().execute(sql, *parameters)
        DoomedConnection.left -= 1
        if self.left == 0 and not self.behind:
            os.kill(os.getpid(), signal.SIGKILL)
        cursor = super().execute(sql, *parameters)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return cursor


def be_client(url: str, folder: Path, number: int, rng: random.Random) -> NoReturn:
    code = 1
    try:
        if rng.random() < SELF_KILL_SHARE:
            DoomedConnection.statement, DoomedConnection.behind = rng.choice(STATEMENTS), rng.random() < 0.5
            DoomedConnection.left = rng.randrange(1, 15)
            doomed = functools.partial(sqlite3.connect, factory=DoomedConnection)
            mock.patch("sqlite3.connect", doomed).start()
        kind = rng.choice(("tasks", "threads"))
        code = client.work(url, folder / f"book-{number}", kind, TASKS, number, PAUSE_SECONDS)
    finally:
        os._exit(code)


def lives(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def size_of(book: Path) -> int:
    return book.stat().st_size if book.exists() else 0


def main(url: str, folder: Path, kills: int, seed: int, bug: str | None = None) -> int:
    client.plant(bug)
    # Children inherit it, lest one is told to end before it could listen.
    signal.signal(signal.SIGTERM, lambda *_: client.OVER.set())
    rng, ends, numbers = random.Random(seed), Counter[str](), iter(range(10**6))
    alive: dict[int, Path] = {}

    def reap(child: int) -> None:
        del alive[child]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ends["killed" if code == -signal.SIGKILL else "finished" if code == 0 else "failed"] += 1

    while ends["killed"] < kills and not ends["failed"]:
        while len(alive) < ALIVE:
            number, luck = next(numbers), random.Random(rng.random())
            child = os.fork()
            if child == 0:
                be_client(url, folder, number, luck)
            alive[child] = folder / f"book-{number}"
        victim = rng.choice(list(alive))
        life_bytes = rng.randrange(*LIFE_BYTES)
        while lives(victim) and size_of(alive[victim]) < life_bytes:
            time.sleep(0.001)
        ends["by us"] += lives(victim)
        os.kill(victim, signal.SIGKILL)
        reap(victim)
    for child in alive:
        os.kill(child, signal.SIGTERM)
    for child in list(alive):
        reap(child)
    print(ends["killed"], ends["by us"], ends["finished"], ends["failed"])
    return 1 if ends["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:]))
