"""What comes back to a bucket while somebody waits for it, and how a line ends. Pure.

See ``booking`` for the rule: what comes back is set aside for those who book later, as much of it as the
bucket could really hold, and a booking that nobody has booked behind is undone. What an operator has ended
(``operator_writes``) was given back by that: whoever gives it up gets nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..repository_protocol import NOTHING, AtMost, Condition, Equal, Item, Update, Value, apply
from ..schema import (
    BOOKED,
    BOOKED_SINCE,
    LIFE,
    booking_attributes,
    limit_attributes,
    number,
    pinned,
    stored_rate,
)
from .account import WRITE_MILLI, Account, Meter
from .bucket_view import Standing, ended_attribute, standing, tokens_of
from .law import gain
from .posting import COUNT, Booking, Posting


class GivenUp(NamedTuple):
    """A booking that nobody wants any more, and what of it was set aside for others."""

    booking: Booking
    credit: Mapping[str, int]
    kept: Mapping[str, int] = NOTHING


NOTHING_GIVEN_UP: Mapping[Standing, GivenUp] = {}


class GivingBack(NamedTuple):
    """The write that gives something back while somebody waits, and what it does about bookings."""

    write: Update
    undone: Sequence[GivenUp]
    left: Sequence[GivenUp]
    """Those that others booked behind."""


def give_back(
    account: Account,
    posting: Posting,
    image: Item,
    now_ms: int,
    given_up: Mapping[Standing, GivenUp] = NOTHING_GIVEN_UP,
) -> GivingBack | None:
    """Give back while somebody waits: to those who book later, as much of it as the bucket could hold.

    What was booked, and nobody has booked since, is given back as if it had not been: with its place. So are
    bookings that were ``given_up`` before, by where they left the bucket, once those behind them are gone.
    """
    credit = {n: amount for n, amount in posting.credit.items() if stored_rate(image, n) is not None}
    own = [
        GivenUp(p.booking, {n: amount for n, amount in p.credit.items() if not is_ended(p.booking, n, image)})
        for p in posting.turns or (posting,)
        if p.booking is not None
    ]
    if not credit and not given_up:
        return None
    ended = given_before(posting, image)
    add: dict[str, int] = {limit_attributes(name).tc: -amount for name, amount in credit.items()}
    if account.meter is not Meter.NONE and COUNT.tk in image:
        add[COUNT.tk], add[COUNT.tc] = -WRITE_MILLI, WRITE_MILLI
    when: list[Condition] = [*pinned(image, BOOKED_SINCE), *pinned(image, LIFE)]
    if own:
        when += [pin for name in credit for pin in pinned(image, ended_attribute(name))]
    after, undone = _undo(image, own, given_up, now_ms)
    left, gone = [], {id(it) for it in undone}
    for it in own:
        if id(it) not in gone:
            kept = {name: room for name, n in it.credit.items() if (room := room_for(name, n, after, now_ms))}
            left.append(it._replace(kept=kept))
            for name, amount in kept.items():
                for attribute in booking_attributes(name):
                    after[attribute] = number(after, attribute) + amount
    if undone:
        set_ = {name: value for name, value in after.items() if value != image.get(name)}
        counts = (ended_attribute(name) for it in undone for name in it.credit if name not in credit)
        same = dict.fromkeys((*set_, *tokens_of(image), "rf", BOOKED, *counts))
        when += [pin for attribute in same for pin in pinned(image, attribute)]
        return GivingBack(Update(account.key, add, set_, tuple(when)), undone, left)
    for name, amount in credit.items():
        back = amount - ended.get(name, 0)
        if back and (for_all := set_aside(name, back, image, now_ms, add, when)):
            add[limit_attributes(name).tk] = for_all
    return GivingBack(Update(account.key, add, NOTHING, tuple(when)), (), left)


def is_ended(booking: Booking, name: str, image: Item) -> bool:
    """Whether an operator has ended what was booked of a limit."""
    count = ended_attribute(name)
    return dict(booking.left).get(count, 0) != number(image, count)


def given_before(posting: Posting, image: Item) -> dict[str, int]:
    """What is given up of bookings that an operator has ended: the bucket has got it by that."""
    amounts: dict[str, int] = {}
    for part in posting.turns or (posting,):
        for name, amount in part.credit.items() if part.booking is not None else ():
            assert part.booking is not None
            if is_ended(part.booking, name, image):
                amounts[name] = amounts.get(name, 0) + amount
    return amounts


def _undo(
    image: Item, own: Sequence[GivenUp], given_up: Mapping[Standing, GivenUp], now_ms: int
) -> tuple[dict[str, Value], list[GivenUp]]:
    """A bucket without the bookings that were the last of it, the last one first; and which these are."""
    after, undone = dict(image), list[GivenUp]()
    leaving = {it.booking.left: it for it in own}
    for _ in range(len(own) + len(given_up)):
        there = standing(after)
        it = leaving.get(there) or given_up.get(there)
        if it is None or it.booking.latest_ms <= now_ms:
            break
        booking, set_ = it.booking, dict[str, Value]()
        for name, amount in it.credit.items():
            tokens, back = limit_attributes(name).tk, booking_attributes(name).back
            drawn = booking.drawn.get(name, 0)
            set_[tokens] = booking.before.get(name, number(after, tokens) + amount - drawn)
            if drawn or it.kept.get(name):
                set_[back] = number(after, back) + drawn - it.kept.get(name, 0)
        if any(number(set_, attribute) < 0 for attribute in set_ if attribute.endswith("_bb")):
            break  # what was set aside of it is somebody's by now
        after |= set_
        if booking.over_ms is not None:
            after[BOOKED] = max(booking.over_ms, now_ms)
        undone.append(it)
    return after, undone


def flow_over(name: str, brim: int, image: Item, set_: dict[str, Value], when: list[Condition]) -> int | None:
    """Cut off what a limit holds beyond the brim together with what came back; returns what it holds then.

    ``None`` if there is no such thing: nobody waits for it, nothing came back, or both have room.
    """
    tokens, back = limit_attributes(name).tk, booking_attributes(name).back
    stored, aside = number(image, tokens), number(image, back)
    if back not in image:
        return None
    if (room := brim - stored - aside) >= 0:
        when += _within(name, room, image)
        return None
    found = min(stored, brim)
    set_[back] = brim - found
    when += [Equal(tokens, stored), Equal(back, aside)]
    return found


def room_for(name: str, amount: int, image: Item, now_ms: int) -> int:
    """How much of what comes back to a limit that somebody waits for there is room for.

    That is now, and before everybody's turn.
    """
    names, rate = booking_attributes(name), stored_rate(image, name)
    if names.high not in image or rate is None:
        return 0
    brim = rate.capacity_milli - gain(rate, number(image, "rf"), now_ms)
    room = brim - number(image, limit_attributes(name).tk) - number(image, names.back)
    return max(0, min(amount, room, rate.capacity_milli - number(image, names.higher)))


def set_aside(
    name: str, amount: int, image: Item, now_ms: int, add: dict[str, int], when: list[Condition]
) -> int:
    """Set aside what comes back to a limit that somebody waits for; returns what is there for all."""
    names, rate = booking_attributes(name), stored_rate(image, name)
    if names.high not in image or rate is None:
        when.append(Equal(names.high, None))
        return amount
    if kept := room_for(name, amount, image, now_ms):
        brim = rate.capacity_milli - gain(rate, number(image, "rf"), now_ms)
        room = brim - number(image, limit_attributes(name).tk) - number(image, names.back) - kept
        add |= {names.back: kept, names.high: kept, names.higher: kept}
        when += [AtMost(names.higher, rate.capacity_milli - kept), *_within(name, room, image)]
    return 0


def _within(name: str, room: int, image: Item) -> tuple[Condition, Condition]:
    """The conditions that a limit, and what came back to it, have together not grown by more than this."""
    tokens, back = limit_attributes(name).tk, booking_attributes(name).back
    stored, aside = number(image, tokens), number(image, back)
    return AtMost(tokens, stored + room // 2), AtMost(back, aside + room - room // 2)


def as_a_whole(write: Update, plain: Item, image: Item) -> Update:
    """A write that was shaped for a bucket without its line, for the bucket whose line is over.

    It puts back what was set aside, so it holds only for the very image.
    """
    done = apply(write, plain)
    if not done.applied or done.item is None:
        return write  # which says that there is no line, and is refused
    names = dict.fromkeys((*image, *done.item))
    changed = {name: done.item.get(name) for name in names if done.item.get(name) != image.get(name)}
    asked = [getattr(condition, "attribute", "rf") for condition in write.when]
    pins = [pin for name in dict.fromkeys((*asked, *changed)) for pin in pinned(image, name)]
    return Update(write.key, NOTHING, changed, tuple(pins))
