"""What is asked of which buckets, and what was taken of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..exceptions import ValidationError
from ..repository_protocol import Outcome
from ..runtime.colour import Signal
from .account import Account
from .booking import Booked
from .bucket_view import life_of
from .posting import Booking, Order, Posting
from .seats import SeatMove, as_recorded, until


class BucketDemand(NamedTuple):
    """What one acquire takes from one bucket, in millitokens by limit."""

    account: Account
    amounts: Mapping[str, int]


class Take(NamedTuple):
    """What was taken for somebody at one time, and of whom."""

    accounts: tuple[Account, ...]
    """The family that it was taken under, the entity first."""
    amounts: Mapping[str, int]
    """What each of them gave who has such a limit."""
    demands: tuple[BucketDemand, ...]
    """The items that gave it."""


def demand_on(account: Account, amounts: Mapping[str, int]) -> BucketDemand | None:
    """What can be asked of an account: the limits it has, if any, unless it is not charged."""
    if account.bypass is not None and not account.is_counted:
        return None
    known = {name: amount for name, amount in amounts.items() if name in account.terms.rates}
    return BucketDemand(account, known) if known else None


def demands_on(accounts: Sequence[Account], amounts: Mapping[str, int]) -> list[BucketDemand]:
    """Amounts as demands on all who have such limits; somebody must have each of them."""
    for name in amounts:
        if not any(name in account.terms.rates for account in accounts):
            raise unknown_limit(name, accounts)
    return [demand for account in accounts if (demand := demand_on(account, amounts)) is not None]


def hard_and_soft(demands: Sequence[BucketDemand]) -> tuple[list[BucketDemand], list[BucketDemand]]:
    """What a bucket may refuse of some demands, and what it only counts."""
    both: tuple[list[BucketDemand], list[BucketDemand]] = [], []
    for account, amounts in demands:
        for part, is_soft in zip(both, (False, True), strict=True):
            some = {name: n for name, n in amounts.items() if (name in account.terms.soft) is is_soft}
            if some:
                part.append(BucketDemand(account, some))
    return both


def by_bucket(demands: Sequence[BucketDemand]) -> list[BucketDemand]:
    """Demands on several limits of one bucket as one, for a store changes an item once at a time."""
    accounts = {demand.account.key: demand.account for demand in demands}
    amounts: dict[object, dict[str, int]] = {key: {} for key in accounts}
    for demand in demands:
        amounts[demand.account.key] |= demand.amounts
    return [BucketDemand(account, amounts[key]) for key, account in accounts.items()]


def unknown_limit(name: str, accounts: Sequence[Account]) -> ValidationError:
    entity_id, resource = accounts[0].entity_id, accounts[0].resource
    known = dict.fromkeys(name for account in accounts for name in account.terms.rates)
    has = f"it has {', '.join(known)}" if known else "it has none"
    return ValidationError("limit name", name, f"{entity_id!r} has no such limit on {resource!r}; {has}")


@dataclass(slots=True, weakref_slot=True, eq=False)
class Seat:
    """Some seats that a lease holds of one bucket, and until when; whoever renews them moves that."""

    account: Account
    name: str
    until: int
    count: int
    is_over: bool = False
    is_lost: bool = False
    """Whether its lease has ended, or nobody can tell any more where it is."""
    moving: Signal | None = None
    """Given when the renewal is done that is under way."""
    doubt: object = None
    """The renewal whose reply was lost, until somebody has found out what became of it."""

    def back(self, *, is_refund: bool = False) -> SeatMove:
        return SeatMove(self.name, self.until, -self.count, is_refund)


class SeatedDemand(BucketDemand):
    """One that takes seats."""

    seats: tuple[Seat, ...] = ()

    @property
    def taking(self) -> tuple[SeatMove, ...]:
        """The moves that take them."""
        return tuple(SeatMove(seat.name, seat.until, seat.count) for seat in self.seats)

    @property
    def tokens(self) -> dict[str, int]:
        """What it takes besides."""
        names = {seat.name for seat in self.seats}
        return {name: amount for name, amount in self.amounts.items() if name not in names}


def seated(demand: BucketDemand, now_ms: int, *, is_recorded: bool = False) -> BucketDemand:
    """A demand with the seats that it takes, if it does."""
    account, amounts = demand
    if account.terms.seats.isdisjoint(amounts):
        return demand
    seats = []
    for name in amounts:
        if name in account.terms.seats:
            rate = account.terms.rates[name]
            held_until = until(as_recorded(rate) if is_recorded else rate, now_ms)
            seats.append(Seat(account, name, held_until, amounts[name] // 1000))
    return _with_seats(demand, tuple(seats))


def with_ticket(demand: BucketDemand, ticket: int | None) -> BucketDemand:
    """A demand of somebody who waits for seats since then, or, once it has them, of anybody."""
    account, amounts = demand
    if account.terms.ticket == ticket or account.terms.seats.isdisjoint(amounts):
        return demand
    account = account._replace(terms=replace(account.terms, ticket=ticket))
    seats = demand.seats if isinstance(demand, SeatedDemand) else ()
    moved = tuple(Seat(account, seat.name, seat.until, seat.count) for seat in seats)
    return _with_seats(BucketDemand(account, amounts), moved)


def seats_and_rest(demands: Sequence[BucketDemand]) -> tuple[list[BucketDemand], list[BucketDemand]]:
    """What some demands want of limits of concurrency, and of all others."""
    both: tuple[list[BucketDemand], list[BucketDemand]] = [], []
    for account, amounts in demands:
        for part, is_seat in zip(both, (True, False), strict=True):
            some = {name: n for name, n in amounts.items() if (name in account.terms.seats) is is_seat}
            if some:
                part.append(BucketDemand(account, some))
    return both


def order_of(demand: BucketDemand, posting: Posting) -> Order:
    """The order that takes a demand, like a posting else."""
    taking = demand.taking if isinstance(demand, SeatedDemand) else ()
    return Order(demand.account, posting._replace(need=demand.amounts, seats=taking))


def share_of(demand: BucketDemand, amounts: Mapping[str, int]) -> BucketDemand:
    """A part of a demand that was taken, as one that somebody answers for."""
    share = BucketDemand(demand.account, amounts)
    if not isinstance(demand, SeatedDemand):
        return share
    seats = (
        Seat(seat.account, seat.name, seat.until, amounts[seat.name] // 1000)
        for seat in demand.seats
        if seat.name in amounts
    )
    return _with_seats(share, tuple(seats))


def _with_seats(demand: BucketDemand, seats: tuple[Seat, ...]) -> BucketDemand:
    if not seats:
        return demand
    with_seats = SeatedDemand(*demand)
    with_seats.seats = seats
    return with_seats


def seats_of(takes: Iterable[Take]) -> list[Seat]:
    """The seats that were taken, whoever gave them."""
    demands = (demand for take in takes for demand in take.demands)
    return [seat for demand in demands if isinstance(demand, SeatedDemand) for seat in demand.seats]


class BookedDemand(BucketDemand):
    """One that was booked."""

    booking: Booking = Booking(0)


def taken_from(demand: BucketDemand, outcome: Outcome) -> BucketDemand:
    """A demand that was taken, with which of the buckets that this key has had it was taken from."""
    life = "" if outcome.item is None else life_of(outcome.item)
    if isinstance(outcome, Booked):
        booked = BookedDemand(demand.account._replace(life=life), demand.amounts)
        booked.booking = outcome.booking
        return booked
    account = demand.account
    if account.life == life:
        return demand
    return of_life(demand, life)


def of_life(demand: BucketDemand, life: str | None) -> BucketDemand:
    """A demand on one of the buckets that this key has had."""
    account = demand.account._replace(life=life)
    taken = BucketDemand(account, demand.amounts)
    if isinstance(demand, SeatedDemand):
        return _with_seats(taken, tuple(Seat(account, s.name, s.until, s.count) for s in demand.seats))
    return taken
