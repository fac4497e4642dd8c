"""``zae-limiter system``: the limits of everything that has no others."""

from __future__ import annotations

import click

from ..models import Limit
from .levels import config_data, config_table, must_be_stored, nothing_set
from .nouns import Noun
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
def system() -> None:
    """Limits of whatever has no others."""


@system.command("set-defaults", meant="-l")
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
@with_existing
def get_defaults(session: Session) -> None:
    """Show the default limits of the system."""
    config = session.repository.get_config("system")
    session.output.show(config_data(config), lambda: config_table(config))
    if not session.output.is_json and not (config and config.limits):
        session.output.note(nothing_set("the system", "system set-defaults"))


@system.command("delete-defaults")
@confirmed
@principal
@with_existing
def delete_defaults(session: Session, yes: bool, principal: str | None) -> None:
    """Delete the default limits of the system."""
    nothing = "the system has no default limits"
    must_be_stored(session.repository.get_config("system"), nothing)
    make_sure(yes, "Delete the default limits of the system?")
    must_be_stored(session.repository.delete_system_defaults(principal), nothing)
    session.output.done({"deleted": "system"}, "deleted the default limits of the system")
