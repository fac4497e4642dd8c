"""The few numbers that say at a glance how a limiter does."""

from __future__ import annotations

from dataclasses import dataclass

from .observer import Observer


@dataclass(frozen=True, slots=True)
class Counters:
    """How many acquires came to what, of all resources, since somebody looks; each demand is one."""

    admitted: int
    refused: int
    degraded: int
    """Went ahead unchecked while the store was down."""
    unavailable: int
    """Were refused because it was."""
    disabled: int
    denied: int
    bypassed: int
    failed: int
    """Were asked wrong, or not to the end."""
    refunds_lost: int
    seats_lost: int
    soft_exceeded: int
    leases_open: int
    waiting: int


def counters_of(observer: Observer) -> Counters:
    """What is counted by now."""
    cells = [cell for _, cell in observer.cells.named()]
    engine = observer.engine_counts()
    return Counters(
        admitted=sum(cell.admitted for cell in cells),
        refused=sum(sum(cell.refused.copy().values()) for cell in cells),
        degraded=sum(cell.degraded for cell in cells),
        unavailable=sum(cell.unavailable for cell in cells),
        disabled=sum(cell.disabled for cell in cells),
        denied=sum(cell.denied for cell in cells),
        bypassed=sum(cell.bypassed for cell in cells),
        failed=sum(cell.failed + cell.cancelled for cell in cells),
        refunds_lost=engine.refunds_lost,
        seats_lost=engine.seats_lost,
        soft_exceeded=engine.soft_exceeded,
        leases_open=sum(cell.open for cell in cells),
        waiting=observer.waiting,
    )
