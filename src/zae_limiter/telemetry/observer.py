"""What a repository counts once somebody looks: the cells, the refusals of late, and who is told of events.

There is one for each repository that somebody has looked at, and it stays there, so that numbers never go
back. A forked child begins at zero, for its parent goes on to tell what it had counted. What the engine
counts by itself is read where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from weakref import WeakSet

from ..engine.histogram import GROUP_ENDS, Histogram
from ..engine.mishaps import Mishap, MishapTold
from ..engine.receipts import RecordedBefore
from ..exceptions import PermissionDenied, RateLimiterUnavailable, RateLimitExceeded, SwitchedOff
from ..repository import Repository
from ..runtime.colour import at_fork
from .cells import Cells
from .events import EventHook, EventKind, TelemetryEvent
from .measured import MeasuredBackend
from .recent import Recent
from .spans import Spans


class AskedDemand(NamedTuple):
    """One demand: for whom, on what, and how many millitokens by limit."""

    entity_id: str
    resource: str
    needs: Mapping[str, int]


class EngineCounts(NamedTuple):
    """What the engine counts whether somebody looks or not."""

    refunds_lost: int
    degraded: int
    soft_exceeded: int
    seats_lost: int
    cache_hits: int
    cache_misses: int


class Observer:
    """What is counted of one repository."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.cells: Cells = Cells()
        self.recent: Recent = Recent()
        self.hooks: tuple[EventHook, ...] = ()
        """Those who are told of each event; none of them raises."""
        self.spans: Spans | None = None
        """Who makes a span of each acquire, if somebody does."""
        self._before = EngineCounts(0, 0, 0, 0, 0, 0)
        """What the engine had counted before this process was forked off."""
        self.users = 0
        _observers.add(self)

    def begin_anew(self) -> None:
        """Count from zero: this process was forked off one that had counted."""
        self.cells, self.recent = Cells(), Recent()
        self._before = self._engine_counts()
        self.repository.writer.group_sizes = Histogram(GROUP_ENDS)
        measured = self.measured
        if measured is not None:
            measured.begin_anew()

    @property
    def store_kind(self) -> str:
        return self.repository.capabilities.name

    @property
    def measured(self) -> MeasuredBackend | None:
        """The store with its calls measured, while somebody looks."""
        backend = self.repository._connection.backend
        return backend if isinstance(backend, MeasuredBackend) else None

    @property
    def now_ms(self) -> int:
        return self.repository._scope.world.now_ms()

    def _engine_counts(self) -> EngineCounts:
        repository, cache = self.repository, self.repository._connection.cache
        writer = repository.writer
        lost = writer.refunds_lost, writer.degraded, writer.soft_exceeded, writer.renewals.lost
        return EngineCounts(*lost, cache.hits, cache.misses)

    def engine_counts(self) -> EngineCounts:
        """What the engine has counted in this process."""
        now = self._engine_counts()
        return EngineCounts(*(count - before for count, before in zip(now, self._before, strict=True)))

    @property
    def waiting(self) -> int:
        """How many acquires wait for their turn, or for a seat."""
        writer = self.repository.writer
        room = writer.waiting_room.peek()
        seats = sum(len(line) for line in list(writer.seat_line.by_key.values()))
        return (0 if room is None else room.waiting) + seats

    # What acquires come to.

    def refuse(self, asked: Sequence[AskedDemand], error: BaseException) -> None:
        """Count acquires that did not end with a lease; a store that is down is decided upon later."""
        if isinstance(error, RateLimitExceeded):
            self._exceeded(asked, error)
        elif isinstance(error, SwitchedOff):
            self.switched_off(asked, error)
        elif isinstance(
            error, RateLimiterUnavailable | RecordedBefore
        ):  # which was counted when it was taken
            return
        else:
            for _, resource, _ in asked:
                cell = self.cells[resource]
                if isinstance(error, Exception):
                    cell.failed += 1
                else:
                    cell.cancelled += 1

    def _exceeded(self, asked: Sequence[AskedDemand], error: RateLimitExceeded) -> None:
        worst = error.primary_violation
        whose = next((one for one in asked if one.resource == worst.resource), asked[0])
        for _, resource, _ in asked:
            cell = self.cells[resource]
            limit = worst.limit_name if resource == worst.resource else ""
            self.cells.add(resource, cell.refused, limit, 1)
        for resource, name in dict.fromkeys((s.resource, s.limit_name) for s in error.statuses if s.exceeded):
            self.cells.add(resource, self.cells[resource].refusals, name, 1)
        entity_id, now_ms = error.entity_id or whose.entity_id, self.now_ms
        refusal = self.recent.note(entity_id, whose.resource, error, whose.needs, now_ms)
        if self.hooks:
            what = EventKind.REFUSED, now_ms, entity_id, whose.resource, refusal.limits
            self.tell(TelemetryEvent(*what, refusal.retry_after_ms))

    def switched_off(self, asked: Sequence[AskedDemand], error: SwitchedOff) -> None:
        """Count acquires that a switch refused."""
        is_denied = isinstance(error, PermissionDenied)
        for _, resource, _ in asked:
            cell = self.cells[resource]
            if is_denied:
                cell.denied += 1
            else:
                cell.disabled += 1
        whose = next((one for one in asked if one.resource == error.resource), asked[0])
        self.recent.note(error.entity_id, error.resource, error, whose.needs, self.now_ms)
        kind = EventKind.DENIED if is_denied else EventKind.DISABLED
        self.tell_of(kind, error.entity_id, error.resource, error.reason)

    def unavailable(self, asked: Sequence[AskedDemand], error: RateLimiterUnavailable) -> None:
        """Count acquires that were refused because the store did not answer."""
        for entity_id, resource, _ in asked:
            self.cells[resource].unavailable += 1
            self.tell_of(EventKind.UNAVAILABLE, entity_id, resource, str(error))

    def degraded(self, asked: Sequence[AskedDemand], error: RateLimiterUnavailable) -> None:
        """Count acquires that went ahead unchecked because of that."""
        for entity_id, resource, _ in asked:
            self.cells[resource].degraded += 1
            self.tell_of(EventKind.DEGRADED, entity_id, resource, str(error))

    # Events.

    def tell_of(self, kind: EventKind, entity_id: str | None, resource: str | None, detail: str) -> None:
        """Tell an event that is no more than that."""
        if self.hooks:
            self.tell(TelemetryEvent(kind, self.now_ms, entity_id, resource, detail=detail))

    def tell(self, event: TelemetryEvent) -> None:
        """Tell all who want to know."""
        for hook in self.hooks:
            hook(event)

    def mishap(self, told: MishapTold) -> None:
        """Tell what went wrong in the engine."""
        kind = EventKind.SEAT_LOST if told.kind is Mishap.SEAT_LOST else EventKind.REFUND_LOST
        event = TelemetryEvent(
            kind, self.now_ms, told.entity_id, told.resource, count=told.count, detail=told.detail
        )
        self.tell(event)

    def trouble(self, verb: str, error: RateLimiterUnavailable) -> None:
        """Tell that the store did not answer."""
        self.tell_of(EventKind.STORE_TROUBLE, None, None, f"{verb}: {error}")


_observers: WeakSet[Observer] = WeakSet()


def _begin_anew() -> None:
    for observer in list(_observers):
        observer.begin_anew()


at_fork(after_in_child=_begin_anew)
