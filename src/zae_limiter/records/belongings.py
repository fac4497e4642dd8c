"""What belongs to an entity beside its record: limits, buckets and usage, and how all of it is deleted.

Deleting comes in two steps: a transaction marks the record and writes the audit event, then all that
belongs to the entity goes, page by page, and the mark last. A deletion that was cut short is finished
by the next call that meets the mark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ..exceptions import EntityConflictError
from ..naming import DEFAULT_RESOURCE
from ..repository_protocol import (
    Condition,
    Delete,
    Equal,
    Exists,
    Item,
    Key,
    Outcome,
    Put,
    Query,
    Row,
    Update,
    Value,
    Write,
)
from ..schema import (
    GSI3,
    LIFE,
    bucket_found,
    bucket_key,
    buckets_of_entity,
    children_of,
    entity_configs_key,
    entity_id_of,
    entity_key,
    gsi3_pk_entity_config,
    is_deleted,
    number,
    parse_bucket_pk,
    pinned,
    pk_entity,
    pk_resource,
    sk_config,
    starting,
    usage_of_entity,
    within_namespace,
)
from .items import readable_config
from .resolution import level_keys, stamp_for
from .scope import TOMBSTONE_DAYS, Scope

ATTEMPTS_MAX = 16
DELETE_PAGE = 100


async def bucket_keys(scope: Scope, entity_id: str, resource: str | None = None) -> AsyncIterator[list[Key]]:
    """The keys of an entity's buckets, page by page; whatever else the index names is left alone."""
    query = buckets_of_entity(scope.namespace_id, entity_id, resource)
    async for page in scope.pages(query):
        yield [row.key for row in page if bucket_found(query, row.key) is not None]


async def has_belongings(scope: Scope, entity_id: str) -> bool:
    """Whether anything is kept for an id, though it may never have been created."""
    async for keys in bucket_keys(scope, entity_id):
        if keys:
            return True
    async for row in scope.rows(starting(pk_entity(scope.namespace_id, entity_id), "#")):
        if not _is_tombstone(row.item):
            return True
    return False


async def resources_with_own_limits(scope: Scope, entity_id: str) -> list[str]:
    """The resources that an entity has limits of its own for, the name that means all included."""
    return [_resource(row) async for row in _own_levels(scope, entity_id) if readable_config(row.item).limits]


async def clear_out(scope: Scope, entity_id: str) -> None:
    """Delete what belongs to an entity that is marked as deleted, then the mark.

    Its limits go first: who then finds a bucket gone, and looks at them again, does not revive them.
    """
    await _clear_limits(scope, entity_id)
    await _clear_buckets(scope, entity_id)
    usage = usage_of_entity(scope.namespace_id, entity_id)
    async for page in scope.pages(usage._replace(rows_max=DELETE_PAGE)):
        await scope.must_write([Delete(row.key) for row in page])
    key = entity_key(scope.namespace_id, entity_id)
    await scope.must_write([Delete(key, when=(Equal("status", "deleted"),))])


async def _clear_limits(scope: Scope, entity_id: str) -> None:
    for _ in range(ATTEMPTS_MAX):
        left = [row async for row in _own_levels(scope, entity_id) if not _is_tombstone(row.item)]
        if not left:
            break
        for row in left:
            if not await _is_marked(scope, entity_id):
                return
            burial = _bury(scope, row)
            outcomes = await scope.write_together(burial)
            if not outcomes[0].applied:
                await mend_counts(scope, burial, outcomes)
    else:
        raise EntityConflictError(entity_id, "its limits are being set while it is deleted; try again")


async def _clear_buckets(scope: Scope, entity_id: str) -> None:
    """Leave a mark where the buckets were, and where somebody may be about to make one.

    The mark goes by itself. Until then it stops whoever remembers the bucket or the limits that
    the entity had: writes for the former bucket find another item, and one that would make it
    anew is told to read again first.
    """
    own = [_resource(row) async for row in _own_levels(scope, entity_id)]
    named = [bucket_key(scope.namespace_id, entity_id, name) for name in own if name != DEFAULT_RESOURCE]
    if await _is_marked(scope, entity_id):
        await _mark_buckets(scope, named)
    async for keys in bucket_keys(scope, entity_id):
        if not await _is_marked(scope, entity_id):
            return
        await _mark_buckets(scope, keys)


async def _is_marked(scope: Scope, entity_id: str) -> bool:
    """Whether an entity is still being deleted; somebody faster may have finished, and made it anew."""
    return is_deleted(await scope.get(entity_key(scope.namespace_id, entity_id)))


async def _mark_buckets(scope: Scope, keys: Sequence[Key]) -> None:
    found = [(key, parse_bucket_pk(key.partition)) for key in keys]
    writes: list[Write] = [Delete(key) for key, at in found if at.shard_id]
    for key, at in found:
        if at.shard_id == 0:
            levels = level_keys(scope.namespace_id, at.entity_id, at.resource)
            version = stamp_for(await scope.backend.batch_get(levels))
            mark: dict[str, Value] = {"status": "deleted", "cv": version, **_passing(scope, key)}
            writes.append(Put(key, {**mark, LIFE: scope.connection.next_event_id()}))
    await scope.must_write(writes)


def _own_levels(scope: Scope, entity_id: str) -> AsyncIterator[Row]:
    """The config records of an entity, one for each resource."""
    return scope.rows(starting(pk_entity(scope.namespace_id, entity_id), sk_config("")))


def _resource(level: Row) -> str:
    return level.key.sort.removeprefix(sk_config(""))


def _passing(scope: Scope, key: Key) -> dict[str, Value]:
    """What lets an item go by itself, and be found by its namespace only until then."""
    return {"ttl": scope.seconds_in(TOMBSTONE_DAYS), **within_namespace(scope.namespace_id, key)}


def _bury(scope: Scope, level: Row) -> list[Write]:
    """Turn a config record into a stamp that goes by itself.

    The stamp tells clients which remember the record that it is gone; without it they would take
    their own memory for the newer one.
    """
    key, item = level
    stamp = {"config_version": number(item, "config_version") + 1, **_passing(scope, key)}
    writes: list[Write] = [Put(key, stamp, when=(Exists(), *pinned(item, "config_version")))]
    if "GSI3PK" in item:  # a level that was deleted before is counted no more
        writes.append(count_entity_config(scope, _resource(level), -1))
    return writes


def count_entity_config(scope: Scope, resource: str, change: int) -> Update:
    """Keep count of the entities that have limits of their own for a resource."""
    key = entity_configs_key(scope.namespace_id, resource)
    found_by = {"resource": resource, **within_namespace(scope.namespace_id, key)}
    return Update(key, {"entities": change}, found_by)


async def mend_counts(scope: Scope, writes: Sequence[Write], outcomes: Sequence[Outcome]) -> None:
    """Count anew what a refused transaction could not add to because it is no number."""
    for write, outcome in zip(writes, outcomes, strict=True):
        image = outcome.item
        if image is None or not isinstance(write, Update):
            continue
        for counter in write.add:
            if type(image.get(counter, 0)) is not int:
                counted = 0
                async for page in scope.pages(_counted(scope, write.key)):
                    counted += len(page)
                when: tuple[Condition, ...] = (Exists(), *pinned(image, counter))
                await scope.must_write([Update(write.key, set={counter: counted}, when=when)])


def _counted(scope: Scope, key: Key) -> Query:
    """What the counter of a record counts: the children of an entity, or who has limits of their own."""
    entity_id = entity_id_of(key)
    if entity_id is not None:
        return children_of(scope.namespace_id, entity_id)
    resource = key.partition.removeprefix(pk_resource(scope.namespace_id, ""))
    return starting(gsi3_pk_entity_config(scope.namespace_id, resource), "", GSI3)


def _is_tombstone(item: Item) -> bool:
    return "config_version" in item and "ttl" in item
