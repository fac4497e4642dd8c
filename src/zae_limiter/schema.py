"""Key text and attribute names: the only place that knows how records are spelled.

How whole records become models and back stands in ``records.items``. Every partition key begins with the
opaque id of its namespace, every sort key with ``#``. No name may contain ``#``, and no id of a namespace a
``/``, so keys parse back without escapes. Index entries are written when a record is made, never by a token
change: GSI1 leads from parents to children, GSI2 from resources to buckets and usage, GSI3 from entities to
buckets and from resources to entities with limits of their own, GSI4 from a namespace to all that it holds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple, TypeGuard

from .engine.law import Rate
from .exceptions import ValidationError
from .models import NUMBER_MAX, PERIOD_SECONDS_MAX, TOKENS_MAX
from .models.accruals import SESSION, is_accrual, kind_of, window, window_start
from .models.schedules import is_schedule
from .naming import WCU, validate_entity_id, validate_resource
from .repository_protocol import LAST, Equal, Item, Key, Query, Value

REGISTRY = "_"  # the reserved namespace that holds the registry of namespaces and the version record

INDEXES = GSI1, GSI2, GSI3, GSI4 = "GSI1", "GSI2", "GSI3", "GSI4"

SYSTEM_AUDIT = "$SYSTEM"
RESOURCE_AUDIT = "$RESOURCE:"
"""Under which names changes of defaults are audited; a resource's name follows the second."""


def pk_system(namespace_id: str) -> str:
    return f"{namespace_id}/SYSTEM#"


def pk_resource(namespace_id: str, resource: str) -> str:
    return namespace_id + "/RESOURCE#" + resource


@lru_cache(64)  # so that all that is remembered of an entity has one text
def pk_entity(namespace_id: str, entity_id: str) -> str:
    return namespace_id + "/ENTITY#" + entity_id


def pk_bucket(namespace_id: str, entity_id: str, resource: str, shard_id: int = 0) -> str:
    return namespace_id + "/BUCKET#" + entity_id + "#" + resource + f"#{shard_id}"


def pk_audit(namespace_id: str, entity_id: str) -> str:
    return namespace_id + "/AUDIT#" + entity_id


def sk_meta() -> str:
    return "#META"


def sk_state() -> str:
    return "#STATE"


def sk_config(resource: str | None = None) -> str:
    """``#CONFIG`` for the system and a resource, ``#CONFIG#{resource}`` for an entity."""
    return "#CONFIG" if resource is None else "#CONFIG#" + resource


def sk_entity_configs() -> str:
    return "#ENTITY_CONFIGS"


def sk_usage(resource: str, window_key: str) -> str:
    return "#USAGE#" + resource + "#" + window_key


def sk_audit(event_id: str) -> str:
    return f"#AUDIT#{event_id}"


def sk_version() -> str:
    return "#VERSION"


def sk_namespace(name: str) -> str:
    return f"#NAMESPACE#{name}"


def sk_nsid(namespace_id: str) -> str:
    return f"#NSID#{namespace_id}"


def sk_claim(*place: str) -> str:
    """``#CLAIM#system``, ``#CLAIM#resource#{resource}``, ``#CLAIM#entity#{id}#{resource}``"""
    return "#".join(("#CLAIM", *place))


def gsi1_pk_parent(namespace_id: str, parent_id: str) -> str:
    return namespace_id + "/PARENT#" + parent_id


def gsi1_sk_child(entity_id: str) -> str:
    return "CHILD#" + entity_id


gsi2_pk_resource: Final = pk_resource
gsi3_pk_entity: Final = pk_entity


def gsi2_sk_bucket(entity_id: str, shard_id: int) -> str:
    return "BUCKET#" + entity_id + f"#{shard_id}"


def gsi2_sk_usage(window: str, window_key: str, entity_id: str) -> str:
    return "USAGE#" + window + "#" + window_key + "#" + entity_id


def gsi3_pk_entity_config(namespace_id: str, resource: str) -> str:
    return namespace_id + "/ENTITY_CONFIG#" + resource


def gsi3_sk_bucket(resource: str, shard_id: int) -> str:
    return "BUCKET#" + resource + f"#{shard_id}"


def gsi3_pk_entities(namespace_id: str) -> str:
    return f"{namespace_id}/ENTITIES"


def entity_key(namespace_id: str, entity_id: str) -> Key:
    return Key(pk_entity(namespace_id, entity_id), sk_meta())


@lru_cache(64)
def bucket_key(namespace_id: str, entity_id: str, resource: str, shard_id: int = 0) -> Key:
    return Key(pk_bucket(namespace_id, entity_id, resource, shard_id), sk_state())


def system_config_key(namespace_id: str) -> Key:
    return Key(pk_system(namespace_id), sk_config())


def resource_config_key(namespace_id: str, resource: str) -> Key:
    return Key(pk_resource(namespace_id, resource), sk_config())


def entity_config_key(namespace_id: str, entity_id: str, resource: str) -> Key:
    return Key(pk_entity(namespace_id, entity_id), sk_config(resource))


def usage_key(namespace_id: str, entity_id: str, resource: str, window_key: str) -> Key:
    return Key(pk_entity(namespace_id, entity_id), sk_usage(resource, window_key))


def audit_key(namespace_id: str, entity_id: str, event_id: str) -> Key:
    return Key(pk_audit(namespace_id, entity_id), sk_audit(event_id))


def estimate_key(namespace_id: str, place: int, since: int) -> Key:
    """Where calls of one kind are counted that ended in the generation since an instant in epoch seconds."""
    return Key(f"{namespace_id}/ESTIMATE#{place}", f"#ESTIMATE#{since}")


def registry_key(sort: str) -> Key:
    """A record of the whole store, which belongs to no namespace."""
    return Key(pk_system(REGISTRY), sort)


def version_key() -> Key:
    return registry_key(sk_version())


def older_version_key() -> Key:
    """Where tables without namespaces keep what their clients look at first."""
    return Key("SYSTEM#", sk_version())


def migration_key() -> Key:
    """Where it is noted how far a table of an older shape has been brought up to date."""
    return registry_key("#MIGRATION")


def namespace_key(name: str) -> Key:
    return registry_key(sk_namespace(name))


def nsid_key(namespace_id: str) -> Key:
    return registry_key(sk_nsid(namespace_id))


def changes_key() -> Key:
    """Where an embedded store counts how often a record was changed that clients remember."""
    return registry_key("#CHANGES")


def is_remembered(key: Key) -> bool:
    """Whether clients remember a record: entities, config levels, namespaces."""
    return key.sort.startswith(("#META", "#CONFIG", "#NSID#"))


def checkpoint_key(stream_shard: str) -> Key:
    """Where an aggregator notes how far it has read a shard of the store's stream."""
    return registry_key(f"#CHECKPOINT#{stream_shard}")


def entity_configs_key(namespace_id: str, resource: str) -> Key:
    """Where the entities with limits of their own for a resource are counted."""
    return Key(pk_resource(namespace_id, resource), sk_entity_configs())


def claim_key(namespace_id: str, *place: str) -> Key:
    """Where it is noted that a manifest made a level of configuration."""
    return Key(pk_system(namespace_id), sk_claim(*place))


def once_key(namespace_id: str, key: str) -> Key:
    """Where it is noted that a change was made under an idempotency key, and what was answered."""
    return Key(pk_system(namespace_id), "#ONCE#" + key)


def within_namespace(namespace_id: str, key: Key) -> dict[str, Value]:
    """The entry by which a namespace finds everything it holds."""
    return {"GSI4PK": namespace_id, "GSI4SK": key.partition}


def bucket_entries(namespace_id: str, entity_id: str, resource: str, shard_id: int) -> dict[str, Value]:
    """The index entries of a bucket, written when it is made and never again."""
    return {
        "GSI2PK": gsi2_pk_resource(namespace_id, resource),
        "GSI2SK": gsi2_sk_bucket(entity_id, shard_id),
        "GSI3PK": gsi3_pk_entity(namespace_id, entity_id),
        "GSI3SK": gsi3_sk_bucket(resource, shard_id),
        **within_namespace(namespace_id, bucket_key(namespace_id, entity_id, resource, shard_id)),
    }


def starting(partition: str, prefix: str, index: str | None = None) -> Query:
    """The rows of a partition whose sort key starts with ``prefix``."""
    return Query(partition, prefix, prefix + LAST, index)


def buckets_of_entity(namespace_id: str, entity_id: str, resource: str | None = None) -> Query:
    """The bucket shards of an entity, of all resources or of one."""
    prefix = "BUCKET#" if resource is None else "BUCKET#" + resource + "#"
    return starting(gsi3_pk_entity(namespace_id, entity_id), prefix, GSI3)


def buckets_of_resource(namespace_id: str, resource: str) -> Query:
    return starting(gsi2_pk_resource(namespace_id, resource), "BUCKET#", GSI2)


def usage_of_entity(namespace_id: str, entity_id: str, resource: str | None = None) -> Query:
    """The usage rows of an entity, of all resources or of one."""
    prefix = "#USAGE#" if resource is None else sk_usage(resource, "")
    return starting(pk_entity(namespace_id, entity_id), prefix)


def usage_of_resource(namespace_id: str, resource: str, window: str, first_key: str, last_key: str) -> Query:
    """The usage rows of a resource whose windows have keys from the first to the last."""
    first, last = (gsi2_sk_usage(window, key, "") for key in (first_key, last_key))
    return Query(gsi2_pk_resource(namespace_id, resource), first, last + LAST, GSI2)


def children_of(namespace_id: str, parent_id: str) -> Query:
    return starting(gsi1_pk_parent(namespace_id, parent_id), gsi1_sk_child(""), GSI1)


def is_number(value: object) -> TypeGuard[int]:
    """Whether a stored value is an integer that one of us can have written."""
    return type(value) is int and -NUMBER_MAX <= value <= NUMBER_MAX


def number(item: Item, attribute: str, default: int = 0) -> int:
    value = item.get(attribute)
    return value if type(value) is int and -NUMBER_MAX <= value <= NUMBER_MAX else default


def is_deleted(item: Item | None) -> bool:
    """Whether a record, or what is where a bucket was, only says that it was deleted."""
    return item is not None and item.get("status") == "deleted"


def text(item: Item, attribute: str) -> str | None:
    value = item.get(attribute)
    return value if isinstance(value, str) else None


def identifier(value: Value) -> str | None:
    """A stored value if it is the id of an entity."""
    try:
        return validate_entity_id(value)  # type: ignore[arg-type]  # which is what is checked
    except ValidationError:
        return None


def pinned(item: Item, attribute: str) -> tuple[Equal, ...]:
    """The condition that an attribute still is what it was; a stranger's nested value cannot be compared."""
    value = item.get(attribute)
    return (Equal(attribute, value),) if isinstance(value, str | int | None) else ()


def iso_time(at_ms: int) -> str:
    """``2024-01-01T14:00:00.123Z``"""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03}Z"


_BUCKET = re.compile(r"([^/#]+)/BUCKET#([^#]*)#([^#]*)#(0|[1-9][0-9]{0,8})")
_ENTITY = re.compile(r"[^/#]+/ENTITY#([^#]*)")


class BucketAddress(NamedTuple):
    namespace_id: str
    entity_id: str
    resource: str
    shard_id: int


def parse_bucket_pk(pk: str) -> BucketAddress:
    """Read ``{ns}/BUCKET#{entity}#{resource}#{shard}`` back."""
    found = _BUCKET.fullmatch(pk)
    if found is None:
        raise ValidationError("bucket key", pk, "expected '{namespace}/BUCKET#{entity}#{resource}#{shard}'")
    namespace_id, entity_id, resource, shard_id = found.groups()
    validate_entity_id(entity_id)
    validate_resource(resource)
    return BucketAddress(namespace_id, entity_id, resource, int(shard_id))


def bucket_address(key: Key) -> BucketAddress | None:
    """What a key addresses, or ``None`` if that is no bucket."""
    try:
        return parse_bucket_pk(key.partition) if key.sort == sk_state() else None
    except ValidationError:
        return None


def bucket_found(query: Query, key: Key) -> BucketAddress | None:
    """The bucket that an index named, or ``None`` if its place is not there: index entries can be wrong."""
    if (at := bucket_address(key)) is None:
        return None
    entries = bucket_entries(*at)
    is_there = query.first <= str(entries[f"{query.index}SK"]) <= query.last
    return at if is_there and entries[f"{query.index}PK"] == query.partition else None


def entity_id_of(key: Key) -> str | None:
    """The entity whose record a key addresses; ``None`` for any other key."""
    found = _ENTITY.fullmatch(key.partition)
    return identifier(found[1]) if found and key.sort == sk_meta() else None


# Buckets. One item holds every limit of one entity and resource, five numbers a limit.


class LimitAttributes(NamedTuple):
    """The names under which a bucket keeps one limit, in millitokens and milliseconds."""

    tk: str
    cp: str
    ra: str
    rp: str
    tc: str


@lru_cache(4096)
def limit_attributes(name: str) -> LimitAttributes:
    return LimitAttributes(*("b_" + name + end for end in ("_tk", "_cp", "_ra", "_rp", "_tc")))


class KindAttributes(NamedTuple):
    """What a bucket also keeps of a limit that is no plain rate."""

    ac: str
    """How it accrues, as text."""
    ws: str
    """When its session window began, if somebody has used it."""
    sd: str
    """When it has other numbers, as text."""


@lru_cache(4096)
def kind_attributes(name: str) -> KindAttributes:
    return KindAttributes("b_" + name + "_ac", "b_" + name + "_ws", "b_" + name + "_sd")


def rate_attributes(name: str, rate: Rate) -> dict[str, Value]:
    """The numbers of a limit as a bucket keeps them; of a plain rate nothing more."""
    _, cp, ra, rp, _ = limit_attributes(name)
    numbers: dict[str, Value] = dict(zip((cp, ra, rp), rate, strict=False))
    if rate.schedule is not None:
        numbers[kind_attributes(name).sd] = rate.schedule
    if rate.accrual is None:
        return numbers
    names, began_ms = kind_attributes(name), window_start(rate.accrual)
    return {**numbers, names.ac: kind_of(rate.accrual)} | ({names.ws: began_ms} if began_ms else {})


PHASE = "ph"
"""On a bucket with limits whose numbers change with the time of day: since when it has those that it has."""

MOVED = "moved"
"""On a bucket that came from a table of an older shape: when, in milliseconds."""

HOLDS = tuple(f"hold_{place}" for place in range(8))
"""On a bucket that was charged together with another one: who did so, and when by their clock."""

SAMPLED = "sampled"
"""On shard 0 of a bucket: when somebody last counted the writes to all shards, and how many there were."""

LAPSES = "lapses"
"""On a bucket that was split: it had a ``ttl``, and gets one again when it is whole again."""

BURIED = "buried"
"""On a shard that others came back to: when the last of these was born, so that later ones are born later."""

LIFE = "life"
"""On the mark of a deletion and on the bucket that took its place: which deletion of the entity that was."""

FORGIVEN = "forgiven"
"""On a bucket whose callers bring differing limits along: what cuts spared it, in millitokens by limit."""

BOOKED = "booked"
"""On a bucket that somebody waits for: an instant by which everybody who waits will have had its turn."""

BOOKED_SINCE = "booked_since"
"""On the same: of which bookings its highest levels tell, by the instant when earlier ones are over."""


class BookingAttributes(NamedTuple):
    """What a bucket also keeps of a limit that somebody waits for."""

    back: str
    """What came back meanwhile: it is for those who come after everybody who waits."""
    high: str
    """The most that the limit holds just before the turn of somebody who booked lately."""
    higher: str
    """The same, of those who booked before as well."""


@lru_cache(4096)
def booking_attributes(name: str) -> BookingAttributes:
    return BookingAttributes("b_" + name + "_bb", "b_" + name + "_bh", "b_" + name + "_bg")


def is_booking(attribute: str) -> bool:
    """Whether an attribute is one of these, be it of a limit that the bucket has not any more."""
    return attribute.startswith("b_") and attribute.endswith(("_bb", "_bh", "_bg"))


def forgiven(image: Item) -> dict[str, int]:
    """What cuts spared each limit of a bucket, where the next raise must not give it once more."""
    kept = image.get(FORGIVEN)
    return {n: v for n, v in kept.items() if is_number(v) and v > 0} if isinstance(kept, dict) else {}


class ShardAttributes(NamedTuple):
    """What a bucket also keeps of a limit where buckets can be sharded, each only when it matters."""

    sc: str
    """Over how many shards the limit is spread, if over more than one."""
    mx: str
    """The largest request that was admitted, if shards could become too small for it."""


@lru_cache(4096)
def shard_attributes(name: str) -> ShardAttributes:
    return ShardAttributes("b_" + name + "_sc", "b_" + name + "_mx")


def bucket_limit_names(image: Item) -> list[str]:
    """The limits a bucket holds for users: those with all five numbers, so leftovers are not mistaken."""
    names = [a[2:-3] for a in image if a.startswith("b_") and a.endswith("_tk") and len(a) > 5]
    return [n for n in names if n != WCU and stored_rate(image, n) is not None]


_MILLI_MAX, _PERIOD_MS_MAX = TOKENS_MAX * 1000, PERIOD_SECONDS_MAX * 1000


def stored_rate(image: Item, name: str) -> Rate | None:
    """The rate a bucket holds for a limit, or ``None`` if one of its five numbers cannot be right."""
    tk, cp, ra, rp, tc = limit_attributes(name)
    capacity, amount, period = image.get(cp), image.get(ra), image.get(rp)
    if (
        type(capacity) is type(amount) is type(period) is int
        and 0 <= capacity <= _MILLI_MAX
        and 0 < amount <= _MILLI_MAX
        and 0 < period <= _PERIOD_MS_MAX
        and is_number(image.get(tk))
        and is_number(image.get(tc))
    ):
        kind = kind_attributes(name)
        accrual, schedule = image.get(kind.ac), image.get(kind.sd)
        if schedule is not None:
            known = schedule if accrual is None and is_schedule(schedule) else None
            return None if known is None else Rate(capacity, amount, period, None, known)
        if accrual is None:
            return Rate(capacity, amount, period)
        if accrual == SESSION:
            return Rate(capacity, amount, period, window(period, max(0, number(image, kind.ws))))
        return Rate(capacity, amount, period, accrual) if is_accrual(accrual, period) else None
    return None
