"""Another process on the same SQLite file, for the tests; run as ``worker.py <role> <path> …``.

It answers on standard output, one line at a time, so that whoever started it knows what it has seen.
"""

import contextlib
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path

from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Key, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

COUNTER = Key("counter", "#STATE")


def backend(path: str) -> SqliteBackend:
    it = SqliteBackend(path, sync=True, timeout_ms=30_000, world=World())
    run_sync(it.setup())
    return it


def add(it: SqliteBackend, name: str) -> int:
    """Count one for everybody and one for ``name``; the total that this write made."""
    (outcome,) = run_sync(it.write_each([Update(COUNTER, add={"total": 1, name: 1})]))
    assert outcome.applied, outcome
    assert outcome.item is not None
    total = outcome.item["total"]
    assert isinstance(total, int)
    return total


def count(path: str, name: str, times: str) -> None:
    """Write so many times, after a line on standard input starts all workers at once."""
    it = backend(path)
    say("ready")
    sys.stdin.readline()
    for _ in range(int(times)):
        say(add(it, name))
    run_sync(it.close())


def write_until_failure(path: Path, name: str, begun: list[float], running: threading.Event) -> None:
    """Write as fast as possible until the store fails; note when each write was begun that was done."""
    it = backend(str(path))
    while True:
        since = time.monotonic()
        (outcome,) = run_sync(it.write_each([Update(COUNTER, add={name: 1})]))
        if not outcome.applied:
            break
        begun.append(since)
        running.set()
    with contextlib.suppress(RateLimiterUnavailable):
        run_sync(it.close())


class FirstWrite(threading.Event):
    """Tells the test that this process is writing."""

    def set(self) -> None:
        if not self.is_set():
            super().set()
            say("writing")


def until_failure(path: str, name: str) -> None:
    """The same in this process; the instants are told at the end."""
    begun: list[float] = []
    write_until_failure(Path(path), name, begun, FirstWrite())
    for since in begun:
        say(since)


def hold(path: str) -> None:
    """Hold the write lock until a line comes in."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say("held")
    sys.stdin.readline()
    connection.execute("COMMIT")
    connection.close()


def fork(path: str, children: str, times: str) -> None:
    """Fork while a thread writes; parent, thread and children all go on writing."""
    it = backend(path)
    done = threading.Event()
    threaded = 0

    def keep_writing() -> None:
        nonlocal threaded
        while not done.is_set():
            add(it, "thread")
            threaded += 1

    thread = threading.Thread(target=keep_writing)
    thread.start()
    failed = 0
    for _ in range(int(children)):
        pid = os.fork()
        if pid == 0:
            _be_child(it, path, int(times))
        add(it, "parent")
        failed += os.waitpid(pid, 0)[1] != 0
    done.set()
    thread.join()
    run_sync(it.close())
    say(f"{threaded} {failed}")


def _be_child(it: SqliteBackend, path: str, times: int) -> None:
    code = 1
    try:
        descriptors = Path("/proc/self/fd")
        # Their locks are what may not be shared; the line has none.
        connections = {path, f"{path}-wal", f"{path}-shm"}
        inherited = [file for file in descriptors.iterdir() if os.path.realpath(file) in connections]
        for _ in range(times):
            add(it, "child")
        run_sync(it.close())
        code = 2 if inherited else 0
    finally:
        os._exit(code)


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"count": count, "hold": hold, "fork": fork, "until_failure": until_failure}[sys.argv[1]](*sys.argv[2:])
