"""From a demand to a write: pure, and the heart of the product.

A bucket's origin ``rf`` stands still, so the gain since then is known to every client and a store
only has to add and compare. Each limit of a write takes one of two shapes:

    spend   believed not full   need - gain <= tk <= cp - gain    add -c to tk
    top     believed full       tk > cp - gain                    set tk to cp - gain - c

Spends commute, so a busy bucket needs no lock. A wrong belief is refused and brings back the image
that corrects it. When the numbers of a bucket change it is *rebased* by the same write (``rebase``).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..models import NUMBER_MAX
from ..naming import WCU
from ..repository_protocol import (
    NOTHING,
    Absent,
    AtLeast,
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
from ..runtime.world import AHEAD_MS_MAX
from ..schema import (
    BOOKED,
    BOOKED_SINCE,
    FORGIVEN,
    HOLDS,
    LIFE,
    PHASE,
    bucket_entries,
    forgiven,
    limit_attributes,
    number,
    pinned,
    rate_attributes,
    shard_attributes,
    stored_rate,
)
from . import booking
from .account import WRITE_MILLI, WRITES, Account, Meter
from .bucket_view import ended_attribute, has_terms, in_line, is_ahead, is_outdated, life_of, stored_terms
from .law import Rate, fill_ms
from .lifetime import keep_alive, ttl_seconds
from .line_over import unbooked
from .phase_writes import phased
from .posting import COUNT, Posting, believed, measure
from .rebase import rebase
from .seating import with_seats
from .seats import is_counted
from .set_aside import as_a_whole, flow_over, give_back, given_before, set_aside
from .shares import SHARDS_MAX
from .windows import begins, begun, with_windows


def write_for(account: Account, posting: Posting, image: Item | None, now_ms: int) -> Write | None:
    """The write that carries out a posting on a bucket last seen as ``image``; ``None`` if it is moot."""
    if account.terms.scheduled or (image is not None and PHASE in image):
        return phased(write_for, account, posting, image, now_ms)
    if posting.seats:
        return with_seats(write_for, account, posting, image, now_ms)
    if image is not None and BOOKED in image:
        if not in_line(image, now_ms):
            write = write_for(account, posting, plain := unbooked(image), now_ms)
            return as_a_whole(write, plain, image) if type(write) is Update else write
        if posting.credit and not posting.need and not posting.debit:
            given = give_back(account, posting, image, now_ms)
            return None if given is None else given.write
    if not posting.need and not posting.debit:
        return _give_back(account, posting, image)
    if image is None:
        return _create(account, posting, now_ms) if account.shard_id == 0 else _ask(account.key)
    if image.get("status") == "deleted":
        return _create_anew(account, posting, image, now_ms)
    if not posting.need:
        return _charge(account, posting, image, now_ms)
    if has_terms(image, account.terms):
        if account.terms.windows:
            if begins(account.terms, posting, image, now_ms) and not is_ahead(image, now_ms):
                return rebase(account, posting, image, now_ms)
            account = with_windows(account, image)
        if (posting.booking or posting.turns) and not is_ahead(image, now_ms):
            return booking.book(account, posting, image, now_ms)
        return _spend(account, posting, image, now_ms)
    if is_outdated(account.terms, image):
        return _ask(account.key)  # never turn a bucket back to older limits
    return rebase(account, posting, image, now_ms)


def _spend(account: Account, posting: Posting, image: Item, now_ms: int) -> Update:
    """Take from a bucket that has the numbers of its terms: spend or top, limit by limit."""
    numbers: Mapping[str, int] = image  # type: ignore[assignment]  # as far as the terms name them
    origin, terms, (need_by_name, debit, credit, _, hold, *_) = numbers.get("rf"), account.terms, posting
    if type(origin) is not int or abs(origin) > NUMBER_MAX:  # of a bucket that is damaged, and only charged
        origin = 0
    if origin - now_ms > AHEAD_MS_MAX:  # by a wrong clock; it begins anew
        return rebase(account, posting, image, now_ms)
    # Whoever waits for the bucket is known: what came back to it for them is not for everybody.
    when: list[Condition] = [Equal("rf", origin), Equal(BOOKED_SINCE, numbers.get(BOOKED_SINCE))]
    version = image.get("cv")
    when += (Equal("cv", version),) if type(version) is int else pinned(image, "cv")
    add: dict[str, int] = {}
    set_: dict[str, Value] = {}
    missing: list[tuple[Rate, int]] = []
    spared = forgiven(image) if FORGIVEN in image else None
    if hold:
        set_[HOLDS[hold % len(HOLDS)]] = hold
    for name in posting.names if debit or credit else need_by_name:
        rate, (tokens, _, _, _, counter) = terms.rates[name], limit_attributes(name)
        stored, need = numbers[tokens], need_by_name.get(name, 0)
        taken, returned = need + debit.get(name, 0), credit.get(name, 0)
        need = 0 if name in terms.soft else need
        add[counter] = taken - returned
        gained, brim, is_full, as_believed = believed(rate, tokens, stored, origin, now_ms, need)
        when.append(as_believed)
        found = flow_over(name, brim, image, set_, when) if BOOKED in image else None
        if returned and BOOKED in image:
            returned = 0 if found is not None else set_aside(name, returned, image, now_ms, add, when)
        if found is not None:
            left = set_[tokens] = found - taken
            if need > found + gained:
                when.append(Absent())
        elif is_full:
            left = min(brim, brim - taken + returned)
            set_[tokens] = left
            if spared:  # what flows over is what makes up for it
                spared[name] = max(0, spared.get(name, 0) - (stored - brim))
                set_[FORGIVEN] = {n: v for n, v in spared.items() if v} or None
        else:
            left = stored - taken + returned
            add[tokens] = returned - taken
            if need:
                when.append(AtLeast(tokens, need - gained))
        missing.append((rate, brim - left))
    ttl = image.get("ttl")
    if (
        debit
        or terms.soft
        or type(ttl) is not int
        or ttl * 1000 < now_ms + terms.lasting_ms
        or not terms.ttl_fills
    ):
        # What takes no more than there is leaves a bucket that is full again within a fill.
        full_in_ms = max(fill_ms(rate, amount) for rate, amount in missing)
        when += keep_alive(terms, image, set_, now_ms, full_in_ms)
    if account.meter is not Meter.NONE:
        when += measure(account, posting, image, add, set_, origin, now_ms)
    return Update(account.key, add, set_, tuple(when))


def _charge(account: Account, posting: Posting, image: Item, now_ms: int) -> Update | None:
    """Take after the fact, under the numbers that the bucket has by now."""
    terms = stored_terms(image, account.terms.ttl_fills)
    debit, credit = ({n: a for n, a in part.items() if n in terms.slots} for part in posting[1:3])
    if not debit and not credit:
        return None
    return _spend(account._replace(terms=terms), Posting(NOTHING, debit, credit), image, now_ms)


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
        left = rate.capacity_milli - taken
        need = 0 if name in terms.soft else need
        if need > rate.capacity_milli:
            when.append(Exists())  # it can never be admitted; the contradiction makes the store say so
        item[names.tk] = left
        item |= rate_attributes(name, begun(rate, now_ms) if name in posting.need else rate)
        item[names.tc] = taken
        full_in_ms = max(full_in_ms, fill_ms(rate, rate.capacity_milli - left))
        if account.meter is not Meter.NONE and need * SHARDS_MAX > rate.capacity_milli:
            item[shard_attributes(name).mx] = (posting.largest or posting.need).get(name)
    if account.meter is not Meter.NONE:
        names = COUNT
        item[names.tk], item[names.tc] = WRITES.capacity_milli - WRITE_MILLI, WRITE_MILLI
        item |= rate_attributes(WCU, WRITES)
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


def _give_back(account: Account, posting: Posting, image: Item | None) -> Update | None:
    """Add what was taken. Overfill is cut off by the balance and by the next spend from a full bucket.

    No number is pinned: a refund is right under any, so long as the limit is still there and the entity
    was not deleted meanwhile. A bucket that is believed missing gets its chance, for beliefs can be old.
    Who gives up what an operator has ended adds nothing.
    """
    kept = {
        name: amount
        for name, amount in posting.credit.items()
        if image is None or ((rate := stored_rate(image, name)) is not None and not is_counted(rate))
    }
    if not kept:
        return None
    add: dict[str, int] = {}
    bookings = [part.booking for part in posting.turns or (posting,) if part.booking is not None]
    ended = given_before(posting, image) if bookings and image is not None else {}
    for name, amount in kept.items():
        names = limit_attributes(name)
        add[names.tk], add[names.tc] = amount - ended.get(name, 0), -amount
    if account.meter is not Meter.NONE if image is None else COUNT.tk in image:
        add[COUNT.tk], add[COUNT.tc] = -WRITE_MILLI, WRITE_MILLI
    when: list[Condition] = [AtLeast(limit_attributes(name).cp, 0) for name in kept]
    when.append(Equal(BOOKED_SINCE, None))
    if bookings:  # what an operator ends meanwhile is not given back as well
        known: Item = dict(bookings[0].left) if image is None else image
        when += [pin for name in kept for pin in pinned(known, ended_attribute(name))]
    if image is not None:
        when += pinned(image, LIFE)
    elif account.life != "":
        when.append(Equal(LIFE, account.life))
    return Update(account.key, add, NOTHING, tuple(when))
