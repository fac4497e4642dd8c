"""What a write is to do to a bucket, and how the writes themselves are counted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..models import NUMBER_MAX
from ..naming import WCU
from ..repository_protocol import NOTHING, AtLeast, AtMost, Condition, Equal, Item, Value
from ..schema import limit_attributes, number, pinned, rate_attributes, shard_attributes, stored_rate
from .account import WRITE_MILLI, WRITES, Account, Meter
from .bucket_view import Standing, has_same_terms, shard_count
from .law import Rate, gain
from .seats import SeatMove
from .shares import SHARDS_MAX

COUNT = limit_attributes(WCU)
"""Where a bucket counts the writes to itself."""

_COUNTS = rate_attributes(WCU, WRITES)


class Booking(NamedTuple):
    """When somebody may begin who waits for a need; or, for what is given back, how it was booked."""

    latest_ms: int
    earliest_ms: int = 0
    left: Standing = frozenset()
    """Where the booking left the bucket."""
    drawn: Mapping[str, int] = NOTHING
    """How much less there is since of that which had come back."""
    before: Mapping[str, int] = NOTHING
    """What it found of limits that would have flown over by then, and were cut off."""
    over_ms: int | None = None
    """When everybody else had had its turn, if that is known."""
    since_ms: int = 0
    """When it was asked for; 0 is before all others."""


class Posting(NamedTuple):
    """What one write does to an account, in millitokens by limit.

    ``need`` is taken if the balance covers it, ``debit`` is taken in any case and may leave debt,
    ``credit`` is given back.
    """

    need: Mapping[str, int] = NOTHING
    debit: Mapping[str, int] = NOTHING
    credit: Mapping[str, int] = NOTHING
    largest: Mapping[str, int] = NOTHING
    """The largest single need where several are posted as one."""
    hold: int = 0
    """Marks a need that is given back if another bucket refuses its part of the same acquire."""
    booking: Booking | None = None
    """Somebody waits for the need, or gives back what was booked."""
    turns: tuple[Posting, ...] = ()
    """One after another, where somebody waits or gives up."""
    seats: tuple[SeatMove, ...] = ()
    """Seats that are taken, which are needs too, given back or renewed."""

    def __repr__(self) -> str:
        parts = [f"{name}={dict(part)}" for name, part in zip(self._fields, self[:3], strict=False) if part]
        if back := {move.name: -move.amount for move in self.seats if move.amount < 0}:
            parts.append(f"seats={back}")
        return f"Posting({', '.join(parts)})"

    @property
    def names(self) -> Iterable[str]:
        if self.debit or self.credit:
            return dict.fromkeys((*self.need, *self.debit, *self.credit))
        return self.need


class Order(NamedTuple):
    """A posting to be carried out on an account."""

    account: Account
    posting: Posting

    def goes_with(self, other: Order) -> bool:
        """Whether one write can carry out both: for those who wait, or for the others."""
        one, two = self.posting, other.posting
        if (one.booking is None) != (two.booking is None):
            return False
        if one.booking is not None and bool(one.need) != bool(two.need):
            return False
        if (one.seats or two.seats) and any(move.later for move in (*one.seats, *two.seats)):
            return False  # whoever renews is told whether it did
        return has_same_terms(self.account, other.account)


def alike(postings: Sequence[Posting]) -> Posting | None:
    """What several postings are that all take the same, and do nothing else; the usual case."""
    first = postings[0] if postings else Posting()
    is_plain = first == Posting(first.need, hold=first.hold) and all(first.need.values())
    return first if is_plain and first.need and postings.count(first) == len(postings) else None


def merged(postings: Sequence[Posting]) -> Posting:
    """Several postings as one."""
    if (each := alike(postings)) is not None:
        need = {name: amount * len(postings) for name, amount in each.need.items()}
        return Posting(need, largest=each.need, hold=each.hold)
    need, debit, credit, largest = dict[str, int](), dict[str, int](), dict[str, int](), dict[str, int]()
    for posting in postings:
        for name, amount in posting.need.items():
            largest[name] = max(amount, largest.get(name, 0))
        for total, part in ((need, posting.need), (debit, posting.debit), (credit, posting.credit)):
            for name, amount in part.items():
                total[name] = total.get(name, 0) + amount
    turns = tuple(postings) if postings and postings[0].booking is not None else ()
    seats = tuple(move for posting in postings for move in posting.seats)
    hold = max((posting.hold for posting in postings), default=0)
    return Posting(need, debit, credit, largest, hold, None, turns, seats)


def believed(
    rate: Rate, tokens: str, stored_milli: int, origin_ms: int, at_ms: int, need_milli: int = 0
) -> tuple[int, int, bool, Condition]:
    """How a limit is believed to stand at an instant: every write to a bucket is cut off in this place.

    What it gained since the bucket's origin; its brim, beyond which what is stored has flown over; whether it
    is full; and the condition that it is so.
    A need that cannot fit is never taken from a full bucket: it is asked of one that is not, and refused.
    """
    gained = gain(rate, origin_ms, at_ms)
    brim = rate.capacity_milli - gained
    if stored_milli > brim and need_milli <= rate.capacity_milli:
        return gained, brim, True, AtLeast(tokens, brim + 1)
    return gained, brim, False, AtMost(tokens, brim)


def measure(
    account: Account,
    posting: Posting,
    image: Item,
    add: dict[str, int],
    set_: dict[str, Value],
    origin_ms: int,
    at_ms: int,
) -> tuple[Condition, ...]:
    """Count the write, and keep what a later split has to know.

    The count is a gauge and no promise: it is clamped without a condition, whoever writes last, and
    it fails a demand only when writes are exhausted.
    """
    for name, need in (posting.largest or posting.need).items():
        if need * SHARDS_MAX > account.terms.rates[name].capacity_milli and name not in account.terms.soft:
            largest = shard_attributes(name).mx
            if need > number(image, largest):
                set_[largest] = need
    names, shards, stored = COUNT, image.get("shard_count"), image.get(COUNT.tk)
    is_whole = type(stored) is type(image.get(COUNT.tc)) is int and -NUMBER_MAX <= stored <= NUMBER_MAX
    rate = WRITES if is_whole and _COUNTS.items() <= image.items() else stored_rate(image, WCU)
    if type(shards) is int and shards == account.shard_count:
        pins: tuple[Condition, ...] = (Equal("shard_count", shards),)
    else:
        pins = _pinned_count(account, image)
    if rate is None or type(stored) is not int:
        set_[names.tk], set_[names.tc] = WRITES.capacity_milli, WRITE_MILLI
        set_ |= _COUNTS
        return (*pins, *pinned(image, names.tk))
    # A thousand a second are one a millisecond, for which nobody has to be asked.
    gained = max(0, at_ms - origin_ms) * 1000 if rate is WRITES else gain(rate, origin_ms, at_ms)
    if "rf" in set_:
        counted = gain(rate, number(set_, "rf"), at_ms)
        set_[names.tk] = min(rate.capacity_milli, stored + gained) - WRITE_MILLI - counted
    elif stored + gained > rate.capacity_milli:
        set_[names.tk] = rate.capacity_milli - gained - WRITE_MILLI
    else:
        add[names.tk] = -WRITE_MILLI
    add[names.tc] = WRITE_MILLI
    if not posting.need:
        return ()
    if account.meter is Meter.LIMIT and names.tk in add:
        return (*pins, AtLeast(names.tk, WRITE_MILLI - gained))
    return pins


def _pinned_count(account: Account, image: Item) -> tuple[Condition, ...]:
    """The condition that the shares of this shard are still those of the account."""
    if shard_count(image) == account.shard_count:
        return pinned(image, "shard_count")  # which may be anything that counts as one
    return (Equal("shard_count", account.shard_count),)
