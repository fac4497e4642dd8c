"""What the tests of hot buckets share: a store that can be held up, one with hot partitions, a table."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.dynamodb.stage import opened
from zae_limiter import Limit, RateLimiter, Repository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.repository_protocol import Backend, Key, Outcome, Write
from zae_limiter.runtime.colour import Asyncio
from zae_limiter.schema import bucket_key, sk_state
from zae_limiter.testing import ManualClock, RecordingBackend
from zae_limiter.testing.stores import Wrapper

TURNS = 100
RESOURCE = "gpt-4"
SLOW = [Limit.custom("rpm", 100, 1, 86_400)]
"""A hundred, and nothing more while a test runs."""


class HeldUp(Wrapper):
    """A store whose writes wait at a gate."""

    def __init__(self, inner: Backend, timeout_ms: int = 60_000) -> None:
        super().__init__(inner)
        self._capabilities = replace(inner.capabilities, timeout_ms=timeout_ms)
        self._colour = Asyncio()
        self.gate = asyncio.Event()
        self.gate.set()
        self.at_gate = 0

    @property
    def capabilities(self):
        return self._capabilities

    @property
    def colour(self):
        return self._colour

    def hold(self) -> None:
        """Close the gate, and count anew who stands before it."""
        self.gate.clear()
        self.at_gate = 0

    def let_pass(self) -> None:
        """Open the gate for those who stand before it, and close it behind them."""
        self.gate.set()
        self.hold()

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        self.at_gate += 1
        await self.gate.wait()
        return await super().write_each(writes)


class HotMemory(MemoryBackend):
    """A store in memory that pretends to have partitions which can run hot."""

    capabilities = replace(MemoryBackend.capabilities, hot_partitions=True)


@asynccontextmanager
async def held_up(timeout_ms: int = 60_000) -> AsyncIterator[tuple[RateLimiter, HeldUp, RecordingBackend]]:
    """A limiter on a store that can be held up, and the record of what reached the store."""
    clock = ManualClock()
    record = RecordingBackend(MemoryBackend(clock.world))
    store = HeldUp(record, timeout_ms)
    repository = await Repository.over(store, world=clock.world)
    yield RateLimiter(repository), store, record


@asynccontextmanager
async def on_dynamodb(limits: Sequence[Limit] = SLOW) -> AsyncIterator[tuple[RateLimiter, RecordingBackend]]:
    """A limiter on a fresh table of DynamoDB Local, and the record of its calls."""
    async with opened(sync=False) as backend:
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
