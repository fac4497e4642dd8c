"""One batch from beginning to end: usage first, then the health of buckets, then the archive.

Whatever is not certain to be stored is reported by the name of its record, to be delivered again; that
costs nothing but the work, because usage counts every change once. What would not be understood the next
time either, and what can never be stored, is told and passed over: all tenants share a stream, and nobody may
hold it up. Trouble with the health of a bucket is no reason to repeat a batch: the next one looks again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from zae_limiter.exceptions import RateLimiterUnavailable, ValidationError, shown
from zae_limiter.models import LIMITS_MAX, UsageWindow
from zae_limiter.records.resolution import cascade_policy, family_of, level_keys
from zae_limiter.repository_protocol import Backend, Item, Key, Outcome, Update
from zae_limiter.runtime.world import World
from zae_limiter.schema import bucket_limit_names, entity_key, parse_bucket_pk

from .archiver import Archive, archive_events
from .buckets import (
    BucketActivity,
    aggregate_bucket_states,
    propagate_shard_count,
    try_cool_down,
    try_proactive_shard,
    try_refill_bucket,
)
from .changes import Change, Expired, change_of, sequence_of
from .usage import (
    Above,
    RowUpdate,
    Rung,
    Sheet,
    bucket_above,
    extract_deltas,
    parent_bucket,
    passed_to,
    sheets_of,
    update_snapshot,
)

T = TypeVar("T")
logger: Final = logging.getLogger("zae_limiter_aggregator")

BATCH_RECORDS_MAX = 1_000
ATTEMPTS_MAX = 8  # how often a row is tried that others write at the same time
FAILURES_MAX = 2  # how often a store may fail to answer about a row before its records are given back
ROWS_AT_ONCE = 25  # not more than one answer can hold, however large somebody made them
TENDING_MS_MAX = 10_000  # for all buckets of a batch: slow ones must not keep the stream waiting


@dataclass(frozen=True, slots=True)
class AggregatorSettings:
    """What to count, how long to keep it, and whether to look after buckets."""

    windows: tuple[UsageWindow, ...] = (UsageWindow.HOURLY, UsageWindow.DAILY)
    retention_days: int | None = 90
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
    passed_over: int = 0  # records that are not ours, and changes whose usage row can never be stored
    left_out: int = 0  # amounts of limits, or charged to parents, beyond those that a usage row can name
    closed: int = 0  # gaps and lives that a usage row gave up to stay within its budget
    merges: int = 0
    troubles: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # why a record has to be delivered again, by number

    @property
    def again_from(self) -> int | None:
        """The first record that failed. A stream goes back to it, so what stands behind it comes again."""
        return min((int(sequence or 0) for sequence in self.failed), default=None)

    def add(self, other: Tally) -> None:
        """Count what became of another batch, too."""
        for name, count in other.counts().items():
            setattr(self, name, getattr(self, name) + count)
        self.failed |= other.failed

    def counts(self) -> dict[str, int]:
        """All but why records failed, by name."""
        return {name: value for name, value in vars(self).items() if name != "failed"}


async def process_stream_records(
    records: Sequence[Mapping[str, Any]],
    backend: Backend,
    world: World,
    settings: AggregatorSettings,
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
    if (
        "" in unreadable
    ):  # no stream brings such a record: whoever did is told that the batch failed as a whole
        tally.failed[""] = unreadable.pop("")
    for sequence, reason in unreadable.items():
        _pass_over(tally, [sequence], reason)
    if archive is not None:
        _keep(archive, expired, request_id, tally)
    for sequence, reason in tally.failed.items():
        logger.error("record failed", extra={"sequence": sequence, "reason": reason})
    return tally


async def process_changes(
    changes: Sequence[Change], backend: Backend, world: World, settings: AggregatorSettings
) -> Tally:
    """Count the changes of a batch, and look after the buckets that it shows."""
    tally = Tally(len(changes), len(changes))
    ours = [change for change in changes if _is_ours(change, tally)]
    above = await _limits_above(ours, backend, tally)
    told = [change for change in ours if change.sequence not in tally.failed]
    for sheets in _parts(sheets_of(told, settings.windows, settings.retention_days, above)):
        await _write_rows(sheets, backend, tally)
    if settings.tend_buckets:
        until_ms = world.ticks_ms() + TENDING_MS_MAX
        for bucket in aggregate_bucket_states(ours).values():
            if world.ticks_ms() >= until_ms:
                break
            await _tend(bucket, backend, world, tally)
    return tally


async def _limits_above(changes: Sequence[Change], backend: Backend, tally: Tally) -> Above:
    """Which limits those have above to whom changes were charged too.

    They are read, as far up as it takes to find every limit; where a bucket is gone by now its last image may
    be in the batch itself. Without an answer nothing of those below is counted, not even what was charged to
    nobody else: a row that follows a log in order takes whatever came before a change as counted. What is
    delivered again counts then.
    """
    batch = {change.key: change.new or change.old for change in changes}
    found: dict[Key, Rung] = {}
    wanted = [(change, parent) for change in changes if (parent := parent_bucket(change)) is not None]
    while wanted:
        for part in _parts(list(dict.fromkeys(key for _, key in wanted))):
            try:
                found |= await _rungs(part, batch, backend)
            except RateLimiterUnavailable as error:
                below = {change.key for change, key in wanted if key in part}
                owed = [change.sequence for change in changes if change.key in below]
                tally.failed |= dict.fromkeys(owed, f"the bucket of a parent was not read: {error}")
        told = [change for change, _ in wanted if change.sequence not in tally.failed]
        wanted = [(change, key) for change in told if (key := passed_to(change, found)[1]) is not None]
    return found


async def _rungs(keys: Sequence[Key], batch: Mapping[Key, Item | None], backend: Backend) -> dict[Key, Rung]:
    """Buckets as rungs of a family. Who has none may lead on all the same: its records say so."""
    images = dict(zip(keys, await backend.batch_get(keys), strict=True))
    known = {key: image or batch.get(key) for key, image in images.items()}
    records: dict[Key, list[Key]] = {}
    for key in (key for key, image in known.items() if image is None):
        space, entity_id, resource, _ = parse_bucket_pk(key.partition)
        records[key] = [entity_key(space, entity_id), *level_keys(space, entity_id, resource)]
    rungs = {}
    for key, image in known.items():
        family = family_of(image)
        if key in records:
            owner, *levels = await backend.batch_get(records[key])
            family = family_of(owner, cascade_policy(levels)[0])
        rungs[key] = Rung(frozenset(bucket_limit_names(image or {})), bucket_above(key, *family))
    return rungs


def _is_ours(change: Change, tally: Tally) -> bool:
    """Whether a client of ours can have written this: a bucket has no more limits than can be configured."""
    many = max(len(extract_deltas(change)), len(bucket_limit_names(change.new or {})))
    if many > LIMITS_MAX:
        reason = f"bucket {change.key.partition!r} has {many} limits, at most {LIMITS_MAX} count"
        _pass_over(tally, [change.sequence], reason)
    return many <= LIMITS_MAX


def _parts(of: Sequence[T]) -> Iterator[Sequence[T]]:
    return (of[at : at + ROWS_AT_ONCE] for at in range(0, len(of), ROWS_AT_ONCE))


async def _write_rows(sheets: Sequence[Sheet], backend: Backend, tally: Tally) -> None:
    """Bring some rows up to date, each until it is stored, given back or passed over.

    A refused write brings back the row that somebody else wrote meanwhile. One that got no answer may
    have happened or not, which the row itself tells.
    """
    owed = {sheet.key: sheet for sheet in sheets}
    rows: dict[Key, Item | None] = {}
    failures: Counter[Key] = Counter()
    reasons: dict[Key, str] = {}
    for _ in range(ATTEMPTS_MAX):
        for key in [key for key in owed if failures[key] == FAILURES_MAX]:
            _fail(tally, owed.pop(key), reasons)
        unknown = [key for key in owed if key not in rows]
        try:
            rows |= zip(unknown, await backend.batch_get(unknown), strict=True) if unknown else ()
        except RateLimiterUnavailable as error:
            failures.update(unknown)
            reasons |= dict.fromkeys(unknown, str(error))
        updates = _updates(owed, rows, tally)
        outcomes = await _written(backend, [update.write for update in updates.values()])
        for (key, update), outcome in zip(updates.items(), outcomes, strict=True):
            if outcome.applied:
                del owed[key]
                tally.rows_written += 1
                tally.left_out += update.left_out
                tally.closed += update.closed
                if update.left_out or update.closed:
                    given_up = {"left_out": update.left_out, "closed": update.closed}
                    logger.warning("usage row is full", extra={"row": tuple(key), **given_up})
            elif outcome.failure is None:
                rows[key], reasons[key] = outcome.item, "somebody else kept writing the row"
            elif outcome.failure.impossible:
                _pass_over_row(tally, owed.pop(key), f"can never be written: {outcome.failure}")
            else:
                failures[key] += 1
                reasons[key] = str(outcome.failure)
                del rows[key]
        if not owed:
            return
    for sheet in owed.values():
        _fail(tally, sheet, reasons)


async def _written(backend: Backend, writes: Sequence[Update]) -> list[Outcome]:
    """What became of each write; one that no store takes does not keep the others from being written."""
    try:
        return await backend.write_each(writes) if writes else []
    except ValidationError as error:
        if len(writes) == 1:
            return [Outcome(False, None, failure=RateLimiterUnavailable(shown(error), impossible=True))]
        return [outcome for write in writes for outcome in await _written(backend, [write])]


def _updates(owed: dict[Key, Sheet], rows: Mapping[Key, Item | None], tally: Tally) -> dict[Key, RowUpdate]:
    """What is owed to the rows that are known; nothing any more if they are up to date or beyond repair."""
    updates = {}
    for key in [key for key in owed if key in rows]:
        try:
            update = update_snapshot(owed[key], rows[key])
        except ValueError as error:
            _pass_over_row(tally, owed.pop(key), f"is damaged: {shown(error)}")
            continue
        if update is None:
            del owed[key]
        else:
            updates[key] = update
    return updates


def _fail(tally: Tally, sheet: Sheet, reasons: Mapping[Key, str]) -> None:
    reason = f"usage row {sheet.key.sort!r} was not written: {reasons.get(sheet.key, '')}"
    tally.failed |= dict.fromkeys((change.sequence for change in sheet.changes), reason)


def _pass_over_row(tally: Tally, sheet: Sheet, reason: str) -> None:
    row = f"usage row {sheet.key.sort!r} of {sheet.key.partition!r}"
    _pass_over(tally, [change.sequence for change in sheet.changes], f"{row} {reason}")


def _pass_over(tally: Tally, sequences: Sequence[str], reason: str) -> None:
    tally.passed_over += len(sequences)
    logger.error("passed over", extra={"sequences": sequences, "reason": reason})


async def _tend(bucket: BucketActivity, backend: Backend, world: World, tally: Tally) -> None:
    here = backend, world, bucket
    try:
        if backend.capabilities.hot_partitions:
            splits = await try_proactive_shard(*here) + await propagate_shard_count(*here)
            tally.splits += splits
            if splits:  # which are refills too
                return
            tally.merges += await try_cool_down(*here)
        tally.refills_written += await try_refill_bucket(*here)
    except Exception as error:  # a store that is away, or numbers that are not ours
        tally.troubles += 1
        logger.warning("bucket not tended", extra={"bucket": bucket.key.partition, "reason": shown(error)})


def _keep(archive: Archive, expired: Sequence[Expired], request_id: str, tally: Tally) -> None:
    """Archive the events that will not be delivered again."""
    again_from = tally.again_from
    due = [event for event in expired if again_from is None or int(event.sequence) < again_from]
    try:
        name = archive_events(archive, due, request_id)
    except Exception as error:  # whatever keeps the file from being kept, the events must not be lost
        tally.failed |= dict.fromkeys((event.sequence for event in due), f"not archived: {shown(error)}")
        return
    if name is not None:
        tally.archived += len(due)
        logger.info("archived", extra={"object": name, "events": len(due)})
