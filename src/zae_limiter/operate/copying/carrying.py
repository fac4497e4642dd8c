"""What an item becomes in another store: pure, and the same whenever it is asked.

Nearly all items stay what they are. A bucket of a store with hot partitions counts its writes and may be
spread over shards; elsewhere it is one item without that count, which holds what all its shards hold. The
other way it gets a count of its own. A row of usage forgets which changes of the source's log it has seen,
for the target numbers its own. Every bucket that was carried says so by ``moved``, so that what was used
before is not counted as use of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...engine.account import WRITES, Terms
from ...engine.bucket_view import shard_count, still_forgiven
from ...engine.law import Rate, balance, fill_ms
from ...engine.lifetime import ttl_seconds
from ...engine.line_over import unbooked
from ...engine.merge import TTL_FILLS
from ...naming import WCU
from ...records.items import USAGE_SEEN
from ...repository_protocol import Item, Key, Value
from ...schema import (
    BOOKED,
    BURIED,
    FORGIVEN,
    LAPSES,
    MOVED,
    SAMPLED,
    BucketAddress,
    bucket_address,
    bucket_key,
    bucket_limit_names,
    is_deleted,
    limit_attributes,
    number,
    rate_attributes,
    shard_attributes,
    sk_usage,
    stored_rate,
)

GAUGE = frozenset(limit_attributes(WCU)) | {"born", SAMPLED}
"""By which a bucket counts its writes, and tells its lives apart; of no use where nobody counts them."""

SHARDING = frozenset({BURIED, LAPSES})
USAGE = sk_usage("", "").rstrip("#")


class Route(NamedTuple):
    """Whether the buckets of either store may be split."""

    from_hot: bool
    to_hot: bool

    @property
    def leaves_shards(self) -> bool:
        return self.from_hot and not self.to_hot

    @property
    def needs_gauge(self) -> bool:
        return self.to_hot and not self.from_hot


def live_bucket(key: Key, item: Item) -> BucketAddress | None:
    """The bucket that an item is, if it is one that can be used."""
    return None if is_deleted(item) else bucket_address(key)


def is_over(item: Item, now_ms: int) -> bool:
    """Whether the life of an item has ended; a store may have it still."""
    ttl = item.get("ttl")
    return type(ttl) is int and ttl * 1000 < now_ms


def other_shards(key: Key, item: Item, route: Route) -> list[Key]:
    """The items that one has to be brought together with before it leaves."""
    at = live_bucket(key, item)
    if at is None or at.shard_id or not route.leaves_shards:
        return []
    return [bucket_key(*at[:3], shard_id) for shard_id in range(1, shard_count(item))]


def carried(key: Key, item: Item, route: Route, shards: Sequence[Item] = ()) -> Item | None:
    """What the target is to hold for an item of the source, but for marks of its own; nothing for a shard."""
    if key.sort.startswith(USAGE):
        return _unnumbered(item)
    at = live_bucket(key, item)
    if at is None:
        return item
    if route.leaves_shards:
        if at.shard_id:
            return None
        item = _without_sharding(whole([item, *shards]) if shard_count(item) > 1 else item)
    return {name: value for name, value in item.items() if name != MOVED}


def found(key: Key, item: Item, route: Route) -> Item:
    """What the target holds, to be compared with that."""
    if key.sort.startswith(USAGE):
        return _unnumbered(item)
    if live_bucket(key, item) is None:
        return item
    own = GAUGE | {MOVED} if route.needs_gauge else {MOVED}
    return {name: value for name, value in item.items() if name not in own}


def landed(key: Key, item: Item, route: Route, now_ms: int) -> Item:
    """What is written to the target: a bucket says that it was carried, and counts writes if others do."""
    if live_bucket(key, item) is None:
        return item
    marks: dict[str, Value] = {MOVED: now_ms}
    if route.needs_gauge:
        names = limit_attributes(WCU)
        marks |= {**rate_attributes(WCU, WRITES), names.tk: WRITES.capacity_milli, names.tc: 0}
        marks["born"] = now_ms
    return {**item, **marks}


def _unnumbered(row: Item) -> Item:
    """A row of usage without the places of changes in the log of a store."""
    from zae_limiter_aggregator.changes import IN_ORDER  # not before it is needed: the command line names us

    seen = row.get(USAGE_SEEN)
    if not isinstance(seen, str):
        return row
    kept = ";".join(part for part in seen.split(";") if f"@{IN_ORDER}:" not in part)
    row = {name: value for name, value in row.items() if name != USAGE_SEEN}
    return {**row, USAGE_SEEN: kept} if kept else row


def _without_sharding(item: Item) -> Item:
    limits = (shard_attributes(name) for name in bucket_limit_names(item))
    gone = GAUGE | SHARDING | {attribute for names in limits for attribute in names}
    return {name: value for name, value in item.items() if name not in gone}


def whole(images: Sequence[Item]) -> Item:
    """One bucket of its shards, shard 0 first: what all of them hold at the latest of their origins.

    Nothing is made and nothing lost; from then on the bucket fills as one. Limits of which shards have
    other numbers have the sums, until somebody uses the bucket under those that are stored.
    """
    images = [unbooked(image) if BOOKED in image else image for image in images]
    at_ms, item = max(number(image, "rf") for image in images), dict(images[0])
    rates: dict[str, Rate] = {}
    spared: dict[str, Value] = {}
    full_in_ms = 0
    for name in bucket_limit_names(item):
        names, held = limit_attributes(name), _parts(images, name)
        rate = rates[name] = _sum([rate for rate, _ in held])
        left = sum(balance(part, number(image, names.tk), number(image, "rf"), at_ms) for part, image in held)
        item |= {names.cp: rate.capacity_milli, names.ra: rate.refill_amount_milli, names.tk: left}
        item[names.tc] = sum(number(image, names.tc) for _, image in held)
        if owed := sum(still_forgiven(image, name, at_ms) for _, image in held):
            spared[name] = owed
        full_in_ms = max(full_in_ms, fill_ms(rate, rate.capacity_milli - left))
    item |= {"rf": at_ms, "shard_count": 1}
    item.pop(FORGIVEN, None)
    if spared:
        item[FORGIVEN] = spared
    if LAPSES in item:
        item["ttl"] = ttl_seconds(Terms(rates, None, TTL_FILLS), at_ms, full_in_ms)
    return item


def _parts(images: Sequence[Item], name: str) -> list[tuple[Rate, Item]]:
    """The shards that hold a limit, each with its share."""
    held = ((stored_rate(image, name), image) for image in images)
    return [(rate, image) for rate, image in held if rate is not None]


def _sum(shares: Sequence[Rate]) -> Rate:
    first = shares[0]
    capacity = sum(one.capacity_milli for one in shares)
    # Shards that a change of limits has not reached yet may refill in other periods.
    alike = [one for one in shares if one.refill_period_ms == first.refill_period_ms]
    return first._replace(
        capacity_milli=capacity, refill_amount_milli=sum(one.refill_amount_milli for one in alike)
    )


def kind_of(key: Key) -> str:
    """What an item is, in a word."""
    word = key.sort.removeprefix("#").partition("#")[0].lower()
    return {"meta": "entity", "state": "bucket"}.get(word, word)
