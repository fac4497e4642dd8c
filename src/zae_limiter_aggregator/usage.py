"""Usage rows as sets of changes: pure, and indifferent to how often and in which order they come.

A row counts one window of one bucket. Beside its counters it keeps, in one text, which versions of which
shards they are made of. A change that is in there counts no more, so a row is always the sum over the
*set* of changes that reached it: replaying, duplicating, reordering or splitting batches ends in the
same row. Versions are consecutive, so the set is nearly always one run per shard, a few bytes.

A row has a budget of bytes, whatever its bucket does. What it gives up for that counts too little later,
never twice, and is told. Counters are whole tokens; fractions are kept until they make a whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from zae_limiter.engine.bucket_view import shard_count
from zae_limiter.exceptions import ValidationError, shown
from zae_limiter.models import GENERATIONS_MAX, UsageWindow
from zae_limiter.naming import validate_limit_name
from zae_limiter.records.items import (
    USAGE_PASSED,
    USAGE_SEEN,
    usage_counter,
    usage_counters,
    usage_passed_milli,
    usage_row,
    window_of,
)
from zae_limiter.records.resolution import family_of
from zae_limiter.repository_protocol import Equal, Item, Key, Update, Value
from zae_limiter.schema import (
    MOVED,
    bucket_key,
    bucket_limit_names,
    limit_attributes,
    number,
    parse_bucket_pk,
    text,
)

from .changes import CLOSED, IN_ORDER, Change

SEEN, REST = USAGE_SEEN, "_rest"
"""What a row keeps for itself: the versions it counted, and the millitokens that make no whole token."""

DAY_SECONDS = 86_400
COUNTERS_MAX = 128  # how many limits a row counts, lest whoever keeps renaming them outgrow it
SEEN_BYTES_MAX = 32_000  # of the text of versions: a thousand gaps and more; then the oldest are closed
PASSED_BYTES_MAX = 6_000  # of what a row says of its parents: eighty and more, unless their names are long
ROW_BYTES_MAX = 64_000  # of a row: what is larger was planted, and each write to it costs

Run: TypeAlias = tuple[int, int]
Seen: TypeAlias = dict[tuple[int, int], list[Run]]
"""By shard and life the runs of versions that were counted: after the first number, up to the second."""


class Rung(NamedTuple):
    """Somebody above: the limits of its bucket, and whose bucket is charged together with it."""

    limits: frozenset[str]
    above: Key | None


Above: TypeAlias = Mapping[Key, Rung]
"""By the bucket of a parent: what leads on from there. Use of a limit that it has is charged to it too."""

NO_PARENTS: Above = MappingProxyType({})


class Sheet(NamedTuple):
    """One usage row and the changes of a batch that belong in it."""

    key: Key
    attributes: dict[str, Value]
    changes: list[Change]
    above: Above = NO_PARENTS


class RowUpdate(NamedTuple):
    """The write that brings a row up to date, and what the row gives up with it."""

    write: Update
    left_out: int  # amounts of limits, or charged to parents, beyond those that a row can name
    closed: int  # gaps and lives whose missing changes will count no more


def extract_deltas(change: Change) -> dict[str, int]:
    """What a change consumed by limit, in millitokens; negative if it gave back.

    A limit that was not there before starts at nothing, and one that is gone consumed nothing. What came from
    an older table or store was counted there, and what came back from another shard where that one was.
    """
    if change.new is None or is_move(change):
        return {}
    if change.old is not None and shard_count(change.new) < shard_count(change.old):
        return {}  # a merge
    old = change.old or {}
    held = bucket_limit_names(old)
    deltas = {}
    for name in filter(_is_counted, bucket_limit_names(change.new)):
        count = limit_attributes(name).tc
        before = number(old, count) if name in held else 0
        if delta := number(change.new, count) - before:
            deltas[name] = delta
    return deltas


def parent_bucket(change: Change) -> Key | None:
    """The bucket to which a change was charged too, if its own one cascades."""
    return bucket_above(change.key, *family_of(change.new))


def bucket_above(key: Key, parent_id: str | None, cascade: bool) -> Key | None:
    """The bucket that is charged together with another one, if that cascades."""
    at = parse_bucket_pk(key.partition)
    if parent_id is None or not cascade or parent_id == at.entity_id:
        return None
    return bucket_key(at.namespace_id, parent_id, at.resource)


def passed_to(change: Change, above: Above) -> tuple[dict[str, str], Key | None]:
    """Who was charged next for what a change consumed, by limit; and whom to look at to know more.

    Of those above that is the first who has the limit. It passes on to others what it was charged with, so
    its own row says the rest.
    """
    missing, found = set(extract_deltas(change)), dict[str, str]()
    at, met = parent_bucket(change), {bucket_key(*parse_bucket_pk(change.key.partition)[:3])}
    for _ in range(GENERATIONS_MAX):
        if not missing or at is None or at in met:
            break
        if (rung := above.get(at)) is None:
            return found, at
        found |= dict.fromkeys(missing & rung.limits, parse_bucket_pk(at.partition).entity_id)
        missing -= rung.limits
        met.add(at)
        at = rung.above
    return found, None


@lru_cache(4096)
def _is_counted(name: str) -> bool:
    """Whether a limit can have been configured; a bucket may hold what strangers wrote."""
    try:
        return bool(validate_limit_name(name))
    except ValidationError:
        return False


def is_move(change: Change) -> bool:
    """Whether a bucket came from elsewhere with this change: from an older table, or from another store."""
    return change.old is None and change.new is not None and MOVED in change.new


def is_event(change: Change) -> bool:
    """Whether a change is use of the bucket, and not a split, a refill, a longer life or a move."""
    if change.new is None or is_move(change):
        return False
    return change.span.life != IN_ORDER or bool(extract_deltas(change))


def sheets_of(
    changes: Iterable[Change],
    windows: Sequence[UsageWindow],
    retention_days: int | None,
    above: Above = NO_PARENTS,
) -> list[Sheet]:
    """The rows that some changes belong in: one for each bucket, kind of window and window."""
    sheets: dict[Key, Sheet] = {}
    for change in changes:
        if not is_event(change):
            continue
        bucket = parse_bucket_pk(change.key.partition)
        for window in windows:
            key, attributes = usage_row(*bucket[:3], window, change.at_ms)
            if key not in sheets:
                if retention_days is not None:  # by the end of the window, so every delivery says the same
                    end = datetime.fromisoformat(window_of(window, change.at_ms)[2])
                    attributes["ttl"] = int(end.timestamp()) + retention_days * DAY_SECONDS
                sheets[key] = Sheet(key, attributes, [], above)
            sheets[key].changes.append(change)
    return list(sheets.values())


def update_snapshot(sheet: Sheet, row: Item | None) -> RowUpdate | None:
    """What brings a row up to date, on condition that nobody else did; ``None`` if it is.

    A row that cannot be ours, or would outgrow its budget, is a ``ValueError``.
    """
    row = row or {}
    _check_size(row)
    if SEEN in row and text(row, SEEN) is None:
        raise ValueError(f"{SEEN} is {shown(row[SEEN])}")
    seen = read_seen(text(row, SEEN))
    counted, passed = usage_counters(row), usage_passed_milli(row)
    remainders = _remainders(row, counted)
    totals: dict[str, int] = {}
    if (size := _bytes_of(passed)) > PASSED_BYTES_MAX:
        raise ValueError(f"{USAGE_PASSED} holds {size} bytes, at most {PASSED_BYTES_MAX} are ours")
    events = left_out = 0
    for change in sorted(sheet.changes, key=lambda change: change.span):
        if not _note(seen, change):
            continue
        events += 1
        shared, _ = passed_to(change, sheet.above)
        for name, delta in extract_deltas(change).items():
            parent_id = shared.get(name)
            if not _has_room(name, counted, totals) or (
                parent_id is not None and not _has_room_above(name, parent_id, passed)
            ):
                left_out += 1
                continue
            before = counted.get(name, 0) * 1000 + remainders.get(name, 0)
            totals[name] = totals.get(name, before) + delta
            if parent_id is not None:
                amounts = passed.setdefault(parent_id, {})
                amounts[name] = amounts.get(name, 0) + delta
    if not events:
        return None
    set_: dict[str, Value] = dict(sheet.attributes) if not row else {}
    set_ |= {usage_counter(name): total // 1000 for name, total in totals.items()}
    left = {**remainders, **{name: total % 1000 for name, total in totals.items()}}
    left = {name: milli for name, milli in sorted(left.items()) if milli}
    if left != row.get(REST, {}):
        set_[REST] = dict(left) or None
    if passed != usage_passed_milli(row):
        set_[USAGE_PASSED] = {above: dict(sorted(of.items())) for above, of in sorted(passed.items())}
    set_["total_events"] = number(row, "total_events") + events
    closed = shorten(seen)
    set_[SEEN] = write_seen(seen)
    _check_size({**row, **set_})
    return RowUpdate(Update(sheet.key, set=set_, when=(Equal(SEEN, text(row, SEEN)),)), left_out, closed)


def _has_room(name: str, counted: dict[str, int], totals: dict[str, int]) -> bool:
    """Whether a row can count a limit, and one more in this write."""
    if name in totals:
        return True
    return len(totals) < COUNTERS_MAX and (name in counted or len({*counted, *totals}) < COUNTERS_MAX)


def _has_room_above(name: str, parent_id: str, passed: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a row can say how much of a limit was charged to a parent."""
    if name in passed.get(parent_id, ()):
        return True
    return _bytes_of(passed) + _bytes_of({parent_id: {name: 0}}) <= PASSED_BYTES_MAX


def _remainders(row: Item, counted: dict[str, int]) -> dict[str, int]:
    """The millitokens that a row keeps for its counters; what else is there somebody planted."""
    rest = row.get(REST)
    kept = {name: number(rest, name) for name in counted} if isinstance(rest, dict) else {}
    return {name: milli for name, milli in kept.items() if 0 < milli < 1000}


def _check_size(row: Item) -> None:
    if (size := _bytes_of(row)) > ROW_BYTES_MAX:
        raise ValueError(f"it holds {size} bytes, and a row has at most {ROW_BYTES_MAX}")


def _bytes_of(value: Any) -> int:
    """About as many bytes as DynamoDB counts for a value, never less."""
    if isinstance(value, str | bytes):
        return len(value.encode(errors="replace") if isinstance(value, str) else value)
    if isinstance(value, Mapping):
        return 3 + sum(1 + _bytes_of(name) + _bytes_of(inner) for name, inner in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return 3 + sum(1 + _bytes_of(inner) for inner in value)
    return 21  # a number, or less


# Which versions were counted.


def read_seen(text: str | None) -> Seen:
    """Read ``shard@life:0-57,60-61;…`` back; a row that has none has seen nothing."""
    seen: Seen = {}
    for part in text.split(";") if text else ():
        place, _, runs = part.partition(":")
        shard_id, _, life = place.partition("@")
        ends = [run.partition("-") for run in runs.split(",")]
        seen[int(shard_id), int(life)] = [(int(since), int(until)) for since, _, until in ends]
    return seen


def shorten(seen: Seen) -> int:
    """Close gaps, and then lives, the oldest first, until a row can keep the rest; how many were closed.

    Half of them go at a time, so that it does not happen again with the next change.
    """
    halves = [2**power for power in range(11, -1, -1)]
    closed = 0
    for close, kept in [(_close_gaps, n) for n in (*halves, 0)] + [(_close_lives, n) for n in halves]:
        if len(write_seen(seen)) <= SEEN_BYTES_MAX:
            break
        closed += close(seen, kept)
    return closed


def _close_gaps(seen: Seen, kept: int) -> int:
    """Keep so many gaps of each life: the versions in the older ones are taken as counted."""
    closed = 0
    for runs in seen.values():
        if (many := len(runs) - 1 - kept) > 0:
            runs[: many + 1] = [(runs[0][0], runs[many][1])]
            closed += many
    return closed


def _close_lives(seen: Seen, kept: int) -> int:
    """Keep so many lives of each shard: the older ones are taken as counted, also those that never came."""
    closed = 0
    for shard_id in {shard_id for shard_id, _ in seen}:
        lives = sorted(life for shard, life in seen if shard == shard_id and life >= 0)[:-kept]
        for life in lives:
            del seen[shard_id, life]
        if lives:
            seen[shard_id, CLOSED] = [(0, lives[-1])]
        closed += len(lives)
    return closed


def write_seen(seen: Seen) -> str:
    return ";".join(
        f"{shard_id}@{life}:" + ",".join(f"{since}-{until}" for since, until in runs)
        for (shard_id, life), runs in sorted(seen.items())
    )


def _note(seen: Seen, change: Change) -> bool:
    """Add a change to those that were counted; false if it is one of them."""
    shard_id = parse_bucket_pk(change.key.partition).shard_id
    life, since, until = change.span
    runs = seen.get((shard_id, life), [])
    if any(first < until <= last for first, last in runs):
        return False
    if 0 <= life <= max((last for _, last in seen.get((shard_id, CLOSED), ())), default=-1):
        return False
    joined: list[Run] = []
    for first, last in sorted([*runs, (since, until)]):  # those that touch become one
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    seen[shard_id, life] = joined
    return True
