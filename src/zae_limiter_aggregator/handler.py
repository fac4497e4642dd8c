"""The Lambda function: ``zae_limiter_aggregator.handler.handler``.

It answers with the records that have to be delivered again (``ReportBatchItemFailures``) and logs one
JSON object a line. Clients are made by the first batch and kept for the next ones.

    TABLE_NAME             the table; required
    SNAPSHOT_WINDOWS       hourly, daily, monthly, separated by commas  [hourly,daily]
    SNAPSHOT_TTL_DAYS      how long after the end of its window a row is kept; 0 for ever  [90]
    ENABLE_ARCHIVAL        true or false  [false]
    ARCHIVE_BUCKET_NAME    where expired audit events go; required for archival
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from zae_limiter.backends.dynamodb import open_backend
from zae_limiter.exceptions import ValidationError
from zae_limiter.models import UsageWindow
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import iso_time

from .archiver import Archive, S3Archive
from .processor import AggregatorSettings, process_stream_records

TIMEOUT_MS = 5_000
RETENTION_DAYS_MAX = 36_500
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

logger: Final = logging.getLogger("zae_limiter_aggregator")


class JsonLines(logging.Formatter):
    """A log record as one JSON object, with everything that was passed as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": iso_time(int(record.created * 1000)), "level": record.levelname}
        line["message"] = record.getMessage()
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class FunctionState(NamedTuple):
    """What a function instance keeps between batches."""

    backend: Backend
    world: World
    settings: AggregatorSettings
    archive: Archive | None


def settings_from(environment: Mapping[str, str]) -> AggregatorSettings:
    named = environment.get("SNAPSHOT_WINDOWS", "hourly,daily")
    windows = [UsageWindow.of(name.strip()) for name in named.split(",") if name.strip()]
    days = environment.get("SNAPSHOT_TTL_DAYS", "90")
    # Python reads no number of more than 4,300 digits.
    if not (days.isascii() and days.isdigit() and len(days) < 20 and int(days) <= RETENTION_DAYS_MAX):
        raise ValidationError("SNAPSHOT_TTL_DAYS", days, f"use whole days, at most {RETENTION_DAYS_MAX}")
    return AggregatorSettings(tuple(dict.fromkeys(windows)), int(days) or None)


def archive_from(environment: Mapping[str, str]) -> Archive | None:
    wanted, bucket = (
        environment.get("ENABLE_ARCHIVAL", "").lower(),
        environment.get("ARCHIVE_BUCKET_NAME", ""),
    )
    if wanted in ("false", "0", ""):
        return None
    if wanted not in ("true", "1"):
        raise ValidationError("ENABLE_ARCHIVAL", wanted, "use true or false")
    if not bucket:
        raise ValidationError("ARCHIVE_BUCKET_NAME", bucket, "name the bucket, or set ENABLE_ARCHIVAL=false")
    return S3Archive(bucket)


@functools.cache
def service() -> FunctionState:
    """Made once for each instance of the function."""
    if not logger.handlers:
        logger.addHandler(lines := logging.StreamHandler())
        lines.setFormatter(JsonLines())
        logger.setLevel(logging.INFO)
        logger.propagate = False
    if not (table := os.environ.get("TABLE_NAME", "")):
        raise ValidationError("TABLE_NAME", table, "set it to the name of the table")
    world = World().for_store()
    backend = open_backend(f"dynamodb://{table}", sync=True, world=world, timeout_ms=TIMEOUT_MS)
    return FunctionState(backend, world, settings_from(os.environ), archive_from(os.environ))


def handler(event: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
    """Process one batch of a table's stream."""
    backend, world, settings, archive = service()
    request_id = str(getattr(context, "aws_request_id", None) or world.new_ulid())
    records = event.get("Records", []) if isinstance(event, Mapping) else None
    if not isinstance(records, list):
        raise ValidationError("event", event, "a batch of a stream has a list of Records")
    tally = run_sync(process_stream_records(records, backend, world, settings, archive, request_id))
    logger.info("batch", extra={"request_id": request_id, "failed": len(tally.failed), **tally.counts()})
    failures = [{"itemIdentifier": sequence} for sequence in sorted(tally.failed, key=lambda s: int(s or 0))]
    told = {"refills_written": tally.refills_written, "passed_over": tally.passed_over}
    return {"batchItemFailures": failures, **told}
