"""``zae-limiter version``: what is installed here."""

from __future__ import annotations

import platform

import click

from ..version import SCHEMA_VERSION, client_version
from .output import Output, record
from .session import with_output


@click.command()
@with_output
def version(output: Output) -> None:
    """Show which versions are installed."""
    versions = {
        "client": client_version(),
        "schema": SCHEMA_VERSION,
        "python": platform.python_version(),
    }
    output.show(versions, lambda: record(versions))
