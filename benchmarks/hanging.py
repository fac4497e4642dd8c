"""``python -m benchmarks.hanging``: how long an event loop stands still while its store hangs.

A SQLite file is held by another process; between the others and us is one that passes everything on, and from
one moment on nothing more. Requests meet that at the middleware, each for an entity of its own. Printed are
the longest gap between two turns of the loop, and how long after its deadline the last of them was answered
by what its rule says of a store that is down. Whatever else the machine does is in that too, so the best of
some rounds counts: a loop that stands still by our doing does so in all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tests.web.calls import OK, get
from zae_limiter import Limit, RateLimiter
from zae_limiter.web import RateLimitMiddleware, Rule, api_key

HOST = "127.0.0.1"
REQUESTS = 20
DEADLINE_MS = 500
ROUNDS = 3
MS_MAX = 10.0
TICK_SECONDS, APART_SECONDS = 0.001, 0.005
LIMITS = [Limit.per_day("rpm", 1_000_000)]
STATUS = {"/block": 503, "/allow": 200}
RULES = [
    Rule(path, "api", {"rpm": 1}, entity=api_key(), limits=LIMITS, on_unavailable=path[1:]) for path in STATUS
]


class Found(NamedTuple):
    """Of one round, in milliseconds."""

    gap: float
    late: float


class Store(NamedTuple):
    """A store that hangs when it is told to."""

    url: str
    told: Connection

    def hang(self, hanging: bool) -> None:
        self.told.send(hanging)
        self.told.recv()


def hold(path: str, told: Connection) -> None:
    """Keep a file of SQLite for ourselves whenever we are told to."""
    file = sqlite3.connect(path, isolation_level=None)
    with suppress(EOFError):
        while True:
            file.execute("BEGIN EXCLUSIVE" if told.recv() else "ROLLBACK")
            told.send(None)


def swallow(port: int, told: Connection) -> None:
    """Pass on what clients and a server say, but nothing whenever we are told so."""

    async def main() -> None:
        passes = asyncio.Event()
        passes.set()

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(65_536):
                    await passes.wait()
                    target.write(data)
                    await target.drain()
            target.close()

        async def serve(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            await passes.wait()
            answers, asked = await asyncio.open_connection(HOST, port)
            await asyncio.gather(pump(source, asked), pump(answers, target))

        server = await asyncio.start_server(serve, HOST, 0)
        told.send(server.sockets[0].getsockname()[1])
        with suppress(EOFError):
            while True:
                (passes.clear if await asyncio.to_thread(told.recv) else passes.set)()
                told.send(None)

    asyncio.run(main())


@contextmanager
def beside(work: Callable[..., None], *given: Any) -> Iterator[Connection]:
    """A process beside this one, which ends with it, and how to talk to it."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=work, args=(*given, theirs), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


@contextmanager
def sqlite(stack: ExitStack) -> Iterator[Store]:
    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "limits.db"
    with beside(hold, str(path)) as told:
        yield Store(f"sqlite:///{path}?timeout_ms={DEADLINE_MS}", told)


@contextmanager
def redis(stack: ExitStack) -> Iterator[Store]:
    from tests.engines import redis_server

    stack.callback(redis_server.SERVER.stop)
    with beside(swallow, redis_server.SERVER.port()) as told:
        yield Store(redis_server.url("hanging", told.recv(), timeout_ms=DEADLINE_MS), told)


@contextmanager
def postgres(stack: ExitStack) -> Iterator[Store]:
    from tests.engines import postgres as server
    from tests.postgres.schemas import make_schema, owner

    stack.callback(server.SERVER.stop)
    schema = make_schema()
    stack.callback(owner().close)
    with beside(swallow, server.SERVER.port()) as told:
        yield Store(server.url(schema, told.recv(), timeout_ms=DEADLINE_MS), told)


@contextmanager
def dynamodb(stack: ExitStack) -> Iterator[Store]:
    from tests.dynamodb.tables import make_table
    from tests.engines import dynamodb_local

    dynamodb_local.isolate_from_aws()
    stack.callback(dynamodb_local.stop, dynamodb_local.start())
    table = make_table()
    with beside(swallow, int(dynamodb_local.endpoint().rpartition(":")[2])) as told:
        endpoint = f"http://{HOST}:{told.recv()}"
        yield Store(dynamodb_local.url(table, endpoint, timeout_ms=DEADLINE_MS), told)


STORES = {"SQLite": sqlite, "Redis": redis, "PostgreSQL": postgres, "DynamoDB": dynamodb}


async def beside_a_ticker(work: asyncio.Future[Any]) -> float:
    """The longest that the loop stood still until something was done, in milliseconds."""
    longest = 0.0
    while not work.done():
        before = time.perf_counter()
        await asyncio.sleep(TICK_SECONDS)
        longest = max(longest, time.perf_counter() - before - TICK_SECONDS)
    return longest * 1_000


async def measure(store: Store, rounds: int) -> list[Found]:
    """What came of each round; in between the store answers again."""
    found = []
    async with RateLimiter.open(store.url) as limiter:
        app = RateLimitMiddleware(OK, limiter=limiter, rules=RULES)

        async def ask(number: int, *, hangs: bool) -> float:
            """How long after the deadline an answer came, which must be what its rule says."""
            path, began = list(STATUS)[number % 2], time.perf_counter()
            reply = await get(app, path, f"key-{number}")
            if reply.status != (STATUS[path] if hangs else 200):
                raise SystemExit(f"error: {path} was answered with {reply.status}")
            return (time.perf_counter() - began) * 1_000 - DEADLINE_MS

        async def one_by_one(number: int) -> float:
            await asyncio.sleep(number * APART_SECONDS)  # what they do is no gap, only what they wait for
            return await ask(number, hangs=True)

        for _ in range(rounds):
            for number in range(REQUESTS):
                await ask(number, hangs=False)
            store.hang(True)
            asked = asyncio.gather(*(one_by_one(number) for number in range(REQUESTS)))
            gap = await beside_a_ticker(asked)
            store.hang(False)
            found.append(Found(gap, max(await asked)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hanging", description=__doc__)
    parser.add_argument("stores", nargs="*", metavar="STORE", help=f"of {', '.join(STORES)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    logging.disable()  # of every request that was let through
    good = True
    for name in options.stores or STORES:
        with ExitStack() as stack:
            store = stack.enter_context(STORES[name](stack))
            found = asyncio.run(measure(store, options.rounds))
        gap, late = min(one.gap for one in found), min(one.late for one in found)
        rounds = ", ".join(f"{one.gap:.1f} and {one.late:+.1f}" for one in found)
        print(f"{name:<10} stood still for {gap:4.1f} ms, answered at {late:+5.1f} ms (rounds: {rounds})")
        good &= max(gap, late) <= MS_MAX
    print(f"the aim is {MS_MAX:g} ms, and an answer {DEADLINE_MS} ms after the question")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
