"""``zae-limiter version``: what is installed here, and what a store was made with."""

from __future__ import annotations

import platform

import click

from ..version import SCHEMA_VERSION, client_version
from .nouns import Verb
from .output import record
from .session import Session, with_session
from .status import stored_versions, version_record


@click.command(cls=Verb)
@with_session
def version(session: Session) -> None:
    """Show installed versions, and those of a store.

    Of a store only if --name or --store names one.
    """
    installed = {
        "client": client_version(),
        "schema": SCHEMA_VERSION,
        "python": platform.python_version(),
    }
    if not session.is_named:
        session.output.show(installed, lambda: record(installed))
        return
    stored = version_record(session)
    session.output.show(
        {**installed, "stored": stored}, lambda: record({**installed, **stored_versions(stored)})
    )
