"""Entities: who is limited, and who pays with them.

The record of an entity is the truth about its parent and about cascading. Buckets carry a copy, so
that a process which trusts its cache learns of a change from the reply to its next write. A record
counts its children in the transactions that make, move and delete them, so that nobody is deleted
under a child that is being made.

Deleting comes in two steps: a transaction marks the record and writes the audit event, then all that
belongs to the entity goes, page by page, and the mark last. A deletion that was cut short is finished
by the next call that meets the mark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, Final, TypeAlias

from ..exceptions import (
    DamagedRecordError,
    EntityConflictError,
    EntityError,
    EntityExistsError,
    EntityNotFoundError,
    RateLimiterUnavailable,
    ValidationError,
)
from ..models import NUMBER_MAX, AuditAction, Entity, check_count
from ..naming import DEFAULT_RESOURCE, validate_entity_id, validate_parent_id
from ..repository_protocol import (
    Absent,
    Check,
    Condition,
    Delete,
    Equal,
    Exists,
    Item,
    Key,
    Outcome,
    Put,
    Query,
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
    gsi3_pk_entities,
    gsi3_pk_entity_config,
    identifier,
    is_deleted,
    iso_time,
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
from .audit import DAY_SECONDS, AuditRecords
from .items import entity_item, entity_of, readable_config
from .metadata_rules import check_cascade, check_metadata, check_name
from .resolution import least_version, level_keys
from .view import TOMBSTONE_DAYS, cursor_text

Conditions: TypeAlias = tuple[Condition, ...]

ANCESTORS_MAX = 32
ATTEMPTS_MAX = 16
DELETE_PAGE = 100


class _Unset(Enum):
    UNSET = "unset"


UNSET: Final = _Unset.UNSET
"""Says "leave it as it is" where ``None`` is a value."""


class EntityRecords(AuditRecords):
    async def create_entity(
        self,
        entity_id: str,
        name: str | None = None,
        parent_id: str | None = None,
        cascade: bool = False,
        metadata: Mapping[str, Any] | None = None,
        principal: str | None = None,
    ) -> Entity:
        """Record a new entity. Its parent must exist."""
        key = entity_key(self._namespace_id, validate_entity_id(entity_id))
        if parent_id is not None and validate_parent_id(parent_id) == entity_id:
            raise ValidationError("parent_id", parent_id, "an entity cannot be its own parent")
        made_at = iso_time(self._world.now_ms())
        entity = Entity(
            entity_id, check_name(name), parent_id, check_cascade(cascade), check_metadata(metadata), made_at
        )
        await self._check_namespace()
        alive: tuple[Equal, ...] = (Equal("status", None),)
        for _ in range(ATTEMPTS_MAX):
            writes: list[Write] = [
                Put(key, entity_item(self._namespace_id, entity), when=(Absent(),)),
                self._audit(AuditAction.ENTITY_CREATED, entity_id, principal, details=_described(entity)),
            ]
            if parent_id is not None:
                writes.append(self._count_child(parent_id, 1, *alive))
            outcomes = await self._write_together(writes)
            if outcomes[0].applied:
                await self._tell_buckets(entity)
                return entity
            if not outcomes[0].held:
                if not is_deleted(outcomes[0].item):
                    raise EntityExistsError(entity_id)
                await self._clear_out(entity_id)
            elif parent_id is not None and not outcomes[2].held:
                parent = outcomes[2].item
                if parent is None or is_deleted(parent):
                    raise EntityNotFoundError(parent_id, f"create it before its child {entity_id!r}")
                alive = pinned(parent, "status")
                await self._mend_counts(writes, outcomes)
        raise EntityConflictError(entity_id, f"{ATTEMPTS_MAX} attempts to create it were overtaken")

    async def get_entity(self, entity_id: str) -> Entity | None:
        """The record of an entity; ``None`` if there is none."""
        item = await self._get(entity_key(self._namespace_id, validate_entity_id(entity_id)))
        return None if item is None or is_deleted(item) else entity_of(item, entity_id)

    async def update_entity(
        self,
        entity_id: str,
        *,
        name: str | _Unset | None = UNSET,
        parent_id: str | _Unset | None = UNSET,
        cascade: bool | _Unset = UNSET,
        metadata: Mapping[str, Any] | _Unset | None = UNSET,
        expected_version: int | None = None,
        principal: str | None = None,
    ) -> Entity:
        """Change what is given and leave the rest; with ``expected_version``, only that version."""
        key = entity_key(self._namespace_id, validate_entity_id(entity_id))
        changes: dict[str, Any] = {}
        if name is not UNSET:
            changes["name"] = check_name(name)
        if parent_id is not UNSET:
            changes["parent_id"] = None if parent_id is None else validate_parent_id(parent_id)
        if cascade is not UNSET:
            changes["cascade"] = check_cascade(cascade)
        if metadata is not UNSET:
            changes["metadata"] = check_metadata(metadata)
        if expected_version is not None:
            check_count("expected_version", expected_version, NUMBER_MAX)
        for _ in range(ATTEMPTS_MAX):
            item = await self._get(key)
            if item is None or is_deleted(item):
                raise EntityNotFoundError(entity_id)
            before = entity_of(item, entity_id)
            if expected_version is not None and before.version != expected_version:
                raise EntityConflictError(
                    entity_id, f"version {expected_version} was expected, {before.version} is stored"
                )
            after = replace(before, **changes, version=before.version + 1)
            unchanged: Conditions = (Exists(), *pinned(item, "status"), *pinned(item, "version"))
            writes: list[Write] = [
                Update(key, set=entity_item(self._namespace_id, after), when=unchanged),
                self._audit(AuditAction.ENTITY_UPDATED, entity_id, principal, details=changes),
                *await self._moves(before, after),
            ]
            outcomes = await self._write_together(writes)
            if outcomes[0].applied:
                await self._tell_buckets(after)
                return after
            await self._mend_counts(writes, outcomes)
        raise EntityConflictError(entity_id, f"{ATTEMPTS_MAX} attempts to update it were overtaken")

    async def delete_entity(self, entity_id: str, principal: str | None = None) -> bool:
        """Delete an entity with its limits, buckets and usage. Children must be deleted or moved first.

        What an id that was never created has gathered is deleted too. Returns whether there was anything.
        """
        key = entity_key(self._namespace_id, validate_entity_id(entity_id))
        for _ in range(ATTEMPTS_MAX):
            item = await self._get(key)
            if is_deleted(item):
                break
            if item is None and not await self._has_belongings(entity_id):
                return False
            writes = await self._marks(key, entity_id, item)
            writes.append(self._audit(AuditAction.ENTITY_DELETED, entity_id, principal))
            outcomes = await self._write_together(writes)
            if outcomes[0].applied:
                break
            await self._mend_counts(writes, outcomes)
        else:
            raise EntityConflictError(entity_id, f"{ATTEMPTS_MAX} attempts to delete it were overtaken")
        self._connection.invalidate(key.__eq__)
        await self._clear_out(entity_id)
        return True

    async def get_children(self, parent_id: str) -> list[Entity]:
        """All children of an entity, in the order of their ids."""
        keys = [
            row.key
            async for row in self._rows(children_of(self._namespace_id, validate_entity_id(parent_id)))
        ]
        return await self._entities(keys)

    async def list_entities(
        self, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[Entity], str | None]:
        """Entities in the order of their ids, and the cursor of the next page if there is one.

        The last page is the one without a cursor; a page may be short, or empty, and have one.
        """
        query = starting(gsi3_pk_entities(self._namespace_id), "", GSI3)
        rows, after = await self._first_rows(self._paged(query, limit, cursor))
        return await self._entities([row.key for row in rows]), cursor_text(after, query)

    # Families.

    async def _entities(self, keys: Sequence[Key]) -> list[Entity]:
        """The entities of keys that an index named; any other key names none."""
        ids = {key: entity_id for key in keys if (entity_id := entity_id_of(key)) is not None}
        items = await self._backend.batch_get(list(ids)) if ids else []
        return [
            entity_of(item, entity_id)
            for entity_id, item in zip(ids.values(), items, strict=True)
            if item is not None and not is_deleted(item)
        ]

    def _count_child(self, parent_id: str, change: int, *when: Equal) -> Update:
        return Update(entity_key(self._namespace_id, parent_id), {"children": change}, when=(Exists(), *when))

    async def _moves(self, before: Entity, after: Entity) -> list[Write]:
        """What a change of parent writes to the old family and the new one."""
        if after.parent_id == before.parent_id:
            return []
        writes: list[Write] = []
        if after.parent_id is not None:
            writes += await self._ancestry(after.entity_id, after.parent_id)
        old = None if before.parent_id is None else entity_key(self._namespace_id, before.parent_id)
        if before.parent_id is not None and old is not None and await self._get(old) is not None:
            # The old parent may be among the new ancestors, and a transaction names no key twice.
            pins = next((write.when for write in writes if write.key == old), (Exists(),))
            writes = [write for write in writes if write.key != old]
            writes.append(Update(old, {"children": -1}, when=pins))
        return writes

    async def _ancestry(self, entity_id: str, parent_id: str) -> list[Write]:
        """Writes that pin the new ancestors, so that no concurrent change can close a cycle."""
        writes: list[Write] = []
        ancestor_id: str | None = parent_id
        while ancestor_id is not None:
            if ancestor_id == entity_id:
                raise ValidationError("parent_id", parent_id, f"{entity_id!r} would become its own ancestor")
            if len(writes) == ANCESTORS_MAX:
                raise ValidationError("parent_id", parent_id, f"it has {ANCESTORS_MAX} or more ancestors")
            key = entity_key(self._namespace_id, ancestor_id)
            item = await self._get(key)
            if item is None or is_deleted(item):
                if ancestor_id == parent_id:
                    raise EntityNotFoundError(parent_id, f"create it before its child {entity_id!r}")
                break
            pins = *pinned(item, "version"), *pinned(item, "status")
            is_parent = ancestor_id == parent_id
            writes.append(
                self._count_child(parent_id, 1, *pins) if is_parent else Check(key, (Exists(), *pins))
            )
            ancestor_id = identifier(item.get("parent_id"))
        return writes

    async def _tell_buckets(self, entity: Entity) -> None:
        """Copy the family of an entity into its buckets; one that is missed puts itself right when used."""
        with suppress(RateLimiterUnavailable, DamagedRecordError):
            async for keys in self._bucket_keys(entity.entity_id):
                await self._must_write([copy_family(key, entity.parent_id, entity.cascade) for key in keys])

    async def _bucket_keys(self, entity_id: str, resource: str | None = None) -> AsyncIterator[list[Key]]:
        """The keys of an entity's buckets, page by page; whatever else the index names is left alone."""
        query = buckets_of_entity(self._namespace_id, entity_id, resource)
        async for page in self._pages(query):
            yield [row.key for row in page if bucket_found(query, row.key) is not None]

    # Deleting.

    async def _has_belongings(self, entity_id: str) -> bool:
        async for keys in self._bucket_keys(entity_id):
            if keys:
                return True
        async for row in self._rows(starting(pk_entity(self._namespace_id, entity_id), "#")):
            if not _is_tombstone(row.item):
                return True
        return False

    async def _resources_with_own_limits(self, entity_id: str) -> list[str]:
        """The resources that an entity has limits of its own for, the name that means all included."""
        rows = self._rows(self._own_levels(entity_id))
        return [
            row.key.sort.removeprefix(sk_config("")) async for row in rows if readable_config(row.item).limits
        ]

    async def _has_children(self, entity_id: str) -> bool:
        async for _ in self._rows(children_of(self._namespace_id, entity_id)):
            return True
        return False

    async def _marks(self, key: Key, entity_id: str, item: Item | None) -> list[Write]:
        """The writes that mark an entity as deleted."""
        if item is None:
            mark = {"entity_id": entity_id, "status": "deleted", **within_namespace(self._namespace_id, key)}
            return [Put(key, mark, when=(Absent(),))]
        if number(item, "children") > 0 or await self._has_children(entity_id):
            raise EntityError(entity_id, "it has children; delete them first or give them another parent")
        unlisted = dict.fromkeys(("GSI1PK", "GSI1SK", "GSI3PK", "GSI3SK"))
        pins = [pin for counted in ("status", "version", "children") for pin in pinned(item, counted)]
        marked: dict[str, Value] = {"status": "deleted", **unlisted}
        writes: list[Write] = [Update(key, set=marked, when=(Exists(), *pins))]
        parent_id = entity_of(item, entity_id).parent_id
        if parent_id is not None and await self.get_entity(parent_id) is not None:
            writes.append(self._count_child(parent_id, -1))
        return writes

    async def _clear_out(self, entity_id: str) -> None:
        """Delete what belongs to an entity that is marked as deleted, then the mark.

        Its limits go first: who then finds a bucket gone, and looks at them again, does not revive them.
        """
        await self._clear_limits(entity_id)
        await self._clear_buckets(entity_id)
        usage = usage_of_entity(self._namespace_id, entity_id)
        async for page in self._pages(usage._replace(rows_max=DELETE_PAGE)):
            await self._must_write([Delete(row.key) for row in page])
        key = entity_key(self._namespace_id, entity_id)
        await self._must_write([Delete(key, when=(Equal("status", "deleted"),))])

    async def _clear_limits(self, entity_id: str) -> None:
        configs = self._own_levels(entity_id)
        for _ in range(ATTEMPTS_MAX):
            left = [row async for row in self._rows(configs) if not _is_tombstone(row.item)]
            if not left:
                break
            for row in left:
                if not await self._is_marked(entity_id):
                    return
                burial = self._bury(row.key, row.item)
                outcomes = await self._write_together(burial)
                if not outcomes[0].applied:
                    await self._mend_counts(burial, outcomes)
        else:
            raise EntityConflictError(entity_id, "its limits are being set while it is deleted; try again")

    async def _clear_buckets(self, entity_id: str) -> None:
        """Leave a mark where the buckets were, and where somebody may be about to make one.

        The mark goes by itself. Until then it stops whoever remembers the bucket or the limits that
        the entity had: writes for the former bucket find another item, and one that would make it
        anew is told to read again first.
        """
        own = [
            row.key.sort.removeprefix(sk_config("")) async for row in self._rows(self._own_levels(entity_id))
        ]
        named = [bucket_key(self._namespace_id, entity_id, name) for name in own if name != DEFAULT_RESOURCE]
        if await self._is_marked(entity_id):
            await self._mark_buckets(named)
        async for keys in self._bucket_keys(entity_id):
            if not await self._is_marked(entity_id):
                return
            await self._mark_buckets(keys)

    async def _is_marked(self, entity_id: str) -> bool:
        """Whether an entity is still being deleted; somebody faster may have finished, and made it anew."""
        return is_deleted(await self._get(entity_key(self._namespace_id, entity_id)))

    async def _mark_buckets(self, keys: Sequence[Key]) -> None:
        found = [(key, parse_bucket_pk(key.partition)) for key in keys]
        writes: list[Write] = [Delete(key) for key, at in found if at.shard_id]
        for key, at in found:
            if at.shard_id == 0:
                levels = level_keys(self._namespace_id, at.entity_id, at.resource)
                version = least_version(await self._backend.batch_get(levels))
                mark: dict[str, Value] = {"status": "deleted", "cv": version, **self._passing(key)}
                writes.append(Put(key, {**mark, LIFE: self._connection.next_event_id()}))
        await self._must_write(writes)

    def _own_levels(self, entity_id: str) -> Query:
        return starting(pk_entity(self._namespace_id, entity_id), sk_config(""))

    def _passing(self, key: Key) -> dict[str, Value]:
        """What lets an item go by itself, and be found by its namespace only until then."""
        ttl = self._world.now_ms() // 1000 + TOMBSTONE_DAYS * DAY_SECONDS
        return {"ttl": ttl, **within_namespace(self._namespace_id, key)}

    def _bury(self, key: Key, item: Item) -> list[Write]:
        """Turn a config record into a stamp that goes by itself.

        The stamp tells clients which remember the record that it is gone; without it they would take
        their own memory for the newer one.
        """
        stamp = {"config_version": number(item, "config_version") + 1, **self._passing(key)}
        writes: list[Write] = [Put(key, stamp, when=(Exists(), *pinned(item, "config_version")))]
        if "GSI3PK" in item:  # a level that was deleted before is counted no more
            writes.append(self._count_entity_config(key.sort.removeprefix(sk_config("")), -1))
        return writes

    def _count_entity_config(self, resource: str, change: int) -> Update:
        """Keep count of the entities that have limits of their own for a resource."""
        key = entity_configs_key(self._namespace_id, resource)
        return Update(
            key, {"entities": change}, {"resource": resource, **within_namespace(self._namespace_id, key)}
        )

    async def _mend_counts(self, writes: Sequence[Write], outcomes: Sequence[Outcome]) -> None:
        """Count anew what a refused transaction could not add to because it is no number."""
        for write, outcome in zip(writes, outcomes, strict=True):
            image = outcome.item
            if image is None or not isinstance(write, Update):
                continue
            for counter in write.add:
                if type(image.get(counter, 0)) is not int:
                    counted = 0
                    async for page in self._pages(self._counted(write.key)):
                        counted += len(page)
                    when: Conditions = (Exists(), *pinned(image, counter))
                    await self._must_write([Update(write.key, set={counter: counted}, when=when)])

    def _counted(self, key: Key) -> Query:
        """What the counter of a record counts: the children of an entity, or who has limits of their own."""
        entity_id = entity_id_of(key)
        if entity_id is not None:
            return children_of(self._namespace_id, entity_id)
        resource = key.partition.removeprefix(pk_resource(self._namespace_id, ""))
        return starting(gsi3_pk_entity_config(self._namespace_id, resource), "", GSI3)


def family_of(item: Item | None) -> tuple[str | None, bool]:
    """The parent and whether to cascade, as an entity's record or the copy in a bucket says."""
    if item is None or is_deleted(item):
        return None, False
    return identifier(item.get("parent_id")), item.get("cascade") is True


def copy_family(key: Key, parent_id: str | None, cascade: bool) -> Update:
    return Update(key, set={"parent_id": parent_id, "cascade": cascade}, when=(Exists(),))


def _is_tombstone(item: Item) -> bool:
    return "config_version" in item and "ttl" in item


def _described(entity: Entity) -> dict[str, Any]:
    return {"name": entity.name, "parent_id": entity.parent_id, "cascade": entity.cascade}
