"""Exceptions out of signal handlers, at every instant at which CPython runs one.

A handler runs in the main thread at the start of a function, after a call and at the end of a loop's round,
and may raise: Ctrl-C, a time limit of a job queue. ``Interrupter`` has its handler called at each of these
instants while the package is at work, and raises at one of them, so that all of them can be tried one after
another. ``python -m tests.breaking.interrupts`` leaves it to a clock instead: 2,000 acquires on each store,
each interrupted at an instant drawn at random.

Whatever is interrupted, a later acquire works, no lock is held and no line is left, and the books agree:
work that was done is paid for, all other work has cost nothing. What could not be put right is counted, or
is an open lease that nobody ends any more, which warns.
"""

import argparse
import ctypes
import logging
import random
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.engines import dynamodb_local, postgres, redis_server
from tests.stores import STORES as KINDS
from zae_limiter import Demand, Limit, RateLimitExceeded, SyncLease, SyncRateLimiter, SyncRepository
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.world import World

PLENTY = 10**9
LIMITS = [Limit("rpm", PLENTY, 1, 1_000_000), Limit("tpm", PLENTY, 1, 1_000_000)]
INSTANTS_MAX = 100_000
LOOKS = 10
"""A write that nobody waited for any more is still under way: so many looks at the store let it arrive."""
STORES = tuple(KINDS)

_again = ctypes.pythonapi.PyErr_SetInterruptEx
"""Has the handler called at the next instant at which one may run, and does not let it run itself."""


class Interrupted(BaseException):
    """What a signal handler raises."""


class Interrupter:
    """Counts the instants at which the package could be interrupted, and raises at one of them."""

    def __init__(self, at: int) -> None:
        self.at, self.instants, self.where = at, 0, ""
        self._armed = False

    @property
    def is_over(self) -> bool:
        """Whether all was done before that instant came."""
        return self.instants < self.at

    def __enter__(self) -> "Interrupter":
        self._before = signal.signal(signal.SIGUSR1, self._handle)
        self._armed = True
        _again(signal.SIGUSR1)
        return self

    def __exit__(self, *_: object) -> None:
        self._armed = False
        signal.signal(signal.SIGUSR1, self._before)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self._armed:
            return
        if is_at_work(frame):
            self.instants += 1
            if self.instants == self.at:
                assert frame is not None
                self._armed, self.where = False, f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                raise Interrupted(self.where)
        for _ in map(_again, (signum,)):
            return  # before any call, which would be an instant of its own


def is_at_work(frame: FrameType | None) -> bool:
    """Whether the package is among those who are at work, and will hear of an exception."""
    found = False
    while frame is not None:
        code = frame.f_code
        if code.co_name in ("__del__", "_remove", "_callback", "gc_callback"):
            return False  # the interpreter only prints what is raised there
        found = found or ("zae_limiter" in code.co_filename and "tests" not in code.co_filename)
        frame = frame.f_back
    return found


@dataclass
class Work:
    """One piece of work: whether it was done, and what it costs then."""

    limiter: SyncRateLimiter
    is_done: bool = False
    cost: int = 0

    def run(self, body: Callable[[SyncLease], int], entity_id: str = "user", amount: int = 3) -> None:
        with self.limiter.acquire(entity_id, "api", {"rpm": amount, "tpm": amount}) as lease:
            self.cost = body(lease)
            self.is_done = True


class Failed(Exception):
    """The work went wrong."""


def plain(lease: SyncLease) -> int:
    del lease
    return 3


def adjusted(lease: SyncLease) -> int:
    lease.adjust(rpm=5)
    return 8


def lowered(lease: SyncLease) -> int:
    lease.release(rpm=1)
    return 2


def more(lease: SyncLease) -> int:
    lease.consume(rpm=4)
    return 7


def failed(lease: SyncLease) -> int:
    lease.adjust(rpm=5)
    raise Failed


def warm(work: Work, body: Callable[[SyncLease], int]) -> None:
    work.run(body)


def cold(work: Work, body: Callable[[SyncLease], int]) -> None:
    work.limiter.repository._async._connection.writer.images.clear()
    work.limiter.repository._async.plans.clear()
    work.limiter.invalidate_config_cache()
    work.run(body)


def cascading(work: Work, body: Callable[[SyncLease], int]) -> None:
    work.run(body, "child")


def refused(work: Work, body: Callable[[SyncLease], int]) -> None:
    """The parent has less than the child, which gets back what was taken from it."""
    with suppress(RateLimitExceeded):
        work.run(body, "child", PLENTY - 1_000)


def open_lease(work: Work, body: Callable[[SyncLease], int]) -> None:
    """What is interrupted while it ends is ended again."""
    lease = work.limiter.acquire("user", "api", {"rpm": 3, "tpm": 3}).open()
    try:
        work.cost = body(lease)
        work.is_done = True
        lease.commit()
    finally:
        (lease.commit if work.is_done else lease.cancel)()


def jointly(work: Work, body: Callable[[SyncLease], int]) -> None:
    """A child with its parent, and somebody else beside them, of whom nothing more is asked."""
    demands = [Demand(entity_id, "api", {"rpm": 3, "tpm": 3}) for entity_id in ("child", "user")]
    with work.limiter.acquire(demands) as lease:
        work.cost = body(lease.part(entity_id="child"))
        work.is_done = True


STORIES: dict[str, tuple[Callable[[Work, Callable[[SyncLease], int]], None], Callable[[SyncLease], int]]] = {
    "plain": (warm, plain),
    "adjusted": (warm, adjusted),
    "lowered": (warm, lowered),
    "more": (warm, more),
    "failed": (warm, failed),
    "cold": (cold, plain),
    "cascading": (cascading, plain),
    "cascade adjusted": (cascading, adjusted),
    "refused": (refused, plain),
    "open": (open_lease, plain),
    "open adjusted": (open_lease, adjusted),
    "open failed": (open_lease, failed),
    "joint": (jointly, plain),
    "joint adjusted": (jointly, adjusted),
    "joint more": (jointly, more),
    "joint failed": (jointly, failed),
}


@dataclass
class Tally:
    """What came of it."""

    instants: int = 0
    counted: int = 0
    wrong: list[str] = field(default_factory=list)


class Stage:
    """A limiter, and all that can be seen of what an interruption left behind."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.limiter = SyncRateLimiter(SyncRepository.over(backend))
        self.limiter.create_entity("org")
        self.limiter.create_entity("child", parent_id="org", cascade=True)
        self.limiter.set_resource_defaults("api", LIMITS)
        for entity_id in ("user", "child"):
            with self.limiter.acquire(entity_id, "api", {"rpm": 2_000, "tpm": 2_000}):
                pass
        with self.limiter.acquire("org", "api", {"rpm": 2_000, "tpm": 2_000}):
            pass
        self.writer = self.limiter.repository._async.writer

    def spent(self) -> dict[str, int]:
        """What is gone from each bucket."""
        found = {}
        for entity_id in ("user", "child", "org"):
            states = self.limiter.repository.get_bucket(entity_id, "api")
            (tokens_milli,) = [state.tokens_milli for state in states if state.limit_name == "rpm"]
            found[entity_id] = PLENTY - tokens_milli // 1000
        return found

    def locks(self) -> dict[str, Any]:
        connection = self.limiter.repository._async._connection
        found = {"lines": self.writer._lines.get().lock, "flights": connection._reads.get().lock}
        if hasattr(self.backend, "_shelf"):
            found["shelf"] = self.backend._shelf.lock
        if hasattr(self.backend, "_database"):
            found["database"] = self.backend._database._lock
        return found

    def complaints(self) -> list[str]:
        """What is still taken though nobody is at work."""
        found = [f"{name} is locked" for name, lock in self.locks().items() if lock.locked()]
        found += [f"{key} has a line" for key in self.writer._lines.get().by_key]
        found += [f"{key} is held" for key in self.writer._holders.get().by_key]
        lines = self.writer._transactions.by_key.items()
        found += [f"{key} has transactions" for key, line in lines if not all(it.is_gone for it in line)]
        connection = self.limiter.repository._async._connection
        found += [f"{key} is being read" for key in connection._reads.get().by_key]
        database = getattr(self.backend, "_database", None)
        if database is not None and database._connection is not None and database._connection.in_transaction:
            found.append("a transaction is open")
        return found

    def interrupt(self, story: str, interruption: Any, tally: Tally) -> None:
        """One story, interrupted, and a look at the books."""
        tell, body = STORIES[story]
        before, lost = self.spent(), self.limiter.refunds_lost
        work = Work(self.limiter)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("ignore", RuntimeWarning)
            warnings.simplefilter("always", ResourceWarning)
            with suppress(Interrupted, Failed), interruption:
                tell(work, body)
        where = f"{story}, interrupted at {getattr(interruption, 'where', '?')}"
        wrong = self.complaints()
        if not wrong:
            counted = self.limiter.refunds_lost - lost + sum("forgotten" in str(it.message) for it in told)
            for _ in range(LOOKS if counted else 0):
                self.spent()
            after, cost = self.spent(), work.cost if work.is_done else 0
            buckets = ("child", "org") if tell in (cascading, refused, jointly) else ("user",)
            due = {entity_id: cost if entity_id in buckets else 0 for entity_id in before}
            if tell is jointly and work.is_done:
                due["user"] = 3
            gone = {entity_id: after[entity_id] - before[entity_id] for entity_id in before}
            if gone != due and not counted:
                wrong.append(f"{gone} gone where {due} is right, and nothing is counted")
            if any(gone[entity_id] < min(0, due[entity_id]) for entity_id in gone):
                wrong.append(f"{gone} gone where {due} is right: something was given twice")
            tally.counted += counted > 0
            for entity_id in ("user", "child"):
                with self.limiter.acquire(entity_id, "api", {"rpm": 1, "tpm": 1}):
                    pass
        tally.instants += 1
        tally.wrong += [f"{where}: {complaint}" for complaint in wrong]


@contextmanager
def opened(store: str, folder: str) -> Iterator[Stage]:
    """A fresh store, on the servers of this machine if it needs one."""
    stage = Stage(KINDS[store](Path(folder), World())(sync=True))
    yield stage
    stage.limiter.close()


def at_every_instant(stage: Stage, story: str, step: int = 1, first: int = 1) -> Tally:
    """A story interrupted at each of its instants, or at each so many."""
    tally = Tally()
    for at in range(first, INSTANTS_MAX, step):
        interrupter = Interrupter(at)
        stage.interrupt(story, interrupter, tally)
        if interrupter.is_over or tally.wrong:
            return tally
    raise AssertionError("the story never ends")


class Alarm:
    """Raises after a time that passes by itself, whoever is at work then."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self.where = seconds, ""

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._handle)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        del signum
        if is_at_work(frame):
            assert frame is not None
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            raise Interrupted


def at_random(stage: Stage, acquires: int, rng: random.Random) -> Tally:
    """Stories interrupted by a clock, at instants up to a little longer than each takes."""
    tally, longest = Tally(), dict.fromkeys(STORIES, 0.0)
    now = World().ticks_ms
    for story in STORIES:
        since = now()
        stage.interrupt(story, nullcontext(), tally)
        longest[story] = (now() - since) / 1000 / 3
    tally = Tally()
    for _ in range(acquires):
        story = rng.choice(list(STORIES))
        stage.interrupt(story, Alarm(max(1e-6, rng.random() * longest[story])), tally)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.breaking.interrupts", description=__doc__)
    parser.add_argument("--acquires", type=int, default=2_000, help="how many on each store")
    parser.add_argument("--store", choices=STORES, action="append", help="only on this one")
    parser.add_argument("--story", choices=STORIES, action="append", help="only this one, with --every")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", action="store_true", help="at every instant instead of at random ones")
    options = parser.parse_args()
    dynamodb_local.isolate_from_aws()
    logging.disable()  # what is lost is counted here
    warnings.simplefilter("ignore", RuntimeWarning)  # a coroutine may be interrupted before it begins
    wrong = 0
    for store in options.store or STORES:
        with tempfile.TemporaryDirectory() as folder, opened(store, folder) as stage:
            if options.every:
                tallies = [at_every_instant(stage, story) for story in options.story or STORIES]
            else:
                tallies = [at_random(stage, options.acquires, random.Random(options.seed))]
        for tally in tallies:
            for line in tally.wrong[:20]:
                print(line)
        wrong += sum(len(tally.wrong) for tally in tallies)
        instants, counted = (sum(getattr(t, name) for t in tallies) for name in ("instants", "counted"))
        print(f"{store}: {instants} interruptions, {counted} counted as lost, {wrong} wrong", flush=True)
    dynamodb_local.stop(None)
    postgres.SERVER.stop()
    redis_server.SERVER.stop()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
