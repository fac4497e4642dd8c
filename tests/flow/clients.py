"""One store, a clock, and any number of clients of it.

A ``Client`` stands for one process: a limiter with caches of its own, over a store that keeps count
of what it is asked and fails on command. Time moves only when a test says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from tests.stores import OpenBackend
from zae_limiter import BucketState, Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.bucket import calculate_available
from zae_limiter.records.connection import Options
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.world import World
from zae_limiter.testing import Fault, FaultyBackend, ManualClock, RecordingBackend

T = TypeVar("T")

RESOURCE = "api"
EMBEDDED = ("memory", "sqlite")
"""Stores that tell at once when somebody else changed a record."""


def rpm(capacity: int, refill: int | None = None, seconds: int = 60) -> Limit:
    """A limit named ``rpm`` that fills once a minute unless told otherwise."""
    return Limit("rpm", capacity, capacity if refill is None else refill, seconds)


def tpm(capacity: int) -> Limit:
    return Limit.per_minute("tpm", capacity)


@dataclass
class Client:
    """One process: its limiter, what it asks of the store, and what goes wrong on the way."""

    limiter: RateLimiter
    recording: RecordingBackend
    faulty: FaultyBackend

    @property
    def repository(self) -> Repository:
        return self.limiter.repository

    @property
    def calls(self) -> list[tuple[str, int]]:
        """Each call to the store and how many keys or writes it carried."""
        return [(verb, len(given)) for verb, given in self.recording.calls]

    @property
    def together(self) -> str:
        """The call by which a family is charged: all or none where that costs no more."""
        return "transact_write" if self.recording.capabilities.atomic_batches else "write_each"

    @property
    def hears(self) -> bool:
        """Whether replies tell of limits that somebody changed."""
        return self.recording.news is not None

    def forget(self) -> None:
        """Count from here."""
        self.recording.forget()

    @contextlib.contextmanager
    def down(self, fault: Fault = Fault.UNREACHABLE) -> Iterator[None]:
        """Nothing gets through for a while."""
        self.faulty.always = fault
        try:
            yield
        finally:
            self.faulty.always = None

    async def take(self, entity_id: str, amounts: dict[str, int], *limits: Limit) -> None:
        """One acquire whose work is done at once."""
        async with self.limiter.acquire(entity_id, RESOURCE, amounts, list(limits) or None):
            pass

    async def refused(self, entity_id: str, amounts: dict[str, int], *limits: Limit) -> RateLimitExceeded:
        """The refusal of an acquire that must not pass."""
        with pytest.raises(RateLimitExceeded) as caught:
            await self.take(entity_id, amounts, *limits)
        return caught.value


@dataclass
class Store:
    """A fresh store of some kind and all who use it."""

    name: str
    open_backend: OpenBackend
    clock: ManualClock
    run: Callable[[Coroutine[Any, Any, T]], T]
    clients: list[Client] = field(default_factory=list)
    observer: Repository | None = None

    async def client(
        self,
        options: Options | None = None,
        *,
        speculative_writes: bool = True,
        wrap: Callable[[Backend], Backend] = lambda backend: backend,
        world: World | None = None,
    ) -> Client:
        """One more process that uses the store, under the clock of all unless it has a world of its own."""
        faulty = FaultyBackend(wrap(self.open_backend()))
        recording = RecordingBackend(faulty)
        repository = await Repository.over(recording, options=options, world=world or self.clock.world)
        recording.forget()
        client = Client(RateLimiter(repository, speculative_writes), recording, faulty)
        self.clients.append(client)
        return client

    async def close(self) -> None:
        for repository in (*(client.repository for client in self.clients), self.observer):
            if repository is not None:
                await repository.close()

    async def bucket(self, entity_id: str, limit_name: str = "rpm") -> BucketState | None:
        """One limit of a bucket as it is stored, seen by somebody who only just came."""
        if self.observer is None:
            self.observer = await Repository.over(self.open_backend(), world=self.clock.world)
        states = await self.observer.get_bucket(entity_id, RESOURCE)
        return next((state for state in states if state.limit_name == limit_name), None)

    async def used(self, entity_id: str, limit_name: str = "rpm") -> int:
        """What a bucket has given out by the store's own books, in tokens; 0 if there is none."""
        state = await self.bucket(entity_id, limit_name)
        return 0 if state is None else state.total_consumed_milli // 1000

    async def left(self, entity_id: str, limit_name: str = "rpm") -> int:
        """What a bucket holds now, in tokens, negative in debt."""
        state = await self.bucket(entity_id, limit_name)
        assert state is not None, f"{entity_id} has no bucket with {limit_name}"
        return calculate_available(state, self.clock.now_ms)
