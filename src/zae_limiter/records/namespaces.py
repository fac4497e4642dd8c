"""Namespaces: tenants that share a table and never see each other.

A namespace is a name for an opaque id, and every key begins with that id. Two records of the
registry say so: one leads from the name to the id, one back and holds the state. Deleting frees the
name and keeps the data, which can be recovered under its id until it is purged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..established import NamespaceWord
from ..exceptions import (
    DamagedRecordError,
    NamespaceNotFoundError,
    NamespaceStateError,
    RateLimiterUnavailable,
    ValidationError,
)
from ..models import Namespace, NamespaceStatus
from ..naming import validate_namespace, validate_namespace_id
from ..repository_protocol import Absent, Delete, Equal, Exists, Item, Put, Query, Row, Update
from ..schema import (
    GSI4,
    REGISTRY,
    iso_time,
    namespace_key,
    nsid_key,
    pk_system,
    sk_namespace,
    sk_nsid,
    starting,
)
from .items import namespace_item, namespace_of
from .scope import TOMBSTONE_DAYS, Scope, readable

PURGE_PAGE = 100
PURGE_PASSES_MAX = 10
"""How often a namespace is searched until nothing is found: an index may lag behind its table."""


async def register_namespace(scope: Scope, namespace: str) -> NamespaceWord:
    """Make a namespace unless there is one of that name; returns its id."""
    made = await registered(scope, namespace)
    return NamespaceWord(made.namespace_id, made)


async def registered(scope: Scope, name: str) -> Namespace:
    """The namespace of a name, which is made if it is missing."""
    known = await get_namespace(scope, name)
    if known is not None:
        return known
    made = Namespace(name, scope.world.new_token(), created_at=iso_time(scope.world.now_ms()))
    keys = namespace_key(name), nsid_key(made.namespace_id)
    outcomes = await scope.write_together([Put(key, namespace_item(made), when=(Absent(),)) for key in keys])
    if outcomes[0].applied:
        return made
    winner = await get_namespace(scope, name)
    if winner is None:
        raise RateLimiterUnavailable(f"namespace {name!r} was registered and deleted at the same time")
    return winner


async def register_namespaces(scope: Scope, namespaces: Sequence[str]) -> dict[str, NamespaceWord]:
    """Make those of several namespaces that are missing; returns all ids by name.

    A bad name makes none.
    """
    if not isinstance(namespaces, list | tuple):
        raise ValidationError("namespaces", namespaces, "pass a list of names")
    for name in namespaces:
        validate_namespace(name)
    return {name: await register_namespace(scope, name) for name in namespaces}


async def get_namespace(scope: Scope, namespace: str) -> Namespace | None:
    """The namespace of a name; ``None`` if there is none."""
    return named(namespace, await scope.get(namespace_key(validate_namespace(namespace))))


def named(namespace: str, item: Item | None) -> Namespace | None:
    """The namespace in the record of a name; ``None`` if there is none."""
    if item is None:
        return None
    found = namespace_of(item)
    if found.namespace_name != namespace:
        raise DamagedRecordError(f"namespace {namespace!r}", f"it says that it is {found.namespace_name!r}")
    return found


async def list_namespaces(scope: Scope) -> list[Namespace]:
    """All namespaces that are in use, in the order of their names."""
    return await _listed(scope, sk_namespace(""))


async def list_orphan_namespaces(scope: Scope) -> list[Namespace]:
    """Namespaces that were deleted and whose data is still there, or there again."""
    every = await _listed(scope, sk_nsid(""))
    deleted = [one for one in every if one.status is not NamespaceStatus.ACTIVE]
    return [one for one in deleted if not await _is_gone(scope, one)]


async def delete_namespace(scope: Scope, namespace: str) -> Namespace | None:
    """Free the name. The data stays, under its id, until it is recovered or purged.

    Returns what was deleted; ``None`` if no namespace has that name.
    """
    known = await get_namespace(scope, namespace)
    if known is None:
        return None
    now = iso_time(scope.world.now_ms())
    gone = replace(known, status=NamespaceStatus.DELETED, deleted_at=now)
    freed = Delete(namespace_key(namespace), when=(Equal("namespace_id", known.namespace_id),))
    kept = Put(nsid_key(known.namespace_id), namespace_item(gone), when=(Exists(),))
    outcomes = await scope.write_together([freed, kept])
    if not outcomes[0].applied:
        raise _changed(namespace)
    return gone


async def recover_namespace(scope: Scope, namespace_id: str) -> NamespaceWord:
    """Give a deleted namespace its name back, if nobody took it; returns that name."""
    known = await identified(scope, namespace_id)
    if known.status is not NamespaceStatus.DELETED:
        message = f"namespace {namespace_id!r} is {known.status}; only a deleted one recovers"
        raise NamespaceStateError(message, namespace_name=known.namespace_name, state=known.status)
    back = Namespace(known.namespace_name, namespace_id, created_at=known.created_at)
    item, name = namespace_item(back), back.namespace_name
    named = Put(namespace_key(name), item, when=(Absent(),))
    revived = Put(nsid_key(namespace_id), item, when=(Equal("status", NamespaceStatus.DELETED.value),))
    outcomes = await scope.write_together([named, revived])
    if not outcomes[0].held:
        message = f"the name {name!r} is taken by another namespace; delete that one first"
        raise NamespaceStateError(message, namespace_name=name)
    if not outcomes[1].applied:
        raise _changed(namespace_id)
    return NamespaceWord(name, back)


async def purge_namespace(scope: Scope, namespace_id: str) -> int:
    """Delete all data of a deleted namespace for good, and return how many items went.

    Interrupted, it goes on where it stopped when it is called again.
    """
    known = await identified(scope, namespace_id)
    name = known.namespace_name
    by_name = await get_namespace(scope, name)
    is_used = by_name is not None and by_name.namespace_id == namespace_id
    if known.status is NamespaceStatus.ACTIVE or is_used:
        message = f"namespace {name!r} is in use; delete it before you purge {namespace_id!r}"
        raise NamespaceStateError(message, namespace_name=name, state=NamespaceStatus.ACTIVE)
    key, as_known = nsid_key(namespace_id), (Exists(), Equal("status", known.status.value))
    marked = Update(key, set={"status": NamespaceStatus.PURGING.value}, when=as_known)
    (outcome,) = await scope.must_write([marked])
    if not outcome.applied:
        raise _changed(namespace_id)
    purged = 0
    for _ in range(PURGE_PASSES_MAX):
        found = False
        async for page in scope.pages(Query(namespace_id, index=GSI4, rows_max=PURGE_PAGE)):
            found = found or bool(page)
            purged += await _erase(scope, page)
        if not found:
            break
    else:
        message = f"namespace {namespace_id!r} is still being written to; stop its users and purge it again"
        raise NamespaceStateError(message, namespace_name=name, state=NamespaceStatus.PURGING)
    scope.connection.invalidate(lambda key: key.partition.startswith(f"{namespace_id}/"))
    # Whoever remembers the namespace learns from what is left of it that it is gone.
    left = namespace_item(replace(known, status=NamespaceStatus.PURGED))
    await scope.must_write([Put(key, {**left, "ttl": scope.seconds_in(TOMBSTONE_DAYS)})])
    return purged


async def _is_gone(scope: Scope, space: Namespace) -> bool:
    """Whether a namespace was purged and nobody has written there since."""
    if space.status is not NamespaceStatus.PURGED:
        return False
    rows, _ = await scope.first_rows(Query(space.namespace_id, index=GSI4, rows_max=1))
    return not rows


async def _erase(scope: Scope, rows: Sequence[Row]) -> int:
    """Delete items that an index named; returns how many were still there."""
    outcomes = await scope.must_write([Delete(row.key, when=(Exists(),)) for row in rows])
    return sum(outcome.applied for outcome in outcomes)


async def _listed(scope: Scope, prefix: str) -> list[Namespace]:
    rows = [row.item async for row in scope.rows(starting(pk_system(REGISTRY), prefix))]
    return readable(namespace_of, rows)


async def identified(scope: Scope, namespace_id: str) -> Namespace:
    """The namespace of an id, of which something must be left."""
    item = await scope.get(nsid_key(validate_namespace_id(namespace_id)))
    if item is None:
        message = f"no namespace has the id {namespace_id!r}; list_orphan_namespaces shows those deleted"
        raise NamespaceNotFoundError(message, namespace_name=namespace_id)
    found = namespace_of(item)
    if found.namespace_id != namespace_id:
        raise DamagedRecordError(f"namespace {namespace_id!r}", f"it says that it is {found.namespace_id!r}")
    if await _is_gone(scope, found):
        gone = f"namespace {namespace_id!r} was purged; nothing is left of it"
        raise NamespaceNotFoundError(gone, namespace_name=found.namespace_name)
    return found


def _changed(name: str) -> NamespaceStateError:
    message = f"namespace {name!r} was changed meanwhile; look at it again"
    return NamespaceStateError(message, namespace_name=name)
