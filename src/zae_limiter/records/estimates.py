"""How much calls of a kind took, counted by all processes: rows of numbers that only grow.

There is a row for each kind of calls (a model and a class of caps) and each generation, a stretch of time.
Rows go when their ``ttl`` has passed, so what is known follows what happens. Names of models are whatever
users send. So a kind is hashed to one of a bounded number of places, and whoever has a place first has it
for that generation: another kind there is not learned, and never mixed in.

An addition whose reply was lost is not repeated: calls may be missing from a row, but none counts twice. This
module knows how counts are kept, not what they mean.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..exceptions import RateLimiterUnavailable
from ..repository_protocol import Absent, Equal, Item, Update, Value
from ..schema import estimate_key, is_number, text, within_namespace
from .scope import Scope

PLACES = 16_384
"""How many kinds of calls a namespace learns at most in one generation."""

GENERATIONS = 8
"""How many generations are kept, the current one included."""

ATTEMPTS_MAX = 3
"""Add; else make the row; else add to what somebody else has just made."""

_COUNT = re.compile(r"n(0|[1-9][0-9]{0,2})")


class CallKind(NamedTuple):
    """Calls that are alike: of one model, and with caps of one class."""

    model: str
    cap: int
    generation_seconds: int
    """Those who count by other stretches of time count by themselves."""

    @property
    def digest(self) -> str:
        """By which a row says whose it is; sixteen bytes that nobody finds a second name for."""
        said = f"{self.generation_seconds}#{self.cap}#{self.model}"
        return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def since(self, now_ms: int) -> int:
        """When the generation of an instant began, in epoch seconds."""
        now = now_ms // 1000
        return now - now % self.generation_seconds

    def row(self, namespace_id: str, since: int) -> tuple[Update, dict[str, Value]]:
        """An addition of nothing to the row of a generation that is there, and what the row says besides."""
        digest = self.digest
        key = estimate_key(namespace_id, int(digest, 16) % PLACES, since)
        return Update(key, when=(Equal("of", digest),)), {
            "of": digest,
            "model": self.model,
            "cap": self.cap,
            "ttl": since + (GENERATIONS + 1) * self.generation_seconds,
            **within_namespace(namespace_id, key),
        }


class Counted(NamedTuple):
    """What became of an addition."""

    total: dict[int, int] | None
    """What is counted now, by all; ``None`` if it was not added."""
    failure: RateLimiterUnavailable | None = None
    """Why nobody knows, or why it may be sent again."""


async def add_calls(
    scope: Scope, since: int, calls: Mapping[CallKind, Mapping[int, int]]
) -> dict[CallKind, Counted]:
    """Add to the rows of a generation, each on its own; what fails is told, and nothing is sent twice."""
    done: dict[CallKind, Counted] = {}
    rows = {kind: kind.row(scope.namespace_id, since) for kind in calls}
    added = {kind: {f"n{at}": count for at, count in calls[kind].items()} for kind in calls}
    writes = {kind: row._replace(add=added[kind]) for kind, (row, _) in rows.items()}
    for _ in range(ATTEMPTS_MAX):
        outcomes = await scope.write(list(writes.values()))
        again: dict[CallKind, Update] = {}
        for (kind, write), outcome in zip(writes.items(), outcomes, strict=True):
            row, besides = rows[kind]
            if outcome.failure is not None:
                done[kind] = Counted(None, outcome.failure)
            elif outcome.applied:
                done[kind] = Counted(_counts(outcome.item))
            elif outcome.item is None:
                again[kind] = write._replace(set=besides, when=(Absent(),))
            elif text(outcome.item, "of") == besides["of"]:
                again[kind] = row._replace(add=added[kind])
            else:
                done[kind] = Counted(None)  # the place is taken
        if not again:
            break
        writes = again
    return {kind: done.get(kind, Counted(None)) for kind in calls}


async def read_calls(scope: Scope, wanted: Sequence[tuple[CallKind, int]]) -> list[dict[int, int]]:
    """What is counted of each kind in a generation; nothing where there is no row, or another kind's."""
    rows = [kind.row(scope.namespace_id, since) for kind, since in wanted]
    items = await scope.get_all([row.key for row, _ in rows])
    found = ((items.get(row.key), besides["of"]) for row, besides in rows)
    return [_counts(item) if item is not None and item.get("of") == of else {} for item, of in found]


def _counts(item: Item | None) -> dict[int, int]:
    """The counts of a row that somebody of us can have written."""
    return {
        int(named[1]): count
        for name, count in (item or {}).items()
        if (named := _COUNT.fullmatch(name)) and is_number(count) and count > 0
    }
