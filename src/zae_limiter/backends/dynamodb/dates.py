"""What DynamoDB says of its own time: the ``Date`` of each reply, which is cut to the second.

Whoever sends a request notes the tick before, and hands on the date of whatever comes back. A reply without
a date that can be read says nothing.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from ...runtime.world import World

COARSE_MS = 1_000
LITTLE_MS = 10
"""Replies of the same date that follow each other this closely have no more to say than the first."""


class Dates:
    """Tells a world the time that DynamoDB shows."""

    def __init__(self, world: World) -> None:
        self.ticks_ms, self._observe = world.ticks_ms, world.observe
        self._last: tuple[str | bytes, int | None, float] = ("", None, 0.0)

    def read(self, date: str | bytes | None, sent_ms: float) -> None:
        """Take the date of a reply to a request that was not sent before the tick ``sent_ms``."""
        if not date:
            return
        last, shown_s, told_ms = self._last
        if date != last:
            shown_s = seconds_of(date)
        elif sent_ms < told_ms + LITTLE_MS:
            return
        self._last = date, shown_s, sent_ms
        if shown_s is not None:
            self._observe(shown_s * 1000, shown_s * 1000 + COARSE_MS, sent_ms, self.ticks_ms())


def seconds_of(date: str | bytes) -> int | None:
    """The second that a date of HTTP stands for, if it is one."""
    try:
        moment = parsedate_to_datetime(date if isinstance(date, str) else date.decode("latin-1"))
        return int(moment.timestamp()) if moment.tzinfo is not None else None
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
