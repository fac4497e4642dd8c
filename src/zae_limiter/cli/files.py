"""Files that commands write: one rule for all of them.

A file that is there is overwritten after a yes, or unasked with ``--force``. ``-`` is standard output.
"""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Final

import click

from .errors import Failure
from .session import make_sure

STANDARD: Final = "-"
"""In the place of a file: standard output, or input."""

FORMS = frozenset({"json", "table"})


def _file_name(ctx: click.Context, _: click.Parameter, name: str | None) -> str | None:
    """``--output json`` is the form of the output elsewhere, and is not taken for a file here."""
    if name in FORMS:
        raise click.UsageError(f"--output is a file here; pass --json, or write --output ./{name}", ctx)
    return name


to_file = click.option(
    "--output", "-o", "out", metavar="FILE", callback=_file_name, help="Write to this file."
)
overwriting = click.option("--force", is_flag=True, help="Overwrite a file that is there.")


def write(file: str, content: bytes, *, force: bool) -> None:
    """Write a file; whoever does not want one overwritten ends the command."""
    if file == STANDARD:
        click.echo(content, nl=False)
        return
    # Unlike a path's own method this says no of a name that no file can have; writing it tells why.
    if os.path.isfile(file):
        make_sure(force, f"Overwrite {file!r}?", "--force")
    try:
        Path(file).write_bytes(content)
    except (OSError, ValueError) as error:
        parent = Path(file).parent
        hint = f"mkdir -p {quote(str(parent))}" if isinstance(error, FileNotFoundError) else ""
        raise Failure(f"cannot write {file!r}: {getattr(error, 'strerror', None) or error}", hint) from error
