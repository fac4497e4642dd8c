"""Bookings: what is taken from a bucket for somebody who waits. Pure.

A booking is the ordinary write, evaluated at the *slot*: the first instant at which the need fits behind all
who booked before. From then on the bucket is in debt until the slot, so whoever comes later gets a later one:
first come, first served, and nobody has to ask twice. The write is shaped for an instant a little after the
slot, so that bookings of several processes do not get into each other's way; the image that it leaves tells
the slot itself, exactly.

What comes back while somebody waits may not move others before them. It is set aside (``back``) for those who
book later, and only as much of it as the bucket could really hold: what a limit holds just before somebody's
turn grows with all that came back since that one booked, and must not exceed the capacity. The most it
will hold (``high``) is kept in two generations, for whoever booked before the last one began has had its
turn by the instant the bucket names.

When everybody has had its turn the line is *over*, and the next write puts what was set aside back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..repository_protocol import (
    NOTHING,
    Absent,
    AtLeast,
    AtMost,
    Condition,
    Equal,
    Item,
    Outcome,
    Update,
    Value,
)
from ..schema import (
    BOOKED,
    BOOKED_SINCE,
    HOLDS,
    booking_attributes,
    bucket_limit_names,
    is_deleted,
    limit_attributes,
    number,
    pinned,
    stored_rate,
)
from .account import Account, Meter, Terms
from .bucket_view import as_found, has_terms_now, in_line, level, standing, tokens_of
from .law import fill_ms, gain
from .level import Level
from .lifetime import keep_alive
from .line_over import on_grid
from .phase_writes import within_phase
from .phased import instant, terms_at
from .posting import Booking, Posting, measure

MARGIN_MS_MAX = 250
"""How long after its slot a booking may be shaped for, so that others who book meanwhile do not spoil it."""

MARGIN_PART = 32
"""What accrues in that time, and what may come back meanwhile, is no more than such a part of a capacity."""

NEAR_MS, AGED_MS_MAX, AGED_HALF_MS = 60_000, 60_000, 86_400_000
"""How far ahead who also takes of limits that could give sooner is booked for a boundary.

Until then nobody else could use these. Whoever waits for one that is further sleeps, and books when it is
near (``wait``). For those who wait for longer that is earlier, by up to a minute, and by half of it after a
day: so they book about in the order in which they asked.
"""


class Turn(NamedTuple):
    """What somebody who waits is believed to get."""

    fits: bool
    at_ms: int
    """The slot; if it does not fit, the latest one allowed."""
    drawn: Mapping[str, int] = NOTHING
    """What it takes of that which came back."""
    before: Mapping[str, int] = NOTHING
    """What is stored before of limits that are cut off, for they flow over until then."""
    gone: Mapping[str, int] = NOTHING
    """What these lose of that which came back, by what is taken and by what flows over."""
    full: Mapping[str, int] = NOTHING
    """The limits that flow over until then, and at least how much of them there is."""
    slot_ms: int = 0
    """The slot, where ``at_ms`` is what the booking is shaped for."""
    leaves: Mapping[str, int] = NOTHING
    """The tokens that the booking leaves if nobody comes between."""
    over_ms: int = 0
    """When everybody else has had its turn in that case."""


class _Stock:
    """One limit of a bucket while one turn after another is booked."""

    def __init__(self, at: Level) -> None:
        self.rate, self.origin_ms = at.rate, at.origin_ms
        self.tokens, self.back, self.since_ms = at.tokens_milli, at.back_milli, at.since_ms

    def gained(self, at_ms: int) -> int:
        return gain(self.rate, self.origin_ms, at_ms)

    def held(self, at_ms: int) -> int:
        return min(self.rate.capacity_milli, self.tokens + self.gained(at_ms))

    def slot_ms(self, need: int, now_ms: int) -> float:
        """When the need fits, together with what came back, behind those who booked before."""
        at = Level(self.rate, self.tokens, self.origin_ms, since_ms=self.since_ms)
        if need > self.rate.capacity_milli:
            return now_ms + at.retry_after_ms(need, now_ms)
        own = max(1, need - self.back)  # for each booking is to be seen in the tokens
        return now_ms + at.retry_after_ms(own, now_ms)

    def take(self, need: int, drawn: int, at_ms: int) -> None:
        room = self.rate.capacity_milli - self.gained(at_ms)
        self.tokens = min(self.tokens, room)
        self.back = min(self.back, room - self.tokens) - drawn
        self.tokens -= need - drawn


def schedule(postings: Sequence[Posting], terms: Terms, image: Item | None, now_ms: int) -> list[Turn]:
    """Who gets which slot, one after another."""
    names = dict.fromkeys(name for posting in postings for name in posting.need)
    limits = {name: _Stock(level(terms, name, image, now_ms)) for name in names}
    return [_turn_of(posting, limits, now_ms) for posting in postings]


def _turn_of(posting: Posting, limits: Mapping[str, _Stock], now_ms: int) -> Turn:
    need, booking = posting.need, posting.booking
    turn = Turn(True, now_ms)
    if (booking is not None and booking.earliest_ms > now_ms) or not _fits(need, limits, now_ms):
        if booking is None:
            return Turn(False, now_ms)
        slots = {name: limits[name].slot_ms(amount, now_ms) for name, amount in need.items()}
        at, latest_ms = max(booking.earliest_ms, *slots.values()), booking.latest_ms
        accruals = {name: limits[name].rate.accrual for name in need}
        if (near_ms := nears_ms(accruals, slots, booking.since_ms)) is not None and near_ms > now_ms:
            latest_ms = min(latest_ms, now_ms + NEAR_MS)
        fits = at <= latest_ms
        at_ms = int(min(at, latest_ms))
        short = {name: amount - limits[name].held(at_ms) for name, amount in need.items()}
        drawn = {name: min(limits[name].back, amount, need[name] - 1) for name, amount in short.items()}
        turn = Turn(fits, at_ms, {name: amount for name, amount in drawn.items() if amount > 0})
        if not fits:
            return turn
    for name, amount in need.items():
        limits[name].take(amount, turn.drawn.get(name, 0), turn.at_ms)
    return turn


def nears_ms(accruals: Mapping[str, str | None], slots: Mapping[str, float], since_ms: int) -> int | None:
    """When the boundary is near at which a need fits, though some of it would be there sooner.

    ``None`` if there is no such boundary: it can be booked whenever that is.
    """
    last = max(slots, key=slots.__getitem__)
    if accruals[last] is None or math.isinf(slots[last]):
        return None
    at_ms = math.ceil(slots[last])
    waits_ms = max(0, at_ms - since_ms)
    near_ms = at_ms - NEAR_MS - AGED_MS_MAX * waits_ms // (waits_ms + AGED_HALF_MS)
    return near_ms if min(slots.values()) < slots[last] else None


def _fits(need: Mapping[str, int], limits: Mapping[str, _Stock], now_ms: int) -> bool:
    return all(limits[name].held(now_ms) >= amount for name, amount in need.items())


def book(account: Account, posting: Posting, image: Item, now_ms: int) -> Update:
    """Take needs at their slots, one after another, from a bucket that has the numbers of its terms."""
    return _shape(account, posting.turns or (posting,), image, now_ms).update(posting)


def turns(account: Account, postings: Sequence[Posting], image: Item | None, now_ms: int) -> list[Turn]:
    """What those get whose bookings are written now: no later than at the instants these are shaped for."""
    if image is None or is_deleted(image) or not has_terms_now(image, account.terms, now_ms):
        return [Turn(True, now_ms)] * len(postings)
    found = as_found(image, now_ms)
    if account.terms.scheduled:
        postings = [within_phase(account.terms, posting, found, now_ms) for posting in postings]
        account = account._replace(terms=terms_at(account.terms, instant(found, now_ms)))
    return _shape(account, postings, found, now_ms).turns


def _shape(account: Account, postings: Sequence[Posting], image: Item, now_ms: int) -> _Shape:
    slots = schedule(postings, account.terms, image, now_ms)
    exact = _Shape(account, postings, slots, image, now_ms)
    margin_ms = min(
        max(100, (slots[-1].at_ms - now_ms) // 4),
        MARGIN_MS_MAX,
        *(part.at.rate.fill_ms // MARGIN_PART for part in exact.parts.values()),
    )
    for wider_ms in (margin_ms, margin_ms // 4) if exact.is_waiting else ():
        wider = _Shape(account, postings, slots, image, now_ms, wider_ms)
        if wider.full == exact.full and all(part.at.back >= 0 for part in wider.parts.values()):
            return wider
    return exact


class _LimitTurns:
    """What some turns do to one limit."""

    def __init__(self, at: _Stock) -> None:
        self.at = at
        self.stored, self.stored_back = at.tokens, at.back
        self.taken = self.drawn = self.high = self.largest = 0
        self.least, self.brim = -(10**30), 10**30
        self.least_at_slot = self.least

    def add(self, need: int, drawn: int, slot_ms: int, at_ms: int, *, waits: bool) -> tuple[int, int]:
        """One turn more, with its slot, and shaped for an instant.

        Returns what was stored before it, and how much less there is afterwards of what had come back.
        """
        before, back = self.at.tokens, self.at.back
        capacity, gained = self.at.rate.capacity_milli, self.at.gained(at_ms)
        self.brim = min(self.brim, capacity - gained - (self.stored_back - self.drawn) + self.taken)
        if waits:
            held = self.at.tokens + self.at.back + gained
            if held < need:  # it fits only by what came back unseen, and then as soon as there is enough
                held = need + gained - self.at.gained(at_ms - 1)
            self.high = max(self.high, min(capacity, held))
        self.at.take(need, drawn, at_ms)
        self.largest = max(self.largest, need)
        self.taken += need - drawn
        self.drawn += drawn
        self.least = max(self.least, self.taken - gained)
        self.least_at_slot = max(self.least_at_slot, self.taken - self.at.gained(slot_ms))
        return before, back - self.at.back


class _Shape:
    """A booking in the making: for each limit what is added or set, and on what condition."""

    def __init__(
        self,
        account: Account,
        postings: Sequence[Posting],
        slots: Sequence[Turn],
        image: Item,
        now_ms: int,
        margin_ms: int = 0,
    ) -> None:
        self.account, self.image, self.now_ms = account, image, now_ms
        terms = account.terms
        self.parts: dict[str, _LimitTurns] = {}
        self.is_waiting, self.until_ms = False, now_ms
        self.turns: list[Turn] = []
        self.total: dict[str, int] = {}
        found: list[dict[str, tuple[int, int]]] = []
        for posting, slot in zip(postings, slots, strict=True):
            waits = slot.at_ms > now_ms
            latest_ms = slot.at_ms if posting.booking is None else posting.booking.latest_ms
            at_ms = min(slot.at_ms + margin_ms, latest_ms) if waits else now_ms
            self.is_waiting, self.until_ms = self.is_waiting or waits, max(self.until_ms, at_ms)
            self.turns.append(slot._replace(at_ms=at_ms, slot_ms=slot.at_ms))
            found.append({})
            for name, need in posting.need.items():
                if name not in self.parts:
                    self.parts[name] = _LimitTurns(_Stock(level(terms, name, image, now_ms)))
                taken = need, slot.drawn.get(name, 0), slot.at_ms, at_ms
                found[-1][name] = self.parts[name].add(*taken, waits=waits)
                self.total[name] = self.total.get(name, 0) + need
        earliest_ms = max(0 if it.booking is None else it.booking.earliest_ms for it in postings)
        self.is_on_its_own = len(self.parts) == 1 and earliest_ms <= now_ms
        self.full = {name for name, part in self.parts.items() if part.stored > part.brim}
        self.exact = {name for name in self.full if self._is_exact(name)}
        leaves = tokens_of(image)
        for name, part in self.parts.items():
            cut = part.at.tokens if name in self.exact else part.brim - part.taken
            leaves[limit_attributes(name).tk] = cut if name in self.full else part.stored - part.taken
        over_ms = number(image, BOOKED) if in_line(image, now_ms) else 0
        full = {name: self._found(name) for name in self.full}
        for place, (turn, each) in enumerate(zip(self.turns, found, strict=True)):
            sure = {name: it for name, it in each.items() if name in self.exact}
            before, gone = ({name: it[part] for name, it in sure.items()} for part in (0, 1))
            told = turn._replace(full=full | before, before=before, gone=gone)
            self.turns[place] = told._replace(leaves=leaves, over_ms=over_ms)

    def _found(self, name: str) -> int:
        """What there is at least of a limit that flows over, as the booking asks."""
        part = self.parts[name]
        return part.stored if name in self.exact else max(part.brim + 1, part.least_at_slot)

    def _is_exact(self, name: str) -> bool:
        """Whether a limit that flows over is cut off only if it is just what was seen.

        Who waits may give up: then what was there before has to be known, for it is there again.
        """
        return self.is_waiting or self.parts[name].stored_back > 0

    def update(self, posting: Posting) -> Update:
        image, terms = self.image, self.account.terms
        self.add: dict[str, int] = {}
        self.set: dict[str, Value] = {}
        self.when: list[Condition] = [
            *pinned(image, "rf"),
            *pinned(image, "cv"),
            *pinned(image, BOOKED_SINCE),
        ]
        if posting.hold:
            self.set[HOLDS[posting.hold % len(HOLDS)]] = posting.hold
        turned = BOOKED in image and self.now_ms > number(image, BOOKED_SINCE)
        for name, part in self.parts.items():
            self._limit(name, part, turned=turned)
        if self.is_waiting:
            self._line(turned=turned)
        left = [part.at for part in self.parts.values()]
        missing = [at.rate.capacity_milli - at.held(self.until_ms) for at in left]
        full_in_ms = max(fill_ms(at.rate, amount) for at, amount in zip(left, missing, strict=True))
        self.when += keep_alive(terms, image, self.set, self.until_ms, full_in_ms)
        if self.account.meter is not Meter.NONE:
            origin_ms, set_ = number(image, "rf"), self.set
            self.when += measure(self.account, posting, image, self.add, set_, origin_ms, self.now_ms)
        return Update(self.account.key, self.add, self.set, tuple(self.when))

    def _limit(self, name: str, part: _LimitTurns, *, turned: bool) -> None:
        names, booked = limit_attributes(name), booking_attributes(name)
        known = booked.high in self.image
        if part.largest > part.at.rate.capacity_milli:
            self.when.append(Absent())  # it can never be admitted; the store is asked what is there now
        spare = 0  # how much more may have come back by now than was seen
        if name not in self.full:
            room = min(part.at.rate.capacity_milli - part.high, part.brim - part.stored)
            spare = max(0, min(room, part.at.rate.capacity_milli // MARGIN_PART)) if known else 0
            self.add[names.tk] = -part.taken
            most = part.brim - spare
            if part.high and not self.is_on_its_own:
                most = min(most, part.stored)  # with more it holds more before a turn than is noted
            self.when += [AtMost(names.tk, most), AtLeast(names.tk, part.least)]
            if known:
                self.when.append(AtMost(booked.back, part.stored_back + spare))
                if part.drawn:
                    self.add[booked.back] = -part.drawn
                    self.when.append(AtLeast(booked.back, part.drawn))
        elif name in self.exact:
            self.set[names.tk] = part.at.tokens
            self.when.append(Equal(names.tk, part.stored))
            if known:
                self.set[booked.back] = part.at.back
                self.when.append(Equal(booked.back, part.stored_back))
        else:
            self.set[names.tk] = part.brim - part.taken
            self.when.append(AtLeast(names.tk, self._found(name)))
            if known:
                self.when.append(Equal(booked.back, 0))
        if part.high:
            self._raise(name, part.high + spare, known=known, turned=turned)
        self.add[names.tc] = self.total[name]

    def _raise(self, name: str, high: int, *, known: bool, turned: bool) -> None:
        """Note the most that a limit holds before somebody's turn."""
        booked, image = booking_attributes(name), self.image
        before, earlier = number(image, booked.high), number(image, booked.higher)
        if not known:
            self.set |= {booked.back: 0, booked.high: high, booked.higher: high}
            self.when.append(Equal(booked.high, None))
        elif turned:
            self.set |= {booked.high: high, booked.higher: max(before, high)}
            self.when.append(AtMost(booked.high, max(before, high)))
        elif high > before or high > earlier:
            self.set |= {booked.high: max(high, before), booked.higher: max(high, earlier)}
            self.when += [AtMost(booked.high, max(high, before)), AtMost(booked.higher, max(high, earlier))]

    def _line(self, *, turned: bool) -> None:
        """Note until when somebody waits."""
        image, until_ms = self.image, on_grid(self.until_ms)
        if BOOKED not in image:
            self.set |= {BOOKED: until_ms, BOOKED_SINCE: until_ms}
            return
        if until_ms > number(image, BOOKED):
            self.set[BOOKED] = until_ms
        self.when.append((AtMost if BOOKED in self.set else AtLeast)(BOOKED, until_ms))  # or it moved back
        if turned:
            since_ms = max(until_ms, number(image, BOOKED))
            self.set[BOOKED_SINCE] = since_ms
            self.when.append(AtMost(BOOKED, since_ms))
            for name in bucket_limit_names(image):
                booked = booking_attributes(name)
                if booked.high in image and booked.high not in self.set:
                    before = number(image, booked.high)
                    self.set |= {booked.high: 0, booked.higher: before}
                    self.when.append(AtMost(booked.high, before))


def slot_ms(at: Level, need_milli: int, now_ms: int) -> float:
    """When somebody who waits for one limit has its turn."""
    return _Stock(at).slot_ms(need_milli, now_ms)


class Booked(Outcome):
    """The outcome of an order that somebody waits for, with how it was booked."""

    booking: Booking


def outcomes(postings: Sequence[Posting], given: Sequence[Turn], image: Item, now_ms: int) -> list[Outcome]:
    """What several bookings have come to, from the image that was left when all were written.

    Each gets the image that it would have left by itself: that one tells its slot.
    """
    left, told = dict(image), list[Outcome]()
    for posting, turn in zip(reversed(postings), reversed(given), strict=True):
        outcome = Booked(True, dict(left))
        outcome.booking = booked(posting, turn, left, now_ms, alone=len(postings) == 1)
        told.append(outcome)
        for name, need in posting.need.items():
            tk = limit_attributes(name).tk
            left[tk] = turn.before.get(name, number(left, tk) + need - turn.drawn.get(name, 0))
    return told[::-1]


def booked(posting: Posting, turn: Turn, image: Item, now_ms: int, *, alone: bool = True) -> Booking:
    """How a need was booked that left this image: ``latest_ms`` is its slot."""
    tokens = tokens_of(image)
    over_ms = turn.over_ms if alone and tokens == turn.leaves else None
    # A limit that flows over was cut off as of a little later, so it is asked what it was before.
    asked = dict(image)
    for name, need in posting.need.items():
        if name in turn.full:
            asked[limit_attributes(name).tk] = turn.full[name] - need + turn.drawn.get(name, 0)
    at_ms = slot_of(posting.need, asked, now_ms)
    if not alone and not (turn.full.keys() - turn.before.keys()).isdisjoint(posting.need):
        at_ms = max(at_ms, turn.slot_ms)
    at_ms = min(at_ms, turn.at_ms)
    earliest_ms = 0 if posting.booking is None else posting.booking.earliest_ms
    drawn = {**turn.drawn, **turn.gone}
    return Booking(max(at_ms, earliest_ms), 0, standing(image), drawn, turn.before, over_ms)


def slot_of(names: Mapping[str, int], image: Item, now_ms: int) -> int:
    """When somebody may begin whose booking left this image: as soon as nothing is owed."""
    slots = [now_ms]
    for name, need in names.items():
        rate = stored_rate(image, name)
        if rate is not None and need:
            rate = rate._replace(schedule=None)  # a slot is in the phase that the bucket is in
            at = Level(rate, number(image, limit_attributes(name).tk), number(image, "rf"))
            slots.append(now_ms + int(at.retry_after_ms(0, now_ms)))
    return max(slots)
