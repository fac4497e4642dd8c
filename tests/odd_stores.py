"""Stores around other stores, and one that is not as its kind is: slow, held up, hot, yielding, crashing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.repository_protocol import Backend, Item, Key, Outcome, Page, Query, Write
from zae_limiter.runtime.colour import Colour
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.testing.stores import Wrapper


class Slow(Wrapper):
    """Each call takes some turns on the way to the store and as many back."""

    def __init__(self, inner: Backend, turns: int) -> None:
        super().__init__(inner)
        self._turns = turns

    @property
    def colour(self) -> Colour:
        return Asyncio()

    async def _travel(self) -> None:
        for _ in range(self._turns):
            await asyncio.sleep(0)

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        await self._travel()
        items = await super().batch_get(keys)
        await self._travel()
        return items

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        await self._travel()
        outcomes = await super().write_each(writes)
        await self._travel()
        return outcomes

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        await self._travel()
        outcomes = await super().transact_write(writes)
        await self._travel()
        return outcomes

    async def query(self, query: Query) -> Page:
        await self._travel()
        page = await super().query(query)
        await self._travel()
        return page


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


class Yielding(Wrapper):
    """Lets others go first at every call, so that two programs on one event loop interleave."""

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        await asyncio.sleep(0)
        return await self.inner.batch_get(keys)

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        await asyncio.sleep(0)
        return await self.inner.write_each(writes)

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        await asyncio.sleep(0)
        return await self.inner.transact_write(writes)


class Crash(BaseException):
    """The process died."""


class Crashing(Wrapper):
    """Dies at call number ``at``, counted from ``arm``; ``late`` lets that call take effect first."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.calls, self.at, self.late = 0, 0, False

    def arm(self, at: int, *, late: bool) -> None:
        self.calls, self.at, self.late = 0, at, late

    async def _call(self, call: Coroutine[Any, Any, Any]) -> Any:
        self.calls += 1
        if not self.at or self.calls < self.at:
            return await call
        if self.late and self.calls == self.at:
            await call
        else:
            call.close()
        raise Crash

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        return await self._call(self.inner.batch_get(keys))  # type: ignore[no-any-return]

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        if len(writes) > 1:  # each write is on its own, so a crash may part them
            return [(await self.write_each([write]))[0] for write in writes]
        return await self._call(self.inner.write_each(writes))  # type: ignore[no-any-return]

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self._call(self.inner.transact_write(writes))  # type: ignore[no-any-return]

    async def query(self, query: Query) -> Page:
        return await self._call(self.inner.query(query))  # type: ignore[no-any-return]
