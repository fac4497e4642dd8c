"""Who was refused lately, and by which limits: a ring of the last ones, in this process only.

Whoever is refused again within a second, on the same resource by the same limits, adds to an entry that is
there. So a storm of refusals stays cheap, and does not push everybody else out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from ..exceptions import RateLimitExceeded
from ..records.reports import Refusal

RECENT_MAX = 200
REPEAT_MS = 1_000
"""For how long repeats of a refusal are one entry."""


class _RefusalEntry:
    """A refusal as it is counted."""

    __slots__ = ("at_ms", "count", "first_ms", "key", "requested", "retry_after_ms")

    def __init__(self, key: tuple[str, str, tuple[str, ...]], now_ms: int) -> None:
        self.key, self.first_ms, self.at_ms, self.count = key, now_ms, now_ms, 0
        self.requested: Mapping[str, int] = {}
        self.retry_after_ms: int | None = None

    def told(self) -> Refusal:
        """The same for somebody to keep."""
        requested = {name: need // 1000 for name, need in self.requested.items()}
        return Refusal(self.at_ms, *self.key, requested, self.retry_after_ms, self.count)


class Recent:
    """The last refusals of a process."""

    def __init__(self) -> None:
        self._entries: deque[_RefusalEntry] = deque(maxlen=RECENT_MAX)
        self._latest: dict[tuple[str, str, tuple[str, ...]], _RefusalEntry] = {}
        """Those that a repeat may still add to; never more than the ring holds."""

    def note(
        self, entity_id: str, resource: str, refusal: RateLimitExceeded, asked: Mapping[str, int], now_ms: int
    ) -> Refusal:
        """Note a refusal, and what was asked for in millitokens; returns it as it is known now."""
        limits = tuple(dict.fromkeys(status.limit_name for status in refusal.statuses if status.exceeded))
        key = entity_id, resource, limits
        entry = self._latest.get(key)
        if entry is None or not 0 <= now_ms - entry.first_ms < REPEAT_MS:
            if len(self._latest) >= RECENT_MAX:
                self._latest = {}
            entry = self._latest[key] = _RefusalEntry(key, now_ms)
            self._entries.append(entry)
        entry.at_ms, entry.requested = now_ms, asked
        wait_ms = refusal.retry_after_seconds * 1000
        entry.retry_after_ms = None if math.isinf(wait_ms) else math.ceil(wait_ms)
        entry.count += 1
        return entry.told()

    def newest(self, most: int = RECENT_MAX) -> list[Refusal]:
        """What is known, the newest first."""
        told = [entry.told() for entry in reversed(self._entries.copy())]
        told.sort(key=lambda one: one.at_ms, reverse=True)
        return told[:most]
