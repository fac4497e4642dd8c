"""Small runs that count what the model of ``scale`` predicts: units, requests and bytes, and never time.

A run makes the buckets of some entities, two limits each, and then uses all of them as often. What is
counted is told by the store itself: DynamoDB Local through the meter, Redis and PostgreSQL by their own
statistics.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .cases import LIMIT, PLENTY, RESOURCE, SECOND_LIMIT
from .meter import Meter
from .scale import Constants, Traffic, acquires_per_write, distinct, postgres, redis, usage_trips
from .tabular import table

TASKS = 10
SIZES = (40, 100, 250)
EACH = 4
"""How often each bucket is used once it is there."""
NUMBER_BYTES, OVERHEAD_BYTES = 1, 3
INDEX_OVERHEAD_BYTES = 100
PATIENT = "timeout_ms=60000"
USAGE_SIZES = (100, 1_000, 10_000)
"""So many entities share one shard of a stream; what the page asks about lies between the last two."""
HOT_RATES = (0.5, 3.0, 20.0)
"""Arrivals while one write is in flight, on average."""
HOT_WRITES = 100

Counted = dict[str, float]
"""What a store was asked for in a run, and what it keeps of it, by what it is."""
CPU, RECORD_CPU = "server CPU, µs for an acquire", "aggregator CPU, µs for a record"
CLOCKED = frozenset({CPU, RECORD_CPU})
"""By a clock, so these are shown and never judged."""


def entity(number: int) -> str:
    """Names are as long however many there are: bytes are to depend on nothing else."""
    return f"key-{number:09}"


async def each(names: Iterable[str], work: Callable[[str], Awaitable[object]]) -> None:
    """Some tasks share the work."""
    waiting = iter(names)

    async def worker() -> None:
        for name in waiting:
            await work(name)

    await asyncio.gather(*(worker() for _ in range(TASKS)))


class Run:
    """A limiter on a fresh store, with two limits that refuse nobody."""

    def __init__(self, url: str) -> None:
        self._url, self._stack = url, AsyncExitStack()

    async def __aenter__(self) -> Run:
        from zae_limiter import Limit, RateLimiter

        self.limiter = await self._stack.enter_async_context(RateLimiter.open(self._url))
        await self.limiter.set_system_defaults(
            [Limit.per_hour(name, PLENTY) for name in (LIMIT, SECOND_LIMIT)]
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def take(self, name: str) -> None:
        async with self.limiter.acquire(name, RESOURCE, {LIMIT: 1, SECOND_LIMIT: 5}):
            pass

    async def make(self, entities: int) -> None:
        await each(map(entity, range(entities)), self.take)

    async def use(self, entities: int) -> None:
        await each(map(entity, itertools.chain(*itertools.repeat(range(entities), EACH))), self.take)


def item_bytes(item: dict[str, Any]) -> int:
    """The size of an item in DynamoDB's JSON, by the rules that AWS publishes.

    A number takes a byte for each two digits that count, and one more; numbers of both signs are here
    integers.
    """

    def value_bytes(value: dict[str, Any]) -> int:
        ((kind, content),) = value.items()
        if kind == "N":
            digits = str(content).lstrip("-").rstrip("0") or "0"
            return (len(digits) + 1) // 2 + NUMBER_BYTES + str(content).startswith("-")
        if kind == "S":
            return len(content.encode())
        if kind in ("BOOL", "NULL"):
            return 1
        if kind == "M":
            return OVERHEAD_BYTES + sum(1 + len(k.encode()) + value_bytes(v) for k, v in content.items())
        raise ValueError(f"no item here has a value of kind {kind!r}")

    return sum(len(name.encode()) + value_bytes(value) for name, value in item.items())


def index_bytes(item: dict[str, Any]) -> int:
    """What an item takes in the indexes that it is in: four keys, and so much for each entry."""
    table = {name: item[name] for name in ("PK", "SK")}
    places = [name for name in ("GSI1", "GSI2", "GSI3", "GSI4") if f"{name}PK" in item]
    keys = [table | {f"{name}{part}": item[f"{name}{part}"] for part in ("PK", "SK")} for name in places]
    return sum(item_bytes(entry) + INDEX_OVERHEAD_BYTES for entry in keys)


async def buckets_of(url: str) -> list[dict[str, Any]]:
    """All bucket items of a table, as DynamoDB writes them."""
    from zae_limiter.backends.dynamodb import open_backend

    backend, found, start = open_backend(url), list[dict[str, Any]](), None
    while True:
        asked = {"TableName": backend.table_name, "ConsistentRead": True}
        reply = await backend.calls.send("Scan", asked | ({"ExclusiveStartKey": start} if start else {}))
        found += [item for item in reply["Items"] if "/BUCKET#" in item["PK"]["S"]]
        if not (start := reply.get("LastEvaluatedKey")):
            await backend.close()
            return found


async def on_dynamodb(endpoint: str, entities: int) -> Counted:
    """A run on a table of its own."""
    from .cases import OURS
    from .tables import make_table, our_url

    name = f"scale-{entities}"
    await make_table(OURS, endpoint, name)
    meter, marks = Meter(endpoint), list[dict[str, Any]]()
    with meter.running() as address:
        async with Run(f"{our_url(address, name)}&{PATIENT}") as run:
            await run.take("nobody")  # what all entities share is read once
            for work in (run.make, run.use):
                meter.reset()
                await work(entities)
                marks.append(meter.reading())
    items = [it for it in await buckets_of(our_url(endpoint, name)) if "nobody" not in it["PK"]["S"]]
    cold, warm = marks
    return {
        "requests to make": cold["calls"],
        "WCU to make": cold["wcu"],
        "requests to use": warm["calls"],
        "WCU to use": warm["wcu"],
        "bytes of buckets": sum(map(item_bytes, items)),
        "bytes in indexes": sum(map(index_bytes, items)),
    }


def expected_on_dynamodb(entities: int, known: Constants) -> Counted:
    uses = entities * EACH
    return {
        "requests to make": entities * known.cold_requests,
        "WCU to make": entities * known.cold_wcu,
        "requests to use": uses,
        "WCU to use": uses,
        "bytes of buckets": entities * known.bucket_bytes,
        "bytes in indexes": entities * known.index_bytes,
    }


def stream_records(url: str, count: int) -> list[dict[str, Any]]:
    """The first changes of buckets in the stream of a table, as many as there are to come.

    All of them as of one instant: a run over the end of an hour would have more rows than others.
    """
    from zae_limiter_aggregator.streams import stream_of

    client, arn = stream_of(url)
    (shard,) = client.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
    place = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    found, at = list[dict[str, Any]](), client.get_shard_iterator(**place)["ShardIterator"]
    while len(found) < count:
        reply = client.get_records(ShardIterator=at)
        found += [it for it in reply["Records"] if it["dynamodb"]["Keys"]["SK"]["S"] == "#STATE"]
        at = reply["NextShardIterator"]
    client.close()
    instant = found[0]["dynamodb"]["ApproximateCreationDateTime"]
    return [it | {"dynamodb": it["dynamodb"] | {"ApproximateCreationDateTime": instant}} for it in found]


async def on_aggregator(endpoint: str, entities: int) -> Counted:
    """Two batches of a stream, of buckets that dice choose: one makes rows of usage, the other finds them."""
    from zae_limiter.backends.dynamodb import open_backend
    from zae_limiter.runtime.world import World
    from zae_limiter_aggregator import AggregatorSettings, process_stream_records

    from .cases import OURS
    from .tables import make_table, our_url

    name, size = f"scale-usage-{entities}", int(Constants.usage_batch_max)
    dice, marks = random.Random(entities), list[dict[str, Any]]()
    drawn = [entity(dice.randrange(entities)) for _ in range(size)]
    await make_table(OURS, endpoint, name)
    async with Run(f"{our_url(endpoint, name)}&{PATIENT}") as run:
        for each_of in (*drawn, *drawn):  # one after the other, so that each is a change of its own
            await run.take(each_of)
    records, meter = stream_records(our_url(endpoint, name), 2 * size), Meter(endpoint)
    with meter.running() as address:
        backend = open_backend(f"{our_url(address, name)}&{PATIENT}")
        for batch in (records[:size], records[size : 2 * size]):
            meter.reset()
            begun = time.thread_time()
            tally = await process_stream_records(batch, backend, World(), AggregatorSettings())
            assert not tally.failed, tally.failed
            spent_us = (time.thread_time() - begun) * 1e6
            marks.append(meter.reading())
        await backend.close()
    made, counted = marks
    return {
        "buckets of a batch": len(set(drawn)),
        "WCU to count a batch, new rows": made["wcu"],
        "RCU to count a batch, new rows": made["rcu"],
        "WCU to count a batch": counted["wcu"],
        "RCU to count a batch": counted["rcu"],
        "round trips to count a batch": 2 * counted["requests"]["BatchGetItem"],
        RECORD_CPU: spent_us / size,
    }


def expected_on_aggregator(entities: int, known: Constants) -> Counted:
    buckets = distinct(known.usage_batch_max, entities)
    return {
        "buckets of a batch": buckets,
        "WCU to count a batch, new rows": buckets * known.usage_rows * known.usage_row_made_wcu,
        "RCU to count a batch, new rows": buckets * known.usage_rows,
        "WCU to count a batch": buckets * known.usage_rows,
        "RCU to count a batch": buckets * known.usage_rows,
        "round trips to count a batch": usage_trips(buckets, known),
        RECORD_CPU: known.aggregator_cpu_us,
    }


def redis_info(url: str) -> dict[str, str]:
    """What a Redis server says of itself."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 6379), timeout=60) as wire:
        wire.sendall(b"INFO everything\r\n")
        reader = wire.makefile("rb")
        size = int(reader.readline()[1:])
        lines = reader.read(size).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def redis_calls(info: dict[str, str]) -> tuple[int, int]:
    """Scripts that were run so far, and the microseconds they took."""
    told = dict(part.split("=") for part in info.get("cmdstat_evalsha", "calls=0,usec=0").split(","))
    return int(told["calls"]), int(told["usec"])


async def on_redis(url: str, entities: int) -> Counted:
    """A run in a prefix of its own; nobody else may use the server meanwhile."""
    async with Run(f"{url}&{PATIENT}") as run:
        await run.take("nobody")
        before = redis_info(url)
        await run.make(entities)
        made = redis_info(url)
        await run.use(entities)
        used = redis_info(url)
    (first, _), (second, begun_us), (third, ended_us) = map(redis_calls, (before, made, used))
    return {
        "requests to make": second - first,
        "requests to use": third - second,
        "bytes of buckets": int(used["used_memory"]) - int(before["used_memory"]),
        CPU: (ended_us - begun_us) / (entities * EACH),
    }


def expected_on_redis(entities: int, known: Constants) -> Counted:
    made = Traffic(acquires_per_s=entities, entities=entities, in_a_batch=TASKS)
    used = Traffic(acquires_per_s=entities * EACH, entities=entities, in_a_batch=TASKS)
    return {
        "requests to make": redis(made, known).requests_per_s * known.cold_requests,
        "requests to use": redis(used, known).requests_per_s,
        "bytes of buckets": redis(used, known).bytes,
        CPU: known.redis_cpu_us,
    }


POSTGRES_SAYS = """
SELECT pg_current_wal_lsn() - '0/0'::pg_lsn, pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
    pg_total_relation_size('{schema}.items')
"""
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


def cpu_us(process: int) -> float:
    """What a process of this machine has used of its processors."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_US
    return 0.0


async def on_postgres(url: str, owner: Any, schema: str, entities: int) -> Counted:
    """A run in a schema of its own; nobody else may use the server meanwhile."""

    def said() -> list[float]:
        backends = owner.execute(BACKENDS, [schema]).fetchall()
        numbers = owner.execute(POSTGRES_SAYS.format(schema=schema)).fetchone()
        return [*map(int, numbers), sum(cpu_us(process) for (process,) in backends)]

    async with Run(f"{url}&{PATIENT}&listen=off&application_name={schema}") as run:
        await run.take("nobody")
        before = said()
        await run.make(entities)
        made = said()
        await run.use(entities)
        used = said()
    return {
        "transactions to make": made[1] - before[1],
        "transactions to use": used[1] - made[1],
        "bytes of buckets": used[2] - before[2],
        "bytes of log to use": used[0] - made[0],
        CPU: (used[3] - made[3]) / (entities * EACH),
    }


def expected_on_postgres(entities: int, known: Constants) -> Counted:
    made = Traffic(acquires_per_s=entities, entities=entities, in_a_batch=TASKS)
    used = Traffic(acquires_per_s=entities * EACH, entities=entities, in_a_batch=TASKS)
    return {
        "transactions to make": postgres(made, known).transactions_per_s,
        "transactions to use": postgres(used, known).transactions_per_s,
        "bytes of buckets": postgres(used, known).bytes,
        "bytes of log to use": postgres(used, known).log_bytes_per_s,
        CPU: known.postgres_cpu_us,
    }


def arrivals(dice: random.Random, average: float) -> int:
    """How many arrive in a time in which so many do on average, each for itself."""
    left, count = 1.0, -1
    while left > 0:
        count, left = count + 1, left - dice.expovariate(average)
    return count


async def hot(endpoint: str, average: float, seed: int = 1) -> Counted:
    """One bucket, and a world in which so many acquires arrive while a write to it is in flight.

    Who arrives is decided by dice and not by a clock, so it comes out the same on every machine.
    """
    from zae_limiter import Limit, RateLimiter, Repository
    from zae_limiter.backends.dynamodb import open_backend
    from zae_limiter.runtime.world import World
    from zae_limiter.testing.stores import Wrapper

    from .cases import OURS
    from .tables import make_table, our_url

    dice, tasks, counts = random.Random(seed), set[asyncio.Task[None]](), {"writes": 0, "acquires": 0}

    async def take() -> None:
        async with limiter.acquire("hot", RESOURCE, {LIMIT: 1}):
            pass

    def arrive(count: int) -> None:
        counts["acquires"] += count
        tasks.update(asyncio.ensure_future(take()) for _ in range(count))

    class Slow(Wrapper):
        is_counting = False

        async def write_each(self, writes: Sequence[Any]) -> list[Any]:
            if self.is_counting:
                counts["writes"] += len(writes)
                if counts["writes"] < HOT_WRITES:
                    arrive(arrivals(dice, average))
                for _ in range(50):  # until they stand in line
                    await asyncio.sleep(0)
            return await super().write_each(writes)

    name = f"scale-hot-{average:g}"
    await make_table(OURS, endpoint, name)
    world = World().for_store()
    slow = Slow(open_backend(f"{our_url(endpoint, name)}&{PATIENT}", world=world))
    limiter = RateLimiter(await Repository.over(slow, world=world))
    await limiter.set_system_defaults([Limit.per_hour(LIMIT, PLENTY)])
    await take()
    slow.is_counting = True
    while counts["writes"] < HOT_WRITES:
        arrive(1)  # the pause after a write in which nobody came is over
        while tasks:
            done, _ = await asyncio.wait(tasks)
            for task in done:
                task.result()
            tasks.difference_update(done)
    await limiter.close()
    return {"acquires for a write": counts["acquires"] / counts["writes"]}


def expected_hot(average: float) -> Counted:
    return {"acquires for a write": acquires_per_write(average, 1.0)}


@contextmanager
def redis_alone() -> Iterator[int]:
    """The port of a server that nobody else uses."""
    from tests.engines import redis_server
    from tests.engines.servers import Server

    server = Server("ZAE_SCALE_REDIS", redis_server.launch)
    try:
        yield server.port()
    finally:
        server.stop()
        os.environ.pop("ZAE_SCALE_REDIS", None)


@contextmanager
def postgres_alone() -> Iterator[int]:
    """The port of a server that nobody else uses."""
    from tests.engines import postgres as engine
    from tests.engines.servers import Server

    server = Server("ZAE_SCALE_POSTGRES", engine.launch)
    try:
        yield server.port()
    finally:
        server.stop()
        os.environ.pop("ZAE_SCALE_POSTGRES", None)


def redis_run(port: int, entities: int) -> Counted:
    from tests.engines import redis_server

    return asyncio.run(on_redis(redis_server.url(f"scale-{entities}", port), entities))


def postgres_run(port: int, entities: int) -> Counted:
    from tests.engines import postgres as engine
    from tests.postgres.schemas import plain
    from zae_limiter.backends.postgres.layout import create_sql

    schema = f"scale_{entities}"
    with plain(port) as owner:
        owner.execute(create_sql(schema).encode())
        return asyncio.run(on_postgres(engine.url(schema, port), owner, schema, entities))


def told(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def checked() -> str:
    """What is predicted beside what was counted, at three sizes on each store."""
    from . import engine

    os.environ.update(engine.AWS_ENVIRONMENT)
    known, found = Constants(), list[tuple[str, Counted, Counted]]()
    with engine.running() as endpoint:
        for size in SIZES:
            counted = asyncio.run(on_dynamodb(endpoint, size))
            found.append((f"DynamoDB, {size} entities", expected_on_dynamodb(size, known), counted))
        for size in USAGE_SIZES:
            counted = asyncio.run(on_aggregator(endpoint, size))
            found.append((f"usage, {size:,} entities", expected_on_aggregator(size, known), counted))
        for average in HOT_RATES:
            counted = asyncio.run(hot(endpoint, average))
            found.append((f"DynamoDB, {average:g} arrive meanwhile", expected_hot(average), counted))
    with redis_alone() as port:
        found += [(f"Redis, {n} entities", expected_on_redis(n, known), redis_run(port, n)) for n in SIZES]
    with postgres_alone() as port:
        found += [
            (f"PostgreSQL, {n} entities", expected_on_postgres(n, known), postgres_run(port, n))
            for n in SIZES
        ]
    rows = [
        [name, what, told(predicted[what]), told(value), f"{value / predicted[what] - 1:+.1%}"]
        for name, predicted, counted in found
        for what, value in counted.items()
    ]
    return table(["run", "what", "predicted", "counted", "off by"], rows)
