"""A store whose calls are counted and timed, while somebody looks: around the store itself, nowhere else.

What a store answers at once, without being waited for, is not called through here, and costs what it did.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ..backends.around import Around
from ..engine.histogram import Histogram
from ..exceptions import RateLimiterUnavailable
from ..repository_protocol import Backend, Outcome, Write

A = TypeVar("A")
T = TypeVar("T")

VERBS = ("batch_get", "write_each", "transact_write", "query")

CALL_ENDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)


class MeasuredBackend(Around):
    """A backend that passes everything on, and notes how long it took."""

    def __init__(self, inner: Backend, ticks_ms: Callable[[], float]) -> None:
        super().__init__(inner)
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

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        outcomes = await super().write_each(writes)
        for outcome in outcomes:
            if outcome.failure is not None:
                self._fail("write_each", outcome.failure)
                break
        return outcomes

    async def _ask(self, verb: str, ask: Callable[[A], Awaitable[T]], given: A) -> T:
        began_ms = self._ticks_ms()
        try:
            return await ask(given)
        except RateLimiterUnavailable as error:
            self._fail(verb, error)
            raise
        finally:
            self.calls[verb].add(self._ticks_ms() - began_ms)

    def _fail(self, verb: str, error: RateLimiterUnavailable) -> None:
        self.errors[verb] += 1
        for tell in self.troubled:
            tell(verb, error)
