"""What a limiter makes while somebody looks: acquisitions and leases that count what becomes of them.

They are the plain ones with a few methods around, put in their place when somebody begins to look. So a
limiter that nobody looks at runs not one step for this. Async and sync acquires, ``consume`` and demands
together all come through here, for a sync lease stands for one of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..acquisition import Acquisition
from ..engine.acquire import acquire
from ..engine.parts import Part
from ..exceptions import RateLimiterUnavailable, SwitchedOff
from ..joint import JointAcquisition, JointLease, LeasePart
from ..lease import Lease
from ..sync_lease import PART_TWINS, TWINS, SyncAcquisition, SyncJointAcquisition, SyncLease
from .cells import Cell
from .events import EventKind, TelemetryEvent
from .observer import AskedDemand, Observer


async def _observed(lease: Lease, needs: Mapping[str, int]) -> Cell:
    """Take tokens for a lease, and count what comes of it; returns where."""
    observer: Observer = lease._buckets.observer
    writer = lease._buckets.writer
    exceeded, spans = writer.soft_exceeded, observer.spans
    span = None if spans is None else spans.begin(lease._entity_id, lease._resource, needs)
    try:
        if (taking := acquire(lease, needs)) is not None:
            await taking
    except BaseException as error:
        if span is not None and spans is not None:
            spans.end(span, error)
        observer.refuse([AskedDemand(lease._entity_id, lease._resource, needs)], error)
        raise
    cells, resource = observer.cells, lease._resource
    cell = cells[resource]
    if lease._accounts[0].bypass is None:
        cell.admitted += 1
    else:
        cell.bypassed += 1
    taken = cell.taken
    for name, amount in needs.items():
        if name in taken:
            taken[name] += amount
        else:
            cells.add(resource, taken, name, amount)
    if writer.soft_exceeded != exceeded:  # or it was somebody else's meanwhile
        _tell_exceeded(observer, lease)
    if span is not None and spans is not None:
        spans.end(span, None, lease.exceeded)
    return cell


def _tell_exceeded(observer: Observer, lease: Lease) -> None:
    if observer.hooks and (names := lease.exceeded):
        place = lease._entity_id, lease._resource
        observer.tell(TelemetryEvent(EventKind.SOFT_EXCEEDED, observer.now_ms, *place, names))


def _let_through(
    lease: Lease, asked: Sequence[AskedDemand], what: str, error: RateLimiterUnavailable
) -> None:
    """Decide on work while the store is down, and count what was decided."""
    observer: Observer = lease._buckets.observer
    try:
        (JointLease if isinstance(lease, JointLease) else Lease)._let_through(lease, what, error)  # type: ignore[arg-type]
    except RateLimiterUnavailable:
        observer.unavailable(asked, error)
        raise
    except SwitchedOff as switched:
        observer.switched_off(asked, switched)
        raise
    observer.degraded(asked, error)


class ObservedLease(Lease):
    """A lease that is counted."""

    __slots__ = ("_counted_in",)
    _counted_in: Cell | None  # type: ignore[misc]  # of whoever is not counted it is always None

    async def _acquire(self, needs: Mapping[str, int]) -> None:
        is_first = not self._accounts
        if is_first:
            self._counted_in = None
        cell = await _observed(self, needs)
        if is_first:
            cell.opened += 1
            if self._waited_ms:
                cell.waits.add(self._waited_ms)
            self._counted_in = cell

    def _let_through(self, what: str, error: RateLimiterUnavailable) -> None:
        _let_through(self, [AskedDemand(self._entity_id, self._resource, {})], what, error)

    def _is_first(self, state: str) -> bool:
        is_first = super()._is_first(state)
        cell = self._counted_in
        if is_first and cell is not None:
            self._counted_in = None
            cells = self._buckets.observer.cells
            count_end(cells, cell, self, state)
        return is_first

    def _forgotten(self) -> None:
        cell = self._counted_in
        if cell is not None:
            self._counted_in = None
            cell.forgotten += 1

    def __del__(self) -> None:
        """Count it if somebody else has become answerable for it; there is nothing else to do then."""
        try:
            if not self._ended or self._adjusted:
                super().__del__()
            cell = self._counted_in
            if cell is not None:
                cell.handed_over += 1
        except AttributeError:
            pass  # nothing was asked for


def count_end(cells: Any, cell: Cell, lease: Lease, state: str) -> None:
    """Count how a lease ended, and what that means for what it had taken."""
    resource = lease._resource
    if state == "cancelled":
        cell.refunded += 1
        for take in lease._taken():
            for name, amount in take.amounts.items():
                cells.add(resource, cell.returned, name, amount)
        return
    if not any(lease._adjusted.values()):
        cell.committed += 1
        return
    cell.settled_leases += 1
    for name, tokens in lease._adjusted.items():
        if tokens:
            numbers = cell.settled if tokens > 0 else cell.returned
            cells.add(resource, numbers, name, abs(tokens) * 1000)


class ObservedPart(LeasePart):
    """A part of a lease for several demands, whose ``consume`` is counted."""

    __slots__ = ()

    async def _acquire(self, needs: Mapping[str, int]) -> None:
        await _observed(self, needs)

    def _let_through(self, what: str, error: RateLimiterUnavailable) -> None:
        _let_through(self, [AskedDemand(self._entity_id, self._resource, {})], what, error)


class ObservedJointLease(JointLease):
    """A lease for several demands, counted once for each of them."""

    __slots__ = ("_counted_in",)
    _counted_in: tuple[Cell, ...] | None  # type: ignore[misc]
    _part_type = ObservedPart

    async def _take(self, parts: Sequence[Part], *, is_first: bool) -> None:
        observer: Observer = self._buckets.observer
        if is_first:
            self._counted_in = None
        asked = [AskedDemand(holding._entity_id, holding._resource, needs) for holding, needs in parts]
        exceeded = self._buckets.writer.soft_exceeded
        spans = observer.spans
        begun = [] if spans is None else [spans.begin(*one) for one in asked]
        try:
            await super()._take(parts, is_first=is_first)
        except BaseException as error:
            for span in begun:
                spans.end(span, error)  # type: ignore[union-attr]
            observer.refuse(asked, error)
            raise
        for span in begun:
            spans.end(span, None)  # type: ignore[union-attr]
        cells = observer.cells
        for (holding, needs), (_, resource, _) in zip(parts, asked, strict=True):
            cell = cells[resource]
            if holding._accounts and holding._accounts[0].bypass is not None:
                cell.bypassed += 1
            else:
                cell.admitted += 1
            for name, amount in needs.items():
                cells.add(resource, cell.taken, name, amount)
            if is_first:
                cell.opened += 1
                if self._waited_ms:
                    cell.waits.add(self._waited_ms)
        if self._buckets.writer.soft_exceeded != exceeded:
            _tell_exceeded(observer, self)
        if is_first:
            self._counted_in = tuple(cells[one.resource] for one in asked)

    def _let_through(self, what: str, error: RateLimiterUnavailable) -> None:
        asked = [AskedDemand(one.by._entity_id, one.by._resource, one.needs) for one in self._asked]
        _let_through(self, asked, what, error)

    def _is_first(self, state: str) -> bool:
        is_first = super()._is_first(state)
        counted = self._counted_in
        if is_first and counted is not None:
            self._counted_in = None
            cells = self._buckets.observer.cells
            for cell, part in zip(counted, self.parts, strict=True):
                count_end(cells, cell, part, state)
        return is_first

    def _forgotten(self) -> None:
        for cell in self._counted_in or ():
            cell.forgotten += 1
        self._counted_in = None

    def __del__(self) -> None:
        """As for one demand."""
        try:
            super().__del__()
            for cell in self._counted_in or ():
                cell.handed_over += 1
        except AttributeError:
            pass  # nothing was asked for


class ObservedAcquisition(Acquisition):
    """An acquisition whose lease is counted when it ends with nothing to store."""

    __slots__ = ()

    def end(self, kind: type[BaseException] | None) -> bool:
        if Acquisition.end(self, kind):
            return True
        lease = self._lease
        cell = lease._counted_in
        if cell is not None:
            lease._counted_in = None  # type: ignore[misc]
            cell.committed += 1
        return False


class ObservedJointAcquisition(JointAcquisition):
    """The same for several demands."""

    __slots__ = ()

    def end(self, kind: type[BaseException] | None) -> bool:
        if JointAcquisition.end(self, kind):
            return True
        lease = self._lease
        cells = lease._counted_in
        if cells is not None:
            lease._counted_in = None  # type: ignore[misc]
            for cell in cells:
                cell.committed += 1
        return False


COUNTED = (ObservedLease, ObservedAcquisition, (ObservedJointLease, ObservedJointAcquisition))
"""What a limiter makes while somebody looks."""

TWINS[ObservedAcquisition] = SyncAcquisition
TWINS[ObservedJointAcquisition] = SyncJointAcquisition
PART_TWINS[ObservedPart] = SyncLease
