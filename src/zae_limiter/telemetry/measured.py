"""A store whose calls are counted and timed, while somebody looks: around the store itself, nowhere else.

What a store answers at once, without being waited for, is not called through here, and costs what it did.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ..engine.histogram import Histogram
from ..exceptions import RateLimiterUnavailable
from ..models import BackendCapabilities
from ..repository_protocol import Backend, Changes, Item, Key, News, Outcome, Page, Query, Swap, Write
from ..runtime.colour import Colour

T = TypeVar("T")

VERBS = ("batch_get", "write_each", "transact_write", "query")

CALL_ENDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)


class MeasuredBackend:
    """A backend that passes everything on, and notes how long it took."""

    def __init__(self, inner: Backend, ticks_ms: Callable[[], float]) -> None:
        self.inner = inner
        self._ticks_ms = ticks_ms
        self.troubled: tuple[Callable[[str, RateLimiterUnavailable], None], ...] = ()
        """Who is told of calls that failed."""
        self.users = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Count from zero."""
        self.calls: dict[str, Histogram] = {verb: Histogram(CALL_ENDS_MS) for verb in VERBS}
        """How long calls took, in milliseconds."""
        self.errors: dict[str, int] = dict.fromkeys(VERBS, 0)

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
        return await self._timed("batch_get", self.inner.batch_get(keys))

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        outcomes = await self._timed("write_each", self.inner.write_each(writes))
        for outcome in outcomes:
            if outcome.failure is not None:
                self._fail("write_each", outcome.failure)
                break
        return outcomes

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self._timed("transact_write", self.inner.transact_write(writes))

    async def query(self, query: Query) -> Page:
        return await self._timed("query", self.inner.query(query))

    async def _timed(self, verb: str, call: Awaitable[T]) -> T:
        began_ms = self._ticks_ms()
        try:
            return await call
        except RateLimiterUnavailable as error:
            self._fail(verb, error)
            raise
        finally:
            self.calls[verb].add(self._ticks_ms() - began_ms)

    def _fail(self, verb: str, error: RateLimiterUnavailable) -> None:
        self.errors[verb] += 1
        for tell in self.troubled:
            tell(verb, error)
