"""``zae-limiter status``, ``check``, ``list`` and ``version``: what is there, and how it is doing.

They only look. A stack or a file that is not there is said to be missing, and is not made.
"""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit
from rich.console import Group
from rich.text import Text

from ..exceptions import InfrastructureNotFoundError, RateLimiterUnavailable
from ..limiter import deployed
from ..models import Status, VersionRecord
from ..runtime.colour import run_sync
from ..runtime.world import World
from ..version import SCHEMA_VERSION, check_compatibility, client_version
from .errors import ERROR, NOT_FOUND, STORE_IN_USE, Failure
from .nouns import verb
from .output import Output, grid, record
from .session import ENDPOINT, REGION, Session, stack_around, with_output, with_session
from .text import printable

if TYPE_CHECKING:
    from ..infra.health import HealthReport

ANY_CLIENT = "0.0.0"
"""The least client of a store that shuts none out."""

COLOURS = {"green": "green", "yellow": "yellow", "red": "bold red", "off": "dim"}


@verb("status", with_session, meant="--name")
def status(session: Session) -> None:
    """Show how a store and what is deployed around it are doing.

    Green works, yellow works but wants to be looked at, red does not work, and off is not deployed. The
    exit code is 1 if anything is red.
    """
    report = _examined(session) if session.is_dynamodb else _looked_at(session)
    stored, latency_ms = report.record, report.latency_ms
    found = Status(
        available=latency_ms is not None,
        store=session.url,
        namespace=session.namespace_name,
        latency_ms=None if latency_ms is None else round(latency_ms, 3),
        client_version=client_version(),
        schema_version=stored.schema_version if stored else None,
        lambda_version=stored.lambda_version if stored else None,
        stack_status=report.stack.status if report.stack else None,
    )
    answer = None if found.latency_ms is None else f"{found.latency_ms:g} ms"
    fields = {"store": found.store, "health": report.health, "client": client_version(), "answer": answer}
    checks = [
        (one.part, Text(one.health, style=COLOURS[one.health]), printable(one.detail))
        for one in report.checks
    ]
    session.output.show(
        {**asdict(found), "health": report.health, "checks": report.checks},
        lambda: Group(record(fields), grid(["part", "health", "detail"], checks)),
    )
    if report.health == "red":
        raise Exit(ERROR)


@verb("check", with_session, meant="--name")
def check(session: Session) -> None:
    """Check whether this version may use a store.

    The exit code is 1 if it may not.
    """
    stored = _version_record(session)
    said, client = stored or VersionRecord(SCHEMA_VERSION), client_version()
    verdict = check_compatibility(client, said.schema_version, said.client_min_version, said.lambda_version)
    data = {"client_version": client, "client_schema_version": SCHEMA_VERSION, "stored": stored}
    fields = {"client": client, "client's schema": SCHEMA_VERSION, **_stored_versions(stored)}
    session.output.show(verdict._asdict() | data, lambda: record({**fields, "verdict": verdict.message}))
    if not verdict.is_compatible:
        raise Exit(ERROR)


@verb("version", with_session)
def version(session: Session) -> None:
    """Show installed versions, and those of a store.

    Of a store only if --name or --store names one.
    """
    data: dict[str, object] = {
        "client": client_version(),
        "schema": SCHEMA_VERSION,
        "python": platform.python_version(),
    }
    fields = data
    if session.is_named:
        stored = _version_record(session)
        data, fields = {**data, "stored": stored}, {**data, **_stored_versions(stored)}
    session.output.show(data, lambda: record(fields))


@verb("list", REGION, ENDPOINT, with_output)
def list_(output: Output, region: str | None, endpoint_url: str | None) -> None:
    """List the stacks that are deployed in an AWS region."""
    click.get_current_context().meta[STORE_IN_USE] = "dynamodb:"
    found = run_sync(deployed(region, endpoint_url, sync=True))
    rows = []
    for one in found:
        instant = one.last_updated_time or one.creation_time
        minute = instant and instant[:16].replace("T", " ")  # what comes behind is for programs
        rows.append(
            (one.stack_name, one.stack_status, one.version, one.lambda_version, one.schema_version, minute)
        )
    output.show(found, lambda: grid(["stack", "status", "version", "lambda", "schema", "changed"], rows))


def _version_record(session: Session) -> VersionRecord | None:
    """What a store says about versions, without making it or writing to it."""
    if not session.is_dynamodb:
        session.must_exist()
        return session.registry.get_version_record()
    with stack_around(session) as manager:
        return run_sync(manager.version_record())


def _stored_versions(stored: VersionRecord | None) -> dict[str, object]:
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
    answers = HealthCheck("store", Health.GREEN, "it answers")
    versions = HealthCheck("versions", *version_health(stored))
    return HealthReport(session.url, (answers, versions), record=stored, latency_ms=latency_ms)
