"""A store around another one: it passes everything on, and what is asked goes through one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ..models import BackendCapabilities
from ..repository_protocol import Backend, Changes, Item, Key, News, Outcome, Page, Query, Swap, Write
from ..runtime.colour import Colour

A = TypeVar("A")
T = TypeVar("T")


class Around:
    """A backend that asks the ``inner`` one by ``_ask``, and for the rest is what that one is."""

    def __init__(self, inner: Backend) -> None:
        self.inner: Backend = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def capabilities(self) -> BackendCapabilities:
        return self.inner.capabilities

    @property
    def colour(self) -> Colour:
        return self.inner.colour

    @property
    def swap(self) -> Swap | None:
        return self.inner.swap

    @property
    def changes(self) -> Changes | None:
        return self.inner.changes

    @property
    def news(self) -> News | None:
        return self.inner.news

    async def setup(self) -> None:
        await self.inner.setup()

    async def close(self) -> None:
        await self.inner.close()

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        return await self._ask("batch_get", self.inner.batch_get, keys)

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self._ask("write_each", self.inner.write_each, writes)

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self._ask("transact_write", self.inner.transact_write, writes)

    async def query(self, query: Query) -> Page:
        return await self._ask("query", self.inner.query, query)

    async def _ask(self, verb: str, ask: Callable[[A], Awaitable[T]], given: A) -> T:  # noqa: ARG002 - others look
        return await ask(given)
