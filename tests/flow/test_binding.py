"""What somebody else changed binds whoever was refused a moment ago.

Each test runs for coroutines and for sync code. Time moves only when a test says so.
"""

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.flow.stage import EMBEDDED, RESOURCE, Store
from zae_limiter import (
    Limit,
    RateLimiter,
    RateLimitExceeded,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.testing import RecordingBackend

SLOW = 10**7
"""A period in seconds so long that nothing refills within a test."""


def slow(name: str, capacity: int) -> Limit:
    return Limit(name, capacity, 1, SLOW)


X5 = slow("x", 5)


@dataclass
class Person:
    """A process with a limiter of either colour."""

    limiter: RateLimiter | SyncRateLimiter
    recording: RecordingBackend

    async def do(self, name: str, *given: Any, **named: Any) -> Any:
        """Call something of the repository."""
        return await answer(getattr(self.limiter.repository, name)(*given, **named))

    @contextlib.asynccontextmanager
    async def hold(self, entity_id: str, amounts: dict[str, int], *limits: Limit) -> AsyncIterator[Any]:
        acquisition = self.limiter.acquire(entity_id, RESOURCE, amounts, list(limits) or None)
        if isinstance(self.limiter, SyncRateLimiter):
            with acquisition as lease:  # type: ignore[attr-defined]
                yield lease
        else:
            async with acquisition as lease:  # type: ignore[attr-defined]
                yield lease

    async def take(self, entity_id: str, **amounts: int) -> None:
        async with self.hold(entity_id, amounts):
            pass

    async def refused(self, entity_id: str, **amounts: int) -> RateLimitExceeded:
        with pytest.raises(RateLimitExceeded) as caught:
            await self.take(entity_id, **amounts)
        return caught.value

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.recording.calls]


async def answer(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


Open = Callable[[], Awaitable[Person]]


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def person(request: pytest.FixtureRequest, store: Store) -> Iterator[Open]:
    opened: list[SyncRepository] = []

    async def open_person() -> Person:
        if not request.param:
            client = await store.client()
            return Person(client.limiter, client.recording)
        recording = RecordingBackend(store.open_backend(sync=True))
        repository = SyncRepository.over(recording, world=store.clock.world)
        opened.append(repository)
        return Person(SyncRateLimiter(repository), recording)

    yield open_person
    for repository in opened:
        repository.close()


# An entity that is deleted takes the memory of its refusals along.


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and made again"])
async def test_a_refusal_does_not_outlive_its_entity(store: Store, person: Open, again: bool) -> None:
    admin, user = await person(), await person()
    await admin.do("set_system_defaults", [X5])
    await admin.do("create_entity", "key")
    await user.take("key", x=5)
    await user.refused("key", x=1)
    await admin.do("delete_entity", "key")
    if again:
        await admin.do("create_entity", "key")
    if store.name not in EMBEDDED:
        store.clock.advance(1.001)
    await user.take("key", x=5)
