"""Buckets seen from outside: of an entity, of a resource, and what they hold together.

The writes at the end are for those who build on the store themselves. They touch their own namespace
only, and what this process remembers of the items they touch is forgotten.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from ..engine.bucket_view import as_found
from ..engine.law import balance
from ..exceptions import ValidationError
from ..models import BucketState, EntityCapacity, ResourceCapacity
from ..models.checks import check_flag
from ..naming import validate_entity_id, validate_limit_name, validate_resource
from ..repository_protocol import Item, Outcome, Query, Write
from ..schema import (
    BucketAddress,
    bucket_address,
    bucket_found,
    bucket_key,
    buckets_of_entity,
    buckets_of_resource,
    limit_attributes,
    number,
    stored_rate,
    text,
)
from .buckets import check_shard
from .input import check_writes
from .items import bucket_states
from .scope import Scope

EVERY_LIMIT = ""


async def get_buckets(
    scope: Scope, entity_id: str, resource: str | None = None, shard_id: int | None = None
) -> list[BucketState]:
    """One state for each limit of each bucket of an entity, shard by shard; or of one shard."""
    if resource is not None:
        validate_resource(resource)
    if shard_id is not None:
        check_shard(shard_id)
    query = buckets_of_entity(scope.namespace_id, validate_entity_id(entity_id), resource)
    states = await _states(scope, query)
    return [state for state in states if shard_id is None or state.shard_id == shard_id]


async def get_resource_buckets(
    scope: Scope, resource: str, limit_name: str | None = None
) -> list[BucketState]:
    """One state for each limit of each bucket of a resource, shard by shard; or of one limit."""
    if limit_name is not None:
        validate_limit_name(limit_name)
    states = await _states(scope, buckets_of_resource(scope.namespace_id, validate_resource(resource)))
    return [state for state in states if limit_name is None or state.limit_name == limit_name]


async def batch_get_buckets(
    scope: Scope, keys: Iterable[tuple[str, str] | tuple[str, str, int | str]]
) -> dict[tuple[str, ...], Any]:
    """The states of several buckets in one read, by what they are asked for with.

    A pair of an entity and a resource gets the list of states of the first shard. With the id of a shard,
    or with a limit, there is one state for each entity, resource and limit that is there.
    """
    asked = _asked(keys)
    places = list(dict.fromkeys(place for place, _ in asked))
    wanted = [bucket_key(scope.namespace_id, *place) for place in places]
    images = await scope.connection.writer.look(wanted) if wanted else []
    now_ms = scope.world.now_ms()
    found = {
        place: [] if image is None else bucket_states(as_found(image, now_ms), bucket_address(key))
        for place, key, image in zip(places, wanted, images, strict=True)
    }
    states: dict[tuple[str, ...], Any] = {}
    for place, limit_name in asked:
        if limit_name is None:
            states[place[:2]] = found[place]
        else:
            named = [s for s in found[place] if limit_name in (EVERY_LIMIT, s.limit_name)]
            states |= {(*place[:2], state.limit_name): state for state in named}
    return states


async def get_resource_capacity(
    scope: Scope, resource: str, limit_name: str, parents_only: bool = False
) -> ResourceCapacity:
    """One limit over all buckets of a resource: what they could hold, and what they hold now.

    It is a plain sum over every entity that has a bucket for the resource with this limit. So it is more
    than can be admitted where somebody cascades: such a child takes from its parent's bucket too, and
    both are counted. ``parents_only`` leaves out all entities that have a parent, whether they cascade
    or not; those without one are counted, whether they have children or not.
    """
    validate_limit_name(limit_name)
    check_flag("parents_only", parents_only)
    now_ms, tk = scope.world.now_ms(), limit_attributes(limit_name).tk
    totals: dict[str, tuple[int, int]] = {}
    query = buckets_of_resource(scope.namespace_id, validate_resource(resource))
    async for at, image in _images(scope, query):
        rate = stored_rate(image, limit_name)
        if rate is None or (parents_only and text(image, "parent_id") is not None):
            continue
        capacity, available = totals.get(at.entity_id, (0, 0))
        held = balance(rate, number(image, tk), number(image, "rf"), now_ms)
        totals[at.entity_id] = capacity + rate.capacity_milli, available + held
    return ResourceCapacity(
        resource,
        limit_name,
        sum(capacity for capacity, _ in totals.values()) // 1000,
        sum(available for _, available in totals.values()) // 1000,
        tuple(EntityCapacity(e, c // 1000, a // 1000) for e, (c, a) in sorted(totals.items())),
    )


async def _states(scope: Scope, query: Query) -> list[BucketState]:
    return [state async for at, image in _images(scope, query) for state in bucket_states(image, at)]


async def _images(scope: Scope, query: Query) -> AsyncIterator[tuple[BucketAddress, Item]]:
    """The buckets that an index names, as the next write finds them, page by page; all else is left out."""
    async for page in scope.pages(query):
        places = {row.key: at for row in page if (at := bucket_found(query, row.key)) is not None}
        for key, image in (await scope.get_all(list(places))).items():
            yield places[key], as_found(image, scope.world.now_ms())


async def transact_write(scope: Scope, writes: Sequence[Write]) -> list[Outcome]:
    """Perform all writes or none."""
    return await scope.write_together(_checked(scope, writes, together=True))


async def write_each(scope: Scope, writes: Sequence[Write]) -> list[Outcome]:
    """Perform each write on its own; one that fails is an outcome with a ``failure``."""
    return await scope.write(_checked(scope, writes))


def _checked(scope: Scope, writes: Sequence[Write], *, together: bool = False) -> Sequence[Write]:
    """The writes, of whose keys this process knows nothing any more."""
    checked = check_writes(scope.namespace_id, writes, together=together)
    for write in checked:
        scope.connection.writer.forget(write.key)
    return checked


def _asked(keys: object) -> list[tuple[tuple[str, str, int], str | None]]:
    """Which shards are asked for, each with the limit that is wanted of it; ``None`` for a list of all."""
    rule = "pass pairs of an entity and a resource, or triples with a shard's id or a limit"
    if not isinstance(keys, Iterable):
        raise ValidationError("keys", keys, rule)
    asked: list[tuple[tuple[str, str, int], str | None]] = []
    for key in keys:
        if not isinstance(key, list | tuple) or len(key) not in (2, 3):
            raise ValidationError("bucket", key, rule)
        shard_id, limit_name = 0, None
        if len(key) == 3 and isinstance(key[2], str):
            limit_name = validate_limit_name(key[2])
        elif len(key) == 3:
            shard_id, limit_name = check_shard(key[2]), EVERY_LIMIT
        asked.append(((validate_entity_id(key[0]), validate_resource(key[1]), shard_id), limit_name))
    return asked
