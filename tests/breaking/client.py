"""A client process of many tasks or threads: ``python -m tests.breaking.client URL BOOK KIND TASKS SEED``.

It works until its standard input is closed. Every operation is intended and settled in its book; what it has
cost is written down as narrowly as the limiter's answers allow, and no answer but the documented ones is
tolerated: anything else ends the process with an error.
"""

import argparse
import asyncio
import logging
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.breaking.books import CURRENT, Amounts, Book, Operation, Witness
from tests.breaking.contested_buckets import FAMILY, HOT, RESOURCE, payers_of
from zae_limiter import (
    Lease,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    Repository,
)
from zae_limiter.backends.dynamodb import retries
from zae_limiter.backends.postgres.calls import FunctionCalls
from zae_limiter.backends.redis.carrier import Carrier
from zae_limiter.engine import bucket_writes, holding, posting, split
from zae_limiter.engine.law import Rate
from zae_limiter.runtime.colour import Colour, run_sync
from zae_limiter.settings import Settings

SLOW_WRITES = Rate(4_000, 4_000, 1_000)
"""A partition that takes four writes a second is hot already on a small machine, so that buckets split."""

BUGS = ("repeat", "forget")
NAP_SECONDS = 0.2
OVER = threading.Event()


class Aborted(Exception):
    """The work under a lease failed."""


class Errand(NamedTuple):
    """What one operation is going to do."""

    entity_id: str
    amounts: dict[str, int]
    consume: int
    """How many more requests are taken under the lease."""
    adjust: int
    """By how many tokens the cost is corrected."""
    aborts: bool
    on_unavailable: str
    works_s: float
    patience_s: float | None
    """After which time the task is cancelled."""

    @property
    def most(self) -> Amounts:
        rpm, tpm = self.amounts["rpm"], self.amounts["tpm"]
        return {"rpm": rpm + self.consume, "tpm": tpm + max(0, self.adjust)}


def draw(rng: random.Random, own_id: str) -> Errand:
    degrades = rng.random() < 0.1
    amounts = {"rpm": 20 if rng.random() < 0.03 else rng.randint(1, 3), "tpm": rng.randint(1, 40)}
    return Errand(
        rng.choice((own_id, own_id, rng.choice(HOT), rng.choice([*FAMILY]))),
        amounts,
        consume=2 if rng.random() < 0.2 and not degrades else 0,
        adjust=rng.randint(-amounts["tpm"], 60) if rng.random() < 0.4 else 0,
        aborts=rng.random() < 0.15,
        on_unavailable="allow" if degrades else "block",
        works_s=rng.uniform(0, 0.03),
        patience_s=rng.uniform(0, 0.2) if rng.random() < 0.05 else None,
    )


class Work:
    """An errand being run, and what is known of its cost at every moment."""

    def __init__(self, errand: Errand, operation: Operation) -> None:
        self.errand, self.operation = errand, operation
        self.verdict: tuple[str, Amounts, Amounts] = ("ambiguous", {}, errand.most)
        self._taken: Amounts = {}
        self._final: Amounts | None = None
        self._idle = False
        """Nothing is in flight, so that a cancellation finds everything as it was told."""

    async def run(self, limiter: RateLimiter) -> None:
        errand = self.errand
        try:
            async with limiter.acquire(
                errand.entity_id, RESOURCE, errand.amounts, on_unavailable=errand.on_unavailable
            ) as held:
                await self._use(held, limiter.repository.colour)
            if not held.degraded:
                self._conclude("admitted")
        except RateLimitExceeded:
            self._conclude("refused")
        except Aborted:
            self._conclude("aborted")
        except RateLimiterUnavailable as error:
            # Of two buckets, the failure of one says nothing about the other.
            if self._final is not None or (errand.entity_id not in FAMILY and not error.ambiguous):
                self._conclude("unavailable")
        except asyncio.CancelledError:
            if self._idle or self._final is not None:
                self._conclude("cancelled")
            raise

    async def _use(self, held: Lease, colour: Colour) -> None:
        if held.degraded:
            self.verdict = ("degraded", {}, self.errand.most)
            return
        self._idle = True
        await colour.sleep(self.errand.works_s)
        self._idle = False
        if self.errand.consume:
            await held.consume(rpm=self.errand.consume)
        self._taken = held.consumed
        if self.errand.adjust:
            await held.adjust(tpm=self.errand.adjust)
        if self.errand.aborts:
            raise Aborted
        self._final = held.consumed

    def _conclude(self, how: str) -> None:
        """Everything was answered; only what the limiter itself called lost is open."""
        low = high = self._final or {}
        if self.operation.lost:
            low, high = {}, self.errand.most
        if self.operation.lost and self._final is not None:
            both = [(name, self._taken[name], self._final[name]) for name in self._final]
            low = {name: min(taken, final) for name, taken, final in both}
            high = {name: max(taken, final) for name, taken, final in both}
        self.verdict = (how if low == high else f"{how}, a refund lost", low, high)


class Customers:
    """Tasks or threads that share a limiter, each with a bucket of its own besides."""

    def __init__(self, limiter: RateLimiter, book: Book, seed: int, pause_s: float) -> None:
        self._limiters = [limiter, limiter, RateLimiter(limiter.repository, speculative_writes=False)]
        self._book, self._seed, self._pause_s = book, seed, pause_s

    async def live(self, number: int, *, cancels: bool) -> None:
        rng, own_id = random.Random(f"{self._seed}/{number}"), f"own-{self._seed}-{number}"
        await self._rest(rng.uniform(0, self._pause_s))
        while not OVER.is_set():
            errand = draw(rng, own_id)
            certain = False
            with suppress(TimeoutError):
                certain = await self._attempt(errand, rng, errand.patience_s if cancels else None)
            # Who gets no answer backs off, as everybody should.
            await self._rest(rng.uniform(0, self._pause_s) * (1 if certain else 4))

    async def _rest(self, seconds: float) -> None:
        while seconds > 0 and not OVER.is_set():
            await self._limiters[0].repository.colour.sleep(min(seconds, NAP_SECONDS))
            seconds -= NAP_SECONDS

    async def _attempt(self, errand: Errand, rng: random.Random, patience_s: float | None) -> bool:
        """Run an errand; whether all of it was answered."""
        operation = self._book.intend(payers_of(errand.entity_id), errand.most)
        work, mark = Work(errand, operation), CURRENT.set(operation)
        try:
            if patience_s is None:
                await work.run(rng.choice(self._limiters))
            else:
                async with asyncio.timeout(patience_s):
                    await work.run(rng.choice(self._limiters))
        finally:
            CURRENT.reset(mark)
            self._book.settle(operation, *work.verdict)
        return work.verdict[1] == work.verdict[2]


async def open_limiter(url: str, *, sync: bool) -> RateLimiter | None:
    """As often as it takes: opening reads and writes through the same storm."""
    while not OVER.is_set():
        with suppress(RateLimiterUnavailable):
            settings = Settings(store=url, bucket_ttl_multiplier=0, config_cache_ttl=2)
            return RateLimiter(await Repository._open(settings, None, sync=sync))
    return None


async def serve_tasks(url: str, book: Book, tasks: int, seed: int, pause_s: float) -> None:
    limiter = await open_limiter(url, sync=False)
    if limiter is not None:
        async with limiter:
            customers = Customers(limiter, book, seed, pause_s)
            await asyncio.gather(*(customers.live(number, cancels=True) for number in range(tasks)))


def serve_threads(url: str, book: Book, tasks: int, seed: int, pause_s: float) -> None:
    limiter = run_sync(open_limiter(url, sync=True))
    if limiter is None:
        return
    customers = Customers(limiter, book, seed, pause_s)

    def live(number: int) -> None:
        try:
            run_sync(customers.live(number, cancels=False))
        except BaseException:
            fail()

    crew = [threading.Thread(target=live, args=(number,)) for number in range(tasks)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    run_sync(limiter.close())


_failed = threading.Event()


def fail(*_: object) -> None:
    """Whatever is not a documented answer ends the client."""
    traceback.print_exc()
    _failed.set()
    OVER.set()


def work(url: str, book_path: Path, kind: str, tasks: int, seed: int, pause_s: float) -> int:
    """Be a client until ``OVER``."""
    for module in (bucket_writes, posting, split):
        mock.patch.object(module, "WRITES", SLOW_WRITES).start()
    logger = logging.getLogger("zae_limiter")
    logger.addHandler(Witness())
    logger.propagate = False
    book = Book(book_path)
    if kind == "tasks":
        asyncio.run(serve_tasks(url, book, tasks, seed, pause_s))
    else:
        serve_threads(url, book, tasks, seed, pause_s)
    book.close()
    return 1 if _failed.is_set() else 0


def blindly(verb: Callable[..., Any], as_told: dict[str, bool]) -> Callable[..., Any]:
    """A verb that is told what it is told otherwise."""

    def repeated(*given: Any, **named: Any) -> Any:
        return verb(*given, **named | as_told)

    return repeated


def plant(bug: str | None) -> None:
    """Make a mistake that the books must show."""
    if bug == "repeat":
        retries.HARMLESS_TWICE |= {"UpdateItem"}
        for owner, verb, as_told in (
            (Carrier, "_repeat", {"is_write": False}),
            (FunctionCalls, "ask", {"repeatable": True}),
        ):
            mock.patch.object(owner, verb, blindly(getattr(owner, verb), as_told)).start()
    elif bug == "forget":
        mock.patch.object(holding, "give_back", mock.AsyncMock()).start()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.breaking.client")
    parser.add_argument("url")
    parser.add_argument("book", type=Path)
    parser.add_argument("kind", choices=("tasks", "threads"))
    parser.add_argument("tasks", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--pause", type=float, default=0.3, help="the longest pause between two operations")
    parser.add_argument("--bug", choices=BUGS)
    options = parser.parse_args()
    plant(options.bug)

    def unraisable(problem: object) -> None:
        sys.stderr.write(f"{problem}\n")
        fail()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        OVER.set()

    sys.unraisablehook = unraisable
    threading.Thread(target=wait_for_the_end, daemon=True).start()
    since = time.monotonic()
    code = work(options.url, options.book, options.kind, options.tasks, options.seed, options.pause)
    sys.stdout.write(f"{time.monotonic() - since:.1f}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
