"""``zae-limiter status``, ``check`` and ``list``: what is deployed, and how it is doing.

They only look. A stack or a file that is not there is said to be missing, and is not made.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..exceptions import InfrastructureNotFoundError, RateLimiterUnavailable
from ..limiter import deployed
from ..models import Status, VersionRecord
from ..runtime.colour import run_sync
from ..runtime.world import World
from ..version import SCHEMA_VERSION, check_compatibility, client_version
from .errors import NOT_FOUND, Failure
from .nouns import Verb
from .output import grid, printable, record
from .session import STORE_IN_USE, Session, decorated, json_option, output_of, output_option, with_session
from .stacks import ENDPOINT, REGION, stack_around

if TYPE_CHECKING:
    from ..infra.health import HealthReport

ANY_CLIENT = "0.0.0"
"""The least client of a store that shuts none out."""

COLOURS = {"green": "green", "yellow": "yellow", "red": "bold red", "off": "dim"}


@click.command(cls=Verb, meant="--name")
@with_session
@click.pass_context
def status(ctx: click.Context, session: Session) -> None:
    """Show how a store and what is deployed around it are doing.

    Green works, yellow works but wants to be looked at, red does not work, and off is not deployed. The
    exit code is 1 if anything is red.
    """
    report = _examined(session) if session.is_dynamodb else _looked_at(session)
    found = _status(session, report)
    data = {**asdict(found), "health": report.health, "checks": report.checks}
    session.output.show(data, lambda: Group(record(_fields(found, report)), _checks(report)))
    if report.health == "red":
        ctx.exit(1)


@click.command(cls=Verb, meant="--name")
@with_session
@click.pass_context
def check(ctx: click.Context, session: Session) -> None:
    """Check whether this version may use a store.

    The exit code is 1 if it may not.
    """
    stored = version_record(session)
    said = stored or VersionRecord(SCHEMA_VERSION)
    verdict = check_compatibility(
        client_version(), said.schema_version, said.client_min_version, said.lambda_version
    )
    data = {
        **asdict(verdict),
        "client_version": client_version(),
        "client_schema_version": SCHEMA_VERSION,
        "stored": stored,
    }
    fields = {
        "client": client_version(),
        "client's schema": SCHEMA_VERSION,
        **stored_versions(stored),
        "verdict": verdict.message,
    }
    session.output.show(data, lambda: record(fields))
    if not verdict.is_compatible:
        ctx.exit(1)


def _with_place(function: Any) -> Any:
    return decorated(function, REGION, ENDPOINT, output_option, json_option)


@click.command("list", cls=Verb)
@_with_place
def list_(region: str | None, endpoint_url: str | None, **form: Any) -> None:
    """List the stacks that are deployed in an AWS region."""
    click.get_current_context().meta[STORE_IN_USE] = "dynamodb:"
    found = run_sync(deployed(region, endpoint_url, sync=True))
    output_of(form).show(
        found,
        lambda: grid(
            ["stack", "status", "version", "lambda", "schema", "changed"],
            [
                (
                    one.stack_name,
                    one.stack_status,
                    one.version,
                    one.lambda_version,
                    one.schema_version,
                    _minute(one.last_updated_time or one.creation_time),
                )
                for one in found
            ],
        ),
    )


def _minute(instant: str | None) -> str | None:
    """``2024-01-01 14:00``; what comes behind is for programs."""
    return None if instant is None else instant[:16].replace("T", " ")


def version_record(session: Session) -> VersionRecord | None:
    """What a store says about versions, without making it or writing to it."""
    if not session.is_dynamodb:
        session.must_exist()
        return session.registry.get_version_record()
    with stack_around(session) as manager:
        return run_sync(manager.version_record())


def stored_versions(stored: VersionRecord | None) -> dict[str, object]:
    if stored is None:
        return {"stored": "nothing; whoever first opens the store writes it"}
    least = stored.client_min_version
    return {
        "stored schema": stored.schema_version,
        "stored lambda": stored.lambda_version,
        "needs client": "any" if least == ANY_CLIENT else f"{least} or newer",
    }


def _examined(session: Session) -> HealthReport:
    with stack_around(session) as manager:
        try:
            return run_sync(manager.report())
        except InfrastructureNotFoundError as error:
            if "; " in str(error):  # it says itself what may help
                raise
            raise Failure(str(error), f"zae-limiter deploy --name {manager.name}", NOT_FOUND) from error


def _looked_at(session: Session) -> HealthReport:
    """An embedded store: it answers or it does not, and has versions."""
    from ..infra.health import Health, HealthCheck, HealthReport, version_health

    session.must_exist()
    world = World()
    try:
        started_ms = world.ticks_ms()
        stored = session.registry.get_version_record()
        latency_ms = world.ticks_ms() - started_ms
    except RateLimiterUnavailable as error:
        return HealthReport(session.url, (HealthCheck("store", Health.RED, str(error)),))
    checks = (
        HealthCheck("store", Health.GREEN, "it answers"),
        HealthCheck("versions", *version_health(stored)),
    )
    return HealthReport(session.url, checks, record=stored, latency_ms=latency_ms)


def _status(session: Session, report: HealthReport) -> Status:
    stored = report.record
    return Status(
        available=report.latency_ms is not None,
        store=session.url,
        namespace=session.namespace_name,
        latency_ms=None if report.latency_ms is None else round(report.latency_ms, 3),
        client_version=client_version(),
        schema_version=stored.schema_version if stored else None,
        lambda_version=stored.lambda_version if stored else None,
        stack_status=report.stack.status if report.stack else None,
    )


def _fields(found: Status, report: HealthReport) -> dict[str, object]:
    latency = None if found.latency_ms is None else f"{found.latency_ms:g} ms"
    return {"store": found.store, "health": report.health, "client": found.client_version, "answer": latency}


def _checks(report: HealthReport) -> Table:
    table = grid(["part"], ())
    table.add_column("health")
    table.add_column("detail", overflow="fold")
    for one in report.checks:
        health = Text(one.health, style=COLOURS[one.health])
        table.add_row(Text(one.part), health, Text(printable(one.detail)))
    return table
