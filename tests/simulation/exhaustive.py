"""All orders of a few steps, with a fault at every place: ``python -m tests.simulation.exhaustive``.

Where the simulation tries a little of everything, this tries everything of a little: two clients of one
bucket, three steps each, sometimes somebody who changes the limits. Every order of their calls is run
once without a fault, and again with each fault in each place where it can happen: a request or a reply
is lost, the store is out of reach, the commit of a swap is uncertain, a client is cancelled, its process
crashes. After every write the bucket is compared with the ideal one, and in the end

- the store has counted what the clients know they have used, to the token, the lost write included or
  not as it was applied or not: nothing is lost, nothing counts twice;
- nobody is left waiting, and nobody had to be rescued by a timeout;
- who was refused did not fit at some moment while it was asking; without a fault nobody met another error.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from tests.simulation.ideal import Intent, Judge, WatchedWriter
from tests.simulation.parking import Cancelled
from tests.simulation.search import Act, Explorer, Line, Place, Redundant, Search, Stop, stop_of
from tests.simulation.simulation import Process, Task
from tests.simulation.waiting import Waiting
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.shelf import Shelf
from zae_limiter.engine.law import balance
from zae_limiter.engine.posting import Order, Posting, merged
from zae_limiter.exceptions import RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Item, Key, Outcome, Put, Update, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key, bucket_limit_names, limit_attributes, number, sk_state, stored_rate

ENTITY, RESOURCE = "key", "api"
STEPS_MAX = 2_000
UNCERTAIN = {Act.LOST_REQUEST: False, Act.LOST_REPLY: True}
"""Faults that leave a client in doubt, and whether the write had arrived."""


class Aborted(Exception):
    """The work under a lease failed."""


class Take(NamedTuple):
    """The first of a client takes a lease, a later one more of it."""

    amounts: Mapping[str, int]
    wait: float | None = None


class Adjust(NamedTuple):
    amounts: Mapping[str, int]


class Wait(NamedTuple):
    ms: int


class Fail(NamedTuple):
    """The work fails; without this step it ends well."""


Script = tuple[Take | Adjust | Wait | Fail, ...]


class Story(NamedTuple):
    """Who does what, and where."""

    name: str
    clients: tuple[Script, ...]
    limits: tuple[Limit, ...]
    apart: bool = True
    """Each client is a process of its own."""
    local: bool = False
    """The store answers at once, and swaps images."""
    used: Mapping[str, int] | None = None
    """What was taken from the bucket before; ``None`` if there is no bucket yet."""
    changed: tuple[Limit, ...] = ()
    """The limits that somebody sets meanwhile."""
    speculative: bool = True
    calm: bool = False
    """Nothing goes wrong: three clients have too many orders as it is."""


class Lost(NamedTuple):
    """A write whose fate its client was not told."""

    process: Process
    posting: Posting
    applied: bool


class KnownWriter(WatchedWriter):
    """A writer that also tells what each of its writes was to do."""

    postings: dict[int, tuple[Write, Posting]]

    def _shape(self, orders: Sequence[Order], now_ms: int) -> Write | None:
        write = super()._shape(orders, now_ms)
        if write is not None:
            self.postings[id(write)] = write, merged([order.posting for order in orders])
        return write


class Run:
    """One story in one order."""

    def __init__(self, story: Story, faults_max: int) -> None:
        items, namespace_id = _prepared(story)
        self.story, self.namespace_id = story, namespace_id
        self.key = bucket_key(namespace_id, ENTITY, RESOURCE)
        self.explorer = Explorer(faults_max, self.key if story.local else None)
        self.explorer.on_fault = self._on_fault
        shelf = Shelf()
        shelf.items = dict(items)
        self.store = MemoryBackend(Process(self.explorer).world, shelf)
        self.judge = Judge(self.key.partition, self.explorer)
        self.waiting = Waiting(self.explorer)
        self.intents: dict[int, Intent] = {}
        self.postings: dict[int, tuple[Write, Posting]] = {}
        self.lost: list[Lost] = []
        self.used: dict[Process, Counter[str]] = defaultdict(Counter)
        """What the clients of a process know they have used."""
        self.most: dict[Process, Counter[str]] = defaultdict(Counter)
        self.counted: dict[Process, Counter[str]] = defaultdict(Counter)
        """What the store has counted for the writes of a process."""
        self.levels: dict[Process, list[dict[str, int]]] = defaultdict(list)
        """What the bucket held before and after each call of a process."""
        self.admitted = self.refused = 0
        self._see_first(items.get(self.key))
        self.processes: list[Process] = []
        limiters = [self._limiter() for _ in story.clients[: None if story.apart else 1]]
        limiters *= 1 if story.apart else len(story.clients)
        homes = self.processes * (1 if story.apart else len(story.clients))
        for process, limiter, script in zip(homes, limiters, story.clients, strict=True):
            process.spawn(self._client(process, limiter, script), interruptible=True)
        if story.changed:
            Process(self.explorer).spawn(self._admin())

    def _limiter(self) -> RateLimiter:
        process = Process(self.explorer)

        def called(keys: Sequence[Key]) -> None:
            if self.key in keys:
                self.levels[process].append(self._level())

        def applied(write: Write, before: Item | None, outcome: Outcome) -> None:
            self._on_apply(process, write, before, outcome)

        line = Line(process, self.store, called, applied, swaps=self.story.local)
        # Of those whose limits are changed one learns it at once, the others from what that one writes.
        first_to_know = self.story.changed and not self.processes
        connection = Connection(line, process.world, Options(0 if first_to_know else 60))
        connection.writer = writer = KnownWriter(process, line, self.intents)
        writer.postings = self.postings
        self.processes.append(process)
        repository = Repository(connection, "default", self.namespace_id)
        if self.story.used is not None:  # a process that has been at work for a while
            process.spawn(repository.plan(ENTITY, RESOURCE, None))
            self.explorer.run()
        return RateLimiter(repository, self.story.speculative)

    def go(self, search: Search | None = None) -> None:
        self.explorer.search = search
        with self.waiting.watching():
            self.explorer.run(STEPS_MAX)
        self._compare()
        self.waiting.check()

    async def _client(self, process: Process, limiter: RateLimiter, script: Script) -> None:
        others = list(script)
        try:
            while isinstance(first := others.pop(0), Wait):
                await Stop(Place.PATIENCE)
                self.explorer.now_ms += first.ms
            assert isinstance(first, Take)
            self.most[process].update(first.amounts)
            asking = first.amounts
            await Stop(Place.STEP)
            asked, asked_ms = len(self.levels[process]), self.explorer.now_ms
            async with limiter.acquire(ENTITY, RESOURCE, first.amounts, wait=first.wait) as lease:
                for step in others:
                    await Stop(Place.PATIENCE if isinstance(step, Wait) else Place.STEP)
                    match step:
                        case Take(amounts, _):
                            self.most[process].update(amounts)
                            asking, asked = amounts, len(self.levels[process])
                            await lease.consume(amounts)
                        case Adjust(amounts):
                            self.most[process].update({n: max(0, a) for n, a in amounts.items()})
                            await lease.adjust(amounts)
                        case Wait(ms):
                            self.explorer.now_ms += ms
                        case Fail():
                            raise Aborted
                kept = lease.consumed
                self.used[process].update(kept)
            self.admitted += 1
        except RateLimitExceeded as refusal:
            self.refused += 1
            if isinstance(first, Take) and first.wait is not None and asking is first.amounts:
                _check_patience(refusal, first.wait * 1000 - (self.explorer.now_ms - asked_ms))
            else:
                self._check_refusal(process, asking, asked)
        except RateLimiterUnavailable as error:
            if not self.explorer.faults:
                raise AssertionError("an error without any fault") from error
        except (Aborted, Cancelled):
            pass

    async def _admin(self) -> None:
        """Change the limits at once; that the change itself is a transaction is tested elsewhere."""
        await Stop(Place.CHANGE, changes=self.store._shelf.items.keys() - {self.key})
        connection = Connection(self.store, self.processes[0].world, Options())
        repository = Repository(connection, "default", self.namespace_id)
        run_sync(repository.set_resource_defaults(RESOURCE, self.story.changed))

    def _check_refusal(self, process: Process, asking: Mapping[str, int], asked: int) -> None:
        """Whoever is refused did not fit when a call of its process arrived; refusals are remembered."""
        seen = self.levels[process][asked:] or self.levels[process][-1:]
        assert any(seen_now[name] < asking[name] * 1000 for seen_now in seen for name in asking), (
            f"{dict(asking)} was refused, and fitted all the time: {seen}"
        )

    def _level(self) -> dict[str, int]:
        """What the bucket holds, under the limits it has and those it is about to have."""
        item = self.store._shelf.items.get(self.key)
        now_ms, levels = self.explorer.now_ms, {}
        for limit in self.story.limits:
            rate = None if item is None else stored_rate(item, limit.name)
            if item is None or rate is None:
                levels[limit.name] = limit.capacity_milli
            else:
                tokens = number(item, limit_attributes(limit.name).tk)
                levels[limit.name] = balance(rate, tokens, number(item, "rf"), now_ms)
        for limit in self.story.changed:
            present = next(before for before in self.story.limits if before.name == limit.name)
            cut = min(0, limit.capacity_milli - present.capacity_milli)
            levels[limit.name] += cut
        return levels

    def _see_first(self, item: Item | None) -> None:
        if item is not None:
            self.waiting.find(self.key, item)
            self.judge.see(
                None, item, Intent(Put(self.key, item), {}, self.explorer.now_ms), self.explorer.now_ms
            )

    def _on_apply(self, process: Process, write: Write, before: Item | None, outcome: Outcome) -> None:
        if write.key.sort != sk_state() or not outcome.applied or outcome.item is None:
            return
        after, now_ms = outcome.item, self.explorer.now_ms
        taken = {
            name: number(after, limit_attributes(name).tc) - number(before or {}, limit_attributes(name).tc)
            for name in bucket_limit_names(after)
        }
        self.counted[process].update(taken)
        intent = self.intents.pop(id(write), None)
        if intent is None:  # a swap takes what it sets; what else nobody shaped is a prolongation
            swapped = isinstance(write, Update) and not write.add and "rf" not in write.set
            intent = Intent(write, taken if swapped else {}, process.world.now_ms())
            if self.explorer.losing_commit:
                self.lost.append(Lost(process, Posting(need=taken), True))
        self.judge.see(before, after, intent, now_ms)
        self.waiting.see(self.key, before, after, intent, process)

    def _on_fault(self, act: Act, task: Task[object]) -> None:
        stop = stop_of(task)
        if act in UNCERTAIN and stop is not None and task.process is not None:
            for write in stop.writes:
                if id(write) in self.postings:
                    _, posting = self.postings[id(write)]
                    applied = UNCERTAIN[act] and self._was_applied(write)
                    self.lost.append(Lost(task.process, posting, applied))

    def _was_applied(self, write: Write) -> bool:
        return id(write) not in self.intents

    def _compare(self) -> None:
        item = self.store._shelf.items.get(self.key) or {}
        for limit in self.story.limits:
            name = limit.name
            before = (self.story.used or {}).get(name, 0) * 1000
            total = before + sum(counted[name] for counted in self.counted.values())
            assert number(item, limit_attributes(name).tc) == total, "a write went unseen"
            for process in self.processes:
                counted = self.counted[process][name]
                if process.crashed:
                    assert 0 <= counted <= self.most[process][name] * 1000, f"{counted} of {name} by the dead"
                    continue
                expected = self.used[process][name] * 1000 + self._doubtful(process, name)
                assert counted == expected, (
                    f"{counted} of {name} are counted, {expected} were used; lost on the way: {self.lost}"
                )

    def _doubtful(self, process: Process, name: str) -> int:
        """What lost writes have added to the count besides what the clients know."""
        total = 0
        for lost in self.lost:
            if lost.process is process and lost.applied:
                total += lost.posting.need.get(name, 0)
            elif lost.process is process:
                total += lost.posting.credit.get(name, 0) - lost.posting.debit.get(name, 0)
        return total


def _check_patience(refusal: RateLimitExceeded, left_ms: float) -> None:
    assert refusal.retry_after_seconds * 1000 > left_ms, f"{refusal}: {left_ms} ms are left to wait"


@lru_cache(64)
def _prepared_once(limits: tuple[Limit, ...], used: tuple[tuple[str, int], ...] | None) -> tuple[Shelf, str]:
    """The store before a story begins."""
    shelf, world = Shelf(), Process(Explorer(0)).world
    repository = run_sync(Repository.over(MemoryBackend(world, shelf), world=world))
    run_sync(repository.set_resource_defaults(RESOURCE, limits))
    run_sync(repository.create_entity(ENTITY))
    if used is not None:

        async def use() -> None:
            async with RateLimiter(repository).acquire(
                ENTITY, RESOURCE, {limit.name: 1 for limit in limits}
            ) as it:
                await it.adjust({name: amount - 1 for name, amount in used})

        run_sync(use())
    return shelf, repository.namespace_id


def _prepared(story: Story) -> tuple[dict[Key, Item], str]:
    used = None if story.used is None else tuple(sorted(story.used.items()))
    shelf, namespace_id = _prepared_once(story.limits, used)
    return shelf.items, namespace_id


def _limits(**capacities: int) -> tuple[Limit, ...]:
    return tuple(Limit(name, capacity, capacity, 60) for name, capacity in capacities.items())


TEN = _limits(rpm=10)
QUICK = (Limit("rpm", 10, 10, 1),)
PAIRS: Mapping[str, tuple[Script, ...]] = {
    "take and take more": (
        (Take({"rpm": 4}), Take({"rpm": 3})),
        (Take({"rpm": 5}),),
    ),
    "settle and fail": (
        (Take({"rpm": 6}), Adjust({"rpm": -4})),
        (Take({"rpm": 6}), Fail()),
    ),
    "into debt": (
        (Take({"rpm": 6}), Adjust({"rpm": 9})),
        (Take({"rpm": 3}), Adjust({"rpm": -2})),
    ),
    "two limits": (
        (Take({"rpm": 6, "tpm": 2}),),
        (Take({"rpm": 1, "tpm": 4}), Fail()),
    ),
    "at the brim": (
        (Wait(900), Take({"rpm": 9})),
        (Take({"rpm": 5}), Fail()),
    ),
}


def _in_every_world(name: str) -> Iterator[Story]:
    limits = {"two limits": _limits(rpm=10, tpm=6), "at the brim": QUICK}.get(name, TEN)
    used = {limit.name: 1 for limit in limits}
    for local in (False, True):
        # Time concerns everybody, so that hardly any two orders are equal where it passes.
        for apart in (True,) if name == "at the brim" else (True, False):
            world = f"{'local' if local else 'remote'}, {'two processes' if apart else 'one process'}"
            yield Story(f"{name}: {world}", PAIRS[name], limits, apart, local, used)


def stories(*, long: bool = False) -> list[Story]:
    """Everything that is tried; some of it takes long."""
    told = [story for name in PAIRS for story in _in_every_world(name)]
    settle = PAIRS["settle and fail"]
    more = PAIRS["take and take more"]
    told.append(Story("first use: remote, two processes", more, TEN))
    told.append(Story("first use: remote, one process", more, TEN, False))
    told.append(Story("first use: local, one process", more, TEN, False, True))
    told.append(Story("nobody speculates: two processes", settle, TEN, used={"rpm": 1}, speculative=False))
    for change, capacity in (("cut", 5), ("raise", 20)):
        changed = (Limit("rpm", capacity, capacity, 1),)
        briefly = ((Wait(400), Take({"rpm": 2})), (Take({"rpm": 3}),))
        for local in (False, True):
            name = f"{change} the limits: {'local' if local else 'remote'}"
            told.append(Story(name, briefly, QUICK, True, local, {"rpm": 6}, changed))
    told += _of_waiters(long=long)
    three = tuple((Take({"rpm": amount}),) for amount in (1, 6, 6))
    told.append(Story("three in line", three, TEN, False, used={"rpm": 1}, calm=True))
    return told


def _of_waiters(*, long: bool) -> Iterator[Story]:
    """Two and three who wait for one bucket that has a token left."""
    gives_back = (Take({"rpm": 4}, 60), Adjust({"rpm": -2})), (Take({"rpm": 3}, 60), Fail())
    plain = (Take({"rpm": 4}, 60), Fail()), (Take({"rpm": 3}, 60),)
    impatient = (Take({"rpm": 6}, 60),), (Take({"rpm": 2}, 0.2),)
    for apart in (True, False):
        world = "two processes" if apart else "one process"
        settling = gives_back if long else plain
        yield Story(f"two wait: remote, {world}", settling, QUICK, apart, used={"rpm": 9})
        yield Story(f"one will not wait: remote, {world}", impatient, QUICK, apart, used={"rpm": 9})
    yield Story("two wait: local, two processes", plain, QUICK, True, True, {"rpm": 9}, calm=not long)
    both = (*_limits(rpm=10), Limit("tpm", 4, 4, 1))
    across = (Take({"rpm": 1, "tpm": 4}, 60),), (Take({"rpm": 3, "tpm": 1}, 60), Fail())
    yield Story("two limits, two wait: two processes", across, both, used={"rpm": 1, "tpm": 4})
    three = tuple((Take({"rpm": amount}, 60),) for amount in (4, 3, 3))
    yield Story("three wait: one process", three, QUICK, False, used={"rpm": 9}, calm=not long)
    yield Story("three wait: three processes", three, QUICK, used={"rpm": 9}, calm=not long)


class Tally(NamedTuple):
    """What came out of all orders of a story; ``failure`` is the first that broke a promise."""

    story: str
    orders: int
    repeated: int
    """Runs that were given up because they could only repeat others."""
    admitted: int
    refused: int
    faults: Counter[str]
    failure: str = ""


def explore(story: Story, faults_max: int = 1) -> Tally:
    """Run a story in every order, with up to so many faults in each."""
    search, orders, repeated, admitted, refused = Search(), 0, 0, 0, 0
    faults: Counter[str] = Counter()
    failure = ""
    with _hushed():
        for _ in search.runs():
            run = Run(story, 0 if story.calm else faults_max)
            try:
                run.go(search)
            except Redundant:
                repeated += 1
                continue
            except Exception as error:
                failure = f"{error!r} after " + "; ".join(search.trace)
                break
            orders += 1
            admitted, refused, faults = (
                admitted + run.admitted,
                refused + run.refused,
                faults + run.explorer.faults,
            )
    return Tally(story.name, orders, repeated, admitted, refused, faults, failure)


@contextmanager
def _hushed() -> Iterator[None]:
    """Lost refunds are part of the plan."""
    logger = logging.getLogger("zae_limiter")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.exhaustive", description=__doc__)
    parser.add_argument("--faults", type=int, default=1, help="at most so many faults in one order")
    parser.add_argument("--story", default="", help="only stories whose name contains this")
    options = parser.parse_args()
    began, tallies = time.perf_counter(), []
    for story in stories(long=True):
        if options.story in story.name:
            tally = explore(story, options.faults)
            tallies.append(tally)
            print(
                f"{tally.orders:7} orders of {tally.story}{': ' if tally.failure else ''}{tally.failure}",
                flush=True,
            )
    orders, broken = sum(t.orders for t in tallies), sum(bool(t.failure) for t in tallies)
    print(
        f"{orders} orders of {len(tallies)} stories in {time.perf_counter() - began:.1f} s, {broken} broken"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
