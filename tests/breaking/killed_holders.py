"""Holders of seats, killed: ``python -m tests.breaking.killed_holders URL FOLDER SECONDS SEED [BUG]``.

Workers take a seat, work with it for a moment or for longer than its ``hold``, and are killed at random with
it; new ones take their place. Whoever is at work has a file locked, which no death can leave behind, so
whoever begins can count all who are at work at that very instant. Several times everybody is killed at once,
with seats in their hands, and others go on with a bucket of their own: all seats have to be there an eighth
after a ``hold``. An epoch shows what comes later than its last write by more than its patience, a brief one
what comes later by its whole length besides. It prints what happened; whoever runs it judges.
"""

import fcntl
import math
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest import mock

from tests.patience import wait_until
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter

RESOURCE = "api"
WORKERS, SEATS, HOLD_SECONDS = 7, 4, 4
LIMITS = [Limit.concurrent("parallel", SEATS, hold=HOLD_SECONDS), Limit("rpm", 10**9, 1, 3600)]
KILL_SECONDS = (0.1, 0.5)
BRIEF_SECONDS, SECONDS_FOR_ONE = 1, 5
"""How long most epochs last, and of how many seconds one is brief; the last one has what is left."""
SHORT_SECONDS, LONG_SHARE = 0.1, 0.3
SPARED = range(2)
"""Workers who live until the end of an epoch, and always work for long."""
PATIENCE_SECONDS = 1
"""How much later all seats may be there: what was sent before a death can still arrive after it."""
BEAT_SECONDS = 0.05

BUGS: dict[str, dict[str, Any]] = {
    "early": {
        "zae_limiter.engine.seats.Place.is_over": lambda place, now_ms: place.until * 125 < now_ms + 3500
    },
    "late": {
        "zae_limiter.engine.seats.Place.is_over": lambda place, now_ms: place.until * 125 < now_ms - 20_000
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
    """Seats that somebody else had got when the lease of a living worker ended."""
    epochs: int
    """How often everybody was killed at once."""
    free: int
    """How many seats at least were there an eighth after a ``hold`` later."""
    free_at_most: int
    overslept_ms: int
    """How late at most the machine let a worker run."""


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


def somebody_works(folder: Path) -> bool:
    with alone(folder):
        return at_work(folder) > 0


def watch_timers(folder: Path) -> None:
    """Tell how late the machine lets this process run, whenever that is later than before."""
    longest_ms = 0
    with open(folder / "book", "a") as book:
        while True:
            due = time.monotonic() + BEAT_SECONDS
            time.sleep(BEAT_SECONDS)
            if (late_ms := math.ceil(1000 * (time.monotonic() - due))) > longest_ms:
                longest_ms = late_ms
                print("overslept", late_ms, file=book, flush=True)


def work(url: str, folder: Path, number: int, rng: random.Random) -> None:
    mine, lost = lock_of(folder, f"worker-{number}"), 0
    threading.Thread(target=watch_timers, args=(folder,), daemon=True).start()
    with SyncRateLimiter.open(url) as limiter, open(folder / "book", "a") as book:
        while True:
            amounts = {"parallel": 1, "rpm": 1}
            with (
                suppress(RateLimitExceeded),
                limiter.acquire(folder.name, RESOURCE, amounts, LIMITS, wait=3 * HOLD_SECONDS),
            ):
                with alone(folder):
                    fcntl.flock(mine, fcntl.LOCK_EX)
                    print("began", at_work(folder), file=book, flush=True)
                is_long = number in SPARED or rng.random() < LONG_SHARE
                time.sleep(
                    HOLD_SECONDS * rng.uniform(1.25, 1.5) if is_long else rng.uniform(0, SHORT_SECONDS)
                )
                with alone(folder):
                    fcntl.flock(mine, fcntl.LOCK_UN)
                    print("outlived" if is_long else "ended", file=book, flush=True)
            print("lost", limiter.seats_lost - lost, file=book, flush=True)
            lost = limiter.seats_lost


def look(url: str, folder: Path) -> None:
    """Tell how many seats there are when those of the dead have to be back."""
    time.sleep(HOLD_SECONDS * 9 / 8)
    until = time.monotonic() + PATIENCE_SECONDS
    with SyncRateLimiter.open(url) as limiter, open(folder / "book", "a") as book:
        while True:
            is_last = time.monotonic() > until
            free = limiter.available(folder.name, RESOURCE, LIMITS)["parallel"]
            if is_last or free == SEATS:
                break
            time.sleep(BEAT_SECONDS)
        print("free", free, file=book, flush=True)


def forked(bug: str | None, do: Callable[[], None]) -> int:
    child = os.fork()
    if not child:
        be_child(bug, do)
    return child


def be_child(bug: str | None, do: Callable[[], None]) -> NoReturn:
    try:
        for target, broken in BUGS[bug].items() if bug is not None else ():
            mock.patch(target, broken).start()
        do()
        os._exit(0)
    finally:
        os._exit(1)


def epoch(url: str, folder: Path, seconds: float, rng: random.Random, bug: str | None) -> tuple[int, int]:
    """Let workers work and die, and kill all of them in the end; how many before that, and who will look."""

    def hire(number: int) -> int:
        return forked(bug, partial(work, url, folder, number, random.Random(rng.random())))

    folder.mkdir()
    with SyncRateLimiter.open(url) as limiter:  # the bucket is there, and its table
        limiter.available(folder.name, RESOURCE, LIMITS)
    alive, killed, until = {number: hire(number) for number in range(WORKERS)}, 0, time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(rng.uniform(*KILL_SECONDS))
        number = rng.randrange(len(SPARED), WORKERS)
        kill(alive[number])
        killed += 1
        alive[number] = hire(number)
    if seconds > HOLD_SECONDS:
        wait_until(lambda: "outlived" in (folder / "book").read_text(), "nobody works for longer than a hold")
    wait_until(lambda: somebody_works(folder), "nobody has a seat")
    for child in alive.values():
        kill(child)
    return killed, forked(bug, partial(look, url, folder))


def main(url: str, folder: Path, seconds: float, seed: int, bug: str | None = None) -> Seen:
    rng, brief = random.Random(seed), [BRIEF_SECONDS] * int(seconds // SECONDS_FOR_ONE)
    folders = [folder / f"key-{number}" for number in range(len(brief) + 1)]
    lengths = [*brief, seconds - sum(brief)]
    done = [epoch(url, *each, rng, bug) for each in zip(folders, lengths, strict=True)]
    for _, looking in done:
        assert os.waitpid(looking, 0)[1] == 0, "nobody could look in the end"
    counts = defaultdict[str, list[int]](list)
    for where in folders:
        for what, *count in map(str.split, (where / "book").read_text().splitlines()):
            counts[what].append(int(count[0]) if count else 1)
    began, outlived, lost = counts["began"], sum(counts["outlived"]), sum(counts["lost"])
    killed, free = sum(number for number, _ in done), counts["free"]
    most, overslept_ms = max(began, default=0), max(counts["overslept"], default=0)
    return Seen(killed, len(began), outlived, most, lost, len(free), min(free), max(free), overslept_ms)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == -signal.SIGKILL, f"a worker ended by itself: {code}"


if __name__ == "__main__":
    seen = main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
    print(*seen)
