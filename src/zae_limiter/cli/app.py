"""The program: all nouns put together, and the one place where a failure is told."""

from __future__ import annotations

import sys
from typing import Any

import click

from ..exceptions import ZAELimiterError
from ..version import client_version
from .aggregate import aggregate
from .audit import audit
from .completion import completion
from .config import config
from .demo import demo
from .deploy import delete, deploy
from .entity import entity
from .errors import ERROR, INTERRUPTED, Failure, failure_of, give_up_output, tell, was_interrupted
from .explain import explain
from .export import cfn_template, lambda_export
from .limits import limits
from .local import local
from .namespace import namespace
from .nouns import Noun
from .resource import resource
from .session import STORE_IN_USE
from .spellings import teach
from .status import check, list_, status
from .system import system
from .table import table
from .upgrade import upgrade
from .usage import usage
from .version import version


class Program(Noun):
    """Turns what commands raise into a message on standard error and an exit code."""

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


def _show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        click.echo(f"zae-limiter {client_version()}")
        ctx.exit()


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def program() -> None:
    """Rate limits that are shared through a store.

    Without --store and --name, commands use the store of ZAE_LIMITER_STORE, the DynamoDB table of
    ZAEL_STACK, or else a SQLite file of your own. The command `demo` shows what it is all about.
    """


for command in (aggregate, audit, config, demo, entity, namespace, resource, system, version):
    program.add_command(command)
for command in (cfn_template, check, completion, delete, deploy, lambda_export, list_, status):
    program.add_command(command)
for command in (limits, usage):
    program.add_command(command)
for command in (explain, local, table, upgrade):
    program.add_command(command)
teach(program)
