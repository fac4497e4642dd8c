"""What moving an old record means, whatever its kind: one transaction that writes the new and marks the old.

The mark is set on condition that the old record is still what was read and has no mark yet. So a record
is moved exactly once, by whichever process gets there first, and whoever is killed leaves it either
not moved or moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...repository_protocol import TRANSACT_WRITES_MAX, Condition, Equal, Exists, Key, Update, Write
from .shapes import COUNTED, MOVED_TO, SUPERSEDED, Kind, Source


class Context(NamedTuple):
    """What a translation depends on beside the records."""

    namespace_id: str
    now_ms: int
    is_metered: bool = False
    """Whether the store counts the writes to a bucket, because its partitions can become hot."""
    has_shares: bool = True
    """Whether the first shard of an older bucket keeps to its share when there are others."""


class Move(NamedTuple):
    """The writes that move some old records to a new one; all of them or none.

    ``counts`` only add to counters, so those of several moves can be added up.
    """

    sources: tuple[Source, ...]
    target: Key | None
    """The new record; ``None`` if none was needed."""
    writes: tuple[Write, ...] = ()
    counts: tuple[Update, ...] = ()
    is_count: bool = False
    """It moves nothing, but makes a parent count a child that was moved."""

    def keys(self) -> set[Key]:
        return {write.key for write in (*self.writes, *self.counts)}


def moved(
    sources: Sequence[Source], target: Key, writes: Iterable[Write], counts: Iterable[Update] = ()
) -> Move:
    """Sources that become one record."""
    marks = [mark(source, f"{target.partition} {target.sort}") for source in sources]
    return Move(tuple(sources), target, (*writes, *marks), tuple(counts))


def superseded(sources: Sequence[Source]) -> Move:
    """Sources in whose place there is something newer."""
    return Move(tuple(sources), None, tuple(mark(source, SUPERSEDED) for source in sources))


def mark(source: Source, where: str) -> Update:
    unmoved = (Exists(), Equal(MOVED_TO, None), *pins(source))
    return Update(source.key, set={MOVED_TO: where}, when=unmoved)


def counted(source: Source, parent: Key | None) -> Move:
    """Let the parent of a moved child count it; a parent that does not exist counts nobody."""
    counts = () if parent is None else (Update(parent, {"children": 1}, when=(Exists(),)),)
    once = Update(source.key, set={COUNTED: True}, when=(Exists(), Equal(COUNTED, None)))
    return Move((source,), parent, (once,), counts, is_count=True)


def pins(source: Source) -> Iterator[Condition]:
    """That the record is still what was read, as far as older clients change it."""
    item = source.item
    for name, value in item.items():
        if type(value) is int and _changes(source.kind, name):
            yield Equal(name, value)
    if isinstance(item.get("data"), dict):
        yield Equal("data", item["data"])  # type: ignore[arg-type]  # every store compares maps


def _changes(kind: Kind, name: str) -> bool:
    """Whether older clients change an attribute; few are named, for a condition may not be too long."""
    match kind:
        case Kind.BUCKET:
            return name.endswith("_tk") or name in ("rf", "tokens_milli", "last_refill_ms")
        case Kind.LIMITS:
            return name in ("config_version", "capacity", "burst", "refill_amount", "refill_period_seconds")
        case Kind.ENTITY:
            return name == "version"
        case Kind.USAGE:
            return name != "ttl"
        case _:
            return False


def packed(moves: Iterable[Move]) -> list[list[Move]]:
    """Moves in bundles that fit into one transaction each, in order; no bundle writes a key twice."""
    bundles: list[list[Move]] = []
    taken: set[Key] = set()
    written: set[Key] = set()
    for move in moves:
        own = {write.key for write in move.writes}
        if not bundles or own & taken or (move.keys() - own) & written:
            fits = False
        else:
            fits = len(taken | move.keys()) <= TRANSACT_WRITES_MAX
        if not fits:
            bundles.append([])
            taken, written = set(), set()
        bundles[-1].append(move)
        taken |= move.keys()
        written |= own
    return bundles


def writes_of(bundle: Sequence[Move]) -> list[Write]:
    """The writes of a bundle, counts of the same key added up."""
    writes: list[Write] = [write for move in bundle for write in move.writes]
    totals: dict[Key, Update] = {}
    for move in bundle:
        for count in move.counts:
            before = totals.get(count.key)
            if before is not None:
                added = {name: amount + before.add.get(name, 0) for name, amount in count.add.items()}
                count = count._replace(add=added)  # noqa: PLW2901 - the sum stands for both
            totals[count.key] = count
    return [*writes, *totals.values()]
