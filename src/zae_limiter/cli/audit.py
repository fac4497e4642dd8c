"""``zae-limiter audit``: who changed what."""

from __future__ import annotations

from shlex import quote
from typing import Any, Final

import click

from ..naming import validate_entity_id, validate_resource
from ..schema import RESOURCE_AUDIT, SYSTEM_AUDIT
from .nouns import Noun, option
from .output import grid
from .session import Session, limit_option, with_existing

audit: Final = Noun("audit", help="Who changed what.")


@audit.verb("list", meant="--entity-id")
@option("--entity-id --entity -e", "Changes of this entity and of its limits.")
@option("--resource -r", "Changes of the defaults of this resource.")
@option("--system", "Changes of the defaults of the system.", is_flag=True)
@limit_option
@option("--start-event-id", "Only events before this one.", metavar="ID")
@with_existing
def list_(session: Session, limit: int, start_event_id: str | None, **about: Any) -> None:
    """List changes, the newest first."""
    subject = _subject(**about)
    events = session.repository.get_audit_events(subject, limit, start_event_id)
    rows = [(e.timestamp, e.action, e.principal, e.resource, e.details, e.event_id) for e in events]
    columns = ["time", "action", "by", "resource", "details", "event"]
    session.output.show(events, lambda: grid(columns, rows))


def _subject(entity_id: str | None, resource: str | None, system: bool) -> str:
    """Under which id the trail keeps what was asked for."""
    if (entity_id is not None) + (resource is not None) + system != 1:
        raise click.UsageError("give one of --entity-id, --resource and --system")
    if entity_id == SYSTEM_AUDIT:
        raise click.UsageError("changes of the defaults of the system are listed by --system")
    if entity_id is not None and entity_id.startswith(RESOURCE_AUDIT):
        of = quote(entity_id.removeprefix(RESOURCE_AUDIT))
        raise click.UsageError(f"changes of the defaults of a resource are listed by --resource {of}")
    if entity_id is not None:
        return validate_entity_id(entity_id)
    return SYSTEM_AUDIT if resource is None else f"{RESOURCE_AUDIT}{validate_resource(resource)}"
