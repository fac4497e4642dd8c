"""The audit trail: an event is written in the same transaction as the change it records.

So there is never one without the other. Events live under the entity they are about, or under
``$SYSTEM`` and ``$RESOURCE:{name}`` for defaults, and go when their ``ttl`` has passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..models import AuditAction, AuditEvent
from ..naming import validate_principal
from ..repository_protocol import Absent, Cursor, Item, Key, Put
from ..schema import pk_audit, sk_audit, starting, within_namespace
from .view import View, check_page_size

DAY_SECONDS = 86_400


class AuditRecords(View):
    async def get_audit_events(
        self, entity_id: str, limit: int = 100, start_event_id: str | None = None
    ) -> list[AuditEvent]:
        """The events of an entity, newest first, beginning after ``start_event_id``."""
        partition = pk_audit(self._namespace_id, entity_id)
        query = starting(partition, sk_audit(""))._replace(backwards=True, rows_max=check_page_size(limit))
        if start_event_id is not None:
            key = Key(partition, sk_audit(start_event_id))
            query = query._replace(after=Cursor(key, key.sort))
        rows, _ = await self._first_rows(query)
        return [event_of(row.item) for row in rows]

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
        now_ms, event_id = self._world.now_ms(), self._world.new_ulid()
        key = Key(pk_audit(self._namespace_id, entity_id), sk_audit(event_id))
        retention_days = self._connection.options.audit_retention_days
        return Put(
            key,
            {
                "event_id": event_id,
                "timestamp": iso_time(now_ms),
                "action": action.value,
                "entity_id": entity_id,
                "principal": principal,
                "resource": resource,
                "details": dict(details or {}),
                "ttl": now_ms // 1000 + retention_days * DAY_SECONDS if retention_days else None,
                **within_namespace(self._namespace_id, key),
            },
            when=(Absent(),),
        )


def event_of(item: Item) -> AuditEvent:
    details = item.get("details")
    return AuditEvent(
        event_id=str(item["event_id"]),
        timestamp=str(item["timestamp"]),
        action=AuditAction(str(item["action"])),
        entity_id=str(item["entity_id"]),
        principal=_text(item, "principal"),
        resource=_text(item, "resource"),
        details=details if isinstance(details, dict) else {},
    )


def iso_time(now_ms: int) -> str:
    """``2024-01-01T14:00:00.123Z``"""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{now_ms % 1000:03}Z"


def _text(item: Item, attribute: str) -> str | None:
    value = item.get(attribute)
    return value if isinstance(value, str) else None
