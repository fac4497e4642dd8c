"""``zae-limiter audit``: who changed what."""

from __future__ import annotations

from shlex import quote

import click

from ..naming import validate_entity_id, validate_resource
from ..schema import RESOURCE_AUDIT, SYSTEM_AUDIT
from .nouns import Noun
from .output import grid
from .session import Session, limit_option, with_existing


@click.group(cls=Noun)
def audit() -> None:
    """Who changed what."""


@audit.command("list", meant="--entity-id")
@click.option("--entity-id", "-e", help="Changes of this entity and of its limits.")
@click.option("--resource", "-r", help="Changes of the defaults of this resource.")
@click.option("--system", is_flag=True, help="Changes of the defaults of the system.")
@limit_option
@click.option("--start-event-id", metavar="ID", help="Only events before this one.")
@with_existing
def list_(
    session: Session,
    entity_id: str | None,
    resource: str | None,
    system: bool,
    limit: int,
    start_event_id: str | None,
) -> None:
    """List changes, the newest first."""
    about = _subject(entity_id, resource, system)
    events = session.repository.get_audit_events(about, limit, start_event_id)
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
