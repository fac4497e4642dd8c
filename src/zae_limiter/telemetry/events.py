"""What happens to acquires and to the store, told one by one: frozen values for a hook, and records of a log.

The hook is called where it happens, on the way of an acquire, so it should be quick. What it raises never
reaches the acquire: that is logged, once. An event names an entity; its record in the log does only if asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

logger: logging.Logger = logging.getLogger("zae_limiter")
events_logger: logging.Logger = logging.getLogger("zae_limiter.events")


class EventKind(StrEnum):
    """The names of events; they stay what they are."""

    REFUSED = "refused"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"
    DISABLED = "disabled"
    DENIED = "denied"
    SOFT_EXCEEDED = "soft_exceeded"
    REFUND_LOST = "refund_lost"
    SEAT_LOST = "seat_lost"
    STORE_TROUBLE = "store_trouble"


@dataclass(frozen=True, slots=True)
class TelemetryEvent:
    """Something that happened: what, when, and to whom."""

    kind: EventKind
    at_ms: int
    entity_id: str | None = None
    resource: str | None = None
    limits: tuple[str, ...] = ()
    """Those that refused, or would have if they were not soft."""
    retry_after_ms: int | None = None
    count: int = 1
    detail: str = ""
    """More for people; it may name entities."""


EventHook = Callable[[TelemetryEvent], object]

_LEVELS = {
    EventKind.REFUSED: logging.INFO,
    EventKind.SOFT_EXCEEDED: logging.INFO,
    EventKind.DISABLED: logging.INFO,
    EventKind.DENIED: logging.INFO,
}
"""All others are warnings."""


class SafeHook:
    """A hook whose exceptions are logged once, and reach nobody."""

    def __init__(self, hook: EventHook) -> None:
        self._hook, self._has_failed = hook, False

    def __call__(self, event: TelemetryEvent) -> None:
        try:
            self._hook(event)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                logger.exception("the hook for events raised; further exceptions of it are not logged")


class EventLog:
    """A hook that writes events to the logger ``zae_limiter.events``, with fields beside the message."""

    def __init__(self, *, with_entities: bool = False) -> None:
        self._with_entities = with_entities

    def __call__(self, event: TelemetryEvent) -> None:
        level = _LEVELS.get(event.kind, logging.WARNING)
        if not events_logger.isEnabledFor(level):
            return
        extra: dict[str, object] = {"event": event.kind.value, "at_ms": event.at_ms, "count": event.count}
        if event.resource is not None:
            extra["resource"] = event.resource
        if event.limits:
            extra["limits"] = list(event.limits)
        if event.retry_after_ms is not None:
            extra["retry_after_ms"] = event.retry_after_ms
        if self._with_entities and event.entity_id is not None:
            extra["entity_id"] = event.entity_id
        place = "" if event.resource is None else f" on {event.resource!r}"
        who = f" of {event.entity_id!r}" if "entity_id" in extra else ""
        by = f" by {', '.join(event.limits)}" if event.limits else ""
        events_logger.log(level, "%s%s%s%s", event.kind.value, who, place, by, extra=extra)
