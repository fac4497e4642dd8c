"""Processes that compete for one seat: ``python -m tests.breaking.turns URL FOLDER TURNS``.

Each takes the seat, works with it for a moment, and takes it again at once; a book says who had it. It ends
when all together had so many turns, and prints how many each process had.
"""

import os
import sys
import time
from collections import Counter
from pathlib import Path

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter

RESOURCE, ENTITY, PROCESSES = "api", "key", 3
LIMITS = [Limit.concurrent("parallel", 1, hold="60s")]
WORK_SECONDS = 0.05
WAIT_SECONDS = 2


def work(url: str, book: Path, number: int, turns: int) -> None:
    with SyncRateLimiter.open(url) as limiter, open(book, "a") as lines:
        limiter.available(ENTITY, RESOURCE, LIMITS)
        print("ready", file=lines, flush=True)
        while book.read_text().count("ready") < PROCESSES:
            time.sleep(0.01)
        while book.read_text().count("turn") < turns:
            try:
                with limiter.acquire(ENTITY, RESOURCE, {"parallel": 1}, LIMITS, wait=WAIT_SECONDS):
                    print("turn", number, file=lines, flush=True)
                    time.sleep(WORK_SECONDS)
            except RateLimitExceeded:
                continue  # as a program that does not give up


def main(url: str, folder: Path, turns: int) -> list[int]:
    book, children = folder / "book", []
    for number in range(PROCESSES):
        child = os.fork()
        if not child:
            code = 1
            try:
                work(url, book, number, turns)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert not any(codes), codes
    had = Counter(line.split()[1] for line in book.read_text().splitlines() if line != "ready")
    return [had[str(number)] for number in range(PROCESSES)]


if __name__ == "__main__":
    print(*main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
