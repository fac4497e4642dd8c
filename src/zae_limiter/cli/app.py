"""The program: all nouns put together, and the one place where a failure is told."""

from __future__ import annotations

import sys
from typing import Any

import click

from ..exceptions import ZAELimiterError
from ..version import client_version
from .aggregate import aggregate
from .audit import audit
from .demo import demo
from .deploy import delete, deploy
from .errors import ERROR, INTERRUPTED, Failure, failure_of, give_up_output, tell, was_interrupted
from .explain import explain
from .export import cfn_template, completion, lambda_export
from .levels import config, resource, system
from .limits import limits
from .local import local
from .namespace import namespace
from .nouns import Noun
from .operators import entity
from .session import STORE_IN_USE
from .spellings import teach
from .status import check, list_, status, version
from .switches import bypass, disable, enable, switches
from .table import table
from .upgrade import upgrade
from .usage import usage


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


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(client_version(), message="zae-limiter %(version)s")
def program() -> None:
    """Rate limits that are shared through a store.

    Without --store and --name, commands use the store of ZAE_LIMITER_STORE, the DynamoDB table of
    ZAEL_STACK, or else a SQLite file of your own. The command `demo` shows what it is all about.
    """


for command in (
    *(aggregate, audit, bypass, cfn_template, check, completion, config, delete, demo, deploy, disable),
    *(enable, entity, explain),
    *(
        lambda_export,
        limits,
        list_,
        local,
        namespace,
        resource,
        status,
        switches,
        system,
        table,
        upgrade,
        usage,
        version,
    ),
):
    program.add_command(command)
teach(program)
