"""What an HTTP answer says of a limit in its headers, whether the request was admitted or refused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .limits import Limit, LimitKind

if TYPE_CHECKING:
    from . import LimitStatus


class HeaderData:
    """What the statuses of leases and of refusals have in common.

    ``reset_after_seconds`` is the time until the next boundary of a calendar quota, or the end of a session
    window that was used; of any other limit until it is full, if nobody takes anything. Of a limit of
    concurrency that is the latest instant. ``next_after_seconds`` is the time until there is at least one
    token, 0 while there is. Both count from ``checked_at_ms``.
    """

    __slots__ = ()

    limit: Limit
    reset_after_seconds: float
    next_after_seconds: float
    checked_at_ms: int

    @property
    def kind(self) -> LimitKind:
        """Which kind of limit it is: a rate, a quota, a session, or one of concurrency."""
        return self.limit.kind

    @property
    def window_seconds(self) -> int | None:
        """In how many seconds the limit lets its refill through; ``None`` for one of concurrency."""
        return self.limit.window_seconds

    @property
    def unit(self) -> str | None:
        """What is counted, if that is money."""
        return self.limit.unit

    @property
    def reset_at_ms(self) -> int | None:
        """The instant of the reset, in milliseconds since the epoch; ``None`` if that never comes."""
        wait = self.reset_after_seconds
        return None if math.isinf(wait) else self.checked_at_ms + round(wait * 1000)


def header_fields(status: HeaderData, left: int) -> dict[str, Any]:
    """The same as plain JSON, for somebody's own limit; a time that never comes is ``None``."""
    waits = {
        "reset_after_seconds": status.reset_after_seconds,
        "next_after_seconds": status.next_after_seconds,
    }
    return {
        "kind": status.kind.value,
        "window_seconds": status.window_seconds,
        "remaining": max(0, left),
        **{name: None if math.isinf(wait) else wait for name, wait in waits.items()},
        "reset_at_ms": status.reset_at_ms,
    }


def own_limit(status: LimitStatus) -> dict[str, Any]:
    """What somebody is told of a limit of their own that was asked."""
    limit = status.limit.to_dict()
    place = {"resource": status.resource, "limit_name": limit.pop("name")}
    found = {"available": status.available, **others_limit(status)}
    return {**place, **limit, **found, **header_fields(status, status.available)}


def others_limit(status: LimitStatus) -> dict[str, Any]:
    """What is told of somebody else's: its name, and how long to wait."""
    found = {"resource": status.resource, "limit_name": status.limit_name, "requested": status.requested}
    found |= {"exceeded": status.exceeded, "retry_after_seconds": _finite(status.retry_after_seconds)}
    return found if status.limit.unit is None else {**found, "unit": status.limit.unit}


def _finite(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds
