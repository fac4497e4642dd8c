"""How old records are moved, whatever their kind: one transaction moves them, or leaves them as they were.

Records without a namespace get a mark, on condition that they are still what was read and have no mark
yet. Others are rewritten where they are, on condition that they lack still what they lacked. So a record is
moved exactly once, by whichever process gets there first.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ...repository_protocol import TRANSACT_WRITES_MAX, Equal, Exists, Item, Key, Query, Update, Write
from ...schema import pinned
from .shapes import MOVED_TO, SUPERSEDED, Kind, OldRecord

_CHANGING = {
    Kind.BUCKET: re.compile(r".*_tk|rf|tokens_milli|last_refill_ms", re.DOTALL),
    Kind.LIMITS: re.compile(r"config_version|capacity|burst|refill_amount|refill_period_seconds"),
    Kind.ENTITY: re.compile(r"version"),
    Kind.USAGE: re.compile(r"(?!ttl\Z).*", re.DOTALL),
}
"""Which numbers older clients change; few are named, for a condition may not be too long."""


class Context(NamedTuple):
    """What a translation depends on beside the records."""

    namespace_id: str
    now_ms: int
    is_metered: bool = False
    """Whether the store counts the writes to a bucket, because its partitions can become hot."""
    has_shares: bool = True
    """Whether the first shard of an older bucket keeps to its share when there are others."""


class Move(NamedTuple):
    """The writes that move some old records to a new one; all of them or none."""

    records: Sequence[OldRecord]
    target: Key | None
    """The new record; ``None`` if none was needed."""
    writes: tuple[Write, ...] = ()
    counts: tuple[Update, ...] = ()
    """They only add to counters, so those of several moves can be added up."""
    is_aside: bool = False
    """It belongs to a move, and moves no record itself."""


Group: TypeAlias = Sequence[OldRecord]
"""Old records that become one record."""

Images: TypeAlias = Mapping[Key | Query, Item | None]
"""Records as they are; of a query the first one that it finds."""

Translation: TypeAlias = Generator[Sequence[Key | Query], Images, Sequence[Move]]
"""Says which records it has to see, is sent these, and returns how a group is moved, step by step."""


def moved(group: Group, target: Key, writes: Iterable[Write], counts: Iterable[Update] = ()) -> Move:
    """Old records that become one, and are marked."""
    marks = [mark(record, f"{target.partition} {target.sort}") for record in group]
    return Move(group, target, (*writes, *marks), tuple(counts))


def superseded(group: Group, writes: Iterable[Write] = ()) -> Move:
    """Old records in whose place there is something newer."""
    return Move(group, None, (*(mark(record, SUPERSEDED) for record in group), *writes))


def mark(record: OldRecord, where: str) -> Update:
    return Update(record.key, set={MOVED_TO: where}, when=(*unchanged(record, MOVED_TO), *pins(record)))


def pins(record: OldRecord) -> Iterator[Equal]:
    """That the record is still what was read, as far as older clients change it."""
    changing = _CHANGING.get(record.kind)
    for name, value in record.item.items():
        if type(value) is int and changing is not None and changing.fullmatch(name):
            yield Equal(name, value)
    if isinstance(data := record.item.get("data"), dict):
        yield Equal("data", data)  # type: ignore[arg-type]  # every store compares maps


def unchanged(record: OldRecord, *names: str) -> tuple[Exists | Equal, ...]:
    """That a record is there, and that these attributes of it are what was read."""
    return (Exists(), *(pin for name in names for pin in pinned(record.item, name)))


def packed(moves: Iterable[Move]) -> list[list[Move]]:
    """Moves in bundles that fit into one transaction each, in order; no bundle writes a key twice."""
    bundles: list[list[Move]] = []
    taken: set[Key] = set()
    written: set[Key] = set()
    for move in moves:
        own, counted = ({write.key for write in writes} for writes in (move.writes, move.counts))
        fits = len(taken | own | counted) <= TRANSACT_WRITES_MAX
        if not bundles or own & taken or counted & written or not fits:
            bundles.append([])
            taken, written = set(), set()
        bundles[-1].append(move)
        taken |= own | counted
        written |= own
    return bundles


def writes_of(bundle: Sequence[Move]) -> list[Write]:
    """The writes of a bundle, counts of the same key added up."""
    totals: dict[Key, Update] = {}
    for count in (count for move in bundle for count in move.counts):
        before = totals[count.key].add if count.key in totals else {}
        added = {name: amount + before.get(name, 0) for name, amount in count.add.items()}
        totals[count.key] = count._replace(add=added)
    return [*(write for move in bundle for write in move.writes), *totals.values()]
