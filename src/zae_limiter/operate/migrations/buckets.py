"""Buckets of the older shapes as one of today. Pure.

Each limit of an old bucket may have an origin of its own; the new one has one for all. By the balance law
an origin can be moved without changing what the bucket holds at any later instant: the gain in between
is credited, or, where the new origin is earlier, taken back.

The shards of a bucket become one again. Each of them held a share of every limit, and the bucket as a
whole lacks what its shares lack together, debts included; a share that nobody used lacks nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...engine.account import WRITES, Account
from ...engine.bucket_view import stored_terms
from ...engine.bucket_writes import write_for
from ...engine.law import Rate, accrued, balance, fill_ms, gain
from ...engine.merge import TTL_FILLS
from ...engine.phased import begun_ms
from ...engine.phases import rate_at
from ...engine.posting import Posting
from ...exceptions import ValidationError
from ...models import LIMITS_MAX, Limit
from ...models.accruals import SESSION, kind_of, window_start
from ...naming import WCU, validate_limit_name
from ...records.resolution import family_of, level_keys, resolve
from ...repository_protocol import Absent, Condition, Delete, Equal, Exists, Item, Key, Put, Update, Value
from ...schema import (
    MOVED,
    PHASE,
    bucket_entries,
    bucket_key,
    entity_key,
    limit_attributes,
    number,
    rate_attributes,
)
from .kinds import is_quota, quota_rate
from .moving import Context, Group, Move, Translation, mark, moved, pins, superseded, unchanged
from .schedules import bucket_windows, limit_of_today, numbers_at
from .shapes import SUPERSEDED, OldRecord, fields

SHARDS_TOGETHER_MAX = 90
"""How many shards are taken back in one transaction."""

SINGLE = (
    *("last_refill_ms", "tokens_milli", "capacity_milli", "burst_milli"),
    *("refill_amount_milli", "refill_period_ms", "total_consumed_milli"),
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
    shard_id: int = 0
    granted: int = 1
    """Of a quota: how many shards there were when this one got its share of the period, or of the window."""
    is_over: bool = False
    """Of a quota: the period or window is over that its tokens are left of."""
    today: Rate | None = None
    """Of a limit with a schedule: the rate that it becomes; until then it has the numbers of the instant."""
    most_milli: int = 0
    """The most that a limit with a schedule can hold at any time."""

    def tokens_at(self, origin_ms: int) -> int:
        """The stored number that means the same with another origin."""
        return self.tokens_milli + accrued(self.rate, origin_ms) - accrued(self.rate, self.origin_ms)

    def missing(self, now_ms: int) -> int:
        """What is not there of a full bucket."""
        return self.rate.capacity_milli - balance(self.rate, self.tokens_milli, self.origin_ms, now_ms)


def bucket_move(group: Group, context: Context) -> Translation:
    """How the old records of one bucket are moved; the composite one counts if there is one."""
    at = (context.namespace_id, group[0].owner)
    key, entity = bucket_key(*at, group[0].resource), entity_key(*at)
    levels = level_keys(*at, group[0].resource)
    images = yield [key, entity, *levels]
    there = images[key]
    if there is not None and MOVED in there:
        # An older client wrote after the move. Taking its numbers for more would count the old ones twice.
        return [superseded(group)]
    counting = [record for record in group if not record.limit] or group
    stored = {limit.name: limit for limit in resolve([images[level] for level in levels]).limits or ()}
    parts = _parts_of(counting, stored, context.now_ms)
    if there is None:
        write: Put | Update = Put(key, _made(counting, parts, images[entity], context), (Absent(),))
    else:
        write = _joined_by(there, key, group[0], parts, context)
    move = moved(counting, key, [write])
    void = [mark(record, SUPERSEDED) for record in group if record not in counting]
    return [move._replace(records=group, writes=(*move.writes, *void))]


def _parts_of(group: Group, stored: Mapping[str, Limit], now_ms: int) -> list[Part]:
    """The limits of an old bucket; numbers it lacks are those of the stored limits."""
    parts: list[Part] = []
    for record in group:
        if record.limit:
            item = fields(record.item)
            parts.append(_part(record.limit, [item.get(name) for name in SINGLE], stored))
        else:
            parts += _composite_parts(record, stored, now_ms)
    if not 0 < len(parts) <= LIMITS_MAX:
        raise ValidationError("bucket", group[0].key.sort, f"it has {len(parts)} limits")
    return parts


def _composite_parts(record: OldRecord, stored: Mapping[str, Limit], now_ms: int) -> list[Part]:
    item = fields(record.item)
    names = sorted(a[2:-3] for a in item if a.startswith("b_") and a.endswith("_tk") and len(a) > 5)
    if record.namespace_id and WCU in names:  # which these versions count their writes under
        names.remove(WCU)
    parts: list[Part] = []
    for name in map(validate_limit_name, names):
        if is_quota(item, name):
            parts.append(_quota(name, record, now_ms))
        else:
            numbers = [item.get("rf"), *(item.get(f"b_{name}_{field}") for field in COMPOSITE)]
            part = _part(name, numbers, stored)._replace(shard_id=record.shard_id)
            parts.append(_scheduled(part, item, now_ms))
    return parts


def _scheduled(part: Part, item: Item, now_ms: int) -> Part:
    """A limit by its schedule at an instant: by these numbers the older release counts all until then.

    A schedule that no limit of today can have is in the way where a level says it, so here it is out of
    use. Then the bucket keeps the numbers of the instant, until somebody uses it.
    """
    windows, tz, today = bucket_windows(item, part.name, part.rate), item.get("sched_tz"), None
    if not windows:
        return part
    with suppress(ValidationError):
        today = Rate.of(limit_of_today(part.name, windows, tz))
    most_milli = max(window.numbers.capacity_milli for window in windows)
    return part._replace(rate=numbers_at(windows, tz, now_ms), today=today, most_milli=most_milli)


def _in_phase(part: Part, at_ms: int) -> Part:
    """A limit with what it holds at an instant, from which on its phases are followed."""
    if part.today is None:
        return part
    tokens_milli = balance(part.rate, part.tokens_milli, part.origin_ms, at_ms)
    return part._replace(rate=rate_at(part.today, at_ms), tokens_milli=tokens_milli, origin_ms=at_ms)


def _quota(name: str, record: OldRecord, now_ms: int) -> Part:
    """A quota, which was full again as soon as its period or window was over, whatever it owed."""
    item, rate = record.item, quota_rate(record.item, name)
    tokens_milli, origin_ms = number(item, f"b_{name}_tk"), number(item, "rf")
    began_ms, granted = number(item, f"b_{name}_ws"), max(1, number(item, f"b_{name}_gc", 1))
    if kind_of(rate.accrual) == SESSION:
        # A shard may have heard of a window that it has not begun yet.
        has_begun = 0 < began_ms == number(item, f"b_{name}_wa", began_ms)
        is_over = not has_begun or now_ms - began_ms >= rate.refill_period_ms
    else:
        is_over = gain(rate, origin_ms, now_ms) > 0
    if is_over:
        tokens_milli, rate = rate.capacity_milli, rate._replace(accrual=kind_of(rate.accrual))
    consumed_milli = number(item, f"b_{name}_tc")
    return Part(name, rate, tokens_milli, origin_ms, consumed_milli, record.shard_id, granted, is_over)


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
        case int(), int(), int(), int(), int() if min(capacity, amount, period) > 0 and origin >= 0:
            return Part(name, Rate(capacity, amount, period), tokens, origin, consumed or 0)
    found = {"origin": origin, "tokens": tokens, "capacity": capacity, "refill": amount, "period": period}
    raise ValidationError("limit", name, f"its bucket cannot be used, and no stored limits say more: {found}")


def _made(group: Group, parts: Sequence[Part], entity: Item | None, context: Context) -> dict[str, Value]:
    """A bucket of today that holds what its parts hold."""
    first, origin_ms = group[0], max(part.origin_ms for part in parts)
    parent_id, cascade = family_of(entity)
    item: dict[str, Value] = {
        "entity_id": first.owner,
        "resource": first.resource,
        "rf": origin_ms,
        "cv": 0,  # whoever uses the bucket next brings it to the limits that are stored
        "shard_count": 1,
        "cascade": cascade,
        "parent_id": parent_id,
        MOVED: context.now_ms,
        **bucket_entries(context.namespace_id, first.owner, first.resource, 0),
        **_numbers(parts, origin_ms),
    }
    if (began_ms := begun_ms({part.name: part.rate for part in parts}, origin_ms)) is not None:
        item[PHASE] = began_ms
    if context.is_metered:
        writes = Part(WCU, WRITES, WRITES.capacity_milli, origin_ms, 0)
        item |= {**_numbers([writes], origin_ms), "born": context.now_ms}
    ttls = [number(record.item, "ttl") for record in group]
    if all(ttls):
        item["ttl"] = max(*ttls, _full_seconds(parts))
    return item


def _numbers(parts: Iterable[Part], origin_ms: int) -> dict[str, Value]:
    item: dict[str, Value] = {}
    for part in parts:
        names = limit_attributes(part.name)
        # More than full is no more than full, and numbers stay small.
        item[names.tk] = min(part.rate.capacity_milli, part.tokens_at(origin_ms))
        item |= rate_attributes(part.name, part.rate)
        item[names.tc] = part.consumed_milli
    return item


def _full_seconds(parts: Iterable[Part]) -> int:
    """The second in which all limits are full again, and some more: a bucket may go only then."""
    full_ms = [p.origin_ms + fill_ms(p.rate, p.missing(p.origin_ms)) + p.rate.fill_ms for p in parts]
    return math.ceil(max(full_ms) / 1000)


def _joined_by(there: Item, key: Key, first: OldRecord, parts: Sequence[Part], context: Context) -> Update:
    """Take what was missing from the old bucket out of the one there; limits that it lacks are added."""
    rates = stored_terms(there).rates
    debit = Counter({part.name: part.missing(context.now_ms) for part in parts if part.name in rates})
    charge = _charged(there, key, first, +debit, context)
    added = (part._replace(consumed_milli=0) for part in parts if part.name not in rates)
    set_ = {**charge.set, **_numbers(added, number(there, "rf")), MOVED: context.now_ms}
    return charge._replace(set=set_, when=(Equal(MOVED, None), *charge.when))


def _charged(there: Item, key: Key, first: OldRecord, debit: Mapping[str, int], context: Context) -> Update:
    """Take what is missing out of a bucket that is there already.

    None of this is consumption, which the older table has counted; so ``tc`` stays as it is.
    """
    when: tuple[Condition, ...] = (Exists(), Equal("rf", number(there, "rf")))
    if not debit:
        return Update(key, when=when)
    terms = stored_terms(there, TTL_FILLS)
    account = Account(key, context.namespace_id, first.owner, first.resource, terms)
    charge = write_for(account, Posting(debit=debit), there, context.now_ms)
    assert isinstance(charge, Update), "a bucket can be charged for limits that it holds"
    consumed = {limit_attributes(name).tc for name in debit}
    add = {name: amount for name, amount in charge.add.items() if name not in consumed}
    set_ = {name: value for name, value in charge.set.items() if name not in consumed}
    return charge._replace(add=add, set=set_, when=(*when, *charge.when))


# Shards.


def shards_move(group: Group, context: Context) -> Translation:
    """Make one bucket of its shards, or charge the one that is there with what further shards lack."""
    first, at = group[0], (context.namespace_id, group[0].owner)
    key, entity = bucket_key(*at, first.resource), entity_key(*at)
    images = yield [key, entity]
    there = images[key]
    gone = tuple(_deleted(record) for record in group if record.shard_id)
    if there is not None and "cv" in there:
        debit = _lacking(group, there, context)
        charge = (_charged(there, key, first, debit, context),) if debit else ()
        # There is nothing to do if another upgrade moved it after it was read.
        return [Move(group, key, (*charge, *gone))] if charge or gone else []
    if there is not None and all(record.shard_id for record in group):
        # The shard that counts was not among those that were read.
        group = (first._replace(key=key, item=there, shard_id=0), *group)
    parts = whole(group, context)
    if not parts:  # shards that were announced and never used
        return [Move(group, None, tuple(map(_deleted, group)))]
    here = next((record for record in group if not record.shard_id), None)
    when = (Absent(),) if here is None else (*unchanged(here, "cv", "shard_count"), *pins(here))
    item = _made([record for record in group if holds_tokens(record)], parts, images[entity], context)
    return [Move(group, key, (Put(key, item, when), *gone))]


def _deleted(shard: OldRecord) -> Delete:
    return Delete(shard.key, (*unchanged(shard, "shard_count"), *pins(shard)))


def holds_tokens(record: OldRecord) -> bool:
    """Whether a shard was ever used; older functions announce shards that nobody has used yet."""
    return any(name.endswith("_tk") and name != f"b_{WCU}_tk" for name in record.item)


def whole(group: Group, context: Context) -> list[Part]:
    """The limits of a bucket that was spread over shards, each of which knows the numbers of the whole."""
    found: dict[str, list[Part]] = {}
    at_ms = max(context.now_ms, *(number(record.item, "rf") for record in group))
    for record in sorted(group, key=lambda record: record.shard_id):
        for part in _composite_parts(record, {}, at_ms):
            found.setdefault(part.name, []).append(part)
    if len(found) > LIMITS_MAX:
        raise ValidationError("bucket", group[0].key.partition, f"it has {len(found)} limits")
    joined = [_joined(parts, _shard_count(group), context) for parts in found.values()]
    return [_in_phase(part, at_ms) for part in joined]


def _shard_count(group: Group) -> int:
    return max(1, *(number(record.item, "shard_count", 1) for record in group))


def _joined(parts: Sequence[Part], count: int, context: Context) -> Part:
    """One limit of all shards, the first one first.

    One shard alone has not shared yet: it is the bucket. Where the first shard keeps everything until
    others are used, so is it as long as none was.
    """
    others_used = any(part.consumed_milli for part in parts[1:])
    if len(parts) == 1 or not (others_used or context.has_shares):
        return parts[0]
    latest = max(parts, key=lambda part: part.origin_ms)
    origin_ms = max(context.now_ms, latest.origin_ms)
    if latest.rate.accrual is not None:
        return _joined_quota(parts, count)
    parts = [part._replace(rate=latest.rate) if part.rate.accrual else part for part in parts]
    lacking = sum(missing_of_share(part, count, origin_ms) for part in parts)
    consumed = sum(part.consumed_milli for part in parts)
    held = latest.rate.capacity_milli - lacking
    return Part(latest.name, latest.rate, held, origin_ms, consumed, today=latest.today)


def _joined_quota(parts: Sequence[Part], count: int) -> Part:
    """A quota of all shards: what they have left, and the shares that nobody has taken yet.

    A shard that began when there were fewer had the shares of those that came of it, and gave them theirs.
    One that has not heard yet that the limit is a quota keeps no more than its share.
    """
    quotas = [part for part in parts if part.rate.accrual is not None]
    began_ms = max(map(_began, quotas))
    current = [part for part in quotas if not part.is_over and _began(part) == began_ms]
    latest = max(current or quotas, key=lambda part: part.origin_ms)
    consumed = sum(part.consumed_milli for part in parts)
    if not current:
        return latest._replace(consumed_milli=consumed)
    share = latest.rate.capacity_milli // count
    for part in (part for part in parts if part.rate.accrual is None):
        current.append(part._replace(tokens_milli=min(share, part.tokens_milli), granted=count))
    taken = {shard for part in current for shard in range(part.shard_id % part.granted, count, part.granted)}
    free = count - len(taken | {part.shard_id for part in current})
    tokens = sum(part.tokens_milli for part in current) + free * share
    return latest._replace(tokens_milli=tokens, consumed_milli=consumed)


def _began(part: Part) -> int:
    """When the window began that a quota is in; 0 if it is in none."""
    return window_start(str(part.rate.accrual)) or 0


def missing_of_share(part: Part, count: int, now_ms: int) -> int:
    """What a shard lacks of its share.

    One that holds more than its share was not used since there were fewer shards: its share was larger.
    """
    capacity, amount, period, accrual, _ = part.rate
    if accrual is not None:
        return 0 if part.is_over else max(0, capacity // max(count, part.granted) - part.tokens_milli)
    shares = count
    # With a schedule it may have had it at a time when there was more.
    while shares > 1 and part.tokens_milli > max(capacity, part.most_milli) // shares:
        shares //= 2
    share = Rate(capacity // shares, amount // count, period)
    if not share.refill_amount_milli:
        return share.capacity_milli - min(share.capacity_milli, part.tokens_milli)
    return share.capacity_milli - balance(share, part.tokens_milli, part.origin_ms, now_ms)


def _lacking(group: Group, there: Item, context: Context) -> Counter[str]:
    """What further shards lack of the limits that the bucket has."""
    rates, lacking = stored_terms(there).rates, Counter[str]()
    for part in (
        part for record in group if record.shard_id for part in _composite_parts(record, {}, context.now_ms)
    ):
        if part.name in rates:
            lacking[part.name] += missing_of_share(part, _shard_count(group), context.now_ms)
    return +lacking  # what is above nothing
