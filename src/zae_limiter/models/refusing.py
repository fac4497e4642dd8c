"""Limits that would refuse even the smallest demand, and until when: as values, as sentences, as headers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ..exceptions import RETRY_NEVER_HEADER_SECONDS
from .accruals import CONCURRENT, LASTING, period_and_zone, zone_of
from .limits import Limit
from .money import shown_amount

POINTLESS_SECONDS = 120
"""Clients that read ``x-should-retry`` give up on longer waits in any case."""


def retry_headers(wait_seconds: float) -> list[tuple[str, str]]:
    """What whoever was refused over HTTP is told of its wait, which may be ``inf``.

    >>> retry_headers(1.25)
    [('Retry-After', '2'), ('retry-after-ms', '1250')]
    """
    if math.isinf(wait_seconds):
        return [("Retry-After", str(RETRY_NEVER_HEADER_SECONDS)), ("x-should-retry", "false")]
    ms = math.ceil(round(wait_seconds * 1000, 3))  # what came from whole milliseconds is not rounded twice
    headers = [("Retry-After", str(-(-ms // 1000))), ("retry-after-ms", str(ms))]
    return [*headers, ("x-should-retry", "false")] if wait_seconds > POINTLESS_SECONDS else headers


@dataclass(frozen=True, slots=True)
class Refusing:
    """A limit that cannot cover a single token of somebody's bucket now; its text is a sentence.

    ``until_ms`` is the first instant at which it can, if nobody takes or gives back anything meanwhile;
    ``None`` if that never comes. Of a limit of concurrency it is when a seat is free at the latest. Where it
    is below zero because somebody waits for it, ``booked_until_ms`` says by when that one has had its turn.
    """

    entity_id: str
    limit: Limit
    available: int
    checked_at_ms: int
    until_ms: int | None
    booked_until_ms: int | None = None

    @property
    def retry_after_seconds(self) -> float | None:
        """How long that is from when it was looked at."""
        return None if self.until_ms is None else (self.until_ms - self.checked_at_ms) / 1000

    def __str__(self) -> str:
        return f"{self.limit.name!r} of {self.entity_id!r} refuses: {self._why()}; {self._until()}"

    def _why(self) -> str:
        limit, unit = self.limit, self.limit.unit
        if limit.accrual == CONCURRENT:
            seats = f"all {limit.capacity} seats are" if limit.capacity > 1 else "the only seat is"
            return f"{seats} held"
        if self.booked_until_ms is not None:
            until = self._instant(self.booked_until_ms).removeprefix("at ")
            return f"somebody waits for it until {until} and has booked what comes before"
        if self.available < 0:
            return f"it is {shown_amount(-self.available, unit)} in debt"
        return f"nothing of {shown_amount(limit.capacity, unit)} is left"

    def _until(self) -> str:
        if self.until_ms is None:
            return "that does not pass by itself"
        again = "one is free" if self.limit.accrual == CONCURRENT else "there is some again"
        when = f"{again} in {span(self.until_ms - self.checked_at_ms)}, {self._instant(self.until_ms)}"
        return f"{when}, or as soon as somebody ends" if self.limit.accrual == CONCURRENT else when

    def _instant(self, at_ms: int) -> str:
        """An instant in the zone of the limit, rounded up to a second."""
        accrual = self.limit.accrual
        tz = "UTC" if accrual is None or accrual in LASTING else period_and_zone(accrual)[1]
        at = datetime.fromtimestamp(0, UTC) + timedelta(seconds=-(-at_ms // 1000))
        return f"at {at.astimezone(zone_of(tz)):%Y-%m-%d %H:%M:%S} {tz}"


def span(ms: int) -> str:
    """How long something takes, in the two largest units that say it; never less than it is.

    >>> [span(ms) for ms in (1, 1_250, 60_000, 5_400_001, 2_851_200_000)]
    ['0.1 s', '1.3 s', '1 min', '1 h 31 min', '33 d']
    """
    if ms < 60_000:
        return f"{-(-ms // 100) / 10:g} s"
    for (large, one_ms), (small, part_ms) in _UNITS:
        if ms >= one_ms:
            whole, rest = divmod(-(-ms // part_ms) * part_ms, one_ms)
            return f"{whole} {large}" + (f" {rest // part_ms} {small}" if rest else "")
    raise AssertionError(f"{ms} milliseconds are no minute")


_S, _MIN, _H, _D = ("s", 1_000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)
_UNITS = (_D, _H), (_H, _MIN), (_MIN, _S)
