"""Entities: who is limited, and who pays with them.

The record of an entity is the truth about its parent. Buckets carry a copy (``families``). A record
counts its children in the transactions that make, move and delete them, so that nobody is deleted
under a child that is being made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from typing import Any, Final

from ..exceptions import (
    EntityConflictError,
    EntityError,
    EntityExistsError,
    EntityNotFoundError,
    ValidationError,
)
from ..models import NUMBER_MAX, AuditAction, Entity, check_count
from ..models.checks import check_flag
from ..naming import validate_entity_id, validate_parent_id, validate_principal
from ..repository_protocol import (
    Absent,
    Check,
    Condition,
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
    GSI3,
    children_of,
    entity_id_of,
    entity_key,
    gsi3_pk_entities,
    is_deleted,
    iso_time,
    number,
    pinned,
    starting,
    within_namespace,
)
from .ancestry import check_move, check_new
from .audit import audited
from .belongings import ATTEMPTS_MAX, clear_out, has_belongings, mend_counts
from .families import tell_buckets
from .input import check_metadata, check_name
from .items import entity_item, entity_of
from .once import Proposal, once, request_of
from .scope import Scope, cursor_text, paged


class _Unset(Enum):
    UNSET = "unset"


UNSET: Final = _Unset.UNSET
"""Says "leave it as it is" where ``None`` is a value."""


async def create_entity(
    scope: Scope,
    entity_id: str,
    name: str | None = None,
    parent_id: str | None = None,
    cascade: bool = False,
    metadata: Mapping[str, Any] | None = None,
    principal: str | None = None,
) -> Entity:
    """Record a new entity. Its parent must exist.

    >>> team = await limiter.create_entity("team")
    >>> key = await limiter.create_entity("team/key-1", parent_id="team", cascade=True)
    >>> key.parent_id
    'team'
    """
    key = entity_key(scope.namespace_id, validate_entity_id(entity_id))
    if parent_id is not None and (parent_id := validate_parent_id(parent_id)) == entity_id:
        raise ValidationError("parent_id", parent_id, "an entity cannot be its own parent")
    said = check_name(name), parent_id, check_flag("cascade", cascade), check_metadata(metadata)
    entity = Entity(entity_id, *said, created_at=iso_time(scope.world.now_ms()))
    details = {"name": entity.name, "parent_id": parent_id, "cascade": entity.cascade}
    await scope.check_namespace()
    if parent_id is not None:
        await check_new(scope, entity_id, parent_id)
    alive: tuple[Equal, ...] = (Equal("status", None),)
    for _ in range(ATTEMPTS_MAX):
        writes: list[Write] = [
            Put(key, entity_item(scope.namespace_id, entity), when=(Absent(),)),
            audited(scope, AuditAction.ENTITY_CREATED, entity_id, principal, details=details),
        ]
        if parent_id is not None:
            writes.append(_count_child(scope, parent_id, 1, *alive))
        outcomes = await scope.write_together(writes)
        if outcomes[0].applied:
            await tell_buckets(scope, entity)
            return entity
        if not outcomes[0].held:
            if not is_deleted(outcomes[0].item):
                raise EntityExistsError(entity_id)
            await clear_out(scope, entity_id)
        elif parent_id is not None and not outcomes[2].held:
            parent = outcomes[2].item
            if parent is None or is_deleted(parent):
                raise EntityNotFoundError(parent_id, f"create it before its child {entity_id!r}")
            alive = pinned(parent, "status")
            await mend_counts(scope, writes, outcomes)
    raise EntityConflictError(entity_id, f"{ATTEMPTS_MAX} attempts to create it were overtaken")


async def get_entity(scope: Scope, entity_id: str) -> Entity | None:
    """The record of an entity; ``None`` if there is none."""
    item = await scope.get(entity_key(scope.namespace_id, validate_entity_id(entity_id)))
    return None if item is None or is_deleted(item) else entity_of(item, entity_id)


async def update_entity(
    scope: Scope,
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
    validate_entity_id(entity_id)
    changes: dict[str, Any] = {}
    if name is not UNSET:
        changes["name"] = check_name(name)
    if parent_id is not UNSET:
        changes["parent_id"] = None if parent_id is None else validate_parent_id(parent_id)
    if cascade is not UNSET:
        changes["cascade"] = check_flag("cascade", cascade)
    if metadata is not UNSET:
        changes["metadata"] = check_metadata(metadata)
    if expected_version is not None:
        check_count("expected_version", expected_version, NUMBER_MAX)
    for _ in range(ATTEMPTS_MAX):
        action = AuditAction.ENTITY_UPDATED
        after, writes = await _revised(
            scope, entity_id, changes, action, principal, changes, expected_version
        )
        outcomes = await scope.write_together(writes)
        if outcomes[0].applied:
            await tell_buckets(scope, after)
            return after
        await mend_counts(scope, writes, outcomes)
    raise EntityConflictError(entity_id, f"{ATTEMPTS_MAX} attempts to update it were overtaken")


async def set_parent(
    scope: Scope,
    entity_id: str,
    parent_id: str | None,
    cascade: bool | None = None,
    key: str | None = None,
    principal: str | None = None,
) -> Entity:
    """Give an entity another parent, or none, and say whether it cascades; nobody becomes its own ancestor.

    Sent again with the same ``key`` within a day it counts once, and answers the same.
    """
    validate_entity_id(entity_id)
    changes: dict[str, Any] = {"parent_id": None if parent_id is None else validate_parent_id(parent_id)}
    if cascade is not None:
        changes["cascade"] = check_flag("cascade", cascade)
    if principal is not None:
        validate_principal(principal)
    request = request_of(scope, "set_parent", {"entity_id": entity_id, **changes}, key)
    told = {**changes, "key": request.key}

    async def propose() -> Proposal:
        action = AuditAction.ENTITY_PARENT_CHANGED
        after, writes = await _revised(scope, entity_id, changes, action, principal, told)
        said = {name: value for name, value in asdict(after).items() if value is not None}
        return Proposal(writes, said)

    answer = await once(scope, request, propose, partial(mend_counts, scope))
    if answer is None:
        raise EntityConflictError(entity_id, f"{ATTEMPTS_MAX} attempts to move it were overtaken")
    moved = entity_of(answer.said, entity_id)
    if answer.is_new:  # it may have moved on since an earlier one
        await tell_buckets(scope, moved)
    return moved


async def _revised(
    scope: Scope,
    entity_id: str,
    changes: Mapping[str, Any],
    action: AuditAction,
    principal: str | None,
    details: Mapping[str, Any],
    expected_version: int | None = None,
) -> tuple[Entity, list[Write]]:
    """An entity as it is to be, and the writes that make it so."""
    key = entity_key(scope.namespace_id, entity_id)
    item = await scope.get(key)
    if item is None or is_deleted(item):
        raise EntityNotFoundError(entity_id)
    before = entity_of(item, entity_id)
    if expected_version is not None and before.version != expected_version:
        reason = f"version {expected_version} was expected, {before.version} is stored"
        raise EntityConflictError(entity_id, reason)
    after = replace(before, **changes, version=before.version + 1)
    unchanged: tuple[Condition, ...] = (Exists(), *pinned(item, "status"), *pinned(item, "version"))
    return after, [
        Update(key, set=entity_item(scope.namespace_id, after), when=unchanged),
        audited(scope, action, entity_id, principal, details=details),
        *await _moves(scope, item, before, after),
    ]


async def delete_entity(scope: Scope, entity_id: str, principal: str | None = None) -> bool:
    """Delete an entity with its limits, buckets and usage. Children must be deleted or moved first.

    What an id that was never created has gathered is deleted too. Returns whether there was anything.
    """
    key = entity_key(scope.namespace_id, validate_entity_id(entity_id))
    for _ in range(ATTEMPTS_MAX):
        item = await scope.get(key)
        if is_deleted(item):
            break
        if item is None and not await has_belongings(scope, entity_id):
            return False
        writes = await _marks(scope, key, entity_id, item)
        writes.append(audited(scope, AuditAction.ENTITY_DELETED, entity_id, principal))
        outcomes = await scope.write_together(writes)
        if outcomes[0].applied:
            break
        await mend_counts(scope, writes, outcomes)
    else:
        raise EntityConflictError(entity_id, f"{ATTEMPTS_MAX} attempts to delete it were overtaken")
    scope.connection.invalidate_keys([key])
    await clear_out(scope, entity_id)
    return True


async def get_children(scope: Scope, parent_id: str) -> list[Entity]:
    """All children of an entity, in the order of their ids."""
    query = children_of(scope.namespace_id, validate_entity_id(parent_id))
    return await _entities(scope, [row.key async for row in scope.rows(query)])


async def list_entities(
    scope: Scope, limit: int = 100, cursor: str | None = None
) -> tuple[list[Entity], str | None]:
    """Entities in the order of their ids, and the cursor of the next page if there is one.

    The last page is the one without a cursor; a page may be short, or empty, and have one.
    """
    return await entities_named(scope, "", limit, cursor)


async def entities_named(
    scope: Scope, prefix: str, limit: int = 100, cursor: str | None = None
) -> tuple[list[Entity], str | None]:
    """Entities whose ids begin with some text, in order, as ``list_entities`` lists all of them."""
    query = starting(gsi3_pk_entities(scope.namespace_id), prefix, GSI3)
    return await _page_of(scope, query, limit, cursor)


async def children_page(
    scope: Scope, parent_id: str, limit: int = 100, cursor: str | None = None
) -> tuple[list[Entity], str | None]:
    """Some children of an entity, in the order of their ids, and the cursor of the next page."""
    query = children_of(scope.namespace_id, validate_entity_id(parent_id))
    return await _page_of(scope, query, limit, cursor)


async def _page_of(
    scope: Scope, query: Query, limit: int, cursor: str | None
) -> tuple[list[Entity], str | None]:
    rows, after = await scope.first_rows(paged(query, limit, cursor))
    return await _entities(scope, [row.key for row in rows]), cursor_text(after, query)


async def _entities(scope: Scope, keys: Sequence[Key]) -> list[Entity]:
    """The entities of keys that an index named; any other key names none."""
    ids = {key: entity_id for key in keys if (entity_id := entity_id_of(key)) is not None}
    found = await scope.get_all(list(ids))
    return [entity_of(item, ids[key]) for key, item in found.items() if not is_deleted(item)]


def _count_child(scope: Scope, parent_id: str, change: int, *when: Equal) -> Update:
    return Update(entity_key(scope.namespace_id, parent_id), {"children": change}, when=(Exists(), *when))


async def _moves(scope: Scope, item: Item, before: Entity, after: Entity) -> list[Write]:
    """What a change of parent writes to the old family and the new one."""
    if after.parent_id == before.parent_id:
        return []
    writes: list[Write] = []
    if after.parent_id is not None:
        has_children = number(item, "children") > 0
        line = await check_move(scope, after.entity_id, after.parent_id, has_children=has_children)
        if line[0].item is None:
            raise EntityNotFoundError(after.parent_id, f"create it before its child {after.entity_id!r}")
        for _, key, record in line:
            if record is not None:  # pinned, so that nobody can close a circle meanwhile
                as_read = *pinned(record, "version"), *pinned(record, "status")
                counted = _count_child(scope, after.parent_id, 1, *as_read)
                writes.append(Check(key, counted.when) if writes else counted)
    if before.parent_id is None:
        return writes
    left = _count_child(scope, before.parent_id, -1)
    if await scope.get(left.key) is None:
        return writes
    # The old parent may be among the new ancestors, and a transaction names no key twice.
    pins = next((write.when for write in writes if write.key == left.key), left.when)
    return [*(write for write in writes if write.key != left.key), left._replace(when=pins)]


async def _marks(scope: Scope, key: Key, entity_id: str, item: Item | None) -> list[Write]:
    """The writes that mark an entity as deleted."""
    if item is None:
        mark = {"entity_id": entity_id, "status": "deleted", **within_namespace(scope.namespace_id, key)}
        return [Put(key, mark, when=(Absent(),))]
    children = scope.rows(children_of(scope.namespace_id, entity_id))
    if number(item, "children") > 0 or [row async for row in children]:
        raise EntityError(entity_id, "it has children; delete them first or give them another parent")
    pins = [pin for counted in ("status", "version", "children") for pin in pinned(item, counted)]
    marked: dict[str, Value] = {"status": "deleted"} | dict.fromkeys(("GSI1PK", "GSI1SK", "GSI3PK", "GSI3SK"))
    writes: list[Write] = [Update(key, set=marked, when=(Exists(), *pins))]
    parent_id = entity_of(item, entity_id).parent_id
    if parent_id is not None and await get_entity(scope, parent_id) is not None:
        writes.append(_count_child(scope, parent_id, -1))
    return writes
