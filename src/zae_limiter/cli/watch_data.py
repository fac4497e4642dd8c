"""What ``zae-limiter watch`` sees at each look, and what has changed since the one before.

A look reads a bounded number of buckets, whatever there is: a few pages of all of them, and again those that
are shown. A family is an entity with those above it and its first children. What processes tell of
themselves is read beside, in one query.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

from ..models import Entity
from ..records.ancestry import chain_above
from ..records.buckets_now import SeenBucket, SeenLevel, look_at
from ..records.entities import get_entity
from ..records.reports import ProcessReport, Refusal, get_reports
from ..records.sampling import BucketSampler, Place, places_of
from ..records.scope import Scope
from ..schema import children_of, entity_id_of
from ..visualization.screen import NEAR

TURNS_MAX = 3
"""How many pages of all buckets one look reads."""
CHILDREN_MAX = 20
FAMILY_LOOKS = 10
"""After how many looks a family is read anew: who belongs to it, and where they have buckets."""
RECENT_MS = 15_000
"""After how long a process that tells nothing is taken for one that does nothing: it tells every ten."""
REFUSALS_MAX = 50
TOLD_MAX = 10_000


class LevelState(StrEnum):
    """How a limit stands, in a word."""

    FREE = "free"
    NEAR = "near"
    REFUSES = "refuses"


class Shown(NamedTuple):
    """A bucket that is shown, and how far below the first of its family it is."""

    bucket: SeenBucket
    depth: int = 0


class Pace(NamedTuple):
    """How many acquires a second all processes admit and refuse, as far as they tell."""

    admitted: float
    refused: float


class Sight(NamedTuple):
    """All that one look saw."""

    at_ms: int
    buckets: tuple[Shown, ...]
    buckets_known: int
    is_all: bool
    """Whether no bucket was left out that there is."""
    refusals: tuple[Refusal, ...] | None
    """The newest first; ``None`` if no process tells of itself."""
    pace: Pace | None


class Happening(NamedTuple):
    """Something that the look before had not seen, as data."""

    event: str
    at_ms: int
    entity: str
    resource: str
    told: dict[str, Any]


def state_of(level: SeenLevel) -> LevelState:
    if level.refuses:
        return LevelState.REFUSES
    return LevelState.NEAR if level.ratio < NEAR else LevelState.FREE


def moved_milli(level: SeenLevel, passed_ms: int) -> int:
    """What a level holds some time after it was read, if nobody has taken anything; quotas stand still."""
    milli = level.available_milli
    return max(milli, min(level.capacity * 1000, milli + int(level.per_second * max(0, passed_ms))))


class WatchReader:
    """Looks at a namespace again and again: at whoever is nearest to a limit, or at one family."""

    def __init__(self, scope: Scope, entity_id: str | None, resource: str | None, buckets_max: int) -> None:
        self._scope, self._entity_id, self._resource = scope, entity_id, resource
        self._buckets_max = buckets_max
        self._sampler = BucketSampler(scope, resource, kept_max=2 * buckets_max)
        self._family: dict[str, int] = {}
        self._places: list[Place] = []
        self._looks = 0
        self._told: dict[str, ProcessReport] = {}
        self._paces: dict[str, Pace] = {}

    async def look(self) -> Sight:
        """One look, with as many reads as there is something to see, and no more."""
        if self._entity_id is None:
            shown, known, is_all = await self._nearest()
        else:
            shown, known, is_all = await self._of_family(self._entity_id)
        reports = await get_reports(self._scope)
        self._looks += 1
        now_ms = self._scope.world.now_ms()
        refusals = tuple(self._refusals(reports)) if reports else None
        return Sight(now_ms, tuple(shown), known, is_all, refusals, self._pace(reports, now_ms))

    async def _nearest(self) -> tuple[list[Shown], int, bool]:
        """Whoever is nearest to a limit, as far as all were gone through."""
        for _ in range(TURNS_MAX):
            if await self._sampler.turn():
                break
        sample = self._sampler.sample()
        places = [one.place for one in sample.buckets]
        seen = [one for one in await look_at(self._scope, places) if one.levels and one.shards]
        seen.sort(key=_nearness)
        return [Shown(one) for one in seen[: self._buckets_max]], sample.buckets_known, sample.is_all

    async def _of_family(self, entity_id: str) -> tuple[list[Shown], int, bool]:
        """The buckets of an entity, of those above it, and of its children."""
        if self._looks % FAMILY_LOOKS == 0:
            self._family = await family_of(self._scope, entity_id)
            self._places = []
            for one in self._family:
                if len(self._places) < self._buckets_max:
                    self._places += await places_of(self._scope, one, self._resource)
        places = self._places[: self._buckets_max]
        seen = [one for one in await look_at(self._scope, places) if one.levels and one.shards]
        shown = [Shown(one, self._family[one.entity_id]) for one in seen]
        return shown, len(self._places), len(places) == len(self._places)

    def _refusals(self, reports: list[ProcessReport]) -> list[Refusal]:
        found = [
            refusal
            for report in reports
            for refusal in report.refusals
            if (self._entity_id is None or refusal.entity_id in self._family)
            and self._resource in (None, refusal.resource)
        ]
        found.sort(key=lambda one: one.at_ms, reverse=True)
        return found[:REFUSALS_MAX]

    def _pace(self, reports: list[ProcessReport], now_ms: int) -> Pace | None:
        """How fast it goes, by what each process has counted between the last two times that it told."""
        paces = {}
        for report in reports:
            before, pace = self._told.get(report.process_id), self._paces.get(report.process_id)
            if before is not None and report.seen_ms > before.seen_ms:
                seconds = (report.seen_ms - before.seen_ms) / 1000
                admitted, refused = report.admitted - before.admitted, report.refused - before.refused
                pace = Pace(admitted / seconds, refused / seconds)
            if pace is not None:
                paces[report.process_id] = pace if now_ms - report.seen_ms < RECENT_MS else Pace(0, 0)
        self._told, self._paces = {report.process_id: report for report in reports}, paces
        if not paces:
            return None
        return Pace(sum(one.admitted for one in paces.values()), sum(one.refused for one in paces.values()))


def _nearness(bucket: SeenBucket) -> tuple[bool, float, str, str]:
    nearest = bucket.nearest
    assert nearest is not None, "a bucket without limits is not shown"
    return nearest.limit.soft, nearest.ratio, bucket.entity_id, bucket.resource


async def family_of(scope: Scope, entity_id: str) -> dict[str, int]:
    """An entity, those above it and its first children, from the top; each with its depth."""
    entity: Entity | None = await get_entity(scope, entity_id)
    parent_id = None if entity is None else entity.parent_id
    above = [] if parent_id is None else await chain_above(scope, parent_id)
    chain = [*(one.entity_id for one in reversed(above)), entity_id]
    family = {one: depth for depth, one in enumerate(chain)}
    query = children_of(scope.namespace_id, entity_id)._replace(rows_max=CHILDREN_MAX)
    rows, _ = await scope.first_rows(query)
    for row in rows:
        if (child := entity_id_of(row.key)) is not None:
            family.setdefault(child, len(chain))
    return family


class Changes:
    """Tells what has changed from one look to the next; what stays as it is, is told once."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str, str], LevelState] = {}
        self._refused_ms: dict[tuple[str, str, str, tuple[str, ...]], int] = {}

    def since(self, sight: Sight) -> Iterator[Happening]:
        """What is new in a sight, the oldest refusal first."""
        for one in reversed(sight.refusals or ()):
            place = one.process, one.entity_id, one.resource, one.limits
            if one.at_ms > self._refused_ms.get(place, -1):
                self._refused_ms[place] = one.at_ms
                yield Happening("refusal", one.at_ms, one.entity_id, one.resource, refusal_data(one))
        for bucket, _ in sight.buckets:
            for level in bucket.levels:
                place_of = bucket.entity_id, bucket.resource, level.limit.name
                state = state_of(level)
                if state is not self._states.get(place_of, LevelState.FREE):
                    told = {"state": state.value, **level_data(level)}
                    yield Happening("level", sight.at_ms, bucket.entity_id, bucket.resource, told)
                self._states[place_of] = state
        _forget_oldest(self._states)
        _forget_oldest(self._refused_ms)


def _forget_oldest(told: dict[Any, Any]) -> None:
    for place in [*islice(told, max(0, len(told) - TOLD_MAX))]:
        del told[place]


def level_data(level: SeenLevel) -> dict[str, Any]:
    """A level as JSON says it."""
    return {
        "limit": level.limit.name,
        "available": level.available,
        "capacity": level.capacity,
        **({} if level.limit.unit is None else {"unit": level.limit.unit}),
        **({} if level.held is None else {"held": level.held}),
        "refuses": level.refuses,
        "full_in_ms": level.full_in_ms,
    }


def refusal_data(one: Refusal) -> dict[str, Any]:
    """A refusal as JSON says it."""
    return {
        "limits": list(one.limits),
        "requested": dict(one.requested),
        "retry_after_ms": one.retry_after_ms,
        "count": one.count,
        "process": one.process,
        "retry_after_is_latest": one.is_latest,
        "reason": one.reason or None,
    }
