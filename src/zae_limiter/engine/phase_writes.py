"""Writes to a bucket with limits whose numbers change with the time of day. Pure.

They are the ordinary ones, shaped for the bucket as it is in the phase of the instant. The first write of a
phase makes it so by the way, and holds only for the very image; it moves the origin to the boundary, so that
whatever was shaped for the numbers of before is refused.

Nobody is booked beyond the end of a phase: who does not fit before it waits until then and books anew.
"""

from __future__ import annotations

from collections.abc import Callable

from ..repository_protocol import Item, Put, Update, Write
from ..schema import PHASE, bucket_limit_names, limit_attributes, stored_rate
from .account import Account, Terms
from .phased import begun_ms, ends_ms, in_phase, instant, terms_at, unphased
from .posting import Posting
from .rebase import rebase
from .set_aside import as_a_whole


def phased(
    shape: Callable[[Account, Posting, Item | None, int], Write | None],
    account: Account,
    posting: Posting,
    image: Item | None,
    now_ms: int,
) -> Write | None:
    """What a write is that is shaped for a bucket in the phase of the instant."""
    view = None if image is None else in_phase(image, now_ms)
    at_ms = instant(view, now_ms)
    inside = account._replace(terms=terms_at(account.terms, at_ms))
    plain = None if view is None else unphased(view)
    write = shape(inside, within_phase(account.terms, posting, view, now_ms), plain, now_ms)
    if isinstance(write, Put):
        began_ms = inside.terms.phase_ms
        return write if began_ms is None else write._replace(item={**write.item, PHASE: began_ms})
    if isinstance(write, Update) and view is not None and image is not None:
        if "rf" in write.set:  # its numbers are others from now on, or counted from another instant
            write = write._replace(set={**write.set, PHASE: _began_ms(inside, view, write, at_ms)})
        if view is not image:
            return as_a_whole(write, view, image)
    return write


def brought_up_to_date(account: Account, image: Item, now_ms: int) -> Update:
    """The write that gives a bucket the numbers of its terms, and takes nothing."""
    if account.terms.scheduled or PHASE in image:
        write = phased(_rebased, account, Posting(), image, now_ms)
        assert isinstance(write, Update), "a bucket that is there is not made"
        return write
    return rebase(account, Posting(), image, now_ms)


def _rebased(account: Account, posting: Posting, image: Item | None, now_ms: int) -> Write | None:
    return None if image is None else rebase(account, posting, image, now_ms)


def _began_ms(account: Account, image: Item, write: Update, at_ms: int) -> int | None:
    """Since when a bucket has the numbers that a write gives it."""
    kept = [
        name for name in bucket_limit_names(image) if write.set.get(limit_attributes(name).cp, 0) is not None
    ]
    rates = {name: rate for name in kept if (rate := stored_rate(image, name)) is not None}
    return begun_ms({**rates, **account.terms.rates}, at_ms)


def within_phase(terms: Terms, posting: Posting, image: Item | None, now_ms: int) -> Posting:
    """A posting whose bookings are for no later than the end of the phase."""
    if posting.booking is None and not posting.turns:
        return posting
    turns = tuple(within_phase(terms, turn, image, now_ms) for turn in posting.turns)
    end_ms, booking = ends_ms(terms.rates, instant(image, now_ms)), posting.booking
    if booking is not None and end_ms is not None and posting.need:
        booking = booking._replace(latest_ms=min(booking.latest_ms, end_ms - 1))
    return posting._replace(booking=booking, turns=turns)
