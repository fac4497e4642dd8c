"""What is asked of which buckets, and what was taken of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..exceptions import ValidationError
from ..repository_protocol import Outcome
from .account import Account
from .booking import Booked
from .bucket_view import life_of
from .posting import Booking


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
    """What can be asked of an account: the limits it has, if any."""
    known = {name: amount for name, amount in amounts.items() if name in account.terms.rates}
    return BucketDemand(account, known) if known else None


def demands_on(accounts: Sequence[Account], amounts: Mapping[str, int]) -> list[BucketDemand]:
    """Amounts as demands on all who have such limits; somebody must have each of them."""
    for name in amounts:
        if not any(name in account.terms.rates for account in accounts):
            raise unknown_limit(name, accounts)
    return [demand for account in accounts if (demand := demand_on(account, amounts)) is not None]


def unknown_limit(name: str, accounts: Sequence[Account]) -> ValidationError:
    entity_id, resource = accounts[0].entity_id, accounts[0].resource
    known = dict.fromkeys(name for account in accounts for name in account.terms.rates)
    has = f"it has {', '.join(known)}" if known else "it has none"
    return ValidationError("limit name", name, f"{entity_id!r} has no such limit on {resource!r}; {has}")


class BookedDemand(BucketDemand):
    """One that was booked."""

    booking = Booking(0)


def taken_from(demand: BucketDemand, outcome: Outcome) -> BucketDemand:
    """A demand that was taken, with which of the buckets that this key has had it was taken from."""
    life = "" if outcome.item is None else life_of(outcome.item)
    if isinstance(outcome, Booked):
        booked = BookedDemand(demand.account._replace(life=life), demand.amounts)
        booked.booking = outcome.booking
        return booked
    account = demand.account
    return demand if account.life == life else BucketDemand(account._replace(life=life), demand.amounts)
