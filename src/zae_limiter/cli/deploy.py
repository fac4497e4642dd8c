"""``zae-limiter deploy`` and ``delete``: the stack around a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

import click

from ..exceptions import StackOperationError, ValidationError
from ..infra.stack import Resource
from ..models import LimiterConfig, OnUnavailable, StackOptions, UsageWindow
from ..naming import validate_namespace, validate_stack_name
from ..settings import STACK_VARIABLE, Settings
from ..sync import SyncRepository
from .errors import INTERRUPTED, STORE_IN_USE, Failure
from .nouns import Command, decorated, option, together, verb
from .output import Output
from .progress import Board
from .session import ENDPOINT, REGION, confirmed, make_sure, on_unavailable, with_output

if TYPE_CHECKING:
    from ..infra.stack_manager import Deployment, StackChange, SyncStackManager


NAME = option("--name -n stack", f"The stack.  [default: that of {STACK_VARIABLE}]", metavar="STACK")


class StackSession:
    """One command at work on the stack of one name."""

    def __init__(self, name: str, region: str | None, endpoint_url: str | None, output: Output) -> None:
        self.name: str = validate_stack_name(name)
        self.output = output
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

    @wraps(function)
    def run(
        output: Output, stack: str | None, region: str | None, endpoint_url: str | None, **arguments: Any
    ) -> None:
        name = stack or os.environ.get(STACK_VARIABLE)
        if not name:
            raise click.UsageError("which stack? name it with --name")
        with closing(StackSession(name, region, endpoint_url, output)) as session:
            function(session, **arguments)

    return decorated(run, NAME, REGION, ENDPOINT, with_output)


def _read_tags(ctx: click.Context, _: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str] | None:
    if wrong := [pair for pair in pairs if "=" not in pair]:
        ctx.fail(f"invalid tag {wrong[0]!r}: write it as KEY=VALUE")
    # None leaves the tags of a deployed stack alone; an empty mapping would remove them.
    return dict(pair.split("=", 1) for pair in pairs) or None


def _read_windows(ctx: click.Context, _: click.Parameter, lists: tuple[str, ...]) -> Any:
    names = [name.strip() for one in lists for name in one.split(",")]
    try:
        return tuple(dict.fromkeys(map(UsageWindow.of, names))) or None
    except ValidationError as error:
        raise click.UsageError(f"invalid --snapshot-windows {','.join(lists)!r}: {error}", ctx) from error


def _switch(name: str, off: str, what: str) -> Callable[[Any], Any]:
    return option(f"--{name.replace('_', '-')}/--{off} {name}", what, default=None)


def _value(name: str, metavar: str, what: str) -> Callable[[Any], Any]:
    kind = int if metavar == "N" else str
    return option(f"--{name.replace('_', '-')} {name}", what, type=kind, metavar=metavar)


def _several(names: str, metavar: str, what: str, read: Callable[..., Any]) -> Callable[[Any], Any]:
    return option(names, what, metavar=metavar, multiple=True, callback=read)


OPTIONS = (
    _switch("enable_aggregator", "no-aggregator", "A function that counts usage.  [default: enable]"),
    _several(
        "--snapshot-windows",
        "LIST",
        "Count usage by these windows: hourly, daily, monthly.  [default: hourly,daily]",
        _read_windows,
    ),
    _value("usage_retention_days", "N", "Keep usage so long; 0 for ever.  [default: 90]"),
    _value("audit_retention_days", "N", "Keep audit events of this command so long.  [default: 90]"),
    _value("pitr_recovery_days", "N", "Recover the table so far back; 0 not at all.  [default: 35]"),
    _switch("enable_deletion_protection", "no-deletion-protection", "Refuse deletion.  [default: no]"),
    _value("kms_key_arn", "ARN", "A key of yours for all that is stored."),
    _value("lambda_memory", "N", "Megabytes of the function.  [default: 256]"),
    _value("lambda_timeout", "N", "Seconds for one batch.  [default: 60]"),
    _value("log_retention_days", "N", "Keep the function's logs so long.  [default: 30]"),
    _switch("enable_tracing", "no-tracing", "Send traces to X-Ray.  [default: no]"),
    _switch("enable_alarms", "no-alarms", "Alarms on the function.  [default: enable]"),
    _value("alarm_sns_topic", "ARN", "Who is told of alarms."),
    _value("lambda_duration_threshold_pct", "N", "Alarm at this part of the timeout.  [default: 80]"),
    _switch("enable_audit_archival", "no-audit-archival", "Keep expired events in S3.  [default: enable]"),
    _value("audit_archive_glacier_days", "N", "Move them to Glacier after so long.  [default: 90]"),
    _switch("create_iam", "no-iam", "Policies, and a role for the function.  [default: create]"),
    _switch("create_iam_roles", "no-create-iam-roles", "Roles for applications and people.  [default: no]"),
    _several(
        "--role-principal role_principals",
        "ARN",
        "Who may assume these roles; * stands for anything. May be repeated.",
        lambda _, __, arns: arns or None,
    ),
    _value("aggregator_role_arn", "ARN", "A role of yours for the function."),
    _value("permission_boundary", "POLICY", "The policy that bounds all roles, by name or ARN."),
    _value("role_name_format", "FORMAT", "Names of roles, such as 'team-{}'."),
    _value("policy_name_format", "FORMAT", "Names of policies, such as 'team-{}'."),
    _several("--tag -t tags", "KEY=VALUE", "A tag of everything in the stack. May be repeated.", _read_tags),
)

STORED = (
    on_unavailable,
    _switch("auto_update", "no-auto-update", "Programs that start update an older function.  [default: no]"),
)
"""What is not the stack's: the system's configuration in the namespace remembers it."""


DAY = click.IntRange(1, 86_400)
_waiting = together(
    option("--wait/--no-wait", "Wait until it is done.", default=True),
    option(
        "--timeout timeout_seconds", "Wait no longer than this.", type=DAY, default=1_800, metavar="SECONDS"
    ),
    confirmed,
)
_namespace = option("--namespace -N", "Register this namespace.  [default: default]")


@verb("deploy", with_stack, _namespace, *OPTIONS, *STORED, _waiting, meant="--name")
def deploy(session: StackSession, namespace: str | None, yes: bool, **options: Any) -> None:
    """Deploy a table and all that belongs to it.

    What is deployed already is brought up to date. Options that are not given have their defaults in a
    new stack, and stay as they are in one that is there. A table that an earlier stack left behind
    becomes part of the new one, with its data.
    """
    if namespace is not None:
        validate_namespace(namespace)
    stored = {name: options.pop(name) for name in ("on_unavailable", "auto_update")}
    waiting = {name: options.pop(name) for name in ("wait", "timeout_seconds")}
    denials: list[Failure] = []

    def approve(changes: Sequence[StackChange]) -> bool:
        """Show what an update would do, and ask if any of it destroys something."""
        for change in changes:
            click.echo(str(change), err=True)
        fatal = [change.resource for change in changes if change.replaces or change.action == "Remove"]
        try:
            make_sure(yes or not fatal, f"{', '.join(fatal)} would be lost or made anew. Go ahead?")
        except Failure as denial:
            denials.append(denial)
        return not denials

    with going_on_alone(session), Board() as board:
        try:
            done = session.manager.deploy(
                StackOptions(**options), **waiting, progress=board.show, approve=approve
            )
        except StackOperationError:
            if denials:
                raise denials[0] from None
            raise
    if done.is_finished:
        _settle_in(session, namespace, options["audit_retention_days"], **stored)
    data = {
        "stack_name": done.stack.name,
        "stack_id": done.stack.stack_id,
        "stack_status": done.stack.status,
        "is_new": done.is_new,
        "is_finished": done.is_finished,
        "code_updated": done.code_updated,
        "changes": done.changes,
    }
    session.output.done(data, _sentence(session, done))


def _settle_in(
    session: StackSession,
    namespace: str | None,
    audit_retention_days: int | None,
    on_unavailable: str | None,
    auto_update: bool | None,
) -> None:
    """Register the namespace, and have it remember what is not the stack's."""
    settings = session.settings
    if audit_retention_days is not None:
        settings = {**settings, "audit_retention_days": audit_retention_days}
        session.output.note(
            "whoever writes an audit event says how long it is kept; programs say it when they open a "
            f"repository: audit_retention_days={audit_retention_days}"
        )
    with SyncRepository.open(namespace, **settings) as repository:
        before = repository.get_config("system") or LimiterConfig()
        policy = before.on_unavailable if on_unavailable is None else OnUnavailable.of(on_unavailable)
        update = before.auto_update if auto_update is None else auto_update
        after = replace(before, on_unavailable=policy, auto_update=update)
        if after != before:
            repository.set_config("system", after)


def _sentence(session: StackSession, done: Deployment) -> str:
    if not done.is_finished:
        return (
            f"began to {'deploy' if done.is_new else 'update'} {session}; its function gets its code when "
            f"this command is repeated: {session.command('deploy')}"
        )
    if not (done.is_new or done.changes or done.code_updated):
        return f"{session} is up to date"
    return f"{'deployed' if done.is_new else 'updated'} {session}; see {session.command('status')}"


@verb("delete", with_stack, _waiting, meant="--name")
def delete(session: StackSession, wait: bool, timeout_seconds: int, yes: bool) -> None:
    """Delete a stack. Its table and its archive stay, with all their data."""
    if not yes:
        losses = session.manager.losses()
        stays = " and ".join(losses.kept) or "nothing"
        what = f"Delete {session}, with {losses.gone} of its resources?"
        make_sure(yes, f"{what} What stays, with its data: {stays}.")
    with going_on_alone(session), Board() as board:
        left = session.manager.delete(wait=wait, timeout_seconds=timeout_seconds, progress=board.show)
    kept = " and ".join(str(Resource(one.resource, one.kind, one.physical_id)) for one in left) or "nothing"
    session.output.done(
        {
            "stack_name": session.name,
            "is_finished": wait,
            "kept": [{"kind": one.kind, "name": one.physical_id} for one in left],
        },
        f"deleted stack {session.name!r}; kept: {kept}" if wait else f"deleting stack {session.name!r}",
    )


@contextmanager
def going_on_alone(session: StackSession) -> Iterator[None]:
    """Whoever stops waiting does not stop CloudFormation, and is told so."""
    try:
        yield
    except KeyboardInterrupt:
        went_on = "interrupted; CloudFormation goes on with what it has begun"
        raise Failure(went_on, session.command("status"), INTERRUPTED) from None
