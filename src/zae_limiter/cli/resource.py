"""``zae-limiter resource``: the limits of a resource for every entity that has none of its own."""

from __future__ import annotations

import click

from ..models import Limit
from .levels import limits_table
from .output import grid
from .session import Session, confirmed, limit_texts, make_sure, principal, with_limits, with_session


@click.group()
def resource() -> None:
    """What is used, and its default limits."""


@resource.command("set-defaults")
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
    session.repository.set_resource_defaults(resource, limits, on_unavailable, principal)
    stored = session.repository.get_resource_defaults(resource)
    session.output.done(stored, f"set the default limits of {resource!r}: {limit_texts(stored)}")


@resource.command("get-defaults")
@click.argument("resource")
@with_session
def get_defaults(session: Session, resource: str) -> None:
    """Show the default limits of a resource."""
    limits = session.repository.get_resource_defaults(resource)
    session.output.show(limits, lambda: limits_table(limits))


@resource.command("delete-defaults")
@click.argument("resource")
@confirmed
@principal
@with_session
def delete_defaults(session: Session, resource: str, yes: bool, principal: str | None) -> None:
    """Delete the default limits of a resource. Those of the system then apply."""
    make_sure(yes, f"Delete the default limits of {resource!r}?")
    session.repository.delete_resource_defaults(resource, principal)
    session.output.done({"deleted": resource}, f"deleted the default limits of {resource!r}")


@resource.command("list")
@with_session
def list_(session: Session) -> None:
    """List the resources that have default limits."""
    resources = session.repository.list_resources_with_defaults()
    session.output.show(resources, lambda: grid(["resource"], [[one] for one in resources]))
