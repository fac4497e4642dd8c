"""``zae-limiter cfn-template`` and ``lambda-export``: for those who deploy by other means."""

from __future__ import annotations

from pathlib import Path

import click

from .errors import Failure
from .output import Output, record
from .session import with_output

PACKAGE_FILE = "zae-limiter-aggregator.zip"

_to_file = click.option(
    "-o", "--file", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file."
)


@click.command("cfn-template")
@_to_file
@with_output
def cfn_template(output: Output, path: Path | None) -> None:
    """Print the CloudFormation template of the stack."""
    from ..infra.template import template_text

    text = template_text()
    if path is not None:
        _write(path, text.encode())
        output.done({"file": str(path)}, f"wrote {path}")
    elif output.is_json:
        output.done({"template": text}, "")
    else:
        click.echo(text, nl=False)


@click.command("lambda-export")
@_to_file
@click.option("--info", is_flag=True, help="Only tell what would be written.")
@with_output
def lambda_export(output: Output, path: Path | None, info: bool) -> None:
    """Write the package of the aggregator's function.

    It is a zip file, zae-limiter-aggregator.zip unless another is named.
    """
    from ..infra.lambda_builder import build, describe

    package = build()
    about = describe(package)
    data = {
        "file": None if info else str(path or PACKAGE_FILE),
        "version": about.version,
        "handler": about.handler,
        "code_sha256": about.code_sha256,
        "bytes": about.size,
        "files": len(about.files),
    }
    if not info:
        _write(path or Path(PACKAGE_FILE), package)
    output.show(data, lambda: record(data))


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise Failure(f"cannot write {str(path)!r}: {error.strerror}") from error
