"""Buckets of the older shapes as one of today. Pure.

Each limit of an old bucket may have an origin of its own; the new one has one for all. By the balance law
an origin can be moved without changing what the bucket holds at any later instant: the gain in between
is credited, or, where the new origin is earlier, taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...bucket import Rate, accrued, balance
from ...engine.bucket_view import WRITES, Account, stored_terms
from ...engine.bucket_writes import Posting, write_for
from ...exceptions import ValidationError
from ...models import LIMITS_MAX, Limit
from ...naming import WCU, validate_limit_name
from ...records.entities import family_of
from ...records.resolution import level_keys, resolve
from ...repository_protocol import Absent, Equal, Exists, Item, Key, Put, Update, Value
from ...schema import MOVED, bucket_entries, bucket_key, entity_key, limit_attributes, number
from .moving import Context, Move, mark, moved, superseded
from .shapes import SUPERSEDED, Source, fields

TTL_FILLS = 7
"""How many times the longest time to fill an idle bucket is kept, where it is not kept for ever."""


SINGLE = (
    "last_refill_ms",
    "tokens_milli",
    "capacity_milli",
    "burst_milli",
    "refill_amount_milli",
    "refill_period_ms",
    "total_consumed_milli",
)
COMPOSITE = ("tk", "cp", "bx", "ra", "rp", "tc")
"""What the two shapes call the same numbers; the second has one origin for all limits, ``rf``."""


class Part(NamedTuple):
    """One limit of an old bucket."""

    name: str
    rate: Rate
    tokens_milli: int
    origin_ms: int
    consumed_milli: int

    def tokens_at(self, origin_ms: int) -> int:
        """The stored number that means the same with another origin."""
        return self.tokens_milli + accrued(self.rate, origin_ms) - accrued(self.rate, self.origin_ms)

    def missing(self, now_ms: int) -> int:
        """What is not there of a full bucket."""
        return self.rate.capacity_milli - balance(self.rate, self.tokens_milli, self.origin_ms, now_ms)


def bucket_wanted(sources: Sequence[Source], context: Context) -> list[Key]:
    first = sources[0]
    return [
        bucket_key(context.namespace_id, first.owner, first.resource),
        entity_key(context.namespace_id, first.owner),
        *level_keys(context.namespace_id, first.owner, first.resource),
    ]


def bucket_move(sources: Sequence[Source], images: Mapping[Key, Item | None], context: Context) -> Move:
    """How the old records of one bucket are moved; the composite one counts if there is one."""
    first = sources[0]
    key = bucket_key(context.namespace_id, first.owner, first.resource)
    there = images.get(key)
    if there is not None and MOVED in there:
        # An older client wrote after the move. Taking its numbers for more would count the old ones twice.
        return superseded(sources)
    composite = [source for source in sources if not source.limit]
    valid = composite or list(sources)
    levels = level_keys(context.namespace_id, first.owner, first.resource)
    stored = {limit.name: limit for limit in resolve([images.get(k) for k in levels]).limits or ()}
    parts = parts_of(valid, stored)
    if there is None:
        family = family_of(images.get(entity_key(context.namespace_id, first.owner)))
        write: Put | Update = Put(key, made_bucket(valid, parts, family, context), (Absent(),))
    else:
        write = _charged(key, first, parts, there, context)
    move = moved(valid, key, [write])
    void = [source for source in sources if source not in valid]
    marks = tuple(mark(source, SUPERSEDED) for source in void)
    return move._replace(sources=tuple(sources), writes=(*move.writes, *marks))


def parts_of(sources: Sequence[Source], stored: Mapping[str, Limit]) -> list[Part]:
    """The limits of an old bucket; numbers it lacks are those of the stored limits."""
    parts = []
    for source in sources:
        item = fields(source.item)
        if source.limit:
            parts.append(_part(source.limit, [item.get(name) for name in SINGLE], stored))
            continue
        found = sorted(a[2:-3] for a in item if a.startswith("b_") and a.endswith("_tk") and len(a) > 5)
        for name in found:
            numbers = [item.get("rf"), *(item.get(f"b_{name}_{field}") for field in COMPOSITE)]
            parts.append(_part(validate_limit_name(name), numbers, stored))
    if not 0 < len(parts) <= LIMITS_MAX:
        raise ValidationError("bucket", sources[0].key.sort, f"it has {len(parts)} limits")
    return parts


def _part(name: str, numbers: list[Any], stored: Mapping[str, Limit]) -> Part:
    origin, tokens, capacity, burst, amount, period, consumed = (
        number if type(number) is int else None for number in numbers
    )
    limit = stored.get(name)
    if limit is not None:
        amount = limit.refill_amount_milli if amount is None else amount
        period = limit.refill_period_ms if period is None else period
        if burst is None and (amount, period) == (limit.refill_amount_milli, limit.refill_period_ms):
            # The bucket of a limit with a burst may not have noted it.
            burst = max(limit.capacity_milli, capacity or 0)
    capacity = capacity if burst is None else burst
    match origin, tokens, capacity, amount, period:
        case int(), int(), int(), int(), int() if min(capacity, amount, period, origin) > 0:
            return Part(name, Rate(capacity, amount, period), tokens, origin, consumed or 0)
    found = {"origin": origin, "tokens": tokens, "capacity": capacity, "refill": amount, "period": period}
    raise ValidationError("limit", name, f"its bucket cannot be used, and no stored limits say more: {found}")


def made_bucket(
    sources: Sequence[Source], parts: Sequence[Part], family: tuple[str | None, bool], context: Context
) -> dict[str, Value]:
    first, origin_ms = sources[0], max(part.origin_ms for part in parts)
    parent_id, cascade = family
    item: dict[str, Value] = {
        "entity_id": first.owner,
        "resource": first.resource,
        "rf": origin_ms,
        "cv": 0,  # whoever uses the bucket next brings it to the limits that are stored
        "shard_count": 1,
        "cascade": cascade,
        MOVED: context.now_ms,
        **bucket_entries(context.namespace_id, first.owner, first.resource, 0),
        **_numbers(parts, origin_ms),
    }
    if parent_id is not None:
        item["parent_id"] = parent_id
    if context.is_metered:
        names = limit_attributes(WCU)
        item[names.tk], item[names.tc] = WRITES.capacity_milli, 0
        item[names.cp], item[names.ra], item[names.rp] = WRITES
        item["born"] = context.now_ms
    ttls = [number(source.item, "ttl") for source in sources]
    if all(ttls):
        item["ttl"] = max(*ttls, _full_seconds(parts))
    return item


def _numbers(parts: Iterable[Part], origin_ms: int) -> dict[str, Value]:
    item: dict[str, Value] = {}
    for part in parts:
        names = limit_attributes(part.name)
        # More than full is no more than full, and numbers stay small.
        item[names.tk] = min(part.rate.capacity_milli, part.tokens_at(origin_ms))
        item[names.cp], item[names.ra], item[names.rp] = part.rate
        item[names.tc] = part.consumed_milli
    return item


def _full_seconds(parts: Iterable[Part]) -> int:
    """The second in which all limits are full again, and some more: a bucket may go only then."""
    full_ms = 0
    for part in parts:
        missing_ms = -(
            -part.missing(part.origin_ms) * part.rate.refill_period_ms // part.rate.refill_amount_milli
        )
        full_ms = max(full_ms, part.origin_ms + max(0, missing_ms) + part.rate.fill_ms)
    return math.ceil(full_ms / 1000)


def _charged(key: Key, first: Source, parts: Sequence[Part], there: Item, context: Context) -> Update:
    """Take what was missing from the old bucket out of the one that is there already.

    Limits that the one there does not have yet are added. None of this is consumption, which the older
    table has counted; so ``tc`` and the count of writes stay as they are.
    """
    account = Account(key, context.namespace_id, first.owner, first.resource, stored_terms(there, TTL_FILLS))
    known = [part for part in parts if part.name in account.terms.rates]
    debit = {part.name: missing for part in known if (missing := part.missing(context.now_ms)) > 0}
    charge = write_for(account, Posting(debit=debit), there, context.now_ms) if debit else None
    update = charge if isinstance(charge, Update) else Update(key)
    consumed = {limit_attributes(part.name).tc for part in parts}
    origin_ms = number(there, "rf")
    new = _numbers((part._replace(consumed_milli=0) for part in parts if part not in known), origin_ms)
    return Update(
        key,
        {name: amount for name, amount in update.add.items() if name not in consumed},
        {**update.set, **new, MOVED: context.now_ms},
        (Exists(), Equal(MOVED, None), Equal("rf", origin_ms), *update.when),
    )
