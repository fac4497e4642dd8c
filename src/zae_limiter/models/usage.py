"""What was used of resources in which windows, and what is in use of their capacity now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .checks import Choice


class UsageWindow(Choice):
    """How long a usage snapshot counts."""

    HOURLY = "hourly"
    DAILY = "daily"
    MONTHLY = "monthly"

    @classmethod
    def of(cls, value: UsageWindow | str) -> UsageWindow:
        return cls.chosen("window_type", value)


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """What an entity used of a resource in one window, in whole tokens by limit.

    ``window_start`` and ``window_end`` are instants such as ``2024-01-01T14:00:00Z``; the end is not
    part of the window. ``passed_on`` is the part that was charged to a parent too, by cascading:
    by parent and limit, for a family may change within a window.
    """

    entity_id: str
    resource: str
    window_type: UsageWindow
    window_start: str
    window_end: str
    counters: Mapping[str, int]
    total_events: int = 0
    passed_on: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageSummary:
    """Several snapshots together: totals and averages by limit, and the span of their starts."""

    snapshot_count: int
    total: Mapping[str, int]
    average: Mapping[str, float]
    total_events: int = 0
    min_window_start: str | None = None
    max_window_start: str | None = None


@dataclass(frozen=True, slots=True)
class EntityCapacity:
    """One entity's share in the capacity of a resource, in whole tokens."""

    entity_id: str
    capacity: int
    available: int

    @property
    def utilization_pct(self) -> float:
        """How much of the capacity is in use, in per cent."""
        return _utilization(self.capacity, self.available)


@dataclass(frozen=True, slots=True)
class ResourceCapacity:
    """One limit of a resource over all buckets there are, parents' and children's, in whole tokens."""

    resource: str
    limit_name: str
    total_capacity: int
    total_available: int
    entities: tuple[EntityCapacity, ...] = ()

    @property
    def utilization_pct(self) -> float:
        """How much of the capacity is in use, in per cent."""
        return _utilization(self.total_capacity, self.total_available)


def _utilization(capacity: int, available: int) -> float:
    return 100 * (capacity - available) / capacity if capacity else 0.0
