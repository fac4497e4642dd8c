"""One batch from beginning to end: usage first, then the health of buckets, then the archive.

Whatever is not certain to be stored is reported by the name of its record, to be delivered again; that
costs nothing but the work, because usage counts every change once. What would not be understood the
next time either is told and passed over: all tenants share a stream, and nobody may hold it up. Trouble
with the health of a bucket is no reason to repeat a batch: the next one looks again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zae_limiter.exceptions import RateLimiterUnavailable, shown
from zae_limiter.models import UsageWindow
from zae_limiter.repository_protocol import Backend, Item, Key, Update
from zae_limiter.world import World

from .archiver import Archive, archive_events
from .buckets import (
    BucketActivity,
    aggregate_bucket_states,
    propagate_shard_count,
    try_proactive_shard,
    try_refill_bucket,
)
from .changes import Change, Expired, change_of, sequence_of
from .usage import Sheet, sheets_of, update_snapshot

logger = logging.getLogger("zae_limiter_aggregator")

ATTEMPTS_MAX = 8
"""How often a row is tried that others write at the same time."""

FAILURES_MAX = 2
"""How often a store may fail to answer before a batch is given back."""

RETENTION_DAYS = 90


@dataclass(frozen=True, slots=True)
class Settings:
    """What to count, how long to keep it, and whether to look after buckets."""

    windows: tuple[UsageWindow, ...] = (UsageWindow.HOURLY, UsageWindow.DAILY)
    retention_days: int | None = RETENTION_DAYS
    tend_buckets: bool = True


@dataclass
class Tally:
    """What became of a batch."""

    records: int = 0
    changes: int = 0
    rows_written: int = 0
    refills_written: int = 0
    splits: int = 0
    archived: int = 0
    passed_over: int = 0
    """Records that are not ours, and changes whose usage row is not."""
    troubles: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Why a record has to be delivered again, by its sequence number."""

    def add(self, other: Tally) -> None:
        for name, count in other.counts().items():
            setattr(self, name, getattr(self, name) + count)
        self.failed |= other.failed

    def counts(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if name != "failed"}


async def process_stream_records(
    records: Sequence[Mapping[str, Any]],
    backend: Backend,
    world: World,
    settings: Settings,
    archive: Archive | None = None,
    request_id: str = "",
) -> Tally:
    """Process the records of a DynamoDB stream."""
    changes: list[Change] = []
    expired: list[Expired] = []
    unreadable: dict[str, str] = {}
    for record in records:
        sequence = sequence_of(record)
        try:
            found = change_of(record)
        except Exception as error:  # whatever is wrong with it, the others are not to blame
            unreadable[sequence] = f"unreadable: {shown(error)}"
            continue
        if not sequence:
            unreadable[sequence] = "it has no sequence number"
        elif isinstance(found, Change):
            changes.append(found)
        elif found is not None:
            expired.append(found)
    tally = await process_changes(changes, backend, world, settings)
    tally.records = len(records)
    for sequence, reason in unreadable.items():
        if sequence:
            _pass_over(tally, [sequence], reason)
        else:  # no stream brings such a record, so whoever did is told that the batch failed as a whole
            tally.failed[sequence] = reason
    if archive is not None:
        _keep(archive, expired, request_id, tally)
    for sequence, reason in tally.failed.items():
        logger.error("record failed", extra={"sequence": sequence, "reason": reason})
    return tally


async def process_changes(
    changes: Sequence[Change], backend: Backend, world: World, settings: Settings
) -> Tally:
    """Count the changes of a batch, and look after the buckets that it shows."""
    tally = Tally(len(changes), len(changes))
    await write_usage(sheets_of(changes, settings.windows, settings.retention_days), backend, tally)
    if settings.tend_buckets:
        for bucket in aggregate_bucket_states(changes).values():
            await _tend(bucket, backend, world, tally)
    return tally


async def write_usage(sheets: Iterable[Sheet], backend: Backend, tally: Tally) -> None:
    """Bring rows up to date: one read for all of them, one write for each that changed.

    A refused write brings back the row that somebody else wrote meanwhile. One that got no answer may
    have happened or not, which the row itself tells.
    """
    owed = {sheet.key: sheet for sheet in sheets}
    rows: dict[Key, Item | None] = {}
    reason, failures = "", 0
    for _ in range(ATTEMPTS_MAX):
        if failures == FAILURES_MAX:
            break
        try:
            unknown = [key for key in owed if key not in rows]
            if unknown:
                rows |= zip(unknown, await backend.batch_get(unknown), strict=True)
        except RateLimiterUnavailable as error:
            reason, failures = str(error), failures + 1
            continue
        writes = _writes(owed, rows, tally)
        if not writes:
            return
        outcomes = await backend.write_each(writes)
        failures += any(outcome.failure is not None for outcome in outcomes)
        for write, outcome in zip(writes, outcomes, strict=True):
            if outcome.applied:
                tally.rows_written += 1
                del owed[write.key]
            elif outcome.failure is not None:
                reason = str(outcome.failure)
                del rows[write.key]
            else:
                reason = "somebody else kept writing the row"
                rows[write.key] = outcome.item
    for sheet in owed.values():
        _fail(tally, sheet, f"usage row {sheet.key.sort!r} was not written: {reason}")


def _writes(owed: dict[Key, Sheet], rows: Mapping[Key, Item | None], tally: Tally) -> list[Update]:
    """The writes that are still owed; what is up to date or beyond repair is owed no more."""
    writes = []
    for key, sheet in list(owed.items()):
        try:
            write = update_snapshot(sheet, rows[key])
        except ValueError as error:
            sequences = [change.sequence for change in sheet.changes]
            _pass_over(tally, sequences, f"usage row {key.sort!r} is damaged: {shown(error)}")
            write = None
        if write is None:
            del owed[key]
        else:
            writes.append(write)
    return writes


def _fail(tally: Tally, sheet: Sheet, reason: str) -> None:
    tally.failed |= dict.fromkeys((change.sequence for change in sheet.changes), reason)


def _pass_over(tally: Tally, sequences: Sequence[str], reason: str) -> None:
    tally.passed_over += len(sequences)
    logger.error("passed over", extra={"sequences": sequences, "reason": reason})


async def _tend(bucket: BucketActivity, backend: Backend, world: World, tally: Tally) -> None:
    try:
        splits = 0
        if backend.capabilities.hot_partitions:
            splits += await try_proactive_shard(backend, world, bucket)
            splits += await propagate_shard_count(backend, world, bucket)
            tally.splits += splits
        if not splits:  # a split is a refill too
            tally.refills_written += await try_refill_bucket(backend, world, bucket)
    except Exception as error:  # a store that is away, or numbers that are not ours
        tally.troubles += 1
        logger.warning("bucket not tended", extra={"bucket": bucket.key.partition, "reason": shown(error)})


def _keep(archive: Archive, expired: Sequence[Expired], request_id: str, tally: Tally) -> None:
    """Archive the events that will not be delivered again.

    A stream goes back to the first record that failed, so what stands behind it comes again by itself.
    """
    again_from = min((int(sequence or 0) for sequence in tally.failed), default=None)
    due = [event for event in expired if again_from is None or int(event.sequence) < again_from]
    try:
        name = archive_events(archive, due, request_id)
    except Exception as error:  # whatever keeps the file from being kept, the events must not be lost
        tally.failed |= dict.fromkeys((event.sequence for event in due), f"not archived: {shown(error)}")
        return
    if name is not None:
        tally.archived += len(due)
        logger.info("archived", extra={"object": name, "events": len(due)})
