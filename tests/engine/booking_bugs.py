"""Ways to break bookings that the random worlds and the simulation must notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zae_limiter.engine import booking, set_aside
from zae_limiter.engine.account import Account
from zae_limiter.engine.bucket_view import Standing
from zae_limiter.engine.posting import Posting
from zae_limiter.engine.set_aside import NOTHING_GIVEN_UP, GivenUp, GivingBack
from zae_limiter.repository_protocol import NOTHING, Equal, Item, Update
from zae_limiter.schema import BOOKED, booking_attributes, limit_attributes, pinned

give_back, add = set_aside.give_back, booking._LimitTurns.add


def _poured(account: Account, credit: Mapping[str, int], image: Item) -> GivingBack:
    amounts: dict[str, int] = {}
    for name, amount in credit.items():
        names = limit_attributes(name)
        amounts |= {names.tk: amount, names.tc: -amount}
    return GivingBack(Update(account.key, amounts, NOTHING, tuple(pinned(image, BOOKED))), (), ())


def refund_in_full(
    account: Account,
    posting: Posting,
    image: Item,
    now_ms: int,
    given_up: Mapping[Standing, GivenUp] = NOTHING_GIVEN_UP,
) -> GivingBack | None:
    """Who leaves the line gives everything back to those who come next."""
    if posting.booking is None and not posting.turns:
        return give_back(account, posting, image, now_ms, given_up)
    return _poured(account, posting.credit, image)


def overtaking(
    account: Account,
    posting: Posting,
    image: Item,
    now_ms: int,
    given_up: Mapping[Standing, GivenUp] = NOTHING_GIVEN_UP,
) -> GivingBack | None:
    """What comes back is there for everybody at once."""
    if posting.booking is not None or posting.turns:
        return give_back(account, posting, image, now_ms, given_up)
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


GIVING_BACK = "bucket_writes", "given_up"

BOOKING_BUGS: dict[str, dict[str, Any]] = {
    "refunded_in_full": {f"zae_limiter.engine.{place}.give_back": refund_in_full for place in GIVING_BACK},
    "overtaking": {f"zae_limiter.engine.{place}.give_back": overtaking for place in GIVING_BACK},
    "not_cut_off": {"zae_limiter.engine.booking._LimitTurns.add": not_cut_off},
    "high_forgotten": {"zae_limiter.engine.booking._Shape._raise": forget_how_high},
}
