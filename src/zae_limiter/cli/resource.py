"""``zae-limiter resource``: the limits of a resource for every entity that has none of its own."""

from __future__ import annotations

from shlex import quote

import click

from ..models import Limit
from .levels import must_be_stored, show_limits
from .nouns import Noun
from .output import grid
from .session import (
    Session,
    confirmed,
    limit_texts,
    make_sure,
    principal,
    with_existing,
    with_limits,
    with_session,
)


@click.group(cls=Noun)
def resource() -> None:
    """What is used, and its default limits."""


@resource.command("set-defaults", meant="-l")
@click.argument("resource")
@with_limits
@with_session
def set_defaults(
    session: Session,
    resource: str,
    limits: tuple[Limit, ...],
    on_unavailable: str | None,
    principal: str | None,
) -> None:
    """Replace the default limits of a resource."""
    session.repository.set_resource_defaults(resource, limits, principal, on_unavailable)
    stored = session.repository.get_resource_defaults(resource)
    session.output.done(stored, f"set the default limits of {resource!r}: {limit_texts(stored)}")


@resource.command("get-defaults")
@click.argument("resource")
@with_existing
def get_defaults(session: Session, resource: str) -> None:
    """Show the default limits of a resource."""
    limits = session.repository.get_resource_defaults(resource)
    show_limits(session.output, limits, f"resource {resource!r}", f"resource set-defaults {quote(resource)}")


@resource.command("delete-defaults")
@click.argument("resource")
@confirmed
@principal
@with_existing
def delete_defaults(session: Session, resource: str, yes: bool, principal: str | None) -> None:
    """Delete the default limits of a resource. Those of the system then apply."""
    nothing = f"resource {resource!r} has no default limits"
    must_be_stored(session.repository.get_config("resource", resource=resource), nothing)
    make_sure(yes, f"Delete the default limits of {resource!r}?")
    must_be_stored(session.repository.delete_resource_defaults(resource, principal), nothing)
    session.output.done({"deleted": resource}, f"deleted the default limits of {resource!r}")


@resource.command("list")
@with_existing
def list_(session: Session) -> None:
    """List the resources that have default limits."""
    resources = session.repository.list_resources_with_defaults()
    session.output.show(resources, lambda: grid(["resource"], [[one] for one in resources]))
