"""The program: all commands put together, and the one place where a failure is told."""

from __future__ import annotations

import sys
from typing import Any

import click

from ..exceptions import ZAELimiterError
from ..version import CLIENT_VERSION
from .commands import ABOUT, Commands
from .errors import (
    ERROR,
    INTERRUPTED,
    STORE_IN_USE,
    Failure,
    failure_of,
    give_up_output,
    tell,
    was_interrupted,
)
from .nouns import Noun


class Program(Noun):
    """Turns what commands raise into a message on standard error and an exit code."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As for any group, with what is known of the commands without loading them."""
        known = [click.Command(name, help=about) for name, about in ABOUT.items()]
        click.Group(commands=known).format_commands(ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ZAELimiterError as error:
            raise failure_of(error, ctx.meta.get(STORE_IN_USE, "")) from error

    def main(self, *args: Any, **settings: Any) -> Any:
        settings |= {"standalone_mode": False, "prog_name": "zae-limiter"}
        try:
            code = super().main(*args, **settings)
        except OSError as error:
            give_up_output()
            what = "write the output" if error.filename is None else f"use {error.filename!r}"
            sys.exit(tell(Failure(f"cannot {what}: {error.strerror or error}")))
        except click.Abort as abort:
            sys.exit(tell(Failure("interrupted", code=INTERRUPTED if was_interrupted(abort) else ERROR)))
        except click.ClickException as error:
            sys.exit(tell(error))
        sys.exit(code if isinstance(code, int) else 0)


@click.group(
    cls=Program,
    commands=Commands(),
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(CLIENT_VERSION, message="zae-limiter %(version)s")
def program() -> None:
    """Rate limits that are shared through a store.

    Without --store and --name, commands use the store of ZAE_LIMITER_STORE, the DynamoDB table of
    ZAEL_STACK, or else a SQLite file of your own. The command `demo` shows what it is all about.
    """
