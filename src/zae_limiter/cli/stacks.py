"""What commands about stacks share: which stack is meant, and the way to it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from ..exceptions import InfrastructureError
from ..naming import validate_stack_name
from ..runtime.colour import run_sync
from ..runtime.world import World
from ..settings import STACK_VARIABLE, Settings
from .errors import AWS, Failure
from .nouns import Command, decorated, option
from .output import Output
from .session import STORE_IN_USE, Session, json_option, output_of, output_option

if TYPE_CHECKING:
    from ..infra.stack import Stack
    from ..infra.stack_manager import StackManager, SyncStackManager

NAME = option("--name -n stack", f"The stack.  [default: that of {STACK_VARIABLE}]", metavar="STACK")
REGION = option("--region", "The AWS region.")
ENDPOINT = option("--endpoint-url", "Where AWS is, if not at AWS.", metavar="URL")


class StackSession:
    """One command at work on the stack of one name."""

    def __init__(self, name: str, region: str | None, endpoint_url: str | None, output: Output) -> None:
        self.name, self.output = validate_stack_name(name), output
        self.settings: Settings = {"stack": name, "region": region, "endpoint_url": endpoint_url}
        click.get_current_context().meta[STORE_IN_USE] = f"dynamodb://{name}"

    @cached_property
    def manager(self) -> SyncStackManager:
        from ..infra.stack_manager import SyncStackManager

        return SyncStackManager(self.name, self.settings["region"], self.settings["endpoint_url"])

    def __str__(self) -> str:
        return f"stack {self.name!r} in {self.manager.region or 'this region'}"

    def command(self, words: str) -> str:
        """A command about the same stack, to be pasted into a shell."""
        given = [("region", self.settings["region"]), ("endpoint-url", self.settings["endpoint_url"])]
        options = "".join(f" --{option} {value}" for option, value in given if value)
        return f"zae-limiter {words} --name {self.name}{options}"

    def close(self) -> None:
        if "manager" in self.__dict__:  # it was used
            self.manager.close()


def with_stack(function: Command) -> Command:
    """A command about one stack, which it gets as a ``StackSession``."""

    @functools.wraps(function)
    def run(stack: str | None, region: str | None, endpoint_url: str | None, **arguments: Any) -> None:
        name = stack or os.environ.get(STACK_VARIABLE)
        if not name:
            raise click.UsageError("which stack? name it with --name")
        with closing(StackSession(name, region, endpoint_url, output_of(arguments))) as session:
            function(session, **arguments)

    return decorated(run, NAME, REGION, ENDPOINT, output_option, json_option)


@contextmanager
def stack_around(session: Session) -> Iterator[StackManager]:
    """Whoever looks after the stack around the table of a session."""
    from ..infra.stack_manager import manager_of

    manager = manager_of(session.url, sync=True, world=World())
    try:
        yield manager
    finally:
        run_sync(manager.close())


def stack_or_none(manager: StackManager) -> Stack | None:
    """The stack of that name, whoever made it. There is none where there is no CloudFormation.

    Whoever may not ask, or gets no answer, does not know: then nothing must happen to the table.
    """
    from ..infra.cloud import NotOffered

    try:
        return run_sync(manager.describe())
    except NotOffered:
        return None
    except InfrastructureError as error:
        unknown = f"nobody knows whether table {manager.name!r} has a stack: {error}"
        raise Failure(f"nothing was changed, because {unknown}", code=AWS) from error
