"""``zae-limiter completion``: lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .nouns import Verb
from .output import Output
from .session import with_output

PROGRAM = "zae-limiter"
VARIABLE = "_ZAE_LIMITER_COMPLETE"


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
@with_output
@click.pass_context
def completion(ctx: click.Context, output: Output, shell: str) -> None:
    """Print a script that lets your shell complete commands.

    \b
    eval "$(zae-limiter completion bash)"          in ~/.bashrc
    eval "$(zae-limiter completion zsh)"           in ~/.zshrc
    zae-limiter completion fish | source           in ~/.config/fish/config.fish
    """
    completing = get_completion_class(shell)
    assert completing is not None, "click knows the shells that it is asked for"
    script = completing(ctx.find_root().command, {}, PROGRAM, VARIABLE).source()
    if output.is_json:
        output.done({"shell": shell, "script": script}, "")
    else:
        click.echo(script)
