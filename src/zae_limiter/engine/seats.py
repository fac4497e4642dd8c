"""Seats: how many leases of a limit are open at once, and when each comes back by itself. Pure.

A limit of concurrency accrues nothing: ``tk`` counts its free seats. Whoever takes one says until when it is
held. These instants lie on a grid of eight to a ``hold``, so that all seats taken within an eighth of it are
one number of the bucket: a *place*, which says the instant and how many seats are held until then. Taking
adds to the place of an instant, giving back takes off it, and both commute with whatever others do.

    free seats + seats in all places = capacity        (in every image, whoever wrote last)

A place whose instant has passed is *over*: its holders crashed, or could not renew in time. The next who
wants a seat takes them all off and counts them as free. A holder who comes back later finds no such place and
gives nothing back, so no seat is ever free twice. Renewing moves a seat from its place to a later one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..models import SEATS_MAX
from ..models.accruals import CONCURRENT
from ..repository_protocol import Item, Value
from ..schema import limit_attributes, number, stored_rate, text
from .announced import ahead
from .law import TOKEN_MILLI, Rate
from .level import Level

GRID = 8
"""How many instants there are to a ``hold``: a seat is held for at most an eighth longer."""

TICK_MS = 1_000 // GRID
"""In what instants are counted: a ``hold`` is so many seconds, so an eighth of it is as many ticks."""

PLACES_MAX = 32
"""How many places a limit has: a ``hold`` needs ten, so that it can be changed while seats are held."""

HELD_MS_MAX = 86_400_000 * (GRID + 1) // GRID + 60_000
"""How far ahead an honest clock can put the end of a seat: the longest ``hold``, and what clocks are off."""

RECORDED_MS_MIN = 16_000
"""How long seats are held at least that a record answers for: whoever renews them looks now and then."""

RENEWED = "renewed"
"""On a bucket with seats that somebody has renewed: the marks of renewals, the latest last."""

RENEWALS_MAX = 8
"""How many renewals a bucket tells of: a lost reply is made up for unless as many others came after it."""

_COUNTED = SEATS_MAX + 1


class SeatMove(NamedTuple):
    """Some seats of one limit that are taken until an instant, or given back before it."""

    name: str
    until: int
    """In ticks since the epoch."""
    amount: int
    """How many are taken; below 0, given back."""
    is_refund: bool = False
    """Whether what is given back shall count as never used."""
    later: int | None = None
    """Until when seats are renewed, instead of given back."""
    mark: str = ""
    """Of a renewal: by which the bucket tells that it has been written."""


class Place(NamedTuple):
    """How many seats are held until an instant, and where a bucket says so."""

    attribute: str
    until: int
    taken: int
    value: int

    def is_over(self, now_ms: int) -> bool:
        """Whether its holders had to renew before, or it was put there by a clock that was wrong."""
        return not now_ms < self.until * TICK_MS <= now_ms + HELD_MS_MAX


def until(rate: Rate, now_ms: int) -> int:
    """Until when a seat is held that is taken now: for ``hold``, and on to the next instant of the grid."""
    eighth = max(1, rate.refill_period_ms // 1_000)
    return -(-(now_ms + rate.refill_period_ms) // (eighth * TICK_MS)) * eighth


def due_ms(rate: Rate, held_until: int) -> int:
    """When a seat is to be renewed: about half of its time before it would be lost."""
    return held_until * TICK_MS - rate.refill_period_ms * 5 // GRID


def as_recorded(rate: Rate) -> Rate:
    """A limit as seats of it are held that a record answers for."""
    return rate._replace(refill_period_ms=max(rate.refill_period_ms, RECORDED_MS_MIN))


def is_counted(rate: Rate | None) -> bool:
    """Whether a limit counts who is at work, instead of what was used."""
    return rate is not None and rate.accrual == CONCURRENT


def rate_by_now(rate: Rate, image: Item | None, name: str) -> Rate:
    """A limit that somebody holds seats of, with the ``hold`` that its bucket was last seen to have."""
    stored = None if image is None else stored_rate(image, name)
    return stored if stored is not None and is_counted(stored) else rate


@lru_cache(4096)
def place_attributes(name: str) -> tuple[str, ...]:
    """Where a bucket keeps the places of a limit; most of them are not there most of the time."""
    return tuple(f"b_{name}_h{place}" for place in range(PLACES_MAX))


def places(image: Item, name: str) -> list[Place]:
    """The places of a limit that a bucket has, the first that is over first."""
    found = []
    for attribute in place_attributes(name):
        value = image.get(attribute)
        if type(value) is int and value > 0:
            found.append(Place(attribute, value // _COUNTED, value % _COUNTED, value))
    return sorted(found, key=lambda place: place.until)


def value_of(held_until: int, count: int) -> int:
    """What a bucket says at a place."""
    return held_until * _COUNTED + count


def bounds_of(held_until: int, count: int) -> tuple[int, int]:
    """Between what a place's value lies that is of this instant and has so many seats taken off or added."""
    return value_of(held_until, max(0, -count)), value_of(held_until, SEATS_MAX - max(0, count))


def held(image: Item, name: str, now_ms: int) -> int:
    """How many seats of a limit are held."""
    return sum(place.taken for place in places(image, name) if not place.is_over(now_ms))


def lapsed(image: Item, name: str, now_ms: int) -> list[Place]:
    """The places whose seats are free for whoever takes them next."""
    return [place for place in places(image, name) if place.taken and place.is_over(now_ms)]


def vacated(image: Item, names: Iterable[str], now_ms: int) -> Item:
    """A bucket as somebody finds it who wants a seat: what lapsed is free."""
    changed: dict[str, Value] = {}
    for name in names:
        tokens = limit_attributes(name).tk
        for place in lapsed(image, name, now_ms):
            changed[place.attribute] = value_of(place.until, 0)
            changed[tokens] = number(changed if tokens in changed else image, tokens) + place.taken * 1_000
    return {**image, **changed} if changed else image


def renewals(image: Item | None) -> list[str]:
    """The marks of the latest renewals of a bucket, so that one whose reply was lost can be found."""
    return (text(image or {}, RENEWED) or "").split()


def with_renewal(image: Item, mark: str) -> str:
    """What a bucket says of its renewals after one more."""
    return " ".join([*renewals(image), mark][-RENEWALS_MAX:])


def surely_unwritten(mark: str, before: Sequence[str], image: Item | None) -> bool:
    """Whether a renewal was not written since ``before``: it would still be among those that are told."""
    told = renewals(image)
    return mark not in told and (before[-1] in told if before else len(told) < RENEWALS_MAX)


def take_off(moves: Iterable[SeatMove], image: Item | None, left: dict[tuple[str, int], int]) -> bool:
    """Whether seats that are given back are where they were taken, as far as those before ``left`` them.

    Seats of a renewal that has been written are somewhere else.
    """
    back: dict[tuple[str, int], int] = {}
    for move in moves:
        if move.mark and move.mark in renewals(image):
            return False
        if move.amount < 0:
            at = move.name, move.until
            if at not in left:
                there = places(image or {}, move.name)
                left[at] = sum(place.taken for place in there if place.until == move.until)
            back[at] = back.get(at, 0) - move.amount
    if any(left[at] < count for at, count in back.items()):
        return False
    for at, count in back.items():
        left[at] -= count
    return True


class SeatLevel(Level):
    """A limit of concurrency as its users see it: what is free, and until when the others are held."""

    places: tuple[Place, ...] = ()

    def retry_after_ms(self, need_milli: int, now_ms: int) -> float:
        """When so many are surely free, if nobody else takes one: usually somebody gives one back before."""
        free_milli = self.balance(now_ms)
        if need_milli > self.rate.capacity_milli:
            return math.inf
        if free_milli >= need_milli:
            return 0
        for place in self.places:
            free_milli += place.taken * TOKEN_MILLI
            if free_milli >= need_milli:
                return max(0, place.until * TICK_MS - now_ms)
        return math.inf


def level_of(
    rate: Rate, before: Rate | None, image: Item, name: str, now_ms: int, ticket: int | None = None
) -> SeatLevel:
    """A limit of concurrency of a bucket, as the next write finds it, under the numbers that it is to have.

    It may have been another kind of limit, or none: whoever took a seat before that still holds it. What
    those wait for who are before somebody is not there for it.
    """
    there = [place for place in places(image, name) if place.taken]
    held_now = [place for place in there if not place.is_over(now_ms)]
    if is_counted(before):
        assert before is not None
        stored = number(image, limit_attributes(name).tk) + rate.capacity_milli - before.capacity_milli
        free_milli = stored + TOKEN_MILLI * (
            sum(place.taken for place in there) - sum(place.taken for place in held_now)
        )
    else:
        free_milli = rate.capacity_milli - TOKEN_MILLI * sum(place.taken for place in held_now)
    if len(held_now) >= PLACES_MAX:
        free_milli = min(0, free_milli)
    for waiter in ahead(image, name, ticket, now_ms):
        free_milli -= waiter.seats * TOKEN_MILLI
        held_now.append(Place("", until(rate, waiter.until_ms), waiter.seats, 0))
    at = SeatLevel(rate, free_milli, now_ms)
    at.places = tuple(sorted(held_now, key=lambda place: place.until))
    return at
