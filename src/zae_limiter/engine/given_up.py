"""Bookings of this process that nobody wants any more and that others booked behind.

Who gives up undoes its booking if that is the last. Else it is remembered here, and undone by a later write
once those behind it are gone as well. It is off the list *before* that write goes out, and comes back only if
the store says that nothing was written: undone twice, it would give somebody else's place away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ..repository_protocol import Item, Key, Outcome, Write
from .account import Account
from .bucket_view import Standing
from .posting import Posting
from .set_aside import GivenUp, GivingBack, give_back

GIVEN_UP_MAX = 10_000
"""How many bookings of a bucket are remembered; older ones pass by unused."""

GIVING_MAX = 1_000
"""How many writes that undo something may be under way; more than that were never sent."""

Giving: TypeAlias = dict[int, tuple[GivingBack, Sequence[GivenUp]]]
"""The writes under way that undo something, by their identity, with what they took off the list."""


class GivenUpBookings:
    """What could not be undone yet, by bucket and by where the booking left it."""

    def __init__(self, giving: Giving | None = None) -> None:
        self._by_key: dict[Key, dict[Standing, GivenUp]] = {}
        self._giving: Giving = {} if giving is None else giving

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def giving_back(self, account: Account, posting: Posting, image: Item, now_ms: int) -> GivingBack | None:
        """What gives a posting back, and undoes what is the last then; ``None`` if there is no such thing."""
        known = self._by_key.pop(account.key, {})  # at once, for other threads may want to undo the same
        given = give_back(account, posting, image, now_ms, known)
        claimed = []
        for it in given.undone if given is not None else ():
            if known.get(it.booking.left) is it:
                claimed.append(known.pop(it.booking.left))
        self._keep(account.key, known)
        if given is not None:
            self._giving[id(given.write)] = given, claimed
            if len(self._giving) > GIVING_MAX:
                del self._giving[next(iter(self._giving))]
        return given

    def learn(self, write: Write, outcome: Outcome, now_ms: int) -> None:
        """Note what became of a write, if it is one that gives bookings back."""
        given, claimed = self._giving.pop(id(write), (None, ()))
        if given is None or given.write is not write:  # an identity that a forked process has inherited
            return
        if outcome.applied:
            self._remember(write.key, given.left, now_ms)
        elif outcome.failure is None or not outcome.failure.ambiguous:
            self._remember(write.key, claimed, now_ms)

    def _remember(self, key: Key, given_up: Iterable[GivenUp], now_ms: int) -> None:
        """Add bookings whose slots have not passed."""
        self._keep(key, {it.booking.left: it for it in given_up if it.booking.latest_ms > now_ms})
        known = self._by_key.get(key, {})
        while known and (len(known) > GIVEN_UP_MAX or next(iter(known.values())).booking.latest_ms <= now_ms):
            del known[next(iter(known))]

    def _keep(self, key: Key, known: dict[Standing, GivenUp]) -> None:
        if known and (kept := self._by_key.setdefault(key, known)) is not known:
            kept |= known
