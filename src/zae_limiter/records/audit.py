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
from .scope import Scope, check_page_size, readable


async def get_audit_events(
    scope: Scope, entity_id: str, limit: int = 100, start_event_id: str | None = None
) -> list[AuditEvent]:
    """The events of an entity, newest first, beginning after ``start_event_id``.

    Changes of defaults are found under ``$SYSTEM`` and ``$RESOURCE:{name}``.
    """
    if isinstance(entity_id, str) and entity_id.startswith(RESOURCE_AUDIT):
        validate_resource(entity_id.removeprefix(RESOURCE_AUDIT))
    elif entity_id != SYSTEM_AUDIT:
        validate_entity_id(entity_id)
    partition = pk_audit(scope.namespace_id, entity_id)
    query = starting(partition, sk_audit(""))._replace(backwards=True, rows_max=check_page_size(limit))
    if start_event_id is not None:
        if not isinstance(start_event_id, str) or not ULID.fullmatch(start_event_id):
            raise ValidationError("start_event_id", start_event_id, "pass the event_id of an event")
        key = audit_key(scope.namespace_id, entity_id, start_event_id)
        query = query._replace(after=Cursor(key, key.sort))
    # Nobody else writes to this partition, so each query finds at least one event.
    rows, _ = await scope.first_rows(query, queries_max=query.rows_max)
    return readable(audit_event_of, (row.item for row in rows))


def audited(
    scope: Scope,
    action: AuditAction,
    entity_id: str,
    principal: str | None,
    resource: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> Put:
    """The write that records a change; it belongs into the transaction of that change."""
    if principal is not None:
        validate_principal(principal)
    at, event_id = iso_time(scope.world.now_ms()), scope.connection.next_event_id()
    event = AuditEvent(event_id, at, action, entity_id, principal, resource, details or {})
    days = scope.connection.options.audit_retention_days
    item = audit_item(scope.namespace_id, event, scope.seconds_in(days) if days else None)
    return Put(audit_key(scope.namespace_id, entity_id, event_id), item, when=(Absent(),))
