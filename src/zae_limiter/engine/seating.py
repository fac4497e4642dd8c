"""Seats in a write: taken, given back and renewed beside whatever else it does to the bucket. Pure.

Any write is shaped as if there were no seats, for the bucket as it is without those that have lapsed; then
the moves of seats are put into it. See ``seats`` for what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..repository_protocol import (
    Absent,
    AtLeast,
    AtMost,
    Condition,
    Equal,
    Exists,
    Item,
    Put,
    Update,
    Value,
    Write,
)
from ..schema import LIFE, is_deleted, kind_attributes, limit_attributes, pinned, stored_rate
from .account import WRITE_MILLI, Account
from .announced import ahead, waiters_attribute, without
from .bucket_view import stored_terms
from .law import TOKEN_MILLI, fill_ms
from .lifetime import keep_alive
from .posting import COUNT, Posting
from .seats import (
    RENEWED,
    TICK_MS,
    Place,
    SeatMove,
    bounds_of,
    is_counted,
    lapsed,
    level_of,
    place_attributes,
    places,
    take_off,
    vacated,
    value_of,
    with_renewal,
)

Shape: TypeAlias = Callable[[Account, Posting, Item | None, int], Write | None]


def with_seats(
    shape: Shape, account: Account, posting: Posting, image: Item | None, now_ms: int
) -> Write | None:
    """The write that carries out a posting, its moves of seats included; ``None`` if it is moot.

    Who gives back or renews what is not there any more, by all that is known, asks for the truth.
    """
    moves, rest = posting.seats, posting._replace(seats=())
    if image is None or is_deleted(image):
        write = shape(account, rest, image, now_ms)
        if type(write) is Put:
            return write._replace(item={**write.item, **_first_places(moves)})
        return _ask(account) if write is None and image is None else write
    if not take_off(moves, image, {}):
        return _ask(account)
    wanted = [move.name for move in moves if move.amount > 0]
    counted = [name for name in dict.fromkeys(wanted) if is_counted(stored_rate(image, name))]
    write = shape(account, rest, vacated(image, counted, now_ms), now_ms)
    if write is not None and type(write) is not Update:
        return write
    seating = _Seating(account, image, write, now_ms)
    for name in counted:
        seating.vacate(name)
    for name in dict.fromkeys(wanted):
        if name not in account.terms.soft:
            seating.keep_order(name, sum(m.amount for m in moves if m.name == name and m.amount > 0))
    return seating.update(moves)


def _ask(account: Account) -> Update:
    """A write that cannot succeed, to be told what is there now."""
    return Update(account.key, when=(Exists(), Absent()))


def _first_places(moves: Sequence[SeatMove]) -> dict[str, Value]:
    """What a new bucket says of the seats that are taken with its first use."""
    taken: dict[tuple[str, int], int] = {}
    for move in moves:
        if move.amount > 0:
            taken[move.name, move.until] = taken.get((move.name, move.until), 0) + move.amount
    free = {name: iter(place_attributes(name)) for name, _ in taken}
    return {next(free[name]): value_of(until, count) for (name, until), count in taken.items()}


class _Seating:
    """A write in the making to which moves of seats are added."""

    def __init__(self, account: Account, image: Item, write: Update | None, now_ms: int) -> None:
        self.account, self.image, self.now_ms = account, image, now_ms
        self.is_bare = write is None
        self.add: dict[str, int] = dict(write.add) if write is not None else {}
        self.set: dict[str, Value] = dict(write.set) if write is not None else {}
        self.when: list[Condition] = list(write.when) if write is not None else [*pinned(image, LIFE)]
        self.places: dict[str, list[Place]] = {}

    def vacate(self, name: str) -> None:
        """Count as free what lapsed; the write was shaped for a bucket where that has been done."""
        tokens = limit_attributes(name).tk
        over = lapsed(self.image, name, self.now_ms)
        freed = sum(place.taken for place in over) * TOKEN_MILLI
        if not over:
            return
        self.when = [_less(condition, tokens, freed) for condition in self.when]
        if tokens not in self.set:
            self.add[tokens] = self.add.get(tokens, 0) + freed
        for place in over:
            self.set[place.attribute] = None
            self.when.append(Equal(place.attribute, place.value))

    def keep_order(self, name: str, count: int) -> None:
        """Take seats of a limit only behind those who asked before, and say that one waits no longer."""
        terms, image, attribute = self.account.terms, self.image, waiters_attribute(name)
        self.when += pinned(image, attribute)
        before, rate = stored_rate(image, name), terms.rates[name]
        if waiting := sum(it.seats for it in ahead(image, name, terms.ticket, self.now_ms)):
            at = level_of(rate, before, image, name, self.now_ms, terms.ticket)
            if at.balance(self.now_ms) < count * TOKEN_MILLI:
                self.when.append(Absent())
            elif before is not None and is_counted(before):
                over = sum(place.taken for place in lapsed(image, name, self.now_ms))
                shift = rate.capacity_milli - before.capacity_milli
                least = (count + waiting - over) * TOKEN_MILLI - shift
                self.when.append(AtLeast(limit_attributes(name).tk, least))
        left = without(image, name, terms.ticket, self.now_ms)
        if left != image.get(attribute):
            self.set[attribute] = left

    def update(self, moves: Sequence[SeatMove]) -> Update:
        """The write with all moves in it."""
        net: dict[tuple[str, int], int] = {}
        for move in moves:
            if move.amount < 0:
                self._give_back(move, net)
            else:
                net[move.name, move.until] = net.get((move.name, move.until), 0) + move.amount
                if move.until * TICK_MS <= self.now_ms:
                    self.when.append(Absent())  # whoever asked waited in line for too long, and asks anew
        new = [(name, until) for name, until in net if not self._changed(name, until, net[name, until])]
        for name, until in new:
            self._open(name, until, net[name, until])
        if self.is_bare and COUNT.tk in self.image:
            self.add[COUNT.tk], self.add[COUNT.tc] = -WRITE_MILLI, WRITE_MILLI
        add = {attribute: amount for attribute, amount in self.add.items() if amount}
        return Update(self.account.key, add, self.set, tuple(self.when))

    def _there(self, name: str) -> list[Place]:
        if name not in self.places:
            self.places[name] = places(self.image, name)
        return self.places[name]

    def _at(self, name: str, until: int) -> list[Place]:
        """The places of an instant: two, if two processes have made one at the same time."""
        there = (place for place in self._there(name) if place.until == until)
        return [place for place in there if place.attribute not in self.set]

    def _give_back(self, move: SeatMove, net: dict[tuple[str, int], int]) -> None:
        """Give seats back, or renew them."""
        name, at, count = move.name, (move.name, move.until), -move.amount
        names, is_there = limit_attributes(name), is_counted(stored_rate(self.image, name))
        self.when += pinned(self.image, kind_attributes(name).ac)
        if move.is_refund and is_there:
            self._bump(names.tc, -count * TOKEN_MILLI)
        if not self._at(name, move.until):
            return  # it had lapsed, and counts as free by this very write
        net[at] = net.get(at, 0) - count
        if move.later is not None:
            net[name, move.later] = net.get((name, move.later), 0) + count
            self.set[RENEWED] = with_renewal(self.image, move.mark)
            self.when += pinned(self.image, RENEWED)
            self._outlive(name)
        elif is_there:
            self._bump(names.tk, count * TOKEN_MILLI)

    def _bump(self, attribute: str, amount: int) -> None:
        stands = self.set.get(attribute)
        if type(stands) is int:
            self.set[attribute] = stands + amount
        else:
            self.add[attribute] = self.add.get(attribute, 0) + amount

    def _outlive(self, name: str) -> None:
        """Let the bucket be there for as long as a seat that is renewed."""
        terms, rate = stored_terms(self.image, self.account.terms.ttl_fills), stored_rate(self.image, name)
        if rate is not None:
            full_in_ms = fill_ms(rate, rate.capacity_milli)
            self.when += keep_alive(terms, self.image, self.set, self.now_ms, full_in_ms)

    def _changed(self, name: str, until: int, count: int) -> bool:
        """Add seats to the place of an instant, or take them off it, if there is one."""
        there = self._at(name, until)
        for place in there:
            part = max(count, -place.taken) if count < 0 else count
            least, most = bounds_of(until, part)
            self.when += [AtLeast(place.attribute, least), AtMost(place.attribute, most)]
            self.add[place.attribute] = part
            count -= part
            if not count:
                break
        return bool(there)

    def _open(self, name: str, until: int, count: int) -> None:
        """Make a place for an instant."""
        attribute = self._free(name)
        if attribute is None:
            self.when.append(Absent())  # the level of the limit says so too
            return
        self.set[attribute] = value_of(until, count)
        self.when += pinned(self.image, attribute)

    def _free(self, name: str) -> str | None:
        """Where a place can be made: where none is, or one that nobody has a seat of, best if it is over."""
        used = {place.attribute: place for place in self._there(name)}
        free: list[tuple[bool, str]] = []
        for attribute in place_attributes(name):
            place = used.get(attribute)
            if attribute in self.add or self.set.get(attribute) is not None:
                continue
            if place is None or not place.taken or attribute in self.set:
                free.append((place is not None and not place.is_over(self.now_ms), attribute))
        return min(free, key=lambda it: it[0])[1] if free else None


def _less(condition: Condition, tokens: str, freed_milli: int) -> Condition:
    """A condition on what a bucket stores, as it is before the seats that lapsed are counted as free."""
    match condition:
        case AtLeast(attribute=attribute, amount=int(amount)) if attribute == tokens:
            return AtLeast(tokens, amount - freed_milli)
        case AtMost(attribute=attribute, amount=int(amount)) if attribute == tokens:
            return AtMost(tokens, amount - freed_milli)
        case Equal(attribute=attribute, value=int(value)) if attribute == tokens:
            return Equal(tokens, value - freed_milli)
    return condition
