"""Buckets as somebody who only looks sees them: what the next acquire would find, by the limits stored now.

Nothing is taken, nothing written, and no bucket is remembered on account of a look: what this process
remembers of buckets is for those who acquire. However many buckets are looked at, it takes at most four
reads: the buckets, their other shards, what levels say that nobody remembers, and levels that have changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from ..engine.account import Account, Terms
from ..engine.bucket_view import is_outdated, level, shard_count, stored_terms, told_limit
from ..engine.law import TOKEN_MILLI
from ..engine.level import Level
from ..engine.shares import Spread
from ..engine.split import levels
from ..exceptions import DamagedRecordError
from ..models import Limit, check_count
from ..models.accruals import CONCURRENT
from ..models.switches import Switch
from ..naming import validate_entity_id, validate_resource
from ..repository_protocol import Item, Key
from ..schema import bucket_found, bucket_key, buckets_of_entity, is_deleted
from .resolution import Resolved, level_keys, resolve
from .scope import Scope

PLACES_MAX = 1000
"""How many buckets one look is for."""

Place: TypeAlias = tuple[str, str]
"""An entity and a resource."""


@dataclass(frozen=True, slots=True)
class SeenLevel:
    """One limit of a bucket that was looked at, in whole tokens."""

    limit: Limit
    capacity: int
    """By the numbers that count now, if it has a schedule."""
    available_milli: int
    """In thousandths, for whoever draws it; below zero it is in debt, or somebody waits for it."""
    per_second: float
    """What comes back bit by bit; 0 of what comes back as a whole."""
    full_in_ms: int | None
    """When it is full if nobody takes anything; ``None`` if that never comes by itself."""
    refuses: bool
    """Whether it would refuse a single token."""

    @property
    def available(self) -> int:
        """Whole tokens."""
        return self.available_milli // TOKEN_MILLI

    @property
    def ratio(self) -> float:
        """How full it is, from -1 to 1."""
        share = self.available_milli / (self.capacity * TOKEN_MILLI) if self.capacity else 0.0
        return max(-1.0, min(1.0, share))

    @property
    def held(self) -> int | None:
        """How many are at work, of a limit of concurrency."""
        return self.capacity - self.available if self.limit.accrual == CONCURRENT else None


@dataclass(frozen=True, slots=True)
class SeenBucket:
    """A bucket that was looked at; one that nobody has used yet is full, and has no shards."""

    entity_id: str
    resource: str
    levels: tuple[SeenLevel, ...]
    at_ms: int
    shards: int
    switch: Switch | None = None

    @property
    def nearest(self) -> SeenLevel | None:
        """The limit that is nearest to empty; a soft one only if there is no other."""
        hard = [one for one in self.levels if not one.limit.soft]
        return min(hard or self.levels, key=lambda one: one.ratio, default=None)


async def look_at(scope: Scope, places: Iterable[Place]) -> list[SeenBucket]:
    """Some buckets as they are now, in the order in which they are named; each once."""
    wanted = list(dict.fromkeys((validate_entity_id(e), validate_resource(r)) for e, r in places))
    if not wanted:
        return []
    check_count("places", len(wanted), PLACES_MAX)
    await scope.notice_changes()
    shards = await _images(scope, wanted)
    known = await _known(scope, wanted, [images[0] for images in shards])
    now_ms = scope.world.now_ms()
    return [_seen(one, images, now_ms) for one, images in zip(known, shards, strict=True)]


async def look_at_entity(
    scope: Scope, entity_id: str, resource: str | None = None, buckets_max: int = 200
) -> list[SeenBucket]:
    """The buckets that an entity has used, in the order of their resources, the first of them."""
    query = buckets_of_entity(scope.namespace_id, validate_entity_id(entity_id), resource)
    found: dict[Place, None] = {}
    async for page in scope.pages(query):
        for row in page:
            if (at := bucket_found(query, row.key)) is not None:
                found[at.entity_id, at.resource] = None
        if len(found) > buckets_max:
            break
    seen = await look_at(scope, list(found)[:buckets_max])
    return [one for one in seen if one.shards]


async def _images(scope: Scope, places: Sequence[Place]) -> list[list[Item | None]]:
    """The images of all shards of some buckets; nothing of one that was deleted."""
    keys = [[bucket_key(scope.namespace_id, *place)] for place in places]
    first = await scope.get_all([key for (key,) in keys])
    others: list[Key] = []
    for mine, place in zip(keys, places, strict=True):
        count = shard_count(first.get(mine[0]))
        mine += [bucket_key(scope.namespace_id, *place, shard_id) for shard_id in range(1, count)]
        others += mine[1:]
    there = first | await scope.get_all(others)
    return [[_alive(there.get(key)) for key in mine] for mine in keys]


def _alive(image: Item | None) -> Item | None:
    return None if is_deleted(image) else image


class _Termed(NamedTuple):
    """A bucket, and the limits that its levels say it has."""

    account: Account
    limits: Sequence[Limit]


async def _known(scope: Scope, places: Sequence[Place], images: Sequence[Item | None]) -> list[_Termed]:
    """What the levels say of some buckets; those that a bucket proves to have changed are read again."""
    keys = [level_keys(scope.namespace_id, *place) for place in places]
    items = await _fetched(scope, keys)
    known = [_resolved(scope, *one, items) for one in zip(places, keys, strict=True)]
    pairs = zip(known, images, keys, strict=True)
    if behind := [mine for one, image, mine in pairs if is_outdated(one.account.terms, image)]:
        items |= await _fetched(scope, behind, fresh=True)
        known = [_resolved(scope, *one, items) for one in zip(places, keys, strict=True)]
    return known


async def _fetched(
    scope: Scope, keys: Sequence[Sequence[Key]], *, fresh: bool = False
) -> dict[Key, Item | None]:
    distinct = list(dict.fromkeys(key for mine in keys for key in mine))
    return dict(zip(distinct, await scope.connection.fetch(distinct, fresh=fresh), strict=True))


def _resolved(scope: Scope, place: Place, keys: Sequence[Key], items: Mapping[Key, Item | None]) -> _Termed:
    """A bucket under what its levels say; what cannot be read says nothing here, and is told elsewhere."""
    try:
        found = resolve([items[key] for key in keys])
    except DamagedRecordError:
        found = Resolved(None, None, None, 0)
    limits = found.limits or ()
    terms = Terms.of(limits, found.version if limits else None)
    key = bucket_key(scope.namespace_id, *place)
    return _Termed(Account(key, scope.namespace_id, *place, terms, switch=found.switch), limits)


def _seen(known: _Termed, images: Sequence[Item | None], now_ms: int) -> SeenBucket:
    account = known.account
    seen = [
        _told(account, limit, levels(account, images, limit.name, now_ms), now_ms) for limit in known.limits
    ]
    if not seen:  # its limits are brought along by those who use it
        seen = _brought_along(account, [image for image in images if image is not None], now_ms)
    shards = sum(image is not None for image in images)
    return SeenBucket(account.entity_id, account.resource, tuple(seen), now_ms, shards, account.switch)


def _brought_along(account: Account, images: Sequence[Item], now_ms: int) -> list[SeenLevel]:
    """The limits that are in the bucket alone; each of its shards knows its own share."""
    parts: dict[str, list[Level]] = {}
    for image in images:
        terms = stored_terms(image)
        for name in terms.rates:
            parts.setdefault(name, []).append(level(terms, name, image, now_ms))
    seen = []
    for name, shares in parts.items():
        whole = shares[0].rate._replace(
            capacity_milli=sum(one.rate.capacity_milli for one in shares),
            refill_amount_milli=sum(one.rate.refill_amount_milli for one in shares),
        )
        seen.append(_told(account, told_limit(account.terms, name, whole), Spread(shares), now_ms))
    return seen


def _told(account: Account, limit: Limit, at: Spread, now_ms: int) -> SeenLevel:
    now = limit.at(datetime.fromtimestamp(now_ms / 1000, UTC))
    full_ms = at.full_after_ms(now_ms)
    is_passed = limit.soft or (account.switch is not None and account.switch.bypass is not None)
    return SeenLevel(
        limit,
        now.capacity,
        at.balance(now_ms),
        now.refill_amount / now.refill_period_seconds if now.accrual is None else 0.0,
        None if math.isinf(full_ms) else math.ceil(full_ms),
        not is_passed and at.retry_after_ms(TOKEN_MILLI, now_ms) > 0,
    )
