"""``zae-limiter limits``: the limits of a namespace as a file."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import Any

import click
from click.exceptions import Exit
from rich.table import Table
from rich.text import Text

from ..models import LimiterConfig
from ..models.grammar import limit_text
from ..operate.manifest import (
    Action,
    LevelChange,
    Manifest,
    ManifestPlan,
    SyncStoredLimits,
    parse,
    to_json,
    to_yaml,
)
from ..operate.manifest.model import SETTINGS, settings_of
from ..operate.manifest.template import HANDLER, template, to_text
from ..operate.manifest.writing import level_lines
from .errors import DIFFERENT, NOT_FOUND, Failure
from .export import STANDARD, overwriting, to_file, write
from .levels import config_data
from .nouns import Noun, option
from .output import Output, console, counted, grid
from .session import (
    Session,
    confirmed,
    make_sure,
    principal,
    resumable,
    with_existing,
    with_imagined,
    with_json,
    with_session,
)
from .text import printable

_file = option(
    "--file -f", "The manifest; - reads it from standard input.", metavar="FILE", default="limits.yaml"
)
_exit_code = option("--exit-code", "Exit with 5 if there is a difference.", is_flag=True)
_quiet = option("--quiet -q", "Only count the changes.", is_flag=True)


@click.group(cls=Noun)
def limits() -> None:
    """The limits of a namespace as a file.

    A level that the file names becomes what the file says. A level that it does not name is deleted if an
    earlier apply made it, and left alone otherwise. A switch that the file does not mention stays as it is.
    """


@limits.verb("plan", _file, _exit_code, _quiet, with_imagined, meant="-f")
def plan(session: Session, file: str, exit_code: bool, quiet: bool) -> None:
    """Show what `apply` would change."""
    manifest = _read(file)
    planned = SyncStoredLimits(session.within(manifest.namespace)).plan(manifest)
    if not session.output.json(plan_data(session, planned)):
        if not (planned.is_empty or quiet):
            console().print(plan_table(planned))
        changes = f"planned: {_counted(planned, 'to create', 'to update', 'to delete')}"
        session.output.note(f"nothing to change; {_alike(planned)}" if planned.is_empty else changes)
    if exit_code and not planned.is_empty:
        raise Exit(DIFFERENT)


@limits.verb(
    "apply",
    _file,
    _quiet,
    confirmed,
    principal,
    meant="-f",
    instead={"--dry-run": "what it would change: zae-limiter limits plan"},
)
@with_session
def apply(session: Session, file: str, quiet: bool, yes: bool, principal: str | None) -> None:
    """Make the namespace say what the file says.

    It asks before it deletes anything. Interrupted, it does the rest when it is run again.
    """
    manifest = _read(file)
    stored = SyncStoredLimits(session.within(manifest.namespace))
    planned = stored.plan(manifest)
    if deleted := planned.counts["deleted"]:
        if not yes:
            console(stderr=True).print(plan_table(planned))
        make_sure(yes, f"Delete {counted(deleted, 'level')} that earlier applies have made?")
    done: list[LevelChange] = []
    with resumable(session, lambda: f"; {len(done)} of {len(planned.changes)} changes were made"):
        stored.carry_out(planned, principal, done.append)
    made = ManifestPlan(tuple(done), planned.unchanged)
    if not (session.output.is_json or made.is_empty or quiet):
        console().print(plan_table(made))
    counts = _counted(made, "created", "updated", "deleted")
    session.output.done(plan_data(session, made), f"applied: {counts}")


@limits.verb("diff", _file, _exit_code, _quiet, with_imagined, meant="-f")
def diff(session: Session, file: str, exit_code: bool, quiet: bool) -> None:
    """Show in what the store and the file differ.

    Unlike `plan` it looks at everything that is stored, and also shows what `apply` leaves alone.
    """
    manifest = _read(file)
    found = SyncStoredLimits(session.within(manifest.namespace)).difference(manifest)
    if session.output.json(plan_data(session, found)):
        pass
    elif found.is_empty:
        session.output.note(f"nothing differs; {_alike(found)}")
    elif quiet:
        differ = "differs" if len(found.changes) == 1 else "differ"
        session.output.note(f"{counted(len(found.changes), 'level')} {differ}; {_alike(found)}")
    else:
        # A long line stays one line, as in any patch.
        console().print(diff_text(found, session.namespace_name, file), soft_wrap=True)
    if exit_code and not found.is_empty:
        raise Exit(DIFFERENT)


@limits.verb("export", meant="-f")
@option("--file -f", "Write the manifest to this file.", metavar="FILE")
@overwriting
@with_existing
def export(session: Session, file: str | None, force: bool) -> None:
    """Write a manifest of everything that is stored.

    Applying it changes nothing.
    """
    manifest = SyncStoredLimits(session.repository).export()
    if file is not None and file != STANDARD:
        write(file, to_yaml(manifest).encode(), force=force)
        levels = len(manifest.levels)
        session.output.done({"file": file, "levels": levels}, f"wrote {counted(levels, 'level')} to {file!r}")
    elif session.output.is_json:
        click.echo(to_json(manifest))  # YAML, as which it is read back, knows no halves of characters
    else:
        click.echo(to_yaml(manifest), nl=False)


@limits.verb("cfn-template", _file, meant="-f")
@option("--name -n table_name", "The default of the template's TableName.", metavar="STACK")
@option("--namespace-id", "The default of the template's NamespaceId.", metavar="ID")
@to_file
@option("--package", "Also write the package of its function, a zip file.", metavar="FILE")
@overwriting
@with_json
def cfn_template(
    output: Output, file: str, out: str | None, package: str | None, force: bool, **defaults: Any
) -> None:
    """Print a CloudFormation template that applies the file.

    For those who deploy by pipeline: upload the package to a bucket, then deploy the template with
    TableName, NamespaceId, CodeBucket and CodeKey. Its function may write to that namespace only.
    Deleting that stack deletes what it has made.
    """
    text = to_text(template(_read(file), **defaults), as_json=output.is_json)
    if package is not None:
        from ..infra.lambda_builder import build

        write(package, build(HANDLER), force=force)
        output.note(f"wrote the package of the function to {package!r}")
    write(STANDARD if out is None else out, text.encode(), force=force)
    if out is not None and out != STANDARD:
        output.note(f"wrote the template to {out!r}")


def _read(file: str) -> Manifest:
    """The manifest in a file or on standard input."""
    try:
        data = sys.stdin.buffer.read() if file == STANDARD else Path(file).read_bytes()
    except FileNotFoundError:
        hint = (
            "write one, such as `system: {limits: {rpm: {capacity: 60}}}`, "
            f"or take what is stored: zae-limiter limits export -f {quote(file)}"
        )
        raise Failure(f"file {file!r} does not exist", hint, NOT_FOUND) from None
    except OSError as error:
        raise Failure(f"cannot read {file!r}: {error.strerror}") from error
    return parse(data, "standard input" if file == STANDARD else file)


def plan_data(session: Session, plan: ManifestPlan) -> dict[str, Any]:
    """A plan as JSON: every level that changes, before and after."""

    def level(config: LimiterConfig | None) -> dict[str, Any] | None:
        data = config_data(config)
        return None if config is None else {name: data[name] for name in ("limits", *SETTINGS)}

    changes = [
        {
            "action": change.action,
            "level": change.address.level,
            "entity_id": change.address.entity_id,
            "resource": change.address.resource,
            "before": level(change.before),
            "after": level(change.after),
        }
        for change in plan.changes
    ]
    return {"namespace": session.namespace_name, "changes": changes, "counts": plan.counts}


def plan_table(plan: ManifestPlan) -> Table:
    """A row for every limit and policy that changes."""
    rows: list[tuple[object, ...]] = []
    for change in plan.changes:
        head: tuple[object, ...] = (change.action, change.address)
        before, after = _values(change.before), _values(change.after)
        for what in dict.fromkeys((*before, *after)):
            if before.get(what) != after.get(what):
                rows.append((*head, what, before.get(what), after.get(what)))
                head = ("", "")
    return grid(["change", "level", "limit", "stored", "file"], rows)


def _values(config: LimiterConfig | None) -> dict[str, str]:
    """The settings and the limits of a level, each as the command line writes it."""
    if config is None:
        return {}
    settings = {
        name: value if isinstance(value, str) else str(value).lower()
        for name, value in settings_of(config).items()
    }
    return settings | {one.name: limit_text(one).removeprefix(f"{one.name}:") for one in config.limits}


def diff_text(plan: ManifestPlan, namespace: str, file: str) -> Text:
    """The levels that differ, in the manner of a patch from the store to the file."""
    text = Text()
    text.append(f"--- stored in namespace {namespace!r}\n", "bold")
    text.append(f"+++ {printable(file)}\n", "bold")
    for change in plan.changes:
        left = ", which apply leaves alone" if change.action is Action.LEAVE else ""
        text.append(f"@@ {change.address}{left} @@\n", "cyan")
        before = level_lines(change.before) if change.before else []
        after = level_lines(change.after) if change.after and not left else []
        for sign, lines, others, colour in (("-", before, after, "red"), ("+", after, before, "green")):
            for line in lines:
                if line not in others:
                    text.append(f"{sign}{line}\n", colour)
    text.rstrip()
    return text


def _alike(plan: ManifestPlan) -> str:
    return f"{counted(plan.unchanged, 'level')} {'is' if plan.unchanged == 1 else 'are'} as the file says"


def _counted(plan: ManifestPlan, *words: str) -> str:
    """How many levels become what, in these words."""
    counts = zip((*words, "unchanged"), plan.counts.values(), strict=True)
    return ", ".join(f"{n} {word}" for word, n in counts)
