"""How a bucket that has cooled down comes back to one item: the reverse of a split, pure.

Two shards that were one become one again in one transaction: the elder gets the capacity, the refill, the
tokens and the total of the younger, which is deleted as it was seen. Whoever knows of more shards than
there are is refused and learns, and whoever picks a shard that is gone finds that it is part of its elder
again, as it was before the split.

Shard 0 is the truth about how many shards there can be. So it comes last: its merge holds only if no other
shard has been split further than it then says, and a split of another shard holds only if shard 0 knows of
as many. There is never a shard that shard 0 does not know of.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..naming import WCU
from ..repository_protocol import Condition, Delete, Equal, Exists, Item, Update, Value, Write
from ..schema import (
    BOOKED,
    BOOKED_SINCE,
    BURIED,
    FORGIVEN,
    LAPSES,
    PHASE,
    bucket_limit_names,
    limit_attributes,
    number,
    pinned,
    shard_attributes,
    stored_rate,
)
from .account import Account, Terms
from .bucket_view import shard_count, still_forgiven
from .law import Rate, fill_ms, gain, moved_origin
from .lifetime import ttl_seconds
from .posting import believed
from .shares import halves
from .split import spread_of, unchanged

TTL_FILLS = 7
"""How many times the longest time to fill the bucket is kept when its life begins to end again."""


def merge(account: Account, shard_id: int, images: Sequence[Item | None], now_ms: int) -> list[Write]:
    """The writes of one transaction that bring a shard and the last one split from it together.

    ``images`` are those of all shards of the bucket. There are none if the two do not fit together: one
    was split further, or has other limits by now.
    """
    image = images[shard_id]
    half = shard_count(image) // 2
    child = images[shard_id + half] if half > shard_id and shard_id + half < len(images) else None
    if image is None or child is None or not _fit(image, child):
        return []
    writes: list[Write] = [
        _elder(account, shard_id, image, child, now_ms),
        _younger(account, shard_id + half, child),
    ]
    if shard_id == 0:
        others = [(n, other) for n, other in enumerate(images[1:half], 1) if other is not None]
        if any(shard_count(other) > half for _, other in others):
            return []
        # One that is not there cannot be made without splitting one of these.
        writes += [unchanged(account, n, other) for n, other in others]
    return writes


def _fit(image: Item, child: Item) -> bool:
    """Whether two shards are the halves of one, under the same configuration, and nobody waits for either."""
    if BOOKED in image or BOOKED in child or PHASE in image or PHASE in child:
        return False
    count = shard_count(image)
    if shard_count(child) != count or image.get("cv") != child.get("cv"):
        return False
    if {n for n in bucket_limit_names(image) if spread_of(image, n) == count} != {*bucket_limit_names(child)}:
        return False
    for name in bucket_limit_names(child):
        kept, given = stored_rate(image, name), stored_rate(child, name)
        if kept is None or given is None or kept[2:] != given[2:]:
            return False
        for one, other in zip(kept[:2], given[:2], strict=True):
            if halves(one + other) != (one, other):
                return False
    return True


def _elder(account: Account, shard_id: int, image: Item, child: Item, now_ms: int) -> Update:
    """The shard that stays: like a rebase it credits every limit and moves the origin."""
    half, origin = shard_count(image) // 2, number(image, "rf")
    at_ms = max(now_ms, origin, number(child, "rf"))
    origin_after = moved_origin(origin, at_ms)
    when: list[Condition] = [
        Exists(),
        *pinned(image, "rf"),
        *pinned(image, "cv"),
        *pinned(image, "shard_count"),
        Equal(BOOKED_SINCE, None),
    ]
    add: dict[str, int] = {}
    set_: dict[str, Value] = {"rf": origin_after, "shard_count": half}
    spared: dict[str, Value] = {}
    rates: dict[str, Rate] = {}
    full_in_ms = 0
    for name in bucket_limit_names(image):
        names, rate, given = limit_attributes(name), stored_rate(image, name), stored_rate(child, name)
        assert rate is not None
        stored, moved, whole = number(image, names.tk), 0, rate
        gained, _, is_full, as_believed = believed(rate, names.tk, stored, origin, at_ms)
        when.append(as_believed)
        owed = still_forgiven(image, name, at_ms)
        if given is not None:
            capacity = rate.capacity_milli + given.capacity_milli
            refill = rate.refill_amount_milli + given.refill_amount_milli
            whole = rate._replace(capacity_milli=capacity, refill_amount_milli=refill)
            held = number(child, names.tk) + gain(given, number(child, "rf"), at_ms)
            moved = min(given.capacity_milli, held)
            owed += still_forgiven(child, name, at_ms)
            set_[names.cp], set_[names.ra] = whole[:2]
            set_[shard_attributes(name).sc] = half if half > 1 else None
            add[names.tc] = number(child, names.tc)
            largest = max(number(one, shard_attributes(name).mx) for one in (image, child))
            set_ |= {shard_attributes(name).mx: largest} if largest else {}
        counted = gain(whole, origin_after, at_ms)
        left = min(rate.capacity_milli, stored + gained) + moved
        if is_full:
            set_[names.tk] = left - counted
        else:
            add[names.tk] = left - counted - stored
        rates[name] = whole
        spared |= {name: owed} if owed else {}
        full_in_ms = max(full_in_ms, fill_ms(whole, whole.capacity_milli - left))
    if spared or FORGIVEN in image:
        set_[FORGIVEN] = spared or None
    if (gauge := stored_rate(image, WCU)) is not None:
        names = limit_attributes(WCU)
        left = min(gauge.capacity_milli, number(image, names.tk) + gain(gauge, origin, at_ms))
        set_[names.tk] = left - gain(gauge, origin_after, at_ms)
    # A shard of the same place that is born later must be told from this one.
    set_[BURIED] = max(number(child, "born"), number(child, BURIED), number(image, BURIED))
    if half == 1 and LAPSES in image:
        set_["ttl"], set_[LAPSES] = ttl_seconds(Terms(rates, None, TTL_FILLS), at_ms, full_in_ms), None
    return Update(account.shard_key(shard_id), {a: n for a, n in add.items() if n}, set_, tuple(when))


def _younger(account: Account, shard_id: int, child: Item) -> Delete:
    """The shard that goes, exactly as it was seen: what it holds goes with it."""
    when: list[Condition] = [Exists()]
    for attribute in (
        "rf",
        "cv",
        "shard_count",
        BOOKED_SINCE,
        *(limit_attributes(n).tk for n in bucket_limit_names(child)),
    ):
        when += pinned(child, attribute)
    return Delete(account.shard_key(shard_id), tuple(when))
