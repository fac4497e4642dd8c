"""Who is nearest to empty, in a store of any size.

A sampler goes through all buckets, one page of an index at each turn, round and round, and keeps in mind
those that were nearest to empty. So a small store is seen whole at once and a large one bit by bit, and what
a turn costs does not depend on how many there are. What was sampled goes on to fill without another look;
whoever shows it reads those few again by name. Nothing is written, taken or remembered elsewhere. A bucket
tells the numbers that it has; configuration is looked up only of those that seem to refuse, for a soft limit
refuses nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from ..engine.bucket_view import as_found, level, shard_count, stored_terms
from ..engine.law import TOKEN_MILLI
from ..engine.shares import Spread
from ..exceptions import DamagedRecordError
from ..repository_protocol import Cursor, Item
from ..schema import (
    GSI4,
    bucket_entries,
    bucket_found,
    bucket_key,
    buckets_of_entity,
    buckets_of_resource,
    is_deleted,
    limit_attributes,
    number,
    pk_bucket,
    starting,
    stored_rate,
)
from .resolution import level_keys, resolve
from .scope import Scope

ROWS_MAX = 100
"""How many rows of an index one turn reads: in a few milliseconds, on a store that is a file."""
KEPT_MAX = 100
RESOURCES_MAX = 1_000
SHARDS_READ_MAX = 500
"""How many shards besides the first of each bucket one turn reads; few buckets have any."""
QUERIES_MAX = 3

Place: TypeAlias = tuple[str, str]
"""An entity and a resource."""


class SampledLimit(NamedTuple):
    """One limit of a bucket, all shards together; how it fills from then on is known."""

    stands: Spread
    capacity_milli: int
    consumed_milli: int
    """What was ever taken, less what was given back."""

    def ratio(self, now_ms: int) -> float:
        """How full it is, from 1 down to -1, which is as deep in debt as it could be full."""
        share = self.stands.balance(now_ms) / self.capacity_milli if self.capacity_milli else 0.0
        return max(-1.0, min(1.0, share))

    def refuses(self, now_ms: int) -> bool:
        """Whether it cannot cover a single token."""
        return self.stands.balance(now_ms) < TOKEN_MILLI


class SampledBucket(NamedTuple):
    """A bucket as it was when it was read."""

    entity_id: str
    resource: str
    at_ms: int
    limits: Mapping[str, SampledLimit]
    shards: int
    soft: frozenset[str] = frozenset()
    """Limits that refuse nobody, of a bucket that would seem to refuse by them."""

    @property
    def place(self) -> Place:
        return self.entity_id, self.resource

    def worst(self, now_ms: int) -> str:
        """The limit that is nearest to empty."""
        counted = self.hard or self.limits
        return min(counted, key=lambda name: (counted[name].ratio(now_ms), name))

    def ratio(self, now_ms: int) -> float:
        return min(limit.ratio(now_ms) for limit in (self.hard or self.limits).values())

    def refuses(self, now_ms: int) -> bool:
        return any(limit.refuses(now_ms) for limit in self.hard.values())

    @property
    def hard(self) -> dict[str, SampledLimit]:
        """The limits that refuse."""
        return {name: limit for name, limit in self.limits.items() if name not in self.soft}


class SampledResource(NamedTuple):
    """All buckets of a resource that were gone through in a round, as each was when it was read."""

    buckets: int
    refusing: int
    worst_ratio: float


class Sample(NamedTuple):
    """What is known of a store's buckets by now."""

    buckets: tuple[SampledBucket, ...]
    """Those that are nearest to empty, the nearest first."""
    looked_at: int
    """How many buckets were gone through in this round."""
    buckets_known: int
    """How many there were in the last whole round; before its end as many as were gone through."""
    is_all: bool
    """Whether a round has been completed."""
    resources: Mapping[str, SampledResource]
    """Of the last whole round; before its end of what was gone through. At most ``RESOURCES_MAX``."""


class _Placed(NamedTuple):
    bucket: SampledBucket
    round: int
    sort: str
    """Where it is in the index."""
    ratio: float
    """How full it was when it was read."""


class BucketSampler:
    """Goes through the buckets of a namespace, or those of one resource, again and again."""

    def __init__(self, scope: Scope, resource: str | None = None, *, kept_max: int = KEPT_MAX) -> None:
        self._scope, self._kept_max = scope, kept_max
        namespace_id = scope.namespace_id
        if resource is None:
            prefix = pk_bucket(namespace_id, "", "").partition("#")[0] + "#"
            self._query = starting(namespace_id, prefix, GSI4)
        else:
            self._query = buckets_of_resource(namespace_id, resource)
        self._after: Cursor | None = None
        self._kept: dict[Place, _Placed] = {}
        self._round, self._looked_at, self._known = 0, 0, 0
        self._resources: dict[str, SampledResource] = {}
        self._last_resources: Mapping[str, SampledResource] = {}

    async def turn(self, rows_max: int = ROWS_MAX) -> bool:
        """Read one page further on; returns whether it was the last one of a round."""
        query = self._query._replace(rows_max=rows_max, after=self._after)
        rows, after = await self._scope.first_rows(query, QUERIES_MAX)
        found = [at for row in rows if (at := bucket_found(self._query, row.key)) is not None]
        # A bucket whose first shard was on an earlier page was read with it.
        buckets = await look_up(self._scope, [at[1:3] for at in found if at.shard_id == 0])
        self._after = after
        now_ms = self._scope.world.now_ms()
        buckets = await _softened(self._scope, buckets, now_ms)
        self._note(buckets, None if after is None else after.sort, now_ms)
        if after is not None:
            return False
        self._round, self._known, self._looked_at = self._round + 1, self._looked_at, 0
        self._last_resources, self._resources = self._resources, {}
        return True

    def sample(self) -> Sample:
        """What is known by now; nothing is read."""
        is_all, now_ms = self._round > 0, self._scope.world.now_ms()
        buckets = sorted((one.bucket for one in self._kept.values()), key=lambda one: _order(one, now_ms))
        known, resources = (self._known, self._last_resources) if is_all else (0, self._resources)
        looked_at = self._looked_at or known
        return Sample(tuple(buckets), looked_at, known or looked_at, is_all, dict(resources))

    async def look(self, rows_max: int = ROWS_MAX) -> Sample:
        """A turn, and what is known after it."""
        await self.turn(rows_max)
        return self.sample()

    def _note(self, buckets: Iterable[SampledBucket], passed: str | None, now_ms: int) -> None:
        """Keep the nearest to empty; what was not met again where it had been is gone."""
        for one in buckets:
            entries = bucket_entries(self._scope.namespace_id, *one.place, 0)
            sort = str(entries[f"{self._query.index}SK"])
            self._kept[one.place] = _Placed(one, self._round, sort, one.ratio(now_ms))
            self._looked_at += 1
            self._count(one, now_ms)
        there = [
            one
            for one in self._kept.values()
            if one.round == self._round or (passed is not None and one.sort > passed)
        ]
        # By what each was when it was read: working it out anew at each turn would take most of its time.
        there.sort(key=lambda one: (one.ratio, one.bucket.place))
        self._kept = {one.bucket.place: one for one in there[: self._kept_max]}

    def _count(self, bucket: SampledBucket, now_ms: int) -> None:
        before = self._resources.get(bucket.resource, SampledResource(0, 0, 1.0))
        if before.buckets or len(self._resources) < RESOURCES_MAX:
            refusing = before.refusing + bucket.refuses(now_ms)
            worst = min(before.worst_ratio, bucket.ratio(now_ms))
            self._resources[bucket.resource] = SampledResource(before.buckets + 1, refusing, worst)


def _order(bucket: SampledBucket, now_ms: int) -> tuple[float, Place]:
    return bucket.ratio(now_ms), bucket.place


async def places_of(
    scope: Scope, entity_id: str, resource: str | None = None, rows_max: int = ROWS_MAX
) -> list[Place]:
    """Where an entity has buckets, by resource; the first of them, if there are many."""
    query = buckets_of_entity(scope.namespace_id, entity_id, resource)._replace(rows_max=rows_max)
    rows, _ = await scope.first_rows(query, QUERIES_MAX)
    found = [at for row in rows if (at := bucket_found(query, row.key)) is not None]
    return list(dict.fromkeys((at.entity_id, at.resource) for at in found))


async def look_up(scope: Scope, places: Iterable[Place]) -> list[SampledBucket]:
    """Some buckets as they are now, by their own numbers; those that are not there are left out."""
    keys = {bucket_key(scope.namespace_id, *place): place for place in places}
    images = await scope.get_all(list(keys))
    parts = {place: [images[key]] for key, place in keys.items() if key in images}
    others = {
        bucket_key(scope.namespace_id, *place, shard_id): place
        for place, (first,) in parts.items()
        for shard_id in range(1, shard_count(first))
    }
    for key, image in (await scope.get_all(list(others)[:SHARDS_READ_MAX])).items():
        parts[others[key]].append(image)
    now_ms, buckets = scope.world.now_ms(), []
    for place, shards in parts.items():
        limits = _limits([as_found(one, now_ms) for one in shards if not is_deleted(one)], now_ms)
        if limits:
            buckets.append(SampledBucket(*place, now_ms, limits, len(shards)))
    return buckets


async def _softened(scope: Scope, buckets: list[SampledBucket], now_ms: int) -> list[SampledBucket]:
    """The same, where those that seem to refuse know which of their limits are soft."""
    keys = {one.place: level_keys(scope.namespace_id, *one.place) for one in buckets if one.refuses(now_ms)}
    distinct = list(dict.fromkeys(key for levels in keys.values() for key in levels))
    items = dict(zip(distinct, await scope.connection.fetch(distinct), strict=True)) if distinct else {}
    soft: dict[Place, frozenset[str]] = {}
    for place, levels in keys.items():
        with suppress(DamagedRecordError):  # what cannot be read softens nothing
            limits = resolve([items[key] for key in levels]).limits or ()
            soft[place] = frozenset(limit.name for limit in limits if limit.soft)
    return [one._replace(soft=soft.get(one.place, frozenset())) for one in buckets]


def _limits(images: list[Item], now_ms: int) -> dict[str, SampledLimit]:
    limits, terms = {}, [stored_terms(image) for image in images]
    for name in dict.fromkeys(name for one in terms for name in one.rates):
        parts = [(said, image) for said, image in zip(terms, images, strict=True) if name in said.rates]
        rates = [rate for _, image in parts if (rate := stored_rate(image, name)) is not None]
        limits[name] = SampledLimit(
            Spread([level(said, name, image, now_ms) for said, image in parts]),
            sum(rate.capacity_milli for rate in rates),
            sum(number(image, limit_attributes(name).tc) for _, image in parts),
        )
    return limits
