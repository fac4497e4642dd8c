"""``zae-limiter cfn-template`` and ``lambda-export``: for those who deploy by other means."""

from __future__ import annotations

import click

from .files import STANDARD, overwriting, to_file, write
from .nouns import Verb
from .output import Output, record
from .session import with_json

PACKAGE_FILE = "lambda.zip"


@click.command("cfn-template", cls=Verb, meant="--output")
@to_file
@overwriting
@with_json
def cfn_template(output: Output, out: str | None, force: bool) -> None:
    """Print the CloudFormation template of the stack."""
    from ..infra.template import template_text

    text = template_text()
    if out is not None and out != STANDARD:
        write(out, text.encode(), force=force)
        output.done({"file": out}, f"wrote {out!r}")
    elif output.is_json:
        output.done({"template": text}, "")
    else:
        click.echo(text, nl=False)


@click.command("lambda-export", cls=Verb, meant="--output")
@to_file
@overwriting
@click.option("--info", is_flag=True, help="Only tell what would be written.")
@with_json
def lambda_export(output: Output, out: str | None, force: bool, info: bool) -> None:
    """Write the package of the aggregator's function.

    It is a zip file, lambda.zip unless another is named.
    """
    from ..infra.lambda_builder import build, describe

    package, file = build(), out or PACKAGE_FILE
    about = describe(package)
    data = {
        "file": None if info else file,
        "version": about.version,
        "handler": about.handler,
        "code_sha256": about.code_sha256,
        "bytes": about.size,
        "files": len(about.files),
    }
    if not info:
        write(file, package, force=force)
    if file != STANDARD:
        output.show(data, lambda: record(data))
