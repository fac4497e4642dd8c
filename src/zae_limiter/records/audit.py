"""The audit trail: an event is written in the same transaction as the change it records.

So there is never one without the other. Events live under the entity they are about, or under
``$SYSTEM`` and ``$RESOURCE:{name}`` for defaults, and go when their ``ttl`` has passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..exceptions import ValidationError
from ..models import AuditAction, AuditEvent
from ..naming import validate_entity_id, validate_principal, validate_resource
from ..repository_protocol import Absent, Cursor, Put
from ..runtime.world import ULID
from ..schema import RESOURCE_AUDIT, SYSTEM_AUDIT, audit_key, iso_time, pk_audit, sk_audit, starting
from .items import audit_event_of, audit_item
from .view import View, check_page_size, readable

DAY_SECONDS = 86_400


class AuditRecords(View):
    async def get_audit_events(
        self, entity_id: str, limit: int = 100, start_event_id: str | None = None
    ) -> list[AuditEvent]:
        """The events of an entity, newest first, beginning after ``start_event_id``.

        Changes of defaults are found under ``$SYSTEM`` and ``$RESOURCE:{name}``.
        """
        partition = pk_audit(self._namespace_id, _check_audited(entity_id))
        query = starting(partition, sk_audit(""))._replace(backwards=True, rows_max=check_page_size(limit))
        if start_event_id is not None:
            if not isinstance(start_event_id, str) or not ULID.fullmatch(start_event_id):
                raise ValidationError("start_event_id", start_event_id, "pass the event_id of an event")
            key = audit_key(self._namespace_id, entity_id, start_event_id)
            query = query._replace(after=Cursor(key, key.sort))
        # Nobody else writes to this partition, so each query finds at least one event.
        rows, _ = await self._first_rows(query, queries_max=query.rows_max)
        return readable(audit_event_of, (row.item for row in rows))

    def _audit(
        self,
        action: AuditAction,
        entity_id: str,
        principal: str | None,
        resource: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Put:
        """The write that records a change; it belongs into the transaction of that change."""
        if principal is not None:
            validate_principal(principal)
        now_ms, event_id = self._world.now_ms(), self._connection.next_event_id()
        event = AuditEvent(event_id, iso_time(now_ms), action, entity_id, principal, resource, details or {})
        retention_days = self._connection.options.audit_retention_days
        ttl_seconds = now_ms // 1000 + retention_days * DAY_SECONDS if retention_days else None
        key = audit_key(self._namespace_id, entity_id, event_id)
        return Put(key, audit_item(self._namespace_id, event, ttl_seconds), when=(Absent(),))


def _check_audited(entity_id: str) -> str:
    if isinstance(entity_id, str) and entity_id == SYSTEM_AUDIT:
        return entity_id
    if isinstance(entity_id, str) and entity_id.startswith(RESOURCE_AUDIT):
        validate_resource(entity_id.removeprefix(RESOURCE_AUDIT))
        return entity_id
    return validate_entity_id(entity_id)
