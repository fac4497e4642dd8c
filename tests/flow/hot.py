"""Limiters on a store that can be held up and on servers, and what they wrote to the buckets."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.dynamodb.tables import opened
from tests.odd_stores import HeldUp
from tests.stores import url_of
from zae_limiter import Limit, RateLimiter, Repository
from zae_limiter.backends import open_backend
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.repository_protocol import Backend, Key, Write
from zae_limiter.runtime.world import World
from zae_limiter.schema import bucket_key, sk_state
from zae_limiter.testing import ManualClock, RecordingBackend

TURNS = 100
RESOURCE = "gpt-4"
SLOW = [Limit.custom("rpm", 100, 1, 86_400)]
"""A hundred, and nothing more while a test runs."""


@asynccontextmanager
async def held_up(timeout_ms: int = 60_000) -> AsyncIterator[tuple[RateLimiter, HeldUp, RecordingBackend]]:
    """A limiter on a store that can be held up, and the record of what reached the store."""
    clock = ManualClock()
    record = RecordingBackend(MemoryBackend(clock.world))
    store = HeldUp(record, timeout_ms)
    repository = await Repository.over(store, world=clock.world)
    yield RateLimiter(repository), store, record


SERVERS = ("dynamodb", "redis", "postgres")


@asynccontextmanager
async def opened_on(kind: str, *, sync: bool) -> AsyncIterator[Backend]:
    """A fresh store on a server."""
    if kind == "dynamodb":
        async with opened(sync) as table:
            yield table
        return
    backend = open_backend(url_of(kind, Path()), sync=sync, world=World())
    await backend.setup()
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def on_server(
    kind: str, limits: Sequence[Limit] = SLOW
) -> AsyncIterator[tuple[RateLimiter, RecordingBackend]]:
    """A limiter on a fresh store on a server, and the record of its calls."""
    async with opened_on(kind, sync=False) as backend:
        record = RecordingBackend(backend)
        repository = await Repository.over(record)
        await repository.set_resource_defaults(RESOURCE, list(limits))
        record.forget()
        yield RateLimiter(repository), record


def bucket_writes(record: RecordingBackend, namespace_id: str, entity_id: str) -> int:
    """How many writes went to the bucket of an entity."""
    key = bucket_key(namespace_id, entity_id, RESOURCE)
    return sum(write.key == key for write in all_writes(record))


def all_bucket_writes(record: RecordingBackend) -> int:
    return sum(write.key.sort == sk_state() for write in all_writes(record))


def all_writes(record: RecordingBackend) -> list[Write]:
    verbs = ("write_each", "transact_write")
    return [write for verb, given in record.calls if verb in verbs for write in given]  # type: ignore[misc]


async def turns() -> None:
    """Let everybody go as far as they can without an answer; each step takes a turn of the loop."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def settled(store: HeldUp, count: int) -> None:
    """Wait until so many writes stand at the gate."""
    while store.at_gate < count:  # noqa: ASYNC110 - the store does not know who waits for what
        await asyncio.sleep(0)


def key_of(limiter: RateLimiter, entity_id: str, shard_id: int = 0) -> Key:
    return bucket_key(limiter.repository.namespace_id, entity_id, RESOURCE, shard_id)
