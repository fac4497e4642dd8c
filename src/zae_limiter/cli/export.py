"""``zae-limiter cfn-template``, ``lambda-export`` and ``completion``: texts and packages for other programs.

One rule for all files that commands write: a file that is there is overwritten after a yes, or unasked
with ``--force``. ``-`` is standard output.
"""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Final

import click
from click.shell_completion import get_completion_class

from .errors import Failure
from .nouns import option, verb
from .output import Output, record
from .session import make_sure, with_json, with_output

STANDARD: Final = "-"
"""In the place of a file: standard output, or input."""


def _file_name(ctx: click.Context, _: click.Parameter, name: str | None) -> str | None:
    """``--output json`` is the form of the output elsewhere, and is not taken for a file here."""
    if name in {"json", "table"}:
        ctx.fail(f"--output is a file here; pass --json, or write --output ./{name}")
    return name


to_file: Final = option("--output -o out", "Write to this file.", metavar="FILE", callback=_file_name)
overwriting: Final = option("--force", "Overwrite a file that is there.", is_flag=True)


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
        hint = f"mkdir -p {quote(str(Path(file).parent))}" if isinstance(error, FileNotFoundError) else ""
        raise Failure(f"cannot write {file!r}: {getattr(error, 'strerror', None) or error}", hint) from error


@verb("cfn-template", to_file, overwriting, with_json, meant="--output")
def cfn_template(output: Output, out: str | None, force: bool) -> None:
    """Print the CloudFormation template of the stack."""
    from ..infra.template import template_text

    text = template_text()
    if out is not None and out != STANDARD:
        write(out, text.encode(), force=force)
        output.done({"file": out}, f"wrote {out!r}")
    elif not output.json({"template": text}):
        click.echo(text, nl=False)


@verb("lambda-export", to_file, overwriting, meant="--output")
@option("--info", "Only tell what would be written.", is_flag=True)
@with_json
def lambda_export(output: Output, out: str | None, force: bool, info: bool) -> None:
    """Write the package of the aggregator's function.

    It is a zip file, lambda.zip unless another is named.
    """
    from ..infra.lambda_builder import build, describe

    package, file = build(), out or "lambda.zip"
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


@verb("completion", click.argument("shell", type=click.Choice(["bash", "fish", "zsh"])), with_output)
def completion(output: Output, shell: str) -> None:
    """Print a script that lets your shell complete commands.

    \b
    eval "$(zae-limiter completion bash)"          in ~/.bashrc
    eval "$(zae-limiter completion zsh)"           in ~/.zshrc
    zae-limiter completion fish | source           in ~/.config/fish/config.fish
    """
    program, completing = click.get_current_context().find_root().command, get_completion_class(shell)
    assert completing is not None, "click knows the shells that it is asked for"
    script = completing(program, {}, "zae-limiter", "_ZAE_LIMITER_COMPLETE").source()
    if not output.json({"shell": shell, "script": script}):
        click.echo(script)
