"""A change of a bucket's numbers, by a write that may take something as well. Pure.

Every limit is credited its gain, a raise gives the difference, a cut takes it without making debt, and the
origin moves, so that whatever was shaped for the old numbers is refused.
"""

from __future__ import annotations

from ..repository_protocol import Absent, AtLeast, Condition, Equal, Exists, Item, Update, Value
from ..schema import (
    BOOKED,
    BOOKED_SINCE,
    FORGIVEN,
    HOLDS,
    booking_attributes,
    bucket_limit_names,
    forgiven,
    kind_attributes,
    limit_attributes,
    number,
    pinned,
    rate_attributes,
    shard_attributes,
    stored_rate,
)
from .account import Account, Meter
from .announced import waiters_attribute
from .bucket_view import carry, ended_attribute, in_line, is_ahead, is_renewed
from .law import TOKEN_MILLI, Rate, fill_ms, gain, moved_origin
from .lifetime import keep_alive
from .line_over import unbooked
from .posting import Posting, believed, measure
from .seats import is_counted, places
from .seen_changes import LOST
from .set_aside import as_a_whole
from .windows import begun, carried_on, is_over


def rebase(account: Account, posting: Posting, image: Item, now_ms: int) -> Update:
    """Take from a bucket and change its numbers to those of the terms.

    Version and origin together identify the numbers, so that a write which was shaped for the old
    ones is refused: where the version stays, the origin moves. One that lies ahead by mistake moves to the
    present; nothing accrued before it.
    """
    if BOOKED in image and not in_line(image, now_ms):
        plain = unbooked(image)
        return as_a_whole(rebase(account, posting, plain, now_ms), plain, image)
    terms, origin = account.terms, number(image, "rf")
    renewed, ahead = is_renewed(terms, image), is_ahead(image, now_ms)
    at_ms = now_ms if ahead else max(now_ms, origin)
    origin_after = at_ms if renewed or ahead else moved_origin(origin, at_ms)
    change = _Rebase(image, at_ms, origin_after, renewed, posting, terms.soft)
    change.when += [Exists(), *pinned(image, "rf"), *pinned(image, BOOKED_SINCE), *pinned(image, "cv")]
    set_ = change.set
    set_["rf"] = change.origin_ms
    if terms.version is not None:
        set_["cv"] = terms.version
        if renewed and LOST in image:  # whoever remembers that has missed something else by now
            set_[LOST] = None
    full_in_ms = 0
    for name in dict.fromkeys((*terms.rates, *bucket_limit_names(image))):
        before, rate = stored_rate(image, name), terms.rates.get(name)
        if rate is None:
            if renewed:
                set_.update(dict.fromkeys((*limit_attributes(name), *shard_attributes(name))))
                others = waiters_attribute(name), ended_attribute(name)
                kept = (*kind_attributes(name), *booking_attributes(name), *others)
                set_.update(dict.fromkeys(attribute for attribute in kept if attribute in image))
                continue
            assert before is not None, "every limit that a bucket holds has a rate"
            rate = before  # a limit that others bring along stays, and the origin moves for it too
        rate = change.window(name, rate)
        if before is None or is_counted(before) != is_counted(rate):
            left = change.joining(name, rate, is_new=before is None)
        else:
            left = change.carried(name, before, rate)
        set_.update(dict.fromkeys(attribute for attribute in kind_attributes(name) if attribute in image))
        set_ |= rate_attributes(name, rate)
        if change.waits and (booked := booking_attributes(name)).high in image:
            # How full it gets by these numbers nobody knows: nothing more comes back to it for now.
            set_[booked.high] = set_[booked.higher] = rate.capacity_milli
        full_in_ms = max(full_in_ms, fill_ms(rate, rate.capacity_milli - left))
    if posting.hold:
        set_[HOLDS[posting.hold % len(HOLDS)]] = posting.hold
    if change.spared or FORGIVEN in image:
        set_[FORGIVEN] = change.spared or None
    change.when += keep_alive(terms, image, set_, at_ms, full_in_ms)
    if account.meter is not Meter.NONE:
        change.when += measure(account, posting, image, change.add, set_, origin, at_ms)
    return Update(account.key, {a: n for a, n in change.add.items() if n}, set_, tuple(change.when))


class _Rebase:
    """A change of a bucket's numbers in the making, as of an instant: what each limit adds to the write."""

    def __init__(
        self, image: Item, at_ms: int, origin_ms: int, renewed: bool, posting: Posting, soft: frozenset[str]
    ) -> None:
        self.image, self.at_ms, self.origin_ms, self.posting = image, at_ms, origin_ms, posting
        self.soft = soft
        self.forgiven = {} if renewed else forgiven(image)
        self.renewed, self.waits = renewed, in_line(image, at_ms)
        self.spared: dict[str, Value] = {}
        """What cuts have spared so far and callers who disagree must make up for."""
        self.add: dict[str, int] = {}
        self.set: dict[str, Value] = {}
        self.when: list[Condition] = []

    def window(self, name: str, rate: Rate) -> Rate:
        """A limit of a session with the window that it is in, or that begins with what is taken of it."""
        if name in self.posting.need and not self.waits and is_over(self.image, name, self.at_ms):
            return begun(rate, self.at_ms)
        return carried_on(rate, self.image, name)

    def joining(self, name: str, rate: Rate, *, is_new: bool) -> int:
        """A limit that the bucket did not have, or had as one of seats, starts full; returns what is left.

        Seats may still be held from when it had them before.
        """
        need = self.posting.need.get(name, 0)
        taken = need + self.posting.debit.get(name, 0)
        tokens, _, _, _, counter = limit_attributes(name)
        found = rate.capacity_milli - (self._seated(name) if is_counted(rate) else 0)
        left = found - taken
        if name in self.soft:
            need = 0
        self.set[tokens] = left - gain(rate, self.origin_ms, self.at_ms)
        if is_new:
            self.set[counter] = taken
        else:
            self.add[counter] = taken
        self.when += pinned(self.image, tokens)
        self.set |= dict.fromkeys(booked for booked in booking_attributes(name) if booked in self.image)
        if need > found:
            self.when.append(Absent())
        return left

    def _seated(self, name: str) -> int:
        """What is taken of a limit by those who hold seats of it from before."""
        for place in (there := places(self.image, name)):
            self.when.append(Equal(place.attribute, place.value))
            if place.is_over(self.at_ms):
                self.set[place.attribute] = None
        return sum(place.taken for place in there if not place.is_over(self.at_ms)) * TOKEN_MILLI

    def carried(self, name: str, before: Rate, rate: Rate) -> int:
        """A limit whose numbers change, or its origin only; returns what is left of it."""
        need, credit = self.posting.need.get(name, 0), self.posting.credit.get(name, 0)
        taken = need + self.posting.debit.get(name, 0)
        need = 0 if name in self.soft else need
        tokens, _, _, _, counter = limit_attributes(name)
        stored, origin_ms = number(self.image, tokens), number(self.image, "rf")
        # Whether a need fits at all is for the new numbers to say.
        asked = 0 if need <= rate.capacity_milli else before.capacity_milli + 1
        gained, brim, full, as_believed = believed(before, tokens, stored, origin_ms, self.at_ms, asked)
        # What lies between the new origin and now would else be gained once more.
        counted = gain(rate, self.origin_ms, self.at_ms)
        spared = max(0, self.forgiven.get(name, 0) - max(0, stored - brim))
        change = carry(before, rate, spared)
        if self.waits:  # what is owed is owed by those who wait, and no debt that a cut would have made
            change = change._replace(is_cut=False)
        self.add[counter] = taken - credit
        if self.waits and booking_attributes(name).high in self.image:
            credit = 0  # there is no room for it
        if full:
            found = change.found(before.capacity_milli, rate.capacity_milli)
            self._flow_over(name, rate.capacity_milli - found)
            left = min(rate.capacity_milli, found - taken + credit)
            self.set[tokens] = left - counted
            self.when.append(as_believed)
            if need > found:
                self.when.append(Absent())
            self._spare(name, change.spared_milli)
            return left
        held = stored + gained
        found = change.found(held, rate.capacity_milli)
        if self._flow_over(name, rate.capacity_milli - found):
            as_believed = Equal(tokens, stored)
        spared = 0 if need else found - held - change.shift_milli  # where a need fits, nothing is spared
        left = held + change.shift_milli + spared - taken + credit
        self._spare(name, change.spared_milli + spared)
        if spared:
            self.set[tokens] = left - counted
            self.when.append(Equal(tokens, stored))
            return left
        self.add[tokens] = left - counted - stored
        self.when.append(as_believed)
        leasts = [need - change.shift_milli] if need else []
        if change.is_cut:
            leasts.append(change.least(rate.capacity_milli))
        if leasts:
            self.when.append(AtLeast(tokens, max(leasts) - gained))
        return left

    def _flow_over(self, name: str, room_milli: int) -> bool:
        """Keep of what came back while somebody waits what has room; returns whether anything came."""
        back = booking_attributes(name).back
        if not self.waits or not (aside := number(self.image, back)):
            return False
        self.when.append(Equal(back, aside))
        if aside > room_milli:
            self.set[back] = max(0, room_milli)
        return True

    def _spare(self, name: str, spared_milli: int) -> None:
        if spared_milli and not self.renewed:
            self.spared[name] = spared_milli
