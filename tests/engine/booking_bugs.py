"""Ways to break bookings that the random worlds and the simulation must notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zae_limiter.engine import booking
from zae_limiter.engine.account import Account
from zae_limiter.engine.posting import Posting
from zae_limiter.repository_protocol import NOTHING, Equal, Item, Update
from zae_limiter.schema import BOOKED, booking_attributes, limit_attributes, pinned

give_back, add = booking.give_back, booking._LimitTurns.add


def _poured(account: Account, credit: Mapping[str, int], image: Item) -> Update:
    amounts: dict[str, int] = {}
    for name, amount in credit.items():
        names = limit_attributes(name)
        amounts |= {names.tk: amount, names.tc: -amount}
    return Update(account.key, amounts, NOTHING, tuple(pinned(image, BOOKED)))


def refund_in_full(account: Account, posting: Posting, image: Item, now_ms: int) -> Update | None:
    """Who leaves the line gives everything back to those who come next."""
    if posting.booking is None:
        return give_back(account, posting, image, now_ms)
    return _poured(account, posting.credit, image)


def overtaking(account: Account, posting: Posting, image: Item, now_ms: int) -> Update | None:
    """What comes back is there for everybody at once."""
    if posting.booking is not None:
        return give_back(account, posting, image, now_ms)
    return _poured(account, posting.credit, image)


def not_cut_off(part: Any, *given: Any, **more: Any) -> None:
    """What flows over before a slot is still there."""
    add(part, *given, **more)
    part.brim = 10**12


def forget_how_high(shape: Any, name: str, high: int, *, known: bool, turned: bool) -> None:
    """Nobody knows how full the bucket gets before somebody's turn."""
    del high, turned
    names = booking_attributes(name)
    if not known:
        shape.set |= {names.back: 0, names.high: 0, names.higher: 0}
        shape.when.append(Equal(names.high, None))


BOOKING_BUGS: dict[str, dict[str, Any]] = {
    "refunded_in_full": {"zae_limiter.engine.booking.give_back": refund_in_full},
    "overtaking": {"zae_limiter.engine.booking.give_back": overtaking},
    "not_cut_off": {"zae_limiter.engine.booking._LimitTurns.add": not_cut_off},
    "high_forgotten": {"zae_limiter.engine.booking._Shape._raise": forget_how_high},
}
