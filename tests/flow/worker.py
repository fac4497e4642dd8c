"""Another process that uses a limiter, for the tests; run as ``worker.py <role> …``.

It answers on standard output, one line at a time, so that whoever started it knows what it has seen.
"""

import os
import signal
import sys
import threading
import time
from typing import NoReturn

from zae_limiter import Limit, RateLimitExceeded, SwitchedOff, SyncRateLimiter

RESOURCE = "api"
CHILD_SECONDS_MAX = 300
WAIT_SECONDS_MAX = 60


def say(*what: object) -> None:
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()


def limit_of(text: str) -> Limit:
    """A limit named ``rpm`` from ``capacity/refill/seconds``."""
    capacity, refill, seconds = map(int, text.split("/"))
    return Limit("rpm", capacity, refill, seconds)


def spend(url: str, limit: str, amount: str) -> None:
    """Take as fast as possible, until told or until there is nothing to wait for; report each admission.

    A line with the amount is written for every acquire that was admitted, and nothing is held back,
    so that what a killed process has reported is what it knew.
    """
    # A bucket that nobody uses for a second shall still be there when its books are read.
    with SyncRateLimiter.open(url, bucket_ttl_multiplier=0) as limiter:
        limiter.is_available()
        say("ready")
        sys.stdin.readline()
        over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
        while not over.is_set():
            try:
                with limiter.acquire("key", RESOURCE, {"rpm": int(amount)}, [limit_of(limit)]):
                    pass
            except RateLimitExceeded as refusal:
                if refusal.retry_after_seconds > WAIT_SECONDS_MAX:
                    break
                time.sleep(min(refusal.retry_after_seconds, 0.005))
            else:
                say(amount)
        say("done", time.time_ns() // 1_000_000)


def fork(url: str, threads: str, children: str) -> None:
    """Fork while so many threads use the limiter; children and parent go on with the one they have."""
    limiter = SyncRateLimiter.open(url)
    limit = Limit("rpm", 10**9, 1, 10**6)
    over = threading.Event()
    counts = [0] * int(threads)

    def take(entity_id: str) -> None:
        with limiter.acquire(entity_id, RESOURCE, {"rpm": 1}, [limit]):
            pass

    def keep_taking(number: int) -> None:
        while not over.is_set():
            take("key")
            counts[number] += 1

    def be_child(number: int) -> NoReturn:
        code = 1
        try:
            signal.alarm(CHILD_SECONDS_MAX)
            take("key")
            take(f"new-{number}")
            code = 0 if limiter.is_available() else 2
        finally:
            os._exit(code)

    take("key")
    assert limiter.is_available()
    crew = [threading.Thread(target=keep_taking, args=(number,)) for number in range(len(counts))]
    for thread in crew:
        thread.start()
    codes = []
    for number in range(int(children)):
        pid = os.fork()
        if pid == 0:
            be_child(number)
        take("key")
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    over.set()
    for thread in crew:
        thread.join()
    left = limiter.available("key", RESOURCE, [limit])["rpm"]
    say(sum(counts) + int(children) + 1, 10**9 - left, *codes)


def change(url: str, entity_id: str, capacity: str) -> None:
    """Set the limits of an entity, or without one those of the resource, and be gone."""
    limits = [Limit("rpm", int(capacity), int(capacity), 3600)]
    with SyncRateLimiter.open(url) as limiter:
        if entity_id:
            limiter.set_limits(entity_id, limits)
        else:
            limiter.set_resource_defaults(RESOURCE, limits)


def ask(url: str, config_cache_ttl: str) -> None:
    """Acquire once for every line that comes, and say what became of it."""
    with SyncRateLimiter.open(url, config_cache_ttl=float(config_cache_ttl)) as limiter:
        for _ in sys.stdin:
            try:
                with limiter.acquire("key", RESOURCE, {"rpm": 1}):
                    say("admitted")
            except SwitchedOff as refusal:
                say(refusal.error, refusal.reason)


if __name__ == "__main__":
    {"spend": spend, "fork": fork, "change": change, "ask": ask}[sys.argv[1]](*sys.argv[2:])
