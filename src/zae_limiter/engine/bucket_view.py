"""What a process knows of a bucket before it writes: whose it is, its terms, and how its image compares.

Pure, like the writes that are made from it. ``Terms`` say what the limits of a bucket shall be; the
image says what they are. Where the two differ somebody has changed the limits, or split the bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ..models import NUMBER_MAX, Limit, LimitStatus
from ..models.accruals import CONCURRENT, SESSION, kind_of
from ..naming import WCU
from ..repository_protocol import Item
from ..runtime.world import AHEAD_MS_MAX
from ..schema import (
    BOOKED,
    LIFE,
    PHASE,
    booking_attributes,
    bucket_limit_names,
    forgiven,
    limit_attributes,
    number,
    stored_rate,
    text,
)
from .account import WRITE_MILLI, Account, Meter, Terms
from .law import TOKEN_MILLI, Rate, balance, floored, gain, is_cut
from .level import Level
from .line_over import unbooked
from .phased import in_phase, instant, terms_at, unphased
from .seats import level_of, vacated
from .seen_changes import LOST, has_missed, is_undone
from .shares import SHARDS_MAX, Spread

Standing: TypeAlias = frozenset[tuple[str, int]]
"""What a bucket stores of each limit, and since when these are counted."""


class Carry(NamedTuple):
    """What becomes of the balance of a limit when its numbers change."""

    shift_milli: int
    """What a raise gives, or a cut takes."""
    is_cut: bool
    spared_milli: int
    """What earlier cuts had spared and a raise has still to make up for."""

    def found(self, balance_milli: int, capacity_milli: int) -> int:
        """The balance under the new numbers."""
        moved = balance_milli + self.shift_milli
        return floored(moved, balance_milli, capacity_milli) if self.is_cut else moved

    def least(self, capacity_milli: int) -> int:
        """The smallest balance from which a cut can take all it would."""
        return -self.shift_milli if self.shift_milli < 0 else TOKEN_MILLI - capacity_milli - self.shift_milli


def carry(before: Rate, after: Rate, spared_milli: int) -> Carry:
    """How a balance is carried over to other numbers.

    A raise gives the difference at once and a cut takes it, but a cut makes no debt. What it spared is
    taken off the next raise, lest callers who disagree about the limits make tokens by turns.
    """
    difference = after.capacity_milli - before.capacity_milli
    if after.accrual == CONCURRENT:  # who is at work stays there, and nobody comes before enough have left
        return Carry(difference, False, 0)
    made_up = min(spared_milli, max(0, difference))
    return Carry(difference - made_up, is_cut(before, after), spared_milli - made_up)


def is_renewed(terms: Terms, image: Item) -> bool:
    """Whether the terms are of another configuration than the bucket; then nobody has to be made up for."""
    return terms.version is not None and terms.version != image.get("cv")


def stored_terms(image: Item, ttl_fills: int = 0) -> Terms:
    """The terms that a bucket itself holds; one without a ``ttl`` is kept for ever."""
    rates = ((name, rate) for name in bucket_limit_names(image) if (rate := stored_rate(image, name)))
    return _terms(tuple(rates), number(image, "cv"), ttl_fills if "ttl" in image else 0)


@lru_cache(4096)
def _terms(rates: tuple[tuple[str, Rate], ...], version: int | None, ttl_fills: int) -> Terms:
    return Terms(dict(rates), version, ttl_fills)


def has_terms(image: Item, terms: Terms) -> bool:
    """Whether a bucket is whole, and its numbers and version are those of the terms."""
    if not terms.said.items() <= image.items() or not image.keys().isdisjoint(terms.unsaid):
        return False
    for attribute in terms.counted:
        value = image.get(attribute)
        if type(value) is not int or not -NUMBER_MAX <= value <= NUMBER_MAX:
            return False
    return True


def has_family(image: Item, account: Account) -> bool:
    """Whether a bucket's copy of the entity's parent is what the account was worked out with."""
    return image.get("parent_id") == account.parent_id and (image.get("cascade") is True) == account.cascade


def life_of(image: Item | None) -> str | None:
    """Since which deletion of its entity a bucket is there; ``None`` if that was never deleted."""
    return None if image is None else text(image, LIFE)


def outlived(account: Account, image: Item | None) -> bool:
    """Whether what is owed to an account was owed before its entity was deleted, and to nobody since."""
    life = life_of(image)
    return life is not None and account.life not in (life, "")


def has_same_terms(one: Account, other: Account) -> bool:
    """Whether postings on these accounts of one bucket can be written as one."""
    return (one.meter, one.shard_count) == (other.meter, other.shard_count) and one.terms == other.terms


def is_outdated(terms: Terms, image: Item | None) -> bool:
    """Whether this bucket has seen a change of the configuration that the terms have not.

    Or that it has seen what the terms have, and found that the store has lost it.
    """
    version = terms.seen if terms.version is None else terms.version
    if version is None or image is None or image.get("cv") == version:
        return False
    seen = number(image, "cv")
    return has_missed(version, seen) or (LOST in image and is_undone(version, seen, number(image, LOST)))


def is_ahead(image: Item, now_ms: int) -> bool:
    """Whether a bucket's origin lies further in the future than a client that knows the time can have put it.

    Nothing would accrue until then. The next write begins the bucket anew at the present, with what it has.
    """
    origin_ms = image.get("rf")
    return type(origin_ms) is int and origin_ms - now_ms > AHEAD_MS_MAX and origin_ms <= NUMBER_MAX


def is_split(account: Account, image: Item | None) -> bool:
    """Whether the shares of this shard were cut anew since the account's were, or the shard is gone."""
    return account.meter is not Meter.NONE and shard_count(image) != account.shard_count


def shard_count(image: Item | None) -> int:
    """How many shards a bucket has; a number that cannot be right counts as one."""
    count = None if image is None else image.get("shard_count")
    return count if type(count) is int and 1 <= count <= SHARDS_MAX else 1


def in_shards(count: int) -> int:
    return count if 1 <= count <= SHARDS_MAX else 1


def is_overloaded(account: Account, image: Item | None, now_ms: int) -> bool:
    """Whether a bucket refuses because it is written too often."""
    rate = None if image is None or account.meter is not Meter.LIMIT else stored_rate(image, WCU)
    if image is None or rate is None or is_ahead(image, now_ms):
        return False
    return balance(rate, number(image, limit_attributes(WCU).tk), number(image, "rf"), now_ms) < WRITE_MILLI


def level(terms: Terms, name: str, image: Item | None, now_ms: int) -> Level:
    """A limit of the bucket under these terms, as the next write would find it."""
    if terms.scheduled or (image is not None and PHASE in image):
        terms, image = as_of(terms, image, now_ms)
    rate, since_ms = terms.rates[name], terms.phase_ms or 0
    before = None if image is None else stored_rate(image, name)
    if image is not None and rate.accrual == CONCURRENT:
        return level_of(rate, before, image, name, now_ms, terms.ticket)
    if image is None or before is None or before.accrual == CONCURRENT:
        return Level(rate, rate.capacity_milli, now_ms, since_ms=since_ms)
    waits = False
    if BOOKED in image:
        waits = in_line(image, now_ms)
        image = image if waits else unbooked(image)
    tokens = number(image, limit_attributes(name).tk)
    origin = now_ms if is_ahead(image, now_ms) else number(image, "rf")
    if rate.accrual == SESSION and before == rate._replace(accrual=before.accrual):
        rate = before if kind_of(before.accrual) == SESSION else rate  # with the window that it is in
    if before == rate:
        names = booking_attributes(name)
        back, over_ms = (
            (number(image, names.back), number(image, BOOKED)) if waits and names.high in image else (0, 0)
        )
        return Level(rate, tokens, origin, None, back, over_ms, since_ms)
    # Until that write the bucket goes on to fill at the rate it has.
    spared = 0 if is_renewed(terms, image) else still_forgiven(image, name, now_ms)
    change = carry(before, rate, spared)
    shift = change.shift_milli
    filling = before._replace(capacity_milli=before.capacity_milli + shift, schedule=None)
    at = Level(filling, tokens + shift, origin, -shift if change.is_cut and not waits else None)
    if rate.schedule is None:
        return at
    # How full it gets by phases that are still to come is for the new numbers to say.
    return Level(rate, at.balance(now_ms), now_ms, since_ms=since_ms)


def as_of(terms: Terms, image: Item | None, now_ms: int) -> tuple[Terms, Item | None]:
    """Terms and a bucket in the phase of an instant."""
    view = None if image is None else in_phase(image, now_ms)
    return terms_at(terms, instant(view, now_ms)), None if view is None else unphased(view)


def has_terms_now(image: Item, terms: Terms, now_ms: int) -> bool:
    """Whether a bucket has the numbers that its terms have now, or gets them as time passes."""
    if terms.scheduled or PHASE in image:
        terms, view = as_of(terms, image, now_ms)
        return view is not None and has_terms(view, terms)
    return has_terms(image, terms)


def in_line(image: Item, now_ms: int) -> bool:
    """Whether somebody may be waiting for a bucket."""
    return number(image, BOOKED) > now_ms


def as_found(image: Item, now_ms: int) -> Item:
    """A bucket as the next write finds it: without a line that is over, and seats that lapsed."""
    image = unbooked(image) if BOOKED in image and not in_line(image, now_ms) else image
    image = in_phase(image, now_ms) if PHASE in image else image
    return vacated(image, stored_terms(image).seats, now_ms)


def tokens_of(image: Item) -> dict[str, int]:
    """What a bucket stores of each of its limits."""
    names = (limit_attributes(name).tk for name in bucket_limit_names(image))
    return {tk: number(image, tk) for tk in names}


def ended_attribute(name: str) -> str:
    """Where a bucket counts how often an operator has ended what was booked of a limit."""
    return f"b_{name}_be"


def standing(image: Item) -> Standing:
    """Where a bucket stands: while somebody waits only bookings move it, and what undoes or ends them."""
    counts = (ended_attribute(name) for name in bucket_limit_names(image))
    ended = {count: number(image, count) for count in counts if count in image}
    return frozenset({**tokens_of(image), **ended, "rf": number(image, "rf")}.items())


def still_forgiven(image: Item, name: str, now_ms: int) -> int:
    """What cuts spared a limit and nothing has made up for yet; what has flown over has done so."""
    spared, rate = forgiven(image).get(name, 0), stored_rate(image, name)
    if not spared or rate is None:
        return 0
    origin = now_ms if is_ahead(image, now_ms) else number(image, "rf")
    held = number(image, limit_attributes(name).tk) + gain(rate, origin, now_ms)
    return max(0, spared - max(0, held - rate.capacity_milli))


def status(account: Account, name: str, need_milli: int, at: Level | Spread, now_ms: int) -> LimitStatus:
    """What a demand finds at one limit of a whole bucket."""
    wait_ms = 0 if name in account.terms.soft else at.retry_after_ms(need_milli, now_ms)
    return LimitStatus(
        account.entity_id,
        account.resource,
        name,
        told_limit(account.terms, name, terms_at(account.terms, now_ms).rates[name]),
        available=at.balance(now_ms) // 1000,
        requested=need_milli // 1000,
        exceeded=wait_ms > 0,
        retry_after_seconds=wait_ms / 1000,
        reset_after_seconds=at.reset_ms(now_ms) / 1000,
        next_after_seconds=at.retry_after_ms(TOKEN_MILLI, now_ms) / 1000,
        checked_at_ms=now_ms,
    )


def put_back(image: Item | None, amounts: Mapping[str, int]) -> Item | None:
    """An image as it would be if the amounts had not been taken."""
    if image is None:
        return None
    names = {limit_attributes(name).tk: amount for name, amount in amounts.items()}
    return {**image, **{tk: number(image, tk) + amount for tk, amount in names.items()}}


@lru_cache(4096)
def limit_of(name: str, rate: Rate, soft: bool = False, unit: str | None = None) -> Limit:
    capacity, amount, period, accrual, _ = rate
    return Limit(name, capacity // 1000, amount // 1000, period // 1000, kind_of(accrual), unit, soft=soft)


def told_limit(terms: Terms, name: str, rate: Rate) -> Limit:
    """A limit as its users know it, with what a bucket does not say of it."""
    return limit_of(name, rate, name in terms.soft, terms.units.get(name))
