"""The soak: ``make soak``, or ``python -X dev -W error -m tests.breaking.soak``.

A mixed load runs for a long time over every store, and nothing may grow: memory, descriptors, threads,
caches, files, logs and what servers keep. But for DynamoDB Local, stores live by a clock that runs ahead,
hours in a moment, so that everything which expires does. Warnings, coroutines that nobody awaited and
failures that nobody saw count as leaks.
"""

import argparse
import asyncio
import gc
import itertools
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import botocore.session

from tests.breaking.gauges import Ceiling, Flat, Rule, Sample, complaints, sample, settled
from tests.breaking.mixed_load import MixedLoad
from tests.dynamodb.peer import Peer
from tests.dynamodb.steps import StepLoop, cold, interrupted
from tests.engines import dynamodb_local, postgres, redis_server
from tests.patience import wait_until
from tests.postgres.schemas import owner
from tests.stores import url_of
from zae_limiter import RateLimiter, Repository
from zae_limiter.backends import open_backend
from zae_limiter.backends.dynamodb.http.loop import LoopNetwork
from zae_limiter.backends.dynamodb.table import create_table_request
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.redis import RedisBackend
from zae_limiter.backends.sqlite.backend import THREADS_MAX as TIDYING_MAX
from zae_limiter.records.connection import Options
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.colour import THREADS_MAX as POOL_MAX
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator import AggregatorSettings
from zae_limiter_aggregator.runner import BatchSource, LogSource, source_of

REMEMBERED_MAX = 60
"""Fewer than there are visitors, so that the caches are full before the warm-up is over."""

AT_ONCE = 8
HOURS = 4
"""By how much the clock of an embedded store is ahead after each round."""

ASIDE_MAX = 64
"""Each connection of a pool of DynamoDB is made in a thread of its own."""

LISTENS = "zae-limiter-listen"
"""A thread of PostgreSQL's clients."""

FOR_EVER_S = 30
"""How long a round may take before somebody in it waits for ever."""

STEPS_MAX = 2
"""How many batches the follower takes after each round: there is work for one."""

OPTIONS = Options(audit_retention_days=1, remembered_max=REMEMBERED_MAX)
COUNTING = AggregatorSettings(retention_days=1)

PROCESS: tuple[Rule, ...] = (Flat("blocks", 6_000), Flat("bytes", 400_000), Flat("resident", 6_000_000))
# A store in memory is part of the process, and how much of it has expired depends on when one looks.
PROCESS_AND_STORE: tuple[Rule, ...] = (Flat("blocks", 20_000), Flat("bytes", 1_500_000), PROCESS[2])
CACHES: tuple[Rule, ...] = (
    Ceiling("images", REMEMBERED_MAX),
    Ceiling("records", REMEMBERED_MAX),
    Ceiling("plans", REMEMBERED_MAX),
    Ceiling("lines", 0),
)
# A pool is at times full though few work at once: a thread that is done is not idle before it has looked for
# more. The first pool has the load, the second has questions with a time limit, the third is the store's own,
# and the follower beside has as many: on a slow machine all of them may be full.
EMBEDDED: tuple[Rule, ...] = (
    Flat("descriptors", 3),
    Ceiling("threads", 1 + 2 * (2 * POOL_MAX + TIDYING_MAX)),
)
SERVED: tuple[Rule, ...] = (
    Ceiling("descriptors", 2 * 64 + 40),
    Ceiling("threads", 1 + 2 * (2 * POOL_MAX + ASIDE_MAX)),
)


def kept_rules(url: str, operations: int) -> tuple[Rule, ...]:
    """What a store may keep of a day's work, and until it is next tidied up.

    The log of a file has as many pages as its checkpoints allow, and some that came while one was made.
    """
    items = 1_500 + 60 * operations
    rules: tuple[Rule, ...] = (Ceiling("items", items), Ceiling("log", 0))
    return (
        (*rules, Ceiling("file", 1_500 * items), Ceiling("wal", 4_500 * 4_096)) if "sqlite" in url else rules
    )


LEAKS = ("memory", "descriptor", "thread", "coroutine", "log", "cache", "connection", "loop")


@dataclass
class Part:
    """What one store went through."""

    name: str
    rules: tuple[Rule, ...]
    operations: int = 0
    seconds: float = 0.0
    hours: int = 0
    samples: list[Sample] = field(default_factory=list)

    @property
    def complaints(self) -> list[str]:
        idle = [] if self.operations else ["nothing was done"]
        return [f"{self.name}: {complaint}" for complaint in idle + complaints(self.samples, self.rules)]

    @property
    def summary(self) -> str:
        first, last = settled(self.samples)[0], self.samples[-1]
        named = ("blocks", "bytes", "resident", "descriptors", "threads", "items", "file", "wal")
        shown = [f"{name} {scaled(first[name])} -> {scaled(last[name])}" for name in named if name in last]
        clock = f" of {self.hours} hours" if self.hours else ""
        return f"{self.name}: {self.operations} operations{clock} in {self.seconds:.0f} s, {', '.join(shown)}"


def scaled(number: int) -> str:
    return f"{number / 1e6:.2f}M" if number >= 100_000 else str(number)


def caches_of(repository: Repository) -> dict[str, int]:
    """How much a process remembers."""
    return {
        "images": len(repository.writer.images),
        "records": repository.get_cache_stats().size,
        "plans": len(repository.plans),
        "lines": len(repository.writer.lines.by_key),
    }


class Soaked:
    """One store under load: the limiter, its follower, and what can be seen of both."""

    def __init__(
        self, part: Part, url: str, world: World, *, sync: bool, seed: int, server_world: World | None = None
    ) -> None:
        self.part, self._url, self._world, self._sync = part, url, world, sync
        server_world = server_world or world
        self._runner = asyncio.Runner()
        self.run: Callable[[Any], Any] = run_sync if sync else self._runner.run
        if not sync:
            self._runner.get_loop().set_exception_handler(lambda _, what: TROUBLE.append(str(what)))
        self.repository: Repository = self.run(
            Repository.over(open_backend(url, sync=sync, world=server_world), "soak", OPTIONS, world, url=url)
        )
        self._beside: Backend = open_backend(url, sync=True, world=server_world)
        run_sync(self._beside.setup())
        self.follower: BatchSource = source_of(self._beside, url, world, COUNTING)
        self.load = MixedLoad(RateLimiter(self.repository), random.Random(seed))
        self.run(self.load.furnish())

    def round(self, operations: int) -> None:
        self.run(self.load.run(operations, AT_ONCE))
        for _ in range(STEPS_MAX):
            if not run_sync(self.follower.step()).records:
                break

    def measure(self) -> None:
        seen = sample() | caches_of(self.repository)
        if isinstance(self._beside, MemoryBackend):
            seen |= {"items": len(self._beside.snapshot())}
        if isinstance(self.follower, LogSource):
            seen |= {"log": len(self.follower._log.read(10))}
        if self._url.startswith("sqlite"):
            path = Path(self._url.removeprefix("sqlite:///"))
            with closing(sqlite3.connect(path)) as connection:
                (items,) = connection.execute("SELECT count(*) FROM items").fetchone()
            wal = path.with_name(f"{path.name}-wal")
            seen |= {"items": items, "file": path.stat().st_size, "wal": wal.stat().st_size}
        if isinstance(self._beside, RedisBackend):
            seen |= {"items": kept_by_redis(self._beside)}
        if self._url.startswith("postgresql"):
            seen |= kept_by_postgres(self._url)
        self.part.samples.append(seen)

    def close(self) -> None:
        self.part.operations = self.load.done.total()
        run_sync(self.follower.close())
        run_sync(self._beside.close())
        self.run(self.repository.close())
        self._runner.close()


TROUBLE: list[str] = []
"""What Python itself complained about."""


@contextmanager
def watched() -> Iterator[None]:
    """Note what would only be printed: it has no caller that it could be raised to."""

    def note(problem: Any) -> None:
        TROUBLE.append(f"{problem.exc_value!r} in {getattr(problem, 'object', None)!r}")

    with mock.patch("sys.unraisablehook", note), mock.patch("threading.excepthook", note):
        yield
        gc.collect()


def soak_embedded(name: str, url: str, rounds: int, operations: int, *, sync: bool) -> Part:
    """Some hours of the clock in every round."""
    process = PROCESS_AND_STORE if url.startswith("memory") else PROCESS
    part = Part(name, process + CACHES + EMBEDDED + kept_rules(url, operations), hours=rounds * HOURS)
    clock, since = ManualClock(time.time_ns() // 1_000_000), time.monotonic()
    soaked = Soaked(part, url, clock.world, sync=sync, seed=1)
    for _ in range(rounds):
        soaked.round(operations)
        clock.advance(HOURS * 3600)
        leak_some()
        soaked.measure()
    soaked.close()
    part.seconds = time.monotonic() - since
    return part


def kept_by_redis(backend: RedisBackend) -> int:
    """How many keys there are: items, the sets in which they stand, marks."""
    count, cursor = 0, b"0"
    while True:
        reply = run_sync(backend.say("SCAN", cursor, "MATCH", f"{backend.carrier.options.root}*"))
        assert isinstance(reply, list)
        cursor, keys = reply
        count += len(keys)
        if cursor == b"0":
            return count


def kept_by_postgres(url: str) -> dict[str, int]:
    """How many rows there are, and how much of the disk they take once the server has vacuumed."""
    schema = url.partition("schema=")[2].partition("&")[0]
    owner().execute(f"VACUUM {schema}.items")  # type: ignore[call-overload]
    asked = f"SELECT count(*), pg_total_relation_size('{schema}.items') FROM {schema}.items"
    row = owner().execute(asked).fetchone()  # type: ignore[call-overload]
    assert row is not None
    return {"items": row[0], "file": row[1]}


def soak_server(name: str, url: str, rounds: int, operations: int, *, sync: bool) -> Part:
    """Some hours of the clock in every round; how long a call may take goes by the clock on the wall."""
    part = Part(name, PROCESS + CACHES + SERVED + kept_rules(url, operations), hours=rounds * HOURS)
    clock, since = ManualClock(time.time_ns() // 1_000_000), time.monotonic()
    server_world = World(now_ms=clock.world.now_ms)
    # Redis's own memory of items is full before the warm-up is over, too.
    with mock.patch("zae_limiter.backends.redis.backend.KNOWN_MAX", REMEMBERED_MAX):
        soaked = Soaked(part, url, clock.world, sync=sync, seed=3, server_world=server_world)
        for _ in range(rounds):
            soaked.round(operations)
            clock.advance(HOURS * 3600)
            soaked.measure()
        soaked.close()
    part.seconds = time.monotonic() - since
    return part


def soak_dynamodb(name: str, seconds: float, operations: int, *, sync: bool) -> Part:
    """As long as it takes by the clock on the wall."""
    table, endpoint = dynamodb_local.fresh_table(), dynamodb_local.endpoint()
    driver = botocore.session.Session().create_client(
        "dynamodb", region_name="eu-west-1", endpoint_url=endpoint
    )
    driver.create_table(**create_table_request(table))
    part, since = Part(name, PROCESS + CACHES + SERVED), time.monotonic()
    url = dynamodb_local.url(table, endpoint, timeout_ms=30_000)
    soaked = Soaked(part, url, World(), sync=sync, seed=2)
    while time.monotonic() < since + seconds or len(part.samples) < 10:
        soaked.round(operations)
        soaked.measure()
    soaked.close()
    driver.delete_table(TableName=table)
    driver.close()
    part.seconds = time.monotonic() - since
    return part


def soak_openings(name: str, url: str, rounds: int) -> Part:
    """Limiters that are opened, used once and closed leave nothing behind."""
    part, since = Part(name, PROCESS + EMBEDDED), time.monotonic()

    async def use() -> None:
        async with RateLimiter.open(url) as limiter:
            await limiter.is_available()

    for _ in range(rounds):
        for _ in range(5):
            asyncio.run(use())
        part.operations += 5
        # Who listens is told that it is over, and nobody waits for it.
        wait_until(lambda: LISTENS not in (thread.name for thread in threading.enumerate()))
        part.samples.append(sample())
    part.seconds = time.monotonic() - since
    return part


def soak_loops(url: str, rounds: int, operations: int) -> Part:
    """Two event loops in two threads use one limiter, and neither waits for ever."""
    part, since = Part("loops", PROCESS + CACHES + EMBEDDED), time.monotonic()
    with asyncio.Runner() as first, asyncio.Runner() as second:
        repository = first.run(Repository.over(open_backend(url, sync=False, world=World()), "soak", OPTIONS))
        loads = [MixedLoad(RateLimiter(repository), random.Random(seed)) for seed in range(2)]
        first.run(loads[0].furnish())
        for _ in range(rounds):
            pairs = zip((first, second), loads, strict=True)
            threads = [
                threading.Thread(target=runner.run, args=(load.run(operations, AT_ONCE),), daemon=True)
                for runner, load in pairs
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(FOR_EVER_S)
                if thread.is_alive():
                    print("loops: somebody waits for ever", flush=True)
                    os._exit(1)  # there is no way to end what waits
            part.samples.append(sample() | caches_of(repository))
        part.operations = sum(load.done.total() for load in loads)
        first.run(repository.close())
    part.seconds = time.monotonic() - since
    return part


def soak_connects(rounds: int) -> Part:
    """Calls that are cancelled between any two steps of a connect and what follows leave no socket open."""
    part = Part("connects", (*PROCESS, Flat("descriptors", 1), Ceiling("connections", 0)))
    since = time.monotonic()
    with Peer().running() as peer, asyncio.Runner(loop_factory=StepLoop) as runner:
        for _ in range(rounds):
            for after in itertools.count():
                part.operations += 1
                if runner.run(interrupted(cold, peer, after)):
                    break
            if not _leaks:
                peer.until(lambda: not peer.held)
            peer.asked.clear()
            part.samples.append(sample() | {"connections": peer.held})
    part.seconds = time.monotonic() - since
    return part


_leaks: dict[str, list[Any]] = {}


def plant(leaks: list[str]) -> None:
    """Let something leak that must be found."""
    _leaks.update({leak: [] for leak in leaks})
    if "log" in leaks:
        mock.patch("zae_limiter.backends.sqlite.backend.SqliteLog.trim", mock.Mock()).start()
    if "cache" in leaks:
        mock.patch(f"{__name__}.OPTIONS", replace(OPTIONS, remembered_max=10**6)).start()
    if "loop" in leaks:  # signals that another loop does not hear, and nobody who takes over
        mock.patch("zae_limiter.runtime.loops._LoopSignal.give", mock.Mock()).start()
        mock.patch("zae_limiter.engine.line.Lines.overtake", mock.Mock(return_value=False)).start()
    if "connection" in leaks:

        async def forgetful(self: LoopNetwork, *args: Any) -> Any:
            return await asyncio.ensure_future(self._connected(*args))

        mock.patch.object(LoopNetwork, "connect", forgetful).start()


def leak_some() -> None:
    if "memory" in _leaks:
        _leaks["memory"].append([object() for _ in range(500)])
    if "descriptor" in _leaks:
        _leaks["descriptor"].append(os.dup(0))
    if "thread" in _leaks:
        for _ in range(5):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
    if "coroutine" in _leaks:
        asyncio.sleep(0)  # type: ignore[unused-coroutine]


def parts(quick: bool, minutes: float, folder: Path) -> Iterator[Part]:
    rounds, operations = (40, 24) if quick else (120, 120)
    if "loop" in _leaks:
        yield soak_loops(f"sqlite:///{folder}/loops.db?timeout_ms=600000", rounds, operations)
    if _leaks:
        yield soak_embedded("sqlite threads", f"sqlite:///{folder}/leaky.db", rounds, operations, sync=True)
        yield soak_connects(5)
        return
    yield soak_embedded("memory", "memory://soak", rounds, operations, sync=True)
    yield soak_embedded("sqlite threads", f"sqlite:///{folder}/threads.db", rounds, operations, sync=True)
    yield soak_embedded("sqlite tasks", f"sqlite:///{folder}/tasks.db", rounds, operations, sync=False)
    yield soak_loops(f"sqlite:///{folder}/loops.db?timeout_ms=30000", rounds, operations)
    yield soak_openings("openings", f"sqlite:///{folder}/openings.db", 15 if quick else 200)
    yield soak_connects(10 if quick else 100)
    for kind, sync in itertools.product(("redis", "postgres"), (True, False)):
        name = f"{kind} {'threads' if sync else 'tasks'}"
        yield soak_server(name, url_of(kind, folder), rounds, operations, sync=sync)
    for kind in ("redis", "postgres"):
        yield soak_openings(f"{kind} openings", url_of(kind, folder), 15 if quick else 200)
    seconds = 2.0 if quick else minutes * 30
    yield soak_dynamodb("dynamodb threads", seconds, operations // 3, sync=True)
    yield soak_dynamodb("dynamodb tasks", seconds, operations // 3, sync=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -X dev -W error -m tests.breaking.soak", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--minutes", type=float, default=2, help="how long DynamoDB Local is used")
    parser.add_argument("--leak", choices=LEAKS, action="append", default=[], help="plant a leak")
    options = parser.parse_args()
    dynamodb_local.isolate_from_aws()
    plant(options.leak)
    if not options.quick:
        tracemalloc.start()
    folder, found, done, since = Path(tempfile.mkdtemp(prefix="zae-limiter-soak-")), [], [], time.monotonic()
    with watched():
        for part in parts(options.quick, options.minutes, folder):
            print(part.summary, flush=True)
            found += part.complaints
            done.append(part)
    found += TROUBLE
    dynamodb_local.stop(None)
    redis_server.SERVER.stop()
    if owner.cache_info().currsize:
        owner().close()
    postgres.SERVER.stop()
    shutil.rmtree(folder)
    for complaint in found:
        print(complaint)
    verdict = "nothing grows" if not found else f"{len(found)} LEAKS"
    operations, hours = sum(part.operations for part in done), sum(part.hours for part in done)
    print(
        f"soak: {operations} operations over {hours} hours of clock and "
        f"{time.monotonic() - since:.0f} s, {len(done)} parts: {verdict}"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
