"""What every command shares: the common options, the store they lead to, and the questions it asks.

A store is opened when a command first needs it. The default namespace is made by the first command that
sets something; any other must exist, so that a typo makes nothing. A command that only reads or deletes
makes nothing at all.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from enum import Enum
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, cast

import click

from ..backends import open_backend, store_world
from ..exceptions import InfrastructureError, RateLimiterUnavailable, ValidationError, without_secrets
from ..models import Limit, NamespaceStatus
from ..models.grammar import limit_text, parse_limit
from ..naming import validate_namespace
from ..records.connection import Connection
from ..records.versions import check_versions
from ..repository import Repository
from ..runtime.colour import run_sync
from ..runtime.world import World
from ..schema import REGISTRY
from ..settings import (
    DEFAULT_NAMESPACE,
    NAMESPACE_VARIABLE,
    STACK_VARIABLE,
    STORE_VARIABLE,
    Settings,
    settings_of,
)
from ..sync import SyncRepository
from .errors import AWS, ERROR, NOT_FOUND, STORE_IN_USE, Failure, was_interrupted
from .nouns import Command, decorated, option, together
from .output import Output

if TYPE_CHECKING:
    from ..infra.stack import Stack
    from ..infra.stack_manager import StackManager


class Missing(Enum):
    """What a command does about a file that is not there."""

    MADE = "made"
    REFUSED = "refused"
    IMAGINED = "imagined"
    """An empty store stands in for it, to say what would become of it."""


class Session:
    """One command at work on one namespace of one store."""

    def __init__(self, settings: Settings, namespace: str | None, output: Output, missing: Missing) -> None:
        self.output = output
        self._settings, self._option, self._missing = settings, namespace, missing
        self.stack: str | None = settings["stack"]
        """The table that --name says."""
        # Whether the command line itself says which store and which namespace is meant.
        self.is_named: bool = bool(settings["store"] or self.stack)
        self.is_namespaced: bool = namespace is not None
        variable = os.environ.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE
        self.namespace_name: str = variable if namespace is None else namespace

    @cached_property
    def url(self) -> str:
        """The store that is meant; it need not be there."""
        url, _, _ = settings_of(self._settings)
        click.get_current_context().meta[STORE_IN_USE] = url
        return url

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith(("postgresql:", "postgres:"))

    @property
    def is_dynamodb(self) -> bool:
        return self.url.startswith("dynamodb:")

    @cached_property
    def connection(self) -> Connection:
        url, (_, options, given) = self.url, settings_of(self._settings)
        if self._missing is Missing.REFUSED:
            self.must_exist()
        elif self._missing is Missing.IMAGINED and (path := self._missing_file) is not None:
            self.output.remark(f"file {str(path)!r} does not exist yet")
            url = "memory://"
        world = store_world(url, given)
        backend = open_backend(url, sync=True, world=world, timeout_ms=self._settings.get("timeout_ms"))
        try:
            run_sync(backend.setup())
        except BaseException:
            run_sync(backend.close())
            raise
        return Connection(backend, world, options, url)

    @cached_property
    def registry(self) -> SyncRepository:
        """The view that sees namespaces and is in none; versions are not looked at."""
        return SyncRepository(Repository(self.connection, REGISTRY, REGISTRY))

    @cached_property
    def namespaces(self) -> SyncRepository:
        """The view that sees namespaces, of a store that this version may use."""
        if self._missing is Missing.MADE:
            self.warn_of_memory()
            if not (self.is_named or os.environ.get(STORE_VARIABLE) or os.environ.get(STACK_VARIABLE)):
                self.output.note(f"store: {self.url}")
        # Only the store itself is asked: a namespace that is strict must not lock out whoever sets it right.
        run_sync(check_versions(self.registry._async._scope, register=self._missing is Missing.MADE))
        return self.registry

    @cached_property
    def repository(self) -> SyncRepository:
        name = validate_namespace(self.namespace_name)
        if name != DEFAULT_NAMESPACE and self._missing_file is not None:
            raise _no_namespace(name, [])
        if self.namespaces.get_namespace(name) is None:
            deleted = self._deleted(name)
            if name != DEFAULT_NAMESPACE or (deleted and self._missing is Missing.REFUSED):
                raise _no_namespace(name, deleted)
            if self._missing is not Missing.MADE:
                # It reads as empty: nothing is stored under an id that nobody has.
                return SyncRepository(Repository(self.connection, name, self.connection.world.new_token()))
            self.namespaces.register_namespace(name)
        return self.namespaces.namespace(name)

    def no_namespace(self, name: str) -> Failure:
        """What to say about a namespace that is not there, or not any more."""
        return _no_namespace(name, self._deleted(name))

    def _deleted(self, name: str) -> list[str]:
        """The ids of those that had this name."""
        try:
            orphans = self.namespaces.list_orphan_namespaces()
        except RateLimiterUnavailable as error:
            if not error.denied:
                raise
            return []  # policies of one namespace do not let everybody look there
        found = [one for one in orphans if one.namespace_name == name]
        if any(one.status is NamespaceStatus.COPYING for one in found):
            again = f"zae-limiter copy SOURCE {quote(without_secrets(self.url))}"
            raise Failure(f"namespace {name!r} is being copied to here", f"end that: {again}", NOT_FOUND)
        return [one.namespace_id for one in found]

    def warn_of_memory(self) -> None:
        """Whoever writes to a store that ends with the command is told so."""
        if self.url.startswith("memory:"):
            self.output.note(
                "warning: memory:// ends with this command, so nothing of this stays; "
                "a file does: --store sqlite:///limits.db"
            )

    def within(self, named: str | None) -> SyncRepository:
        """The namespace that a file names, or else the one of the command line and the environment."""
        if named is not None:
            if self._option not in (None, named):
                said = validate_namespace(self.namespace_name)
                raise click.UsageError(f"--namespace {said} contradicts the file, which is for {named!r}")
            self.namespace_name = named
        return self.repository

    def must_exist(self) -> None:
        """Make sure that looking at the store makes nothing: a file that is missing is an error."""
        if (path := self._missing_file) is None:
            return
        store = self._settings["store"]
        there = "" if store is None else f" --store {quote(store)}"
        setting = f"zae-limiter system set-defaults -l rpm:60{there}"
        hint = f"the first command that sets limits makes it, such as: {setting}"
        if not path.parent.exists():
            hint = f"nor does its directory; if the path is right: mkdir -p {quote(str(path.parent))}"
        raise Failure(f"file {str(path)!r} does not exist", hint, NOT_FOUND)

    @cached_property
    def _file(self) -> Path | None:
        """The file that the store is, if it is one."""
        backend = open_backend(self.url, sync=True, world=World())
        run_sync(backend.close())
        return getattr(backend, "path", None)

    @property
    def _missing_file(self) -> Path | None:
        return None if self._file is None or self._file.exists() else self._file

    def close(self) -> None:
        if "connection" in self.__dict__:  # it was opened
            run_sync(self.connection.backend.close())

    def reopen(self) -> None:
        """Close the store, and open it again when it is next needed: what was there may be another one."""
        try:
            self.close()
        finally:
            for name in ("connection", "registry", "namespaces", "repository"):
                self.__dict__.pop(name, None)


def _no_namespace(name: str, deleted: Sequence[str]) -> Failure:
    """``deleted`` are the ids of those that had the name."""
    hint = f"zae-limiter namespace register {name}"
    if deleted:
        back = f"recover -- {deleted[0]}" if len(deleted) == 1 else "orphans"
        hint = f"what was deleted is still there: zae-limiter namespace {back}; an empty one: {hint}"
    return Failure(f"namespace {name!r} does not exist", hint, NOT_FOUND)


def settings_from(options: dict[str, Any]) -> Settings:
    """What the options say about the store, taken out of them; a contradiction is refused."""
    names = ("store", "stack", "region", "endpoint_url")
    settings = cast(Settings, {name: options.pop(name) for name in names})
    store, stack = settings["store"], settings["stack"]
    if store is not None and stack is not None:
        raise click.UsageError("--store and --name both name a store; give one of them")
    word = next((name for name in ("region", "endpoint_url") if settings[name] is not None), None)
    if word is not None:
        said = f"--{word.replace('_', '-')}"
        if store or (stack is None and os.environ.get(STORE_VARIABLE)):
            inside = f"dynamodb://table?{word}=…"
            raise click.UsageError(f"{said} goes with --name; a URL has it inside: {inside}")
        if stack is None and not os.environ.get(STACK_VARIABLE):
            raise click.UsageError(f"{said} needs a DynamoDB table; name it with --name")
    return settings


_COMMON = (
    option("--name -n stack", "The DynamoDB table of this name is the store.", metavar="STACK"),
    option("--region", "Its AWS region."),
    option("--endpoint-url", "Where its DynamoDB is, if not at AWS.", metavar="URL"),
    option("--namespace -N", "Work in this namespace.  [default: default]"),
    option("--store", "The store, such as sqlite:///limits.db.", metavar="URL"),
)


def with_json(function: Command) -> Command:
    """A command that needs no store, and whose --output is a file."""

    @functools.wraps(function)
    def run(as_json: bool, output: str = "table", **arguments: Any) -> None:
        function(Output("json" if as_json else output), **arguments)

    return decorated(run, option("--json as_json", "Print JSON.", is_flag=True))


with_output: Final = together(
    option("--output", "What to print.", type=click.Choice(["table", "json"]), default="table"), with_json
)
"""A command that needs no store."""


def _with_session(function: Command, missing: Missing) -> Command:
    @functools.wraps(function)
    def run(output: Output, namespace: str | None, **arguments: Any) -> None:
        with closing(Session(settings_from(arguments), namespace, output, missing)) as session:
            function(session, **arguments)

    return decorated(run, *_COMMON, with_output)


with_session: Final = functools.partial(_with_session, missing=Missing.MADE)
"""A command with the common options, which it gets as a ``Session``. It makes a file that is missing."""
with_existing: Final = functools.partial(_with_session, missing=Missing.REFUSED)
"""A command that reads or deletes: a store that is missing is an error, and is not made."""
with_imagined: Final = functools.partial(_with_session, missing=Missing.IMAGINED)
"""A command that looks ahead: a file that is missing is taken for an empty store, and is not made."""


def _read_limits(ctx: click.Context, _: click.Parameter, texts: tuple[str, ...]) -> tuple[Limit, ...]:
    try:
        return tuple(parse_limit(text) for text in texts)
    except ValidationError as error:
        raise click.UsageError(str(error), ctx) from error


principal: Final = option("--principal", "Who the audit trail says did it.", metavar="WHO")
key: Final = option("--key", "Sent again with the same one within a day, it counts once.", metavar="TEXT")
confirmed: Final = option("--yes -y", "Do not ask.", is_flag=True)
REGION = option("--region", "The AWS region.")
ENDPOINT = option("--endpoint-url", "Where AWS is, if not at AWS.", metavar="URL")
entity_id: Final = click.argument("entity_id")
resource_option: Final = option("--resource -r", "The resource; the default means all.", default="_default_")
limit_option: Final = option("--limit", "At most so many.", type=click.IntRange(1, 1000), default=100)
cursor_option: Final = option("--cursor", "Go on where the previous page ended.")
on_unavailable: Final = option(
    "--on-unavailable",
    "What an acquire does when the store does not answer.",
    type=click.Choice(["allow", "block"]),
)
on_or_off: Final = click.argument(
    "cascade", type=click.Choice(["on", "off"]), callback=lambda _ctx, _param, chosen: chosen == "on"
)
with_limits: Final = together(
    option(
        "--limit -l limits",
        "A limit, written as below. May be repeated.",
        metavar="NAME:RATE[/UNIT[@ZONE]][:BURST][:soft]",
        multiple=True,
        required=True,
        callback=_read_limits,
    ),
    on_unavailable,
    principal,
)
"""The options of a command that stores limits."""


@contextmanager
def resumable(session: Session, done: Callable[[], str] = str) -> Iterator[None]:
    """Whoever sees such a command fail wants to know what was ``done``, and that nothing of it is lost."""
    try:
        yield
    except RateLimiterUnavailable as error:
        code, hint = AWS if session.is_dynamodb else ERROR, "run it again: it goes on where it stopped"
        raise Failure(f"{error}{done()}", hint, code) from error


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


def make_sure(yes: bool, question: str, unasked: str = "--yes") -> None:
    """Ask before something is destroyed; whoever says no ends the command. ``unasked`` saves the question."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as abort:
        if was_interrupted(abort):
            raise
        click.echo(err=True)
        hint = f"pass {unasked} to go ahead unasked"
        raise Failure("nobody answered, so nothing was changed", hint) from None
    if not agreed:
        raise Failure("nothing was changed")


def limit_texts(limits: Sequence[Limit]) -> str:
    return ", ".join(limit_text(one) for one in limits)
