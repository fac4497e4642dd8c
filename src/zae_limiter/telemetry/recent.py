"""Who was refused lately, and by which limits or switch: a ring of the last ones, in this process only.

Whoever is refused again within a second, on the same resource for the same reason, adds to an entry that is
there. So a storm of refusals stays cheap, and does not push everybody else out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

from ..exceptions import RateLimitExceeded, SwitchedOff
from ..models.limits import LimitKind
from ..records.reports import Refusal

RECENT_MAX = 200
REPEAT_MS = 1_000
"""For how long repeats of a refusal are one entry."""

_Key: TypeAlias = tuple[str, str, tuple[str, ...], str]
"""Who was refused, on what, by which limits, and why if it was a switch."""


class _RefusalEntry:
    """A refusal as it is counted."""

    __slots__ = ("at_ms", "count", "first_ms", "is_latest", "key", "requested", "retry_after_ms")

    def __init__(self, key: _Key, now_ms: int) -> None:
        self.key, self.first_ms, self.at_ms, self.count = key, now_ms, now_ms, 0
        self.requested: Mapping[str, int] = {}
        self.retry_after_ms: int | None = None
        self.is_latest = False

    def told(self) -> Refusal:
        """The same for somebody to keep."""
        requested = {name: need // 1000 for name, need in self.requested.items()}
        entity_id, resource, limits, reason = self.key
        more = self.retry_after_ms, self.count, "", self.is_latest, reason
        return Refusal(self.at_ms, entity_id, resource, limits, requested, *more)


class Recent:
    """The last refusals of a process."""

    def __init__(self) -> None:
        self._entries: deque[_RefusalEntry] = deque(maxlen=RECENT_MAX)
        self._latest: dict[_Key, _RefusalEntry] = {}
        """Those that a repeat may still add to; never more than the ring holds."""

    def note(
        self,
        entity_id: str,
        resource: str,
        refusal: RateLimitExceeded | SwitchedOff,
        asked: Mapping[str, int],
        now_ms: int,
    ) -> Refusal:
        """Note a refusal, and what was asked for in millitokens; returns it as it is known now."""
        limits: tuple[str, ...] = ()
        wait_ms, is_latest, reason = math.inf, False, ""
        if isinstance(refusal, SwitchedOff):
            reason = refusal.reason
        else:
            limits = tuple(dict.fromkeys(status.limit_name for status in refusal.statuses if status.exceeded))
            worst = refusal.primary_violation
            wait_ms, is_latest = worst.retry_after_seconds * 1000, worst.kind is LimitKind.CONCURRENT
        key = entity_id, resource, limits, reason
        entry = self._latest.get(key)
        if entry is None or not 0 <= now_ms - entry.first_ms < REPEAT_MS:
            if len(self._latest) >= RECENT_MAX:
                self._latest = {}
            entry = self._latest[key] = _RefusalEntry(key, now_ms)
            self._entries.append(entry)
        entry.at_ms, entry.requested = now_ms, asked
        entry.retry_after_ms = None if math.isinf(wait_ms) else math.ceil(wait_ms)
        entry.is_latest = is_latest
        entry.count += 1
        return entry.told()

    def newest(self, most: int = RECENT_MAX) -> list[Refusal]:
        """What is known, the newest first."""
        told = [entry.told() for entry in reversed(self._entries.copy())]
        told.sort(key=lambda one: one.at_ms, reverse=True)
        return told[:most]
