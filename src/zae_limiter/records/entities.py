"""Entities: who is limited, and who pays with them.

The record of an entity is the truth about its parent and about cascading. Buckets carry a copy, so
that a process which trusts its cache learns of a change from the reply to its next write.

Deleting comes in two steps: a transaction marks the record and writes the audit event, then all that
belongs to the entity goes, page by page, and the mark last. A deletion that was cut short is finished
by the next call that meets the mark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from ..exceptions import EntityError, EntityExistsError, EntityNotFoundError, ValidationError
from ..models import AuditAction, Entity
from ..naming import validate_entity_id, validate_parent_id
from ..posting import Account
from ..repository_protocol import (
    Absent,
    Check,
    Delete,
    Equal,
    Exists,
    Item,
    Key,
    Put,
    Query,
    Update,
    Value,
    Write,
)
from ..schema import (
    GSI1,
    GSI3,
    entity_key,
    gsi1_pk_parent,
    gsi1_sk_child,
    gsi3_pk_entities,
    gsi3_pk_entity,
    number,
    pk_entity,
    pk_resource,
    sk_config,
    sk_entity_configs,
    starting,
    within_namespace,
)
from .audit import AuditRecords, iso_time
from .view import check_page_size, cursor_text, read_cursor

ANCESTORS_MAX = 32
UPDATE_ATTEMPTS_MAX = 16
DELETE_PAGE = 100
METADATA_BYTES_MAX = 64 * 1024


class _Unset(Enum):
    UNSET = "unset"


UNSET: Final = _Unset.UNSET
"""Says "leave it as it is" where ``None`` is a value."""


class EntityConflictError(EntityError):
    """The entity was changed by somebody else since the version that the caller saw."""

    problem = "was changed meanwhile"


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
        validate_entity_id(entity_id)
        if parent_id == entity_id:
            raise ValidationError("parent_id", parent_id, "an entity cannot be its own parent")
        entity = Entity(
            entity_id, name, parent_id, cascade, _metadata(metadata), iso_time(self._world.now_ms())
        )
        key = entity_key(self._namespace_id, entity_id)
        writes: list[Write] = [
            Put(key, self._entity_item(entity), when=(Absent(),)),
            self._audit(AuditAction.ENTITY_CREATED, entity_id, principal, details=_described(entity)),
        ]
        if parent_id is not None:
            parent_key = entity_key(self._namespace_id, validate_parent_id(parent_id))
            writes.append(Check(parent_key, when=(Exists(), Equal("status", None))))
        outcomes = await self._backend.transact_write(writes)
        if not outcomes[0].held:
            if _is_deleted(outcomes[0].item):
                await self._clear_out(entity_id)
                return await self.create_entity(entity_id, name, parent_id, cascade, metadata, principal)
            raise EntityExistsError(entity_id)
        if not outcomes[0].applied:
            assert parent_id is not None, "only a missing parent refuses a new entity"
            raise EntityNotFoundError(parent_id, f"create it before its child {entity_id!r}")
        self._connection.cache.invalidate(key.__eq__)
        await self._tell_buckets(entity)
        return entity

    async def get_entity(self, entity_id: str) -> Entity | None:
        item = await self._get(entity_key(self._namespace_id, validate_entity_id(entity_id)))
        return None if item is None or _is_deleted(item) else entity_of(item)

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
        for _ in range(UPDATE_ATTEMPTS_MAX):
            before = await self.get_entity(entity_id)
            if before is None:
                raise EntityNotFoundError(entity_id)
            if expected_version is not None and before.version != expected_version:
                raise EntityConflictError(
                    entity_id, f"version {expected_version} was expected, {before.version} is stored"
                )
            after = Entity(
                entity_id,
                before.name if name is UNSET else name,
                before.parent_id if parent_id is UNSET else parent_id,
                before.cascade if cascade is UNSET else cascade,
                before.metadata if metadata is UNSET else _metadata(metadata),
                before.created_at,
                before.version + 1,
            )
            pinned = (Exists(), Equal("status", None), Equal("version", before.version))
            writes: list[Write] = [
                Put(key, self._entity_item(after), when=pinned),
                self._audit(AuditAction.ENTITY_UPDATED, entity_id, principal, details=_described(after)),
            ]
            if after.parent_id is not None and after.parent_id != before.parent_id:
                writes += await self._ancestry(entity_id, validate_parent_id(after.parent_id))
            outcomes = await self._backend.transact_write(writes)
            if outcomes[0].applied:
                self._connection.cache.invalidate(key.__eq__)
                await self._tell_buckets(after)
                return after
        raise EntityConflictError(entity_id, f"{UPDATE_ATTEMPTS_MAX} attempts to update it were overtaken")

    async def delete_entity(self, entity_id: str, principal: str | None = None) -> None:
        """Delete an entity with its limits, buckets and usage. Children must be deleted or moved first."""
        key = entity_key(self._namespace_id, validate_entity_id(entity_id))
        item = await self._get(key)
        if item is None:
            raise EntityNotFoundError(entity_id)
        if not _is_deleted(item):
            page = await self._backend.query(self._children(entity_id)._replace(rows_max=1))
            if page.rows:
                raise EntityError(entity_id, "it has children; delete them first or give them another parent")
            marked: dict[str, Value] = {"status": "deleted", "GSI1PK": None, "GSI1SK": None}
            marked |= {"GSI3PK": None, "GSI3SK": None}
            await self._backend.transact_write(
                [
                    Update(key, set=marked, when=(Exists(), Equal("status", None))),
                    self._audit(AuditAction.ENTITY_DELETED, entity_id, principal),
                ]
            )
        self._connection.cache.invalidate(key.__eq__)
        await self._clear_out(entity_id)

    async def get_children(self, parent_id: str) -> list[Entity]:
        """All children of an entity, in the order of their ids."""
        keys = [row.key async for row in self._rows(self._children(validate_entity_id(parent_id)))]
        return await self._entities(keys)

    async def list_entities(
        self, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[Entity], str | None]:
        """Entities in the order of their ids, and the cursor of the next page if there is one."""
        query = starting(gsi3_pk_entities(self._namespace_id), "", GSI3)
        query = query._replace(rows_max=check_page_size(limit), after=read_cursor(cursor))
        page = await self._backend.query(query)
        return await self._entities([row.key for row in page.rows]), cursor_text(page.after)

    async def notice_family(self, account: Account) -> None:
        """Compare the family an account was charged for with the copy in its bucket's last image.

        If they differ either this process is behind, then it reads the record anew, or the bucket
        is, because somebody changed the record and died; then it is put right.
        """
        image = self._connection.teller.image(account.key)
        if image is None or family_of(image) == (account.parent_id, account.cascade):
            return
        (item,) = await self._connection.fetch(
            [entity_key(self._namespace_id, account.entity_id)], fresh=True
        )
        if family_of(item) != family_of(image):
            await self._must_write([_copy_family(account.key, *family_of(item))])
            self._connection.teller.forget(account.key)

    def _children(self, parent_id: str) -> Query:
        return starting(gsi1_pk_parent(self._namespace_id, parent_id), gsi1_sk_child(""), GSI1)

    async def _entities(self, keys: Sequence[Key]) -> list[Entity]:
        items = await self._backend.batch_get(keys) if keys else []
        return [entity_of(item) for item in items if item is not None and not _is_deleted(item)]

    async def _ancestry(self, entity_id: str, parent_id: str) -> list[Write]:
        """Checks that pin the new ancestors, so that no concurrent change can close a cycle."""
        checks: list[Write] = []
        ancestor_id: str | None = parent_id
        while ancestor_id is not None:
            if ancestor_id == entity_id:
                raise ValidationError("parent_id", parent_id, f"{entity_id!r} would become its own ancestor")
            if len(checks) == ANCESTORS_MAX:
                raise ValidationError("parent_id", parent_id, f"it has {ANCESTORS_MAX} or more ancestors")
            ancestor = await self.get_entity(ancestor_id)
            if ancestor is None:
                if ancestor_id == parent_id:
                    raise EntityNotFoundError(parent_id, f"create it before its child {entity_id!r}")
                break
            key = entity_key(self._namespace_id, ancestor_id)
            checks.append(Check(key, when=(Exists(), Equal("version", ancestor.version))))
            ancestor_id = ancestor.parent_id
        return checks

    async def _tell_buckets(self, entity: Entity) -> None:
        """Copy the family of an entity into its buckets."""
        query = starting(gsi3_pk_entity(self._namespace_id, entity.entity_id), "BUCKET#", GSI3)
        async for row in self._rows(query):
            await self._must_write([_copy_family(row.key, entity.parent_id, entity.cascade)])
            self._connection.teller.forget(row.key)

    async def _clear_out(self, entity_id: str) -> None:
        """Delete what belongs to an entity that is marked as deleted, then the mark."""
        partition = pk_entity(self._namespace_id, entity_id)
        buckets = starting(gsi3_pk_entity(self._namespace_id, entity_id), "BUCKET#", GSI3)
        for query in (buckets, starting(partition, "#USAGE#")):
            async for page in self._pages(query._replace(rows_max=DELETE_PAGE)):
                await self._must_write([Delete(row.key) for row in page])
                for row in page:
                    self._connection.teller.forget(row.key)
        async for row in self._rows(starting(partition, sk_config(""))):
            resource = row.key.sort.removeprefix(sk_config(""))
            writes: list[Write] = [Delete(row.key, when=(Exists(),))]
            if "GSI3PK" in row.item:  # a level that was deleted before is counted no more
                writes.append(self._count_entity_config(resource, -1))
            await self._backend.transact_write(writes)
            self._connection.cache.invalidate(row.key.__eq__)
        key = entity_key(self._namespace_id, entity_id)
        await self._must_write([Delete(key, when=(Equal("status", "deleted"),))])

    def _count_entity_config(self, resource: str, change: int) -> Update:
        """Keep count of the entities that have limits of their own for a resource."""
        key = Key(pk_resource(self._namespace_id, resource), sk_entity_configs())
        return Update(
            key, {"entities": change}, {"resource": resource, **within_namespace(self._namespace_id, key)}
        )

    def _entity_item(self, entity: Entity) -> dict[str, Value]:
        key, parent_id = entity_key(self._namespace_id, entity.entity_id), entity.parent_id
        return {
            "entity_id": entity.entity_id,
            "name": entity.name,
            "parent_id": parent_id,
            "cascade": entity.cascade,
            "metadata": dict(entity.metadata),
            "created_at": entity.created_at,
            "version": entity.version,
            "GSI1PK": None if parent_id is None else gsi1_pk_parent(self._namespace_id, parent_id),
            "GSI1SK": None if parent_id is None else gsi1_sk_child(entity.entity_id),
            "GSI3PK": gsi3_pk_entities(self._namespace_id),
            "GSI3SK": entity.entity_id,
            **within_namespace(self._namespace_id, key),
        }


def entity_of(item: Item) -> Entity:
    name, created_at, metadata = item.get("name"), item.get("created_at"), item.get("metadata")
    parent_id, cascade = family_of(item)
    return Entity(
        entity_id=str(item["entity_id"]),
        name=name if isinstance(name, str) else None,
        parent_id=parent_id,
        cascade=cascade,
        metadata=metadata if isinstance(metadata, dict) else {},
        created_at=created_at if isinstance(created_at, str) else None,
        version=number(item, "version", 1),
    )


def family_of(item: Item | None) -> tuple[str | None, bool]:
    if item is None or _is_deleted(item):
        return None, False
    parent_id = item.get("parent_id")
    return parent_id if isinstance(parent_id, str) else None, item.get("cascade") is True


def _copy_family(key: Key, parent_id: str | None, cascade: bool) -> Update:
    return Update(key, set={"parent_id": parent_id, "cascade": cascade}, when=(Exists(),))


def _is_deleted(item: Item | None) -> bool:
    return item is not None and item.get("status") == "deleted"


def _described(entity: Entity) -> dict[str, Any]:
    described = {"name": entity.name, "parent_id": entity.parent_id, "cascade": entity.cascade}
    return {field: value for field, value in described.items() if value is not None}


def _metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as plain JSON data, so that every store keeps it the same way."""
    try:
        text = json.dumps(dict(metadata or {}), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValidationError(
            "metadata", metadata, f"it must be a mapping of JSON values ({error})"
        ) from None
    if len(text) > METADATA_BYTES_MAX:
        raise ValidationError("metadata", f"{len(text)} bytes", f"at most {METADATA_BYTES_MAX} are kept")
    plain: dict[str, Any] = json.loads(text)
    return plain
