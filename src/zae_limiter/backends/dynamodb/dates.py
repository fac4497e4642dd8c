"""What DynamoDB says of its own time: the ``Date`` of each reply, which is cut to the second.

Whoever sends a request notes the tick before, and hands on the date of whatever comes back. A reply without
a date that can be read says nothing.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from ...runtime.world import World

COARSE_MS = 1_000


class Dates:
    """Tells a world the time that DynamoDB shows."""

    def __init__(self, world: World) -> None:
        self.ticks_ms = world.ticks_ms
        self._observe = world.observe
        self._last: tuple[str, int | None] = ("", None)

    def read(self, date: str | None, sent_ms: float) -> None:
        """Take the date of a reply to a request that was not sent before the tick ``sent_ms``."""
        if not date:
            return
        last, shown_s = self._last
        if date != last:
            shown_s = seconds_of(date)
            self._last = date, shown_s
        if shown_s is not None:
            shown_ms = shown_s * 1000
            self._observe(shown_ms, shown_ms + COARSE_MS, sent_ms, self.ticks_ms())


def seconds_of(date: str) -> int | None:
    """The second that a date of HTTP stands for, if it is one."""
    try:
        moment = parsedate_to_datetime(date)
        return int(moment.timestamp()) if moment.tzinfo is not None else None
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
