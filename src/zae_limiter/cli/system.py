"""``zae-limiter system``: the limits of everything that has no others."""

from __future__ import annotations

import click

from ..models import Limit
from .levels import config_data, config_table
from .session import Session, confirmed, limit_texts, make_sure, principal, with_limits, with_session


@click.group()
def system() -> None:
    """Limits of whatever has no others."""


@system.command("set-defaults")
@with_limits
@with_session
def set_defaults(
    session: Session, limits: tuple[Limit, ...], on_unavailable: str | None, principal: str | None
) -> None:
    """Replace the default limits of the system."""
    session.repository.set_system_defaults(limits, on_unavailable, principal)
    config = session.repository.get_config("system")
    session.output.done(config_data(config), f"set the default limits of the system: {limit_texts(limits)}")


@system.command("get-defaults")
@with_session
def get_defaults(session: Session) -> None:
    """Show the default limits of the system."""
    config = session.repository.get_config("system")
    session.output.show(config_data(config), lambda: config_table(config))


@system.command("delete-defaults")
@confirmed
@principal
@with_session
def delete_defaults(session: Session, yes: bool, principal: str | None) -> None:
    """Delete the default limits of the system."""
    make_sure(yes, "Delete the default limits of the system?")
    session.repository.delete_system_defaults(principal)
    session.output.done({"deleted": "system"}, "deleted the default limits of the system")
