"""Usage rows as sets of changes: pure, and indifferent to how often and in which order they come.

A row counts one window of one bucket. Beside its counters it keeps, in one text, which versions of which
shards they are made of. A change that is in there counts no more, so a row is always the sum over the
*set* of changes that reached it: replaying, duplicating, reordering or splitting batches ends in the
same row. Versions are consecutive, so the set is nearly always one run per shard, a few bytes.

Counters are whole tokens; what a sharded bucket consumed in fractions is kept until it makes a whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from zae_limiter.exceptions import ValidationError, shown
from zae_limiter.models import UsageWindow
from zae_limiter.naming import validate_limit_name
from zae_limiter.repository_protocol import Equal, Item, Key, Update, Value
from zae_limiter.schema import MOVED, bucket_limit_names, limit_attributes, number, parse_bucket_pk, text
from zae_limiter.schema_records import USAGE_SEEN, usage_counter, usage_counters, usage_row, window_of

from .changes import IN_ORDER, Change

SEEN, REST = USAGE_SEEN, "_rest"
"""What a row keeps for itself: the versions it counted, and the millitokens that make no whole token."""

DAY_SECONDS = 86_400
LIVES_MAX = 64
"""How many buckets of the same key, one after another, a row tells apart. Older ones are closed."""

RUNS_MAX = 1_000
"""How many gaps a row remembers in the versions of one bucket item; then the oldest gap is given up."""

ROW_RUNS_MAX = 4_000
"""The same for a whole row, which must stay well below what one item can hold."""

COUNTERS_MAX = 1_000
"""How many limits a row counts: whoever keeps renaming them must not outgrow it."""

Run: TypeAlias = tuple[int, int]
Seen: TypeAlias = dict[tuple[int, int], list[Run]]
"""By shard and life the runs of versions that were counted: after the first number, up to the second."""


class Sheet(NamedTuple):
    """One usage row and the changes of a batch that belong in it."""

    key: Key
    attributes: dict[str, Value]
    changes: list[Change]


def extract_deltas(change: Change) -> dict[str, int]:
    """What a change consumed by limit, in millitokens; negative if it gave back.

    A limit that was not there before starts at nothing, and one that is gone consumed nothing. A bucket
    that came from an older table was counted there.
    """
    if change.new is None or (change.old is None and MOVED in change.new):
        return {}
    old = change.old or {}
    held = bucket_limit_names(old)
    deltas = {}
    for name in filter(_is_counted, bucket_limit_names(change.new)):
        count = limit_attributes(name).tc
        before = number(old, count) if name in held else 0
        if delta := number(change.new, count) - before:
            deltas[name] = delta
    return deltas


@lru_cache(4096)
def _is_counted(name: str) -> bool:
    """Whether a limit can have been configured; a bucket may hold what strangers wrote."""
    try:
        return bool(validate_limit_name(name))
    except ValidationError:
        return False


def is_event(change: Change) -> bool:
    """Whether a change is use of the bucket, and not a split, a refill or a longer life."""
    return change.new is not None and (change.span.life != IN_ORDER or bool(extract_deltas(change)))


def sheets_of(
    changes: Iterable[Change], windows: Sequence[UsageWindow], retention_days: int | None
) -> list[Sheet]:
    """The rows that some changes belong in: one for each bucket, kind of window and window."""
    sheets: dict[Key, Sheet] = {}
    for change in changes:
        if not is_event(change):
            continue
        bucket = parse_bucket_pk(change.key.partition)
        for window in windows:
            place = bucket.namespace_id, bucket.entity_id, bucket.resource, window, change.at_ms
            key, attributes = usage_row(*place)
            if key not in sheets:
                if retention_days is not None:
                    attributes["ttl"] = _expiry(window, change.at_ms, retention_days)
                sheets[key] = Sheet(key, attributes, [])
            sheets[key].changes.append(change)
    return list(sheets.values())


def update_snapshot(sheet: Sheet, row: Item | None) -> Update | None:
    """The write that brings a row up to date, on condition that nobody else did; ``None`` if it is."""
    row = row or {}
    if SEEN in row and text(row, SEEN) is None:
        raise ValueError(f"{SEEN} is {shown(row[SEEN])}")
    seen = read_seen(text(row, SEEN))
    rest = row.get(REST)
    remainders = rest if isinstance(rest, dict) else {}
    counted = usage_counters(row)
    totals: dict[str, int] = {}
    events = 0
    for change in sorted(sheet.changes, key=lambda change: change.span):
        if not _note(seen, change):
            continue
        events += 1
        for name, delta in extract_deltas(change).items():
            if name not in totals:
                if name not in counted and len({*counted, *totals}) >= COUNTERS_MAX:
                    continue
                totals[name] = counted.get(name, 0) * 1000 + number(remainders, name)
            totals[name] += delta
    if not events:
        return None
    set_: dict[str, Value] = dict(sheet.attributes) if not row else {}
    set_ |= {usage_counter(name): total // 1000 for name, total in totals.items()}
    left = {**remainders, **{name: total % 1000 for name, total in totals.items()}}
    left = {name: milli for name, milli in sorted(left.items()) if milli}
    if left != remainders:
        set_[REST] = left or None
    set_["total_events"] = number(row, "total_events") + events
    set_[SEEN] = write_seen(_shortened(seen))
    return Update(sheet.key, set=set_, when=(Equal(SEEN, text(row, SEEN)),))


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


def _shortened(seen: Seen) -> Seen:
    """The same without gaps, if there are more of them than one row can note."""
    if sum(map(len, seen.values())) <= ROW_RUNS_MAX:
        return seen
    return {place: [(runs[0][0], runs[-1][1])] for place, runs in seen.items()}


def write_seen(seen: Seen) -> str:
    return ";".join(
        f"{shard_id}@{life}:" + ",".join(f"{since}-{until}" for since, until in runs)
        for (shard_id, life), runs in sorted(seen.items())
    )


def gaps_of(row: Item) -> int:
    """How many stretches of versions are missing between those that a row counted."""
    return sum(len(runs) - 1 for runs in read_seen(text(row, SEEN)).values())


def _note(seen: Seen, change: Change) -> bool:
    """Add a change to those that were counted; false if it is one of them."""
    shard_id = parse_bucket_pk(change.key.partition).shard_id
    life, since, until = change.span
    runs = seen.get((shard_id, life), [])
    if any(first < until <= last for first, last in runs):
        return False
    lives = sorted(known for shard, known in seen if shard == shard_id and known != IN_ORDER)
    if not runs and life != IN_ORDER and len(lives) >= LIVES_MAX:
        if life < lives[0]:
            return False
        del seen[shard_id, lives[0]]
    seen[shard_id, life] = _joined([*runs, (since, until)])
    return True


def _joined(runs: list[Run]) -> list[Run]:
    """Runs in order, those that touch made one."""
    joined: list[Run] = []
    for since, until in sorted(runs):
        if joined and since <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], until)
        else:
            joined.append((since, until))
    if len(joined) > RUNS_MAX:
        joined[:2] = [(joined[0][0], joined[1][1])]
    return joined


def _expiry(window: UsageWindow, at_ms: int, retention_days: int) -> int:
    """When the row of a window may go, by the end of the window: every delivery says the same."""
    end = datetime.fromisoformat(window_of(window, at_ms)[2])
    return int(end.timestamp()) + retention_days * DAY_SECONDS
