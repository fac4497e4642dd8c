"""People who wait for a bucket under a clock that a test moves.

Whoever sleeps looks at that clock again and again, so many can wait at once, and each begins at the very
millisecond of its turn.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Any

from tests.flow.clients import RESOURCE, Client, Store, rpm
from tests.patience import PATIENCE_SECONDS
from zae_limiter.repository_protocol import Backend, Item
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.schema import bucket_key

LIMIT = rpm(2, 1, 1)
"""Two at once, then one a second."""

TURNS = 50
"""After so many turns of the loop everybody has looked at the clock."""


def on_a_loop(backend: Backend) -> Backend:
    """A store whose sleepers let others go on; one in memory cannot tell by itself that there are any."""
    backend.colour = Asyncio()  # type: ignore[misc]
    return backend


class Waiter:
    """Somebody who asks, waits, and notes when it began."""

    def __init__(self, room: Room, client: Client, amount: int, **more: Any) -> None:
        self.began_seconds: float | None = None
        self.waited_ms: int | None = None
        self.task = asyncio.create_task(self._wait(room, client, amount, more))

    async def _wait(self, room: Room, client: Client, amount: int, more: dict[str, Any]) -> None:
        asked = {"consume": {"rpm": amount}, "limits": [LIMIT], "wait": math.inf, **more}
        async with client.limiter.acquire("key", RESOURCE, **asked) as lease:
            self.began_seconds, self.waited_ms = room.seconds, lease.waited_ms

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task], timeout=PATIENCE_SECONDS)


class Room:
    """A bucket, those who wait for it, and the clock."""

    def __init__(self, store: Store) -> None:
        self.store, self.began_ms = store, store.clock.now_ms
        self._asleep: set[object] = set()
        self._napped_ms: dict[object, int] = {}
        self._waiters: list[Waiter] = []

    @property
    def seconds(self) -> float:
        return (self.store.clock.now_ms - self.began_ms) / 1000

    async def client(self) -> Client:
        """A client whose sleepers wait for the clock of the store."""
        world = dataclasses.replace(self.store.clock.world, nap=self._nap)
        wrap = on_a_loop if self.store.name == "memory" else lambda backend: backend
        return await self.store.client(world=world, wrap=wrap)

    def _nap(self, seconds: float) -> None:
        """Somebody sleeps, and will look at the clock again."""
        del seconds
        self._asleep.add(asyncio.current_task())
        self._napped_ms[asyncio.current_task()] = self.store.clock.now_ms

    async def join(self, client: Client, amount: int = 1, **more: Any) -> Waiter:
        """One more, who sleeps or is done when this returns."""
        before, waiter = len(self._asleep), Waiter(self, client, amount, **more)
        while not waiter.task.done() and len(self._asleep) == before:  # noqa: ASYNC110 - a nap is no coroutine
            await asyncio.sleep(0)
        self._waiters.append(waiter)
        return waiter

    async def until(self, seconds: float) -> None:
        """Move the clock to so long after the beginning, and let everybody look at it."""
        self.store.clock.now_ms = self.began_ms + round(seconds * 1000)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def settled(self, seconds: float) -> None:
        """The same, until everybody sleeps or is done, whatever it asks of the store before."""
        await self.until(seconds)
        now_ms, tasks = self.store.clock.now_ms, [waiter.task for waiter in self._waiters]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not all(task.done() or self._napped_ms.get(task) == now_ms for task in tasks):  # noqa: ASYNC110
                await asyncio.sleep(0)


async def stored(store: Store, entity_id: str = "key") -> Item | None:
    """A bucket as the store has it, all of it."""
    backend = store.open_backend()
    try:
        namespace_id = store.clients[0].repository.namespace_id
        (item,) = await backend.batch_get([bucket_key(namespace_id, entity_id, RESOURCE, 0)])
        return item
    finally:
        await backend.close()
