"""A client that knows what it used, on a real table; the stream of it, and the rows of usage."""

import asyncio
import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tests.dynamodb.tables import session
from tests.engines import dynamodb_local
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.backends.dynamodb import open_backend
from zae_limiter.exceptions import DamagedRecordError
from zae_limiter.models import AuditEvent, UsageWindow
from zae_limiter.records.items import audit_event_of, usage_snapshot_of, window_of
from zae_limiter.repository_protocol import Backend, Item, Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import text, usage_of_entity
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator.streams import stream_of
from zae_limiter_aggregator.usage import SEEN, read_seen

RESOURCE = "gpt-4"
ALL_WINDOWS = tuple(UsageWindow)
HOUR_MS = 3_600_000

# The end of a month, so that three days lie in two of them; ahead of us, so that nothing has expired.
START_MS = int(datetime(2031, 1, 30, 22, tzinfo=UTC).timestamp() * 1000)

Books = Counter[tuple[str, str, str]]
"""Tokens by entity, limit and window key."""


class Aborted(Exception):
    """The work under a lease failed."""


class Stream:
    """The stream of a table, read to where it is now; records are given a time of the harness."""

    def __init__(self, table: str) -> None:
        self.client, self.arn = stream_of(dynamodb_local.url(table))
        self.records: list[dict[str, Any]] = []
        self._iterators: dict[str, str] = {}

    def drain(self, at_ms: int) -> None:
        """Take all that is new, as if it had happened at ``at_ms``."""
        quiet = 0
        while quiet < 2:
            found = 0
            for shard in self.client.describe_stream(StreamArn=self.arn)["StreamDescription"]["Shards"]:
                found += self._read(shard["ShardId"], at_ms)
            quiet = 0 if found else quiet + 1

    def _read(self, shard_id: str, at_ms: int) -> int:
        if shard_id not in self._iterators:
            self._iterators[shard_id] = self.client.get_shard_iterator(
                StreamArn=self.arn, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
        if not self._iterators[shard_id]:
            return 0
        reply = self.client.get_records(ShardIterator=self._iterators[shard_id])
        self._iterators[shard_id] = reply.get("NextShardIterator") or ""
        for record in reply["Records"]:
            record["dynamodb"]["ApproximateCreationDateTime"] = at_ms / 1000
            self.records.append(record)
        return len(reply["Records"])


class Client:
    """Tasks that acquire, adjust and abort at random, and know exactly what they have consumed."""

    def __init__(self, limiter: RateLimiter, clock: ManualClock, rng: random.Random) -> None:
        self.limiter, self.clock, self.rng = limiter, clock, rng
        self.books: Books = Counter()
        self.operations: Counter[str] = Counter()

    async def act(self, entity_id: str) -> None:
        try:
            await self._use(entity_id)
        except Aborted:
            self.operations["refund"] += 1
        except RateLimitExceeded:
            self.operations["refusal"] += 1

    async def _use(self, entity_id: str) -> None:
        amounts = {"rpm": 1, "tpm": self.rng.randrange(1, 500)}
        async with self.limiter.acquire(entity_id, RESOURCE, amounts) as lease:
            self.operations["acquire"] += 1
            if self.rng.random() < 0.3:
                await lease.adjust(tpm=self.rng.randrange(-amounts["tpm"], 700))
                self.operations["adjust"] += 1
            if self.rng.random() < 0.1:
                raise Aborted
            consumed = lease.consumed
        self._enter(entity_id, consumed)

    def _enter(self, entity_id: str, consumed: dict[str, int]) -> None:
        for window in ALL_WINDOWS:
            key, _, _ = window_of(window, self.clock.now_ms)
            for name, amount in consumed.items():
                self.books[entity_id, name, key] += amount


async def hours_of_work(
    repository: Repository,
    clock: ManualClock,
    entities: list[str],
    hours: list[int],
    times: int,
    *,
    seed: int = 1,
    after_hour: Callable[[int], object] = lambda _: None,
) -> Client:
    """Work of many entities in some hours; the store is closed then."""
    limiter = RateLimiter(repository)
    await repository.set_resource_defaults(
        RESOURCE, [Limit.per_minute("rpm", 40), Limit.per_minute("tpm", 100_000)]
    )
    client = Client(limiter, clock, random.Random(seed))
    for hour in hours:
        clock.now_ms = START_MS + hour * HOUR_MS + 1234
        await asyncio.gather(*(client.act(entity_id) for entity_id in entities for _ in range(times)))
        await asyncio.to_thread(after_hour, clock.now_ms)
    await limiter.close()
    return client


async def days_of_work(
    table: str, entities: list[str], hours: list[int], times: int, seed: int = 1
) -> tuple[Client, Stream, str]:
    """The same on a table; every record of its stream is stamped with the hour it happened in."""
    clock = ManualClock(START_MS)
    # The engine takes two transactions of one name for the same, whatever their tables.
    world = replace(clock.world, random=random.SystemRandom())
    backend = open_backend(
        dynamodb_local.url(table, timeout_ms=20_000), sync=False, world=world, session=session(False)
    )
    repository, stream = await Repository.over(backend, world=world), Stream(table)
    client = await hours_of_work(
        repository, clock, entities, hours, times, seed=seed, after_hour=stream.drain
    )
    return client, stream, repository.namespace_id


def usage_rows(backend: Backend, namespace_id: str, entities: list[str]) -> dict[Key, Item]:
    """Every usage row of some entities, as it is stored."""
    rows: dict[Key, Item] = {}
    for entity_id in entities:
        query = usage_of_entity(namespace_id, entity_id)._replace(rows_max=1000)
        while True:
            page = run_sync(backend.query(query))
            rows |= {row.key: row.item for row in page.rows}
            if page.after is None:
                break
            query = query._replace(after=page.after)
    return rows


def gaps_of(row: Item) -> int:
    """How many stretches of versions are missing between those that a row counted."""
    return sum(len(runs) - 1 for runs in read_seen(text(row, SEEN)).values())


def unpack(content: bytes) -> list[AuditEvent]:
    """The events of an archive's file, as they were before they expired; other lines are left out."""
    events = []
    for line in gzip.decompress(content).decode().splitlines():
        with suppress(DamagedRecordError):
            events.append(audit_event_of(json.loads(line)))
    return events


def booked(rows: dict[Key, Item]) -> Books:
    """The books that rows amount to."""
    books: Books = Counter()
    for key, item in rows.items():
        snapshot = usage_snapshot_of(item)
        for name, amount in snapshot.counters.items():
            books[snapshot.entity_id, name, key.sort.rpartition("#")[2]] += amount
    return Counter({place: amount for place, amount in books.items() if amount})


def batches(records: list[Any], rng: random.Random, most: int = 100) -> Iterator[list[Any]]:
    """Records cut into batches of random length."""
    at = 0
    while at < len(records):
        size = rng.randrange(1, most + 1)
        yield records[at : at + size]
        at += size
