"""``zae-limiter upgrade``: bring a store and the function of its stack up to this version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Group
from rich.text import Text

from ..backends import open_backend, store_world
from ..engine.door import write_each
from ..exceptions import (
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    VersionError,
    ZAELimiterError,
)
from ..infra.older_stack import MARK, is_older
from ..operate.migrations import Kind, Migration, MigrationStage, State, Survey
from ..operate.migrations.state import renew
from ..repository_protocol import Backend
from ..runtime.colour import run_sync
from ..runtime.world import World
from ..version import SCHEMA_VERSION, check_compatibility, client_version, parse_version
from .errors import Failure
from .nouns import option, verb
from .output import grid
from .progress import Bar, Board
from .session import Session, confirmed, make_sure, resumable, stack_around, stack_or_none, with_session
from .text import printable

if TYPE_CHECKING:
    from ..infra.stack import Stack
    from ..operate.migrations.migration import Findings

TIMEOUT_MS = 30_000
"""A transaction of a hundred writes may take its time; nobody waits for an acquire here."""

FINDINGS_SHOWN = 20
MOVED = (Kind.LIMITS, Kind.ENTITY, Kind.BUCKET, Kind.USAGE, Kind.AUDIT, Kind.MANIFEST)
STOP_THEM = "clients of older versions are refused when they next start; stop those that are running"
UP_TO_DATE = f"nothing to do: the store has schema {SCHEMA_VERSION}"


@verb("upgrade", meant="--name")
@option("--lambda-only", "Update the function alone, and leave the table as it is.", is_flag=True)
@option("--force", "Look at everything, even if it seems to be up to date.", is_flag=True)
@option("--dry-run", "Say what would be done, and change nothing.", is_flag=True)
@option("--keep-old", "Keep the old records beside the new ones.", is_flag=True)
@confirmed
@with_session
def upgrade(
    session: Session, lambda_only: bool, force: bool, dry_run: bool, keep_old: bool, yes: bool
) -> None:
    """Bring a store up to date: its table, its records, and the function of its stack.

    Records of older versions are moved to where this one has them; those without a namespace become part of
    `default`. Tokens, debts, usage and audit events stay what they are. Clients of older versions are
    refused from then on. What this version cannot serve is named before anything is changed, and nothing
    is. Stop it whenever you like: it goes on where it stopped.
    """
    if session.is_namespaced:
        raise click.UsageError("an upgrade is about the whole store; leave out --namespace")
    session.must_exist()
    if lambda_only:
        _upgrade_lambda(session, force, dry_run)
        return
    world = store_world(session.url, World())
    backend = open_backend(session.url, sync=True, world=world, timeout_ms=TIMEOUT_MS)
    try:
        work = StoreUpgrade(session, backend, world, force=force, keep_old=keep_old)
        work.look()
        if dry_run:
            session.output.show(work.plan(), work.plan_table)
        work.refuse()
        if not dry_run:
            make_sure(yes or not work.is_needed, work.question)
            with resumable(session):
                work.do()
            session.output.show(work.result(), work.result_table)
            work.complain()
    finally:
        run_sync(backend.close())


def _upgrade_lambda(session: Session, force: bool, dry_run: bool) -> None:
    if not session.is_dynamodb:
        raise click.UsageError("--lambda-only needs a DynamoDB table; other stores have no function")
    if dry_run:
        raise click.UsageError("--dry-run says what happens to the table; --lambda-only leaves it alone")
    updated = update_function(session, force)
    message = "the function was updated" if updated else "nothing to do: the function is up to date"
    session.output.done({"store": session.url, "changed": updated, "lambda_updated": updated}, message)


def update_function(session: Session, force: bool) -> bool:
    """Give the function of the stack the code of this version."""
    with stack_around(session) as manager:
        return run_sync(manager.update_lambda(force))


class StoreUpgrade:
    """What is to be done to one store, and what was."""

    def __init__(
        self, session: Session, backend: Backend, world: World, *, force: bool, keep_old: bool
    ) -> None:
        self._session, self._backend, self._world = session, backend, world
        self._force, self._keep_old = force, keep_old
        self.bar: Final = Bar(world.ticks_ms)
        self.migration: Final = Migration(backend, world, keep_old=keep_old, tell=self.bar.show)
        self.indexes: list[str] = []
        self.state: State = State(None, None, None)
        self.survey: Survey = Survey()
        self.function: bool | None = None
        """Whether the function was updated; nothing if there is none."""
        self.stack: Stack | None = None
        """The one around the table, if the older product made it and it has to be replaced."""
        self._stack_changes: list[str] = []
        self._trouble: ZAELimiterError | None = None

    def look(self) -> None:
        """Find out what has to be done. A table that is not there is an error, and none is made."""
        if self._session.is_dynamodb:
            from ..operate.migrations.indexes import missing_indexes

            self.indexes = run_sync(missing_indexes(self._backend))  # type: ignore[arg-type]
        else:
            run_sync(self._backend.setup())
        self.state = run_sync(self.migration.state())
        schema = self.state.schema
        if schema is not None and schema.major > parse_version(SCHEMA_VERSION).major:
            raise IncompatibleSchemaError(check_compatibility(client_version(), str(schema)).message)
        if self._force or not self.state.is_settled(keep_old=self._keep_old):
            with self.bar:
                self.survey = run_sync(self.migration.survey())
        if self._session.is_dynamodb and self.state.is_namespaced and not len(self.survey.obstacles):
            self._look_at_stack()

    def _look_at_stack(self) -> None:
        with stack_around(self._session) as manager:
            stack = stack_or_none(manager)
            if stack is None or not stack.is_ours or not is_older(stack):
                return
            if MARK in stack.parameters or self.has_records:
                self._stack_changes = [str(one) for one in run_sync(manager.preview())]
                self.stack = stack

    def refuse(self) -> None:
        """Leave everything as it is if there are records that this version cannot serve."""
        if count := len(self.survey.obstacles):
            records = "\n".join(_listed(self.survey.obstacles))
            many = "1 record is" if count == 1 else f"{count:,} records are"
            raise Failure(
                f"{many} in the way, and nothing was changed:\n{records}",
                "change or delete them with the version that wrote them, which still works, or stay with it",
            )

    @property
    def has_records(self) -> bool:
        """Whether old records are to be moved or deleted, older clients kept out or newer ones let in."""
        left = self.survey.moved.total() and not self._keep_old
        begun = self.state.stage not in (MigrationStage.NONE, MigrationStage.DONE)
        is_older = self.state.older is not None or self.state.is_namespaced
        closed = is_older and (self.state.stage is MigrationStage.NONE or not self.state.is_open)
        return bool(self.survey.unmoved.total() or left or begun or closed)

    @property
    def is_needed(self) -> bool:
        return bool(self.indexes or self.has_records or self.stack or renew(self.state, 0))

    @property
    def question(self) -> str:
        parts = [f"add {self._indexes}"] if self.indexes else []
        if count := self.survey.unmoved.total():
            stay = self._keep_old or self.state.is_namespaced
            verb = "rewrite" if self.state.is_namespaced else "move"
            parts.append(f"{verb} {count:,} old records{'' if stay else ' and delete them'}")
        elif self.has_records:
            parts.append("finish moving old records")
        if self.stack is not None:
            parts.append(f"replace function, filter and template of stack {self.stack.name!r}")
        what = ", ".join(parts) or "note the new schema"
        return f"{what[0].upper()}{what[1:]} in {self._session.url}? Older clients are refused from then on."

    def do(self) -> None:
        """Do it; where nothing is needed, the function may still be of an earlier version."""
        with self.bar:
            if self.indexes:
                from ..operate.migrations.indexes import add_missing_indexes

                run_sync(add_missing_indexes(self._backend, self.bar.say))  # type: ignore[arg-type]
            if self.has_records:
                self._move()
                return
            if writes := renew(self.state, self._world.now_ms()):
                run_sync(write_each(self._backend, None, writes))
        self.update_lambda()

    def _move(self) -> None:
        if self.stack is not None:  # its function would count what is moved, and split buckets of today
            with stack_around(self._session) as manager:
                run_sync(manager.switch_aggregator(False))
        run_sync(self.migration.move())
        if not self.state.is_namespaced:
            self.update_lambda()
        run_sync(self.migration.follow())
        if self.state.is_namespaced:  # a function must not count into rows of the older shape
            self.update_lambda()
        run_sync(self.migration.clean())

    def update_lambda(self) -> None:
        """Update the function of the stack, if the store has one; trouble with it can wait."""
        if not self._session.is_dynamodb:
            return
        if self.stack is not None:
            with stack_around(self._session) as manager:
                with Board() as board:
                    run_sync(manager.update(progress=board.show))
                run_sync(manager.switch_aggregator(True))
            self.function = True
            return
        try:
            self.function = update_function(self._session, self._force)
        except InfrastructureNotFoundError:
            self.function = None
        except (InfrastructureError, VersionError) as error:
            self._trouble = error

    def complain(self) -> None:
        """End with an error if something is left that somebody has to look at."""
        if late := self.migration.report.late:
            raise Failure(
                f"{late:,} old records were written by older clients while they were being moved",
                "stop the older clients, then run it again",
            )
        if self._trouble is not None:
            from ..infra.cloud import NotOffered

            if not isinstance(self._trouble, NotOffered):
                raise self._trouble
            self._session.output.note(f"no stack was looked for: {self._trouble}")

    # What is said about it.

    def plan(self) -> dict[str, Any]:
        return {
            "store": self._session.url,
            "dry_run": True,
            "needed": self.is_needed,
            "schema": self._schema(),
            "indexes": self.indexes,
            "records": _by_kind(to_move=self.survey.unmoved, moved=self.survey.moved),
            "shards": self.survey.shards,
            "stack_changes": self._stack_changes,
            "old_records": "kept" if self._keep_old else "deleted",
            **_left_alone(self.survey.findings),
            "in_the_way": _as_data(self.survey.obstacles),
        }

    def plan_table(self) -> Group:
        schema, shards = self._schema(), self.survey.shards
        lines = [f"schema {schema['from'] or 'unknown'} would become {schema['to']}"]
        if not self.is_needed:
            lines = [UP_TO_DATE]
        if self.indexes:
            lines.append(f"{self._indexes} would be added")
        if shards:
            lines.append(f"{shards:,} shards would come back to their buckets, with what they hold or owe")
        if self.stack is not None:
            lines.append(f"stack {self.stack.name!r} of zae-limiter {self.stack.version} would be changed:")
            lines += [f"  {change}" for change in self._stack_changes]
        if self.has_records:
            old = f"old records would be {'kept' if self._keep_old else 'deleted'}"
            in_place = "records would be rewritten where they are"
            lines += [in_place if self.state.is_namespaced else old, STOP_THEM]
        counts = {"to move": self.survey.unmoved, "moved before": self.survey.moved}
        return _shown(counts, lines, self.survey.findings)

    def result(self) -> dict[str, Any]:
        report = self.migration.report
        return {
            "store": self._session.url,
            "changed": self.is_needed or bool(self.function),
            "schema": self._schema(),
            "indexes": self.indexes,
            "records": _by_kind(moved=report.moved, superseded=report.superseded),
            "deleted": report.deleted,
            "late": report.late,
            "lambda_updated": self.function,
            **_left_alone(self._findings),
        }

    def result_table(self) -> Group:
        report, schema, lines = self.migration.report, self._schema(), []
        if self.indexes:
            lines.append(f"{self._indexes} added")
        if report.deleted:
            lines.append(f"{report.deleted:,} old records deleted")
        if self.stack is not None:
            lines.append(f"stack {self.stack.name!r} has the function, filter and template of this version")
        elif self.function:
            lines.append("the function was updated")
        if self.is_needed:
            lines.append(f"the store has schema {schema['to']} now; it was {schema['from'] or 'unknown'}")
        if self.has_records:
            lines.append(STOP_THEM)
        counts = {"moved": report.moved, "superseded": report.superseded}
        return _shown(counts, lines or [UP_TO_DATE], self._findings)

    @property
    def _indexes(self) -> str:
        return f"{'index' if len(self.indexes) == 1 else 'indexes'} {', '.join(self.indexes)}"

    @property
    def _findings(self) -> Findings:
        return self.migration.report.findings if self.has_records else self.survey.findings

    def _schema(self) -> dict[str, str | None]:
        is_over = self.state.is_open and self.state.stage in (MigrationStage.NONE, MigrationStage.DONE)
        before = str(self.state.schema) if is_over else self.state.older_schema
        return {"from": before, "to": SCHEMA_VERSION}


def _by_kind(**counts: Counter[Kind]) -> dict[str, dict[str, int]]:
    return {kind.value: {what: count[kind] for what, count in counts.items()} for kind in MOVED}


def _as_data(findings: Findings) -> list[dict[str, str]]:
    return [{"pk": f.key.partition, "sk": f.key.sort, "reason": f.reason} for f in findings.told]


def _left_alone(findings: Findings) -> dict[str, Any]:
    return {"left_alone": len(findings), "left_alone_records": _as_data(findings)}


def _shown(counts: Mapping[str, Counter[Kind]], lines: list[str], findings: Findings) -> Group:
    """Records of which there are any, by kind; what is said about them; and what was left alone."""
    rows = [(kind.value, *(count[kind] for count in counts.values())) for kind in MOVED]
    rows = [row for row in rows if any(row[1:])]
    if count := len(findings):
        many = "1 record was" if count == 1 else f"{count:,} records were"
        lines = [*lines, f"{many} left alone:", *_listed(findings)]
    table = [grid(["records", *counts], rows, list(counts))] if rows else []
    return Group(*table, *(Text(printable(line)) for line in lines))


def _listed(findings: Findings) -> list[str]:
    lines = [f"  {f.key.partition} {f.key.sort}: {f.reason}" for f in findings.told[:FINDINGS_SHOWN]]
    if len(findings) > FINDINGS_SHOWN:
        lines.append(f"  … and {len(findings) - FINDINGS_SHOWN:,} more; --output json names them")
    return lines
