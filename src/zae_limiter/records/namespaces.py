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
from ..repository_protocol import Absent, Delete, Equal, Exists, Put, Query, Row, Update
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
from .audit import DAY_SECONDS
from .items import namespace_item, namespace_of
from .view import TOMBSTONE_DAYS, View, readable

PURGE_PAGE = 100
PURGE_PASSES_MAX = 10
"""How often a namespace is searched until nothing is found: an index may lag behind its table."""


class NamespaceRecords(View):
    async def register_namespace(self, namespace: str) -> NamespaceWord:
        """Make a namespace unless there is one of that name; returns its id."""
        made = await self._register(namespace)
        return NamespaceWord(made.namespace_id, made)

    async def _register(self, name: str) -> Namespace:
        known = await self.get_namespace(name)
        if known is not None:
            return known
        made = Namespace(name, self._world.new_token(), created_at=iso_time(self._world.now_ms()))
        item = namespace_item(made)
        outcomes = await self._write_together(
            [
                Put(namespace_key(name), item, when=(Absent(),)),
                Put(nsid_key(made.namespace_id), item, when=(Absent(),)),
            ]
        )
        if outcomes[0].applied:
            return made
        winner = await self.get_namespace(name)
        if winner is None:
            raise RateLimiterUnavailable(f"namespace {name!r} was registered and deleted at the same time")
        return winner

    async def register_namespaces(self, namespaces: Sequence[str]) -> dict[str, NamespaceWord]:
        """Make those of several namespaces that are missing; returns all ids by name.

        A bad name makes none.
        """
        if not isinstance(namespaces, list | tuple):
            raise ValidationError("namespaces", namespaces, "pass a list of names")
        for name in namespaces:
            validate_namespace(name)
        return {name: await self.register_namespace(name) for name in namespaces}

    async def get_namespace(self, namespace: str) -> Namespace | None:
        """The namespace of a name; ``None`` if there is none."""
        item = await self._get(namespace_key(validate_namespace(namespace)))
        if item is None:
            return None
        found = namespace_of(item)
        if found.namespace_name != namespace:
            wrong = f"it says that it is {found.namespace_name!r}"
            raise DamagedRecordError(f"namespace {namespace!r}", wrong)
        return found

    async def list_namespaces(self) -> list[Namespace]:
        """All namespaces that are in use, in the order of their names."""
        return await self._registered(sk_namespace(""))

    async def list_orphan_namespaces(self) -> list[Namespace]:
        """Namespaces that were deleted and whose data is still there, or there again."""
        every = await self._registered(sk_nsid(""))
        return [
            one for one in every if one.status is not NamespaceStatus.ACTIVE and not await self._is_gone(one)
        ]

    async def delete_namespace(self, namespace: str) -> Namespace | None:
        """Free the name. The data stays, under its id, until it is recovered or purged.

        Returns what was deleted; ``None`` if no namespace has that name.
        """
        known = await self.get_namespace(namespace)
        if known is None:
            return None
        gone = Namespace(
            namespace,
            known.namespace_id,
            NamespaceStatus.DELETED,
            known.created_at,
            iso_time(self._world.now_ms()),
        )
        outcomes = await self._write_together(
            [
                Delete(namespace_key(namespace), when=(Equal("namespace_id", known.namespace_id),)),
                Put(nsid_key(known.namespace_id), namespace_item(gone), when=(Exists(),)),
            ]
        )
        if not outcomes[0].applied:
            raise _changed(namespace)
        return gone

    async def recover_namespace(self, namespace_id: str) -> NamespaceWord:
        """Give a deleted namespace its name back, if nobody took it; returns that name."""
        known = await self._identified(namespace_id)
        if known.status is not NamespaceStatus.DELETED:
            raise NamespaceStateError(
                f"namespace {namespace_id!r} is {known.status}; only a deleted one recovers",
                namespace_name=known.namespace_name,
                state=known.status,
            )
        back = Namespace(known.namespace_name, namespace_id, created_at=known.created_at)
        item = namespace_item(back)
        outcomes = await self._write_together(
            [
                Put(namespace_key(back.namespace_name), item, when=(Absent(),)),
                Put(nsid_key(namespace_id), item, when=(Equal("status", NamespaceStatus.DELETED.value),)),
            ]
        )
        if not outcomes[0].held:
            raise NamespaceStateError(
                f"the name {back.namespace_name!r} is taken by another namespace; delete that one first",
                namespace_name=back.namespace_name,
            )
        if not outcomes[1].applied:
            raise _changed(namespace_id)
        return NamespaceWord(back.namespace_name, back)

    async def purge_namespace(self, namespace_id: str) -> int:
        """Delete all data of a deleted namespace for good, and return how many items went.

        Interrupted, it goes on where it stopped when it is called again.
        """
        known = await self._identified(namespace_id)
        by_name = await self.get_namespace(known.namespace_name)
        is_used = by_name is not None and by_name.namespace_id == namespace_id
        if known.status is NamespaceStatus.ACTIVE or is_used:
            raise NamespaceStateError(
                f"namespace {known.namespace_name!r} is in use; delete it before you purge {namespace_id!r}",
                namespace_name=known.namespace_name,
                state=NamespaceStatus.ACTIVE,
            )
        marked = Update(
            nsid_key(namespace_id),
            set={"status": NamespaceStatus.PURGING.value},
            when=(Exists(), Equal("status", known.status.value)),
        )
        (outcome,) = await self._write_each([marked])
        if outcome.failure is not None:
            raise outcome.failure
        if not outcome.applied:
            raise _changed(namespace_id)
        purged = 0
        for _ in range(PURGE_PASSES_MAX):
            found = False
            async for page in self._pages(Query(namespace_id, index=GSI4, rows_max=PURGE_PAGE)):
                found = found or bool(page)
                purged += await self._erase(page)
            if not found:
                break
        else:
            raise NamespaceStateError(
                f"namespace {namespace_id!r} is still being written to; stop its users and purge it again",
                namespace_name=known.namespace_name,
                state=NamespaceStatus.PURGING,
            )
        self._connection.invalidate(lambda key: key.partition.startswith(f"{namespace_id}/"))
        gone = replace(known, status=NamespaceStatus.PURGED)
        ttl = self._world.now_ms() // 1000 + TOMBSTONE_DAYS * DAY_SECONDS
        # Whoever remembers the namespace learns from what is left of it that it is gone.
        await self._must_write([Put(nsid_key(namespace_id), {**namespace_item(gone), "ttl": ttl})])
        return purged

    async def _is_gone(self, space: Namespace) -> bool:
        """Whether a namespace was purged and nobody has written there since."""
        if space.status is not NamespaceStatus.PURGED:
            return False
        rows, _ = await self._first_rows(Query(space.namespace_id, index=GSI4, rows_max=1))
        return not rows

    async def _erase(self, rows: Sequence[Row]) -> int:
        """Delete items that an index named; returns how many were still there."""
        if not rows:
            return 0
        outcomes = await self._write_each([Delete(row.key, when=(Exists(),)) for row in rows])
        for outcome in outcomes:
            if outcome.failure is not None:
                raise outcome.failure
        return sum(outcome.applied for outcome in outcomes)

    async def _registered(self, prefix: str) -> list[Namespace]:
        rows = [row.item async for row in self._rows(starting(pk_system(REGISTRY), prefix))]
        return readable(namespace_of, rows)

    async def _identified(self, namespace_id: str) -> Namespace:
        item = await self._get(nsid_key(validate_namespace_id(namespace_id)))
        if item is None:
            raise NamespaceNotFoundError(
                f"no namespace has the id {namespace_id!r}; list_orphan_namespaces shows those deleted",
                namespace_name=namespace_id,
            )
        found = namespace_of(item)
        if found.namespace_id != namespace_id:
            raise DamagedRecordError(
                f"namespace {namespace_id!r}", f"it says that it is {found.namespace_id!r}"
            )
        if await self._is_gone(found):
            gone = f"namespace {namespace_id!r} was purged; nothing is left of it"
            raise NamespaceNotFoundError(gone, namespace_name=found.namespace_name)
        return found


def _changed(name: str) -> NamespaceStateError:
    message = f"namespace {name!r} was changed meanwhile; look at it again"
    return NamespaceStateError(message, namespace_name=name)
