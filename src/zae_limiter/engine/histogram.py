"""How often something was of which size: a histogram of plain integers with bins that never change.

Whoever adds takes no lock: each step is one addition to one integer. So a reader may see an addition half
done; what it reads never goes back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts by bins; each holds what is at most its end, and more than the end before it."""

    __slots__ = ("counts", "ends", "total")

    def __init__(self, ends: Sequence[float]) -> None:
        self.ends: tuple[float, ...] = tuple(ends)
        self.counts: list[int] = [0] * (len(self.ends) + 1)
        """One more than ends: what is larger than all of them."""
        self.total: float = 0
        """The sum of all that was added."""

    def add(self, size: float) -> None:
        """Count one of this size."""
        self.counts[bisect_left(self.ends, size)] += 1
        self.total += size

    @property
    def count(self) -> int:
        """How many were added."""
        return sum(self.counts)


GROUP_ENDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The bins for how many orders one write carries out."""
