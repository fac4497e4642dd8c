"""From records of 0.9 to 0.17 to those of today, under the same keys. Pure, like ``translation``.

Each move is one transaction that writes what the record lacks on condition that it lacks it still, so a
record is moved once however often that is tried. Nothing is marked: a moved record is one of today.

The shards of a bucket become one again. Each of them held a share of every limit, and the bucket as a
whole lacks what its shares lack together, debts included; a share that nobody used lacks nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...bucket import Rate, balance
from ...engine.bucket_view import Account, stored_terms
from ...engine.bucket_writes import Posting, write_for
from ...exceptions import ValidationError
from ...models import LIMITS_MAX
from ...naming import WCU, validate_limit_name
from ...records.entities import family_of
from ...records.items import claim_item
from ...repository_protocol import (
    Absent,
    Condition,
    Delete,
    Equal,
    Exists,
    Item,
    Key,
    Put,
    Update,
    Value,
    Write,
)
from ...schema import (
    bucket_key,
    claim_key,
    entity_configs_key,
    entity_key,
    gsi3_pk_entities,
    limit_attributes,
    number,
    text,
    within_namespace,
)
from .buckets import TTL_FILLS, Part, made_bucket
from .moving import Context, Move, pins
from .namespaced import says_anything, usage_place
from .shapes import Kind, Source
from .usage import added

BORN = "moved"
"""The event by which a level came to have limits, where an older version kept none."""

SHARDS_TOGETHER_MAX = 90
"""How many shards are taken back in one transaction."""

CLAIMS_MAX = 90

Images = Mapping[Key, Item | None]


def wanted_in_place(sources: Sequence[Source]) -> list[Key]:
    """The records that the move of a group looks at beside the group itself."""
    first = sources[0]
    match first.kind:
        case Kind.ENTITY:
            parent_id = first.item.get("parent_id")
            return [] if parent_id is None else [entity_key(first.namespace_id, str(parent_id))]
        case Kind.BUCKET:
            place = first.namespace_id, first.owner
            return [entity_key(*place), bucket_key(*place, first.resource)]
        case Kind.USAGE:
            return [usage_place(first.namespace_id, first.owner, first.resource, first.item)[0]]
        case _:
            return []


def moves_in_place(sources: Sequence[Source], images: Images, context: Context) -> list[Move]:
    """How a group is moved, one step after another."""
    first = sources[0]
    match first.kind:
        case Kind.LIMITS:
            return [_level_move(first)]
        case Kind.ENTITY:
            return [_entity_move(first, images)]
        case Kind.BUCKET:
            move = _bucket_move(sources, images, context)
            return [move] if move.writes else []  # another upgrade moved it after it was read
        case Kind.USAGE:
            return [_usage_move(first, images)]
        case Kind.MANIFEST:
            return list(_claim_moves(first))
        case kind:
            raise AssertionError(f"{kind} is not moved")


# Limits and what a file of limits made.


def _level_move(source: Source) -> Move:
    item = source.item
    when = (Exists(), Equal("born", None), *_same(item, "config_version"), *_same(item, "resource"))
    if not says_anything(item):
        return Move((source,), None, (Delete(source.key, when),))
    changes = item.get("config_version")
    known: dict[str, Value] = {
        "born": BORN,
        "config_version": changes if type(changes) is int and changes > 0 else 1,
        # An entity that is said to be enabled is one that nothing disables.
        **dict.fromkeys(("entity_id", "disabled", "sched_tz")),
        **{name: None for name in item if name.endswith("_soft")},
    }
    counts = []
    if source.owner:
        count_key = entity_configs_key(source.namespace_id, source.resource)
        named = {"resource": source.resource, **within_namespace(source.namespace_id, count_key)}
        counts.append(Update(count_key, {"entities": 1}, named))
    return Move((source,), source.key, (Update(source.key, set=known, when=when),), tuple(counts))


def _claim_moves(source: Source) -> Iterator[Move]:
    """One claim for each level that the record lists; the record goes with the last of them."""
    places: list[tuple[str, str | None, str | None]] = []
    if source.item.get("managed_system") is True:
        places.append(("system", None, None))
    places += [("resource", None, name) for name in _listed(source.item.get("managed_resources"))]
    entities = source.item.get("managed_entities")
    for entity_id, resources in (entities if isinstance(entities, dict) else {}).items():
        places += [("entity", entity_id, name) for name in _listed(resources)]
    writes: list[Write] = []
    for place in places:
        key = claim_key(source.namespace_id, *filter(None, place))
        claim = {**claim_item(source.namespace_id, key, *place), "born": BORN}
        writes.append(Put(key, {n: v for n, v in claim.items() if v is not None}))
    for at in range(0, len(writes) - CLAIMS_MAX, CLAIMS_MAX):
        yield Move((source,), source.key, tuple(writes[at : at + CLAIMS_MAX]), is_count=True)
    rest = writes[(max(0, len(writes) - 1) // CLAIMS_MAX) * CLAIMS_MAX :]
    yield Move((source,), source.key, (*rest, Delete(source.key, (Exists(),))))


def _listed(names: object) -> list[str]:
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


# Entities.


def _entity_move(source: Source, images: Images) -> Move:
    item, parent_id = source.item, text(source.item, "parent_id")
    version = item.get("version")
    known: dict[str, Value] = {
        "GSI3PK": gsi3_pk_entities(source.namespace_id),
        "GSI3SK": source.owner,
        "version": version if type(version) is int and version > 0 else 1,
        **dict.fromkeys(("pgen", "pinc")),
        **within_namespace(source.namespace_id, source.key),
    }
    counts = []
    if parent_id is not None and images.get(entity_key(source.namespace_id, parent_id)) is not None:
        parent = entity_key(source.namespace_id, parent_id)
        counts.append(Update(parent, {"children": 1}, when=(Exists(),)))
    when = (Exists(), Equal("GSI3PK", None), Equal("parent_id", parent_id))
    return Move((source,), source.key, (Update(source.key, set=known, when=when),), tuple(counts))


# Buckets.


def _bucket_move(sources: Sequence[Source], images: Images, context: Context) -> Move:
    """Make one bucket of its shards, or charge the one that is there with what further shards lack."""
    first = sources[0]
    key = bucket_key(first.namespace_id, first.owner, first.resource)
    there = images.get(key)
    gone = tuple(Delete(s.key, (Exists(), *_pins(s))) for s in sources if s.shard_id)
    if there is not None and "cv" in there:
        return Move(tuple(sources), key, (*_charged(key, sources, there, context), *gone))
    here = next((s for s in sources if not s.shard_id), None)
    when: tuple[Condition, ...] = (Absent(),)
    if here is not None:
        when = (Exists(), Equal("cv", None), *_pins(here))
    elif there is not None:  # the shard that counts was not among those that were read
        here = first._replace(key=key, item=there, shard_id=0)
        sources, when = (here, *sources), (Exists(), Equal("cv", None), *_pins(here))
    parts = whole(sources, context)
    if not parts:  # shards that were announced and never used
        return Move(tuple(sources), None, tuple(Delete(s.key, (Exists(), *_pins(s))) for s in sources))
    family = family_of(images.get(entity_key(first.namespace_id, first.owner)))
    used = [source for source in sources if holds_tokens(source)]
    item = made_bucket(used, parts, family, context._replace(namespace_id=first.namespace_id))
    return Move(tuple(sources), key, (Put(key, item, when), *gone))


def holds_tokens(source: Source) -> bool:
    """Whether a shard was ever used; older functions announce shards that nobody has used yet."""
    return any(name.endswith("_tk") and name != f"b_{WCU}_tk" for name in source.item)


def whole(sources: Sequence[Source], context: Context) -> list[Part]:
    """The limits of a bucket that was spread over shards."""
    count = max(1, *(number(source.item, "shard_count", 1) for source in sources))
    found: dict[str, list[Part]] = {}
    for source in sorted(sources, key=lambda source: source.shard_id):
        for part in shard_parts(source.item):
            found.setdefault(part.name, []).append(part)
    return [_joined(parts, count, context) for parts in found.values()]


def shard_parts(item: Item) -> list[Part]:
    """The limits of one shard, with the numbers of the whole bucket, as these versions kept them."""
    names = sorted(a[2:-3] for a in item if a.startswith("b_") and a.endswith("_tk") and a != f"b_{WCU}_tk")
    parts = []
    for name in names:
        at = limit_attributes(validate_limit_name(name))
        rate = Rate(number(item, at.cp), number(item, at.ra), number(item, at.rp))
        if min(rate) <= 0:
            raise ValidationError("limit", name, f"its bucket cannot be used: {rate}")
        parts.append(Part(name, rate, number(item, at.tk), number(item, "rf"), number(item, at.tc)))
    if len(parts) > LIMITS_MAX:
        raise ValidationError("bucket", str(item.get("entity_id")), f"it has {len(parts)} limits")
    return parts


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
    lacking = sum(missing(part, count, origin_ms) for part in parts)
    consumed = sum(part.consumed_milli for part in parts)
    return Part(latest.name, latest.rate, latest.rate.capacity_milli - lacking, origin_ms, consumed)


def missing(part: Part, count: int, now_ms: int) -> int:
    """What a shard lacks of its share.

    One that holds more than its share was not used since there were fewer shards: its share was larger.
    """
    capacity, amount, period = part.rate
    shares = count
    while shares > 1 and part.tokens_milli > capacity // shares:
        shares //= 2
    share = Rate(capacity // shares, amount // count, period)
    if not share.refill_amount_milli:
        return share.capacity_milli - min(share.capacity_milli, part.tokens_milli)
    return share.capacity_milli - balance(share, part.tokens_milli, part.origin_ms, now_ms)


def _charged(key: Key, sources: Sequence[Source], there: Item, context: Context) -> list[Write]:
    """Take what further shards lack from the bucket, which counts as one already.

    None of this is consumption, which the shards have counted; so ``tc`` stays as it is.
    """
    first = sources[0]
    terms = stored_terms(there, TTL_FILLS)
    count = max(1, *(number(source.item, "shard_count", 1) for source in sources))
    debit: dict[str, int] = {}
    for source in sources:
        for part in shard_parts(source.item) if source.shard_id else ():
            if part.name in terms.rates:
                debit[part.name] = debit.get(part.name, 0) + missing(part, count, context.now_ms)
    debit = {name: lacking for name, lacking in debit.items() if lacking > 0}
    if not debit:
        return []
    account = Account(key, first.namespace_id, first.owner, first.resource, terms)
    charge = write_for(account, Posting(debit=debit), there, context.now_ms)
    if not isinstance(charge, Update):
        raise ValidationError("bucket", key.partition, "newer clients have split it; run the upgrade again")
    consumed = {limit_attributes(name).tc for name in debit}
    add = {name: amount for name, amount in charge.add.items() if name not in consumed}
    when = (Exists(), Equal("rf", number(there, "rf")), *charge.when)
    return [charge._replace(add=add, when=when)]


def _pins(source: Source) -> tuple[Condition, ...]:
    return (*pins(source), *_same(source.item, "shard_count"))


def _same(item: Item, attribute: str) -> tuple[Condition, ...]:
    value = item.get(attribute)
    return (Equal(attribute, value),) if isinstance(value, str | int | None) else ()


# Usage.


def _usage_move(source: Source, images: Images) -> Move:
    """Give a row its place in the index; a day's row also its own key, where it is added to what is there."""
    key, attributes = usage_place(source.namespace_id, source.owner, source.resource, source.item)
    if key == source.key:
        renewed = Update(key, set=attributes, when=(Exists(), *_same(source.item, "window")))
        return Move((source,), key, (renewed,))
    gone = Delete(source.key, (Exists(), *pins(source), *_same(source.item, "window")))
    return Move((source,), key, (added(key, attributes, images.get(key), source.item), gone))
