"""Holders of seats, killed: ``python -m tests.breaking.killed_holders URL FOLDER SECONDS SEED [BUG]``.

Workers take a seat, work with it for a moment or for longer than its ``hold``, and are killed at random with
it; new ones take their place. Whoever is at work has a file locked, which no death can leave behind, so
whoever begins can count all who are at work at that very instant. When everybody is dead, all seats have to
be there an eighth of a ``hold`` after it. It prints what happened; whoever runs it judges.
"""

import fcntl
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest import mock

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter

RESOURCE, ENTITY = "api", "key"
WORKERS, SEATS, HOLD_SECONDS = 7, 4, 4
LIMITS = [Limit.concurrent("parallel", SEATS, hold=HOLD_SECONDS), Limit("rpm", 10**9, 1, 3600)]
KILL_SECONDS = (0.1, 0.5)
SHORT_SECONDS, LONG_SHARE = 0.1, 0.3
SPARED = range(2)
"""Workers who live until the end, and always work for long."""
SLACK_SECONDS = 0.1

BUGS: dict[str, dict[str, Any]] = {
    "early": {
        "zae_limiter.engine.seats.Place.is_over": lambda place, now_ms: place.until * 125 < now_ms + 3500
    },
    "unrenewed": {"zae_limiter.engine.renewal.Renewals.add": lambda *_: None},
}


class Seen(NamedTuple):
    """What came of it."""

    killed: int
    began: int
    outlived: int
    """How many worked for longer than a ``hold``."""
    most: int
    """The most who were at work at once."""
    lost: int
    """Seats that a living worker could not renew in time."""
    free: int
    """How many seats were there an eighth of a ``hold`` after everybody was dead."""


def lock_of(folder: Path, name: str) -> int:
    return os.open(folder / name, os.O_RDWR | os.O_CREAT)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One at a time, of all processes."""
    gate = lock_of(folder, "gate")
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield
    finally:
        os.close(gate)


def at_work(folder: Path) -> int:
    """How many files are locked; nobody locks another one meanwhile."""
    count = 0
    for number in range(WORKERS):
        descriptor = lock_of(folder, f"worker-{number}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            count += 1
        finally:
            os.close(descriptor)
    return count


def work(url: str, folder: Path, number: int, rng: random.Random) -> None:
    mine = lock_of(folder, f"worker-{number}")
    with SyncRateLimiter.open(url) as limiter, open(folder / "book", "a") as book:
        while True:
            with (
                suppress(RateLimitExceeded),
                limiter.acquire(ENTITY, RESOURCE, {"parallel": 1, "rpm": 1}, LIMITS, wait=3 * HOLD_SECONDS),
            ):
                with alone(folder):
                    fcntl.flock(mine, fcntl.LOCK_EX)
                    print("began", at_work(folder), file=book, flush=True)
                is_long = number in SPARED or rng.random() < LONG_SHARE
                time.sleep(HOLD_SECONDS * rng.uniform(1, 1.5) if is_long else rng.uniform(0, SHORT_SECONDS))
                with alone(folder):
                    fcntl.flock(mine, fcntl.LOCK_UN)
                    print("outlived" if is_long else "ended", limiter.seats_lost, file=book, flush=True)


def hire(url: str, folder: Path, number: int, seed: float, bug: str | None) -> int:
    child = os.fork()
    if not child:
        be_worker(url, folder, number, seed, bug)
    return child


def be_worker(url: str, folder: Path, number: int, seed: float, bug: str | None) -> NoReturn:
    try:
        for target, broken in BUGS[bug].items() if bug is not None else ():
            mock.patch(target, broken).start()
        work(url, folder, number, random.Random(seed))
    finally:
        os._exit(1)


def main(url: str, folder: Path, seconds: float, seed: int, bug: str | None = None) -> Seen:
    rng, killed = random.Random(seed), 0
    with SyncRateLimiter.open(url) as limiter:  # the bucket is there, and its table
        limiter.available(ENTITY, RESOURCE, LIMITS)
    alive = {number: hire(url, folder, number, rng.random(), bug) for number in range(WORKERS)}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(rng.uniform(*KILL_SECONDS))
        number = rng.randrange(len(SPARED), WORKERS)
        kill(alive[number])
        killed += 1
        alive[number] = hire(url, folder, number, rng.random(), bug)
    for child in alive.values():
        kill(child)
    time.sleep(HOLD_SECONDS * 9 / 8 + SLACK_SECONDS)
    with SyncRateLimiter.open(url) as limiter:
        free = limiter.available(ENTITY, RESOURCE, LIMITS)["parallel"]
    lines = [line.split() for line in (folder / "book").read_text().splitlines()]
    began = [int(count) for what, count in lines if what == "began"]
    lost = sum(int(count) for what, count in lines if what != "began")
    outlived = sum(what == "outlived" for what, _ in lines)
    return Seen(killed, len(began), outlived, max(began, default=0), lost, free)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == -signal.SIGKILL, f"a worker ended by itself: {code}"


if __name__ == "__main__":
    seen = main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
    print(*seen)
