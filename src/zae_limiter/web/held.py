"""The limiter of a middleware: given open, or opened when the application starts and closed when it ends.

A server that does not tell when that is has it opened by the first request, and it lives as long as the
process: so it is in WSGI, and in Django. Whoever hands over an open limiter closes it; what was opened here
when an application started is closed here when it ends.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from ..exceptions import ValidationError
from ..limiter import Opening, RateLimiter
from ..runtime.colour import Signal
from ..runtime.loops import Asyncio
from ..sync import SyncRateLimiter

LimiterSource: TypeAlias = RateLimiter | Opening | Callable[[], Any]
"""A limiter, ``RateLimiter.open(…)``, or a callable that gives one of them, or a coroutine or block of it."""

_HINT = "pass a RateLimiter, RateLimiter.open(…), or a callable that opens one"
_SYNC_HINT = "pass a SyncRateLimiter, or a callable that opens one"


class _SharedOpening:
    """Somebody opens a limiter, and others wait for it."""

    def __init__(self, is_over: Signal) -> None:
        self.is_over = is_over
        self.error: Exception | None = None


class HeldLimiter:
    """A limiter for an event loop."""

    def __init__(self, source: LimiterSource) -> None:
        if isinstance(source, SyncRateLimiter):
            raise ValidationError("limiter", source, f"it would block the event loop; {_HINT}")
        if not isinstance(source, RateLimiter | Opening) and not callable(source):
            raise ValidationError("limiter", source, _HINT)
        self._source = source
        self.limiter: RateLimiter | None = source if isinstance(source, RateLimiter) else None
        """If it is open."""
        self._block: AbstractAsyncContextManager[RateLimiter] | None = None
        self._attempt: _SharedOpening | None = None

    @property
    def is_given(self) -> bool:
        """Whether somebody else opened it, and will close it."""
        return isinstance(self._source, RateLimiter)

    async def open(self) -> RateLimiter:
        """The limiter; the first who asks opens it, and all others wait for that, and share its error."""
        while self.limiter is None:
            if (attempt := self._attempt) is not None:
                await attempt.is_over.wait()
                if attempt.error is not None:
                    raise attempt.error
                continue
            self._attempt = attempt = _SharedOpening(Asyncio().signal())
            try:
                self.limiter = await self._opened()
            except Exception as error:
                attempt.error = error
                raise
            finally:
                self._attempt = None
                attempt.is_over.give()
        return self.limiter

    async def _opened(self) -> RateLimiter:
        source: Any = self._source
        made = source if isinstance(source, Opening) else source()
        if inspect.isawaitable(made) and not isinstance(made, Opening):
            made = await made
        if not isinstance(made, RateLimiter) and hasattr(made, "__aenter__"):
            self._block = made
            made = await made.__aenter__()
        if not isinstance(made, RateLimiter):
            raise ValidationError("limiter", made, _HINT)
        return made

    async def close(self) -> None:
        """Close what was opened here; another start opens it again."""
        if self.is_given or (limiter := self.limiter) is None:
            return
        block, self._block, self.limiter = self._block, None, None
        if block is not None:
            await block.__aexit__(None, None, None)
        else:
            await limiter.close()


class HeldSyncLimiter:
    """A limiter for threads and processes that block."""

    def __init__(self, source: SyncRateLimiter | Callable[[], SyncRateLimiter]) -> None:
        if not isinstance(source, SyncRateLimiter) and (
            isinstance(source, RateLimiter) or not callable(source)
        ):
            raise ValidationError("limiter", source, _SYNC_HINT)
        self._source, self._lock = source, threading.Lock()
        self.limiter = source if isinstance(source, SyncRateLimiter) else None
        self._waiting = self._failures = 0
        self._error: Exception | None = None

    def open(self) -> SyncRateLimiter:
        """The limiter; the first who asks opens it, and all others wait for that, and share its error."""
        if self.limiter is not None:
            return self.limiter
        seen = self._failures
        self._waiting += 1
        with self._lock:
            self._waiting -= 1
            if self.limiter is None:
                if self._error is not None and self._failures > seen:
                    raise self._error
                try:
                    self.limiter = self._opened()
                except Exception as error:
                    self._failures, self._error = self._failures + 1, error
                    raise
        return self.limiter

    def _opened(self) -> SyncRateLimiter:
        made = self._source if isinstance(self._source, SyncRateLimiter) else self._source()
        if not isinstance(made, SyncRateLimiter):
            raise ValidationError("limiter", made, _SYNC_HINT)
        return made
