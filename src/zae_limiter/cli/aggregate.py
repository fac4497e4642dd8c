"""``zae-limiter aggregate``: count usage and look after buckets where there is no Lambda."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import click
from rich.text import Text

from ..exceptions import without_secrets
from ..models import UsageWindow
from .nouns import option, verb
from .output import counted
from .session import Session, with_existing

if TYPE_CHECKING:
    from zae_limiter_aggregator import Tally

TOLD_MAX = 20
"""How much of what was passed over is told line by line; the rest is counted."""


@verb("aggregate")
@option(
    "--window windows",
    "Count by this window. May be repeated.",
    type=click.Choice([window.value for window in UsageWindow]),
    multiple=True,
    default=("hourly", "daily"),
)
@option(
    "--retention-days",
    "Keep a snapshot so long after its window has ended; 0 for ever.",
    type=click.IntRange(0, 36_500),
    default=90,
)
@option("--archive-bucket", "Archive expired audit events in this S3 bucket.", metavar="BUCKET")
@option("--no-tending", "Only count; leave refills and shards to the clients.", is_flag=True)
@option("--once", "Stop when everything so far is counted.", is_flag=True)
@with_existing
def aggregate(
    session: Session,
    windows: tuple[str, ...],
    retention_days: int,
    archive_bucket: str | None,
    no_tending: bool,
    once: bool,
) -> None:
    """Follow the store and write usage snapshots.

    A DynamoDB table is followed by its stream, an embedded store by a log that it keeps from its first
    acquire on. Stop it with Ctrl-C or a TERM signal: it finishes what it is doing, and goes
    on from there next time. All namespaces are counted.
    """
    from zae_limiter_aggregator.archiver import S3Archive
    from zae_limiter_aggregator.processor import AggregatorSettings
    from zae_limiter_aggregator.runner import follow, source_of, stopping_on_signals

    if session.is_namespaced:
        raise click.UsageError("--namespace does not go with aggregate; it counts all namespaces of a store")
    if archive_bucket and not session.is_dynamodb:
        raise click.UsageError(
            "--archive-bucket goes with a DynamoDB table; an embedded store archives nothing"
        )
    session.warn_of_memory()
    connection = session.connection
    settings = AggregatorSettings(
        tuple(dict.fromkeys(UsageWindow(name) for name in windows)), retention_days or None, not no_tending
    )
    archive = S3Archive(archive_bucket) if archive_bucket else None
    source = source_of(connection.backend, connection.url, connection.world, settings, archive)
    if not once:
        session.output.note(f"following {without_secrets(connection.url)}; Ctrl-C ends it")
    with stopping_on_signals() as stop, ProgressLine() as line:
        total = follow(source, until_idle=once, stop=stop, tell=line.show)
    session.output.show(total.counts(), lambda: Text(summary(total.counts())))


class ProgressLine(logging.Handler):
    """What was done so far: one line that a terminal rewrites, and elsewhere only trouble.

    What the aggregator passes over or gives up has a line each, as long as there is little of it.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._shown, self._told = False, 0

    def __enter__(self) -> ProgressLine:
        logging.getLogger("zae_limiter_aggregator").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("zae_limiter_aggregator").removeHandler(self)
        self._end()

    def show(self, total: Tally, trouble: str) -> None:
        if trouble:
            self._end()
            click.echo(f"trying again: {trouble}", err=True)
        elif sys.stderr.isatty():
            click.echo(f"\r\x1b[K{summary(total.counts())}", err=True, nl=False)
            self._shown = True

    def emit(self, record: logging.LogRecord) -> None:
        self._told += 1
        if self._told > TOLD_MAX:
            return
        self._end()
        about = getattr(record, "reason", None) or getattr(record, "row", "")
        click.echo(f"{record.getMessage()}: {about}", err=True)
        if self._told == TOLD_MAX:
            click.echo("further ones are only counted", err=True)

    def _end(self) -> None:
        if self._shown:
            click.echo(err=True)
            self._shown = False


def summary(counts: dict[str, int]) -> str:
    done = (
        f"{counted(counts['records'], 'record')}, {counted(counts['changes'], 'change')} of buckets, "
        f"{counted(counts['rows_written'], 'row')} written, {counted(counts['refills_written'], 'refill')}, "
        f"{counted(counts['splits'], 'split')}, {counted(counts['merges'], 'merge')}, "
        f"{counted(counts['archived'], 'event')} archived"
    )
    lost = {"passed_over": "passed over", "left_out": "amounts left out", "closed": "gaps closed"}
    return ", ".join([done, *(f"{counts[key]:,} {what}" for key, what in lost.items() if counts[key])])
