"""The integers that acquires are counted in: a cell for each resource, and numbers by limit within it.

On the way of an acquire there is one look-up by the name of the resource and one addition for each number: no
lock, no label, nothing made. With a GIL an addition is one step, so what many threads count is exact.

Names of resources and limits are whatever programs send, entities are not even asked for. So there are at
most ``RESOURCES_MAX`` cells, and ``LIMITS_MAX`` limits in all of them; later ones are counted as ``other``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engine.histogram import Histogram

RESOURCES_MAX = 200
LIMITS_MAX = 1_000
"""How many limits are told apart, those of all resources together."""

OTHER = "other"
"""What is counted under no name of its own."""

WAIT_ENDS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)


@dataclass(slots=True, eq=False)
class Cell:
    """All that is counted of one resource. Amounts are in millitokens, by limit."""

    admitted: int = 0
    bypassed: int = 0
    degraded: int = 0
    unavailable: int = 0
    disabled: int = 0
    denied: int = 0
    cancelled: int = 0
    failed: int = 0
    opened: int = 0
    committed: int = 0
    settled_leases: int = 0
    refunded: int = 0
    forgotten: int = 0
    handed_over: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Acquires, by the limit with the longest wait; "" where that is another demand's."""
    refusals: dict[str, int] = field(default_factory=dict)
    """The same by every limit that refused: an acquire may be in several."""
    taken: dict[str, int] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    """What work cost beyond what was taken for it."""
    returned: dict[str, int] = field(default_factory=dict)
    waits: Histogram = field(default_factory=lambda: Histogram(WAIT_ENDS_MS))

    @property
    def open(self) -> int:
        """How many leases are open."""
        ended = self.committed + self.settled_leases + self.refunded + self.forgotten + self.handed_over
        return max(0, self.opened - ended)  # between two steps of another thread it may be less


class Cells(dict[str, Cell]):
    """The cells of all resources; one that is missing is made, as long as there is room."""

    def __init__(self) -> None:
        super().__init__()
        self._limits: set[tuple[str, str]] = set()

    def __missing__(self, resource: str) -> Cell:
        name = resource if len(self) < RESOURCES_MAX - 1 else OTHER
        return self.get(name) or self.setdefault(name, Cell())

    def named(self) -> list[tuple[str, Cell]]:
        """Each cell with its name; a resource that is called so itself is one of the others."""
        return list(self.copy().items())

    def add(self, resource: str, numbers: dict[str, int], limit: str, amount: int) -> None:
        """Add to the number of a limit, under its own name if there is room for it."""
        if limit in numbers:
            numbers[limit] += amount
            return
        known, place = self._limits, (resource if resource in self else OTHER, limit)
        if limit and place not in known:
            if len(known) >= LIMITS_MAX:
                limit = OTHER
            else:
                known.add(place)
        numbers.setdefault(limit, 0)
        numbers[limit] += amount
