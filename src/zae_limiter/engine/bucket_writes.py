"""From a demand to a write: pure, and the heart of the product.

A bucket's origin ``rf`` stands still, so the gain since then is known to every client and a store
only has to add and compare. Each limit of a write takes one of two shapes:

    spend   believed not full   need - gain <= tk <= cp - gain    add -c to tk
    top     believed full       tk > cp - gain                    set tk to cp - gain - c

Spends commute, so a busy bucket needs no lock. A wrong belief is refused and brings back the image
that corrects it. When the numbers of a bucket change it is *rebased* by the same write: every limit
is credited its gain, a raise gives the difference, a cut takes it without making debt, and the origin
moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..bucket import Rate, gain, moved_origin
from ..naming import WCU
from ..repository_protocol import (
    NOTHING,
    Absent,
    AtLeast,
    AtMost,
    Condition,
    Equal,
    Exists,
    Item,
    Key,
    Put,
    Update,
    Value,
    Write,
)
from ..schema import (
    FORGIVEN,
    HOLDS,
    LIFE,
    bucket_entries,
    bucket_limit_names,
    forgiven,
    is_deleted,
    limit_attributes,
    number,
    pinned,
    shard_attributes,
    stored_rate,
)
from .bucket_view import (
    WRITE_MILLI,
    WRITES,
    Account,
    Meter,
    Terms,
    carry,
    has_terms,
    is_ahead,
    is_outdated,
    is_renewed,
    level,
    life_of,
    shard_count,
    stored_terms,
)
from .shares import SHARDS_MAX

_WRITES = limit_attributes(WCU)


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

    @property
    def names(self) -> Iterable[str]:
        if self.debit or self.credit:
            return dict.fromkeys((*self.need, *self.debit, *self.credit))
        return self.need


def write_for(account: Account, posting: Posting, image: Item | None, now_ms: int) -> Write | None:
    """The write that carries out a posting on a bucket last seen as ``image``; ``None`` if it is moot."""
    if not posting.need and not posting.debit:
        return _give_back(account, posting.credit, image)
    if image is None:
        return _create(account, posting, now_ms) if account.shard_id == 0 else _ask(account.key)
    if is_deleted(image):
        return _create_anew(account, posting, image, now_ms)
    if not posting.need:
        return _charge(account, posting, image, now_ms)
    if is_outdated(account.terms, image):
        return _ask(account.key)  # never turn a bucket back to older limits
    if has_terms(image, account.terms) and not is_ahead(image, now_ms):
        return _spend(account, posting, image, now_ms)
    return _rebase(account, posting, image, now_ms)


def fitting(postings: Sequence[Posting], terms: Terms, image: Item | None, now_ms: int) -> list[bool]:
    """Which postings a bucket can take, one after another; what is not asked for always fits."""
    left: dict[str, int] = {}
    fits = []
    for posting in postings:
        for name in posting.need:
            if name not in left:
                left[name] = level(terms, name, image, now_ms).balance(now_ms)
        fit = all(left[name] >= amount for name, amount in posting.need.items())
        fits.append(fit)
        if fit:
            for name, amount in posting.need.items():
                left[name] -= amount
    return fits


def merged(postings: Sequence[Posting]) -> Posting:
    """Several postings as one."""
    need: dict[str, int] = {}
    debit: dict[str, int] = {}
    credit: dict[str, int] = {}
    largest: dict[str, int] = {}
    hold = 0
    for posting in postings:
        hold = max(hold, posting.hold)
        for name, amount in posting.need.items():
            largest[name] = max(amount, largest.get(name, 0))
        for total, part in ((need, posting.need), (debit, posting.debit), (credit, posting.credit)):
            for name, amount in part.items():
                total[name] = total.get(name, 0) + amount
    return Posting(need, debit, credit, largest, hold)


def _spend(account: Account, posting: Posting, image: Item, now_ms: int) -> Update:
    """Take from a bucket that has the numbers of its terms: spend or top, limit by limit."""
    numbers: Mapping[str, int] = image  # type: ignore[assignment]  # as far as the terms name them
    origin = number(image, "rf")
    when: list[Condition] = [Equal("rf", origin), *pinned(image, "cv")]
    add: dict[str, int] = {}
    set_: dict[str, Value] = {}
    full_in_ms = 0
    terms, (need_by_name, debit, credit, _, hold) = account.terms, posting
    spared = forgiven(image) if FORGIVEN in image else None
    if hold:
        set_[HOLDS[hold % len(HOLDS)]] = hold
    for name in posting.names:
        rate, (tokens, _, _, _, counter) = terms.rates[name], limit_attributes(name)
        gained = gain(rate, origin, now_ms)
        brim = rate.capacity_milli - gained  # what a bucket stores that is just full
        stored, need = numbers[tokens], need_by_name.get(name, 0)
        taken, returned = need + debit.get(name, 0), credit.get(name, 0)
        if stored > brim and need <= rate.capacity_milli:
            left = min(brim, brim - taken + returned)
            set_[tokens] = left
            when.append(AtLeast(tokens, brim + 1))
            if spared:  # what flows over is what makes up for it
                spared[name] = max(0, spared.get(name, 0) - (stored - brim))
                set_[FORGIVEN] = {n: v for n, v in spared.items() if v} or None
        else:
            left = stored - taken + returned
            add[tokens] = returned - taken
            when.append(AtMost(tokens, brim))
            if need:
                when.append(AtLeast(tokens, need - gained))
        add[counter] = taken - returned
        if terms.ttl_fills:
            full_in_ms = max(full_in_ms, fill_ms(rate, brim - left))
    when += _keep_alive(terms, image, set_, now_ms, full_in_ms)
    if account.meter is not Meter.NONE:
        when += _measure(account, posting, image, add, set_, now_ms)
    return Update(account.key, add, set_, tuple(when))


def _charge(account: Account, posting: Posting, image: Item, now_ms: int) -> Update | None:
    """Take after the fact, under the numbers that the bucket has by now."""
    terms = stored_terms(image, account.terms.ttl_fills)
    debit, credit = ({n: a for n, a in part.items() if n in terms.rates} for part in posting[1:3])
    if not debit and not credit:
        return None
    charge = _rebase if is_ahead(image, now_ms) else _spend
    return charge(account._replace(terms=terms), Posting(NOTHING, debit, credit), image, now_ms)


def rebased(account: Account, image: Item, now_ms: int) -> Update:
    """The write that changes a bucket's numbers to those of the terms, and nothing else."""
    return _rebase(account, Posting(), image, now_ms)


def _rebase(account: Account, posting: Posting, image: Item, now_ms: int) -> Update:
    """Take from a bucket and change its numbers to those of the terms.

    Version and origin together identify the numbers, so that a write which was shaped for the old
    ones is refused: where the version stays, the origin moves. One that lies ahead by mistake moves to the
    present; nothing accrued before it.
    """
    terms, origin = account.terms, number(image, "rf")
    renewed, ahead = is_renewed(terms, image), is_ahead(image, now_ms)
    at_ms = now_ms if ahead else max(now_ms, origin)
    origin_after = at_ms if renewed or ahead else moved_origin(origin, at_ms)
    rebase = _Rebase(image, at_ms, origin_after, renewed, posting)
    rebase.when += [Exists(), *pinned(image, "rf"), *pinned(image, "cv")]
    set_ = rebase.set
    set_["rf"] = rebase.origin_ms
    if terms.version is not None:
        set_["cv"] = terms.version
    full_in_ms = 0
    for name in dict.fromkeys((*terms.rates, *bucket_limit_names(image))):
        before, rate = stored_rate(image, name), terms.rates.get(name)
        if rate is None:
            if renewed:
                set_.update(dict.fromkeys((*limit_attributes(name), *shard_attributes(name))))
                continue
            assert before is not None, "every limit that a bucket holds has a rate"
            rate = before  # a limit that others bring along stays, and the origin moves for it too
        left = rebase.joining(name, rate) if before is None else rebase.carried(name, before, rate)
        names = limit_attributes(name)
        set_[names.cp], set_[names.ra], set_[names.rp] = rate
        full_in_ms = max(full_in_ms, fill_ms(rate, rate.capacity_milli - left))
    if posting.hold:
        set_[HOLDS[posting.hold % len(HOLDS)]] = posting.hold
    if rebase.spared or FORGIVEN in image:
        set_[FORGIVEN] = rebase.spared or None
    rebase.when += _keep_alive(terms, image, set_, at_ms, full_in_ms)
    if account.meter is not Meter.NONE:
        rebase.when += _measure(account, posting, image, rebase.add, set_, at_ms)
    return Update(account.key, {a: n for a, n in rebase.add.items() if n}, set_, tuple(rebase.when))


class _Rebase:
    """A change of a bucket's numbers in the making, as of an instant: what each limit adds to the write."""

    def __init__(self, image: Item, at_ms: int, origin_ms: int, renewed: bool, posting: Posting) -> None:
        self.image, self.at_ms, self.origin_ms, self.posting = image, at_ms, origin_ms, posting
        self.forgiven = {} if renewed else forgiven(image)
        self.renewed = renewed
        self.spared: dict[str, Value] = {}
        """What cuts have spared so far and callers who disagree must make up for."""
        self.add: dict[str, int] = {}
        self.set: dict[str, Value] = {}
        self.when: list[Condition] = []

    def joining(self, name: str, rate: Rate) -> int:
        """A limit that the bucket did not have starts full; returns what is left of it."""
        need = self.posting.need.get(name, 0)
        taken = need + self.posting.debit.get(name, 0)
        tokens, _, _, _, counter = limit_attributes(name)
        left = rate.capacity_milli - taken
        self.set[tokens], self.set[counter] = left - gain(rate, self.origin_ms, self.at_ms), taken
        self.when += pinned(self.image, tokens)
        if need > rate.capacity_milli:
            self.when.append(Absent())
        return left

    def carried(self, name: str, before: Rate, rate: Rate) -> int:
        """A limit whose numbers change, or its origin only; returns what is left of it."""
        need, credit = self.posting.need.get(name, 0), self.posting.credit.get(name, 0)
        taken = need + self.posting.debit.get(name, 0)
        tokens, _, _, _, counter = limit_attributes(name)
        stored, gained = number(self.image, tokens), gain(before, number(self.image, "rf"), self.at_ms)
        # What lies between the new origin and now would else be gained once more.
        counted = gain(rate, self.origin_ms, self.at_ms)
        brim = before.capacity_milli - gained
        spared = max(0, self.forgiven.get(name, 0) - max(0, stored - brim))
        change = carry(before, rate, spared)
        self.add[counter] = taken - credit
        if stored > brim and need <= rate.capacity_milli:
            found = change.found(before.capacity_milli, rate.capacity_milli)
            left = min(rate.capacity_milli, found - taken + credit)
            self.set[tokens] = left - counted
            self.when.append(AtLeast(tokens, brim + 1))
            if need > found:
                self.when.append(Absent())
            self._spare(name, change.spared_milli)
            return left
        held = stored + gained
        found = change.found(held, rate.capacity_milli)
        spared = 0 if need else found - held - change.shift_milli  # where a need fits, nothing is spared
        left = held + change.shift_milli + spared - taken + credit
        self._spare(name, change.spared_milli + spared)
        if spared:
            self.set[tokens] = left - counted
            self.when.append(Equal(tokens, stored))
            return left
        self.add[tokens] = left - counted - stored
        self.when.append(AtMost(tokens, brim))
        least = [need - change.shift_milli] if need else []
        if change.is_cut:
            least.append(change.least(rate.capacity_milli))
        if least:
            self.when.append(AtLeast(tokens, max(least) - gained))
        return left

    def _spare(self, name: str, spared_milli: int) -> None:
        if spared_milli and not self.renewed:
            self.spared[name] = spared_milli


def _measure(
    account: Account, posting: Posting, image: Item, add: dict[str, int], set_: dict[str, Value], at_ms: int
) -> tuple[Condition, ...]:
    """Count the write, and keep what a later split has to know.

    The count is a gauge and no promise: it is clamped without a condition, whoever writes last, and
    it fails a demand only when writes are exhausted.
    """
    for name, need in (posting.largest or posting.need).items():
        if need * SHARDS_MAX > account.terms.rates[name].capacity_milli:
            largest = shard_attributes(name).mx
            if need > number(image, largest):
                set_[largest] = need
    names, rate, origin = _WRITES, stored_rate(image, WCU), number(image, "rf")
    if rate is None:
        set_[names.tk], set_[names.tc] = WRITES.capacity_milli, WRITE_MILLI
        set_[names.cp], set_[names.ra], set_[names.rp] = WRITES
        return (*_pinned_count(account, image), *pinned(image, names.tk))
    gained, stored = gain(rate, origin, at_ms), number(image, names.tk)
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
        return (*_pinned_count(account, image), AtLeast(names.tk, WRITE_MILLI - gained))
    return _pinned_count(account, image)


def _pinned_count(account: Account, image: Item) -> tuple[Condition, ...]:
    """The condition that the shares of this shard are still those of the account."""
    if shard_count(image) == account.shard_count:
        return pinned(image, "shard_count")  # which may be anything that counts as one
    return (Equal("shard_count", account.shard_count),)


def _create(account: Account, posting: Posting, now_ms: int) -> Put:
    """A bucket that was never used is full; this is its first use."""
    terms = account.terms
    item: dict[str, Value] = {
        "entity_id": account.entity_id,
        "resource": account.resource,
        "rf": now_ms,
        "cv": terms.version or 0,
        "shard_count": 1,
        "cascade": account.cascade,
        "parent_id": account.parent_id,
        **bucket_entries(account.namespace_id, account.entity_id, account.resource, account.shard_id),
    }
    if posting.hold:
        item[HOLDS[posting.hold % len(HOLDS)]] = posting.hold
    when: list[Condition] = [Absent()]
    full_in_ms = 0
    for name, rate in terms.rates.items():
        names = limit_attributes(name)
        need = posting.need.get(name, 0)
        taken = need + posting.debit.get(name, 0)
        if need > rate.capacity_milli:
            when.append(Exists())  # it can never be admitted; the contradiction makes the store say so
        item[names.tk] = rate.capacity_milli - taken
        item[names.cp], item[names.ra], item[names.rp] = rate
        item[names.tc] = taken
        full_in_ms = max(full_in_ms, fill_ms(rate, taken))
        if account.meter is not Meter.NONE and need * SHARDS_MAX > rate.capacity_milli:
            item[shard_attributes(name).mx] = (posting.largest or posting.need).get(name)
    if account.meter is not Meter.NONE:
        names = _WRITES
        item[names.tk], item[names.tc] = WRITES.capacity_milli - WRITE_MILLI, WRITE_MILLI
        item[names.cp], item[names.ra], item[names.rp] = WRITES
        item["born"] = now_ms  # tells the count of writes from that of an earlier bucket of this key
    if terms.ttl_fills:
        item["ttl"] = ttl_seconds(terms, now_ms, full_in_ms)
    return Put(account.key, {name: value for name, value in item.items() if value is not None}, tuple(when))


def _create_anew(account: Account, posting: Posting, mark: Item, now_ms: int) -> Write | None:
    """The first use after the entity was deleted; what was owed before that nobody owes any more."""
    if not posting.need:
        return None
    if account.shard_id or is_outdated(account.terms, mark):
        return _ask(account.key)
    made = _create(account, posting._replace(debit=NOTHING, credit=NOTHING), now_ms)
    if account.terms.version is None:  # what was deleted must not count as newer than what is stored
        made = made._replace(item={**made.item, "cv": number(mark, "cv")})
    if (life := life_of(mark)) is not None:
        made = made._replace(item={**made.item, LIFE: life})
    if len(made.when) > 1:  # it can never be admitted
        return made
    return made._replace(when=(*pinned(mark, "status"), *pinned(mark, "cv")))


def _ask(key: Key) -> Update:
    """A write that cannot succeed, to be told what is there now."""
    return Update(key, when=(Exists(), Absent()))


def _give_back(account: Account, credit: Mapping[str, int], image: Item | None) -> Update | None:
    """Add what was taken. Overfill is cut off by the balance and by the next spend from a full bucket.

    No number is pinned: a refund is right under any, so long as the limit is still there and the entity
    was not deleted meanwhile. A bucket that is believed missing gets its chance, for beliefs can be old.
    """
    kept = {
        name: amount
        for name, amount in credit.items()
        if image is None or stored_rate(image, name) is not None
    }
    if not kept:
        return None
    add: dict[str, int] = {}
    for name, amount in kept.items():
        names = limit_attributes(name)
        add[names.tk], add[names.tc] = amount, -amount
    if account.meter is not Meter.NONE if image is None else _WRITES.tk in image:
        add[_WRITES.tk], add[_WRITES.tc] = -WRITE_MILLI, WRITE_MILLI
    when: list[Condition] = [AtLeast(limit_attributes(name).cp, 0) for name in kept]
    if image is not None:
        when += pinned(image, LIFE)
    elif account.life != "":
        when.append(Equal(LIFE, account.life))
    return Update(account.key, add, NOTHING, tuple(when))


def lasts(terms: Terms, image: Item, now_ms: int) -> bool:
    """Whether a glance shows that a bucket is full before it disappears: it has no debts, and time enough."""
    if "ttl" not in image:
        return True
    if number(image, "ttl") * 1000 < now_ms + terms.lasting_ms or not has_terms(image, terms):
        return False
    return all(number(image, limit_attributes(name).tk) >= 0 for name in terms.rates)


def prolong(terms: Terms, key: Key, image: Item, now_ms: int) -> Update | None:
    """The write that keeps a bucket alive whose debts outgrew its ``ttl``, if there is such a need.

    Two debits may each have been within the ``ttl`` they saw and be beyond it together.
    """
    set_: dict[str, Value] = {}
    levels = [level(terms, name, image, now_ms) for name in terms.rates]
    full_in_ms = max(fill_ms(at.rate, at.rate.capacity_milli - at.balance(now_ms)) for at in levels)
    when = _keep_alive(terms, image, set_, now_ms, full_in_ms)
    return Update(key, NOTHING, set_, (Exists(), *when)) if set_ else None


def _keep_alive(
    terms: Terms, image: Item, set_: dict[str, Value], now_ms: int, full_in_ms: int
) -> tuple[Condition, ...]:
    """Move ``ttl`` ahead when a write would leave a bucket that could disappear before it is full.

    It is pinned when it moves, lest a client that knows of less debt should move it back. It moves
    before a till would find it too short, which otherwise took the long way until it moves.
    """
    present = number(image, "ttl") or None
    if not terms.ttl_fills:
        if present is not None:
            set_["ttl"] = None
        return ()
    if present is not None and present * 1000 >= now_ms + max(full_in_ms + terms.fill_ms, terms.lasting_ms):
        return ()
    if present is None and has_terms(image, terms):
        return ()
    set_["ttl"] = ttl_seconds(terms, now_ms, full_in_ms)
    return pinned(image, "ttl")


def ttl_seconds(terms: Terms, now_ms: int, full_in_ms: int) -> int:
    """When a bucket may disappear that nobody uses, and that is full by then for a while."""
    idle_ms = terms.ttl_fills * terms.fill_ms
    return math.ceil((now_ms + max(idle_ms, full_in_ms + 3 * terms.fill_ms)) / 1000)


def fill_ms(rate: Rate, missing_milli: int) -> int:
    """How long it takes until so much has accrued."""
    return max(0, -(-missing_milli * rate.refill_period_ms // rate.refill_amount_milli))
