"""Who waits for seats, as a bucket tells it to all processes: the one who asked first is first. Pure.

Whoever waits announces itself: since when, for how many seats, and for how long that is to be believed. As
many seats as those want who asked before are as good as taken for everybody behind them. A waiter that takes
its seats takes its announcement off by the same write, which also pins what all others have announced, so
whoever wrote last, nobody is overtaken. One that is not heard of any more delays others for a few seconds. A
bucket that nobody waits for says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from ..repository_protocol import Item
from ..schema import text

WAITERS_MAX = 8
"""How many processes a bucket tells of that wait; later ones wait until there is room."""

VALID_MS = 3_000
"""For how long an announcement is believed; it is renewed when half of that is over."""

AHEAD_MS = 2_000
"""By how much clocks of processes are off at most, if they are honest."""

TICKETS_PER_MS = 1_000
"""Tells those apart who asked within a millisecond."""


_TOLD = re.compile(r"([0-9]{1,19}):([0-9]{1,19}):([0-9]{1,19})")
"""One entry; longer numbers nobody has written who waits."""


class Announcement(NamedTuple):
    """One who waits for seats of a limit."""

    ticket: int
    """When it asked; the smaller is first."""
    until_ms: int
    seats: int

    def is_believed(self, now_ms: int) -> bool:
        return now_ms < self.until_ms <= now_ms + VALID_MS + AHEAD_MS


@lru_cache(4096)
def waiters_attribute(name: str) -> str:
    """Where a bucket tells who waits for seats of a limit, while somebody does."""
    return f"b_{name}_wt"


def waiters(image: Item, name: str, now_ms: int) -> list[Announcement]:
    """Who waits for seats of a limit, the first first."""
    told = map(_TOLD.fullmatch, (text(image, waiters_attribute(name)) or "").split()[:WAITERS_MAX])
    found = (Announcement(*map(int, entry.groups())) for entry in told if entry is not None)
    return sorted(waiter for waiter in found if waiter.is_believed(now_ms))


def ahead(image: Item, name: str, ticket: int | None, now_ms: int) -> list[Announcement]:
    """Who of these is before somebody; whoever does not wait is behind all."""
    return [it for it in waiters(image, name, now_ms) if ticket is None or it.ticket < ticket]


def said(there: Iterable[Announcement]) -> str | None:
    """What a bucket says of those who wait."""
    return " ".join(":".join(map(str, it)) for it in there) or None


def without(image: Item, name: str, ticket: int | None, now_ms: int) -> str | None:
    """What a bucket says once somebody has its seats, and those are gone who are not heard of any more."""
    return said(it for it in waiters(image, name, now_ms) if it.ticket != ticket)
