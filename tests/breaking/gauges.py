"""What a process uses while it works, and whether that grows.

A sample is a row of numbers. ``Flat`` numbers may not grow after the warm-up: a line is fitted through them,
so that one high sample is no leak and a small steady growth is. ``Ceiling`` numbers may do what they like
below a bound.
"""

import gc
import os
import sys
import threading
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WARM_UP_SHARE = 0.4
"""Which part of the samples shows how things become what they are, not how they stay."""

Sample = Mapping[str, int]


@dataclass(frozen=True)
class Flat:
    name: str
    allowance: int
    """By how much it may grow from the end of the warm-up to the end."""

    def complaints(self, samples: Sequence[Sample]) -> list[str]:
        values = [sample[self.name] for sample in settled(samples)]
        grown = growth(values)
        if grown <= self.allowance:
            return []
        return [
            f"{self.name} grows: {values[0]} to {values[-1]}, by {grown:.0f}; {self.allowance} is allowed"
        ]


@dataclass(frozen=True)
class Ceiling:
    name: str
    most: int

    def complaints(self, samples: Sequence[Sample]) -> list[str]:
        highest = max(sample[self.name] for sample in samples)
        return (
            [] if highest <= self.most else [f"{self.name} reached {highest}; at most {self.most} is allowed"]
        )


Rule = Flat | Ceiling


def settled(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples after the warm-up."""
    return samples[int(len(samples) * WARM_UP_SHARE) :]


def growth(values: Sequence[int]) -> float:
    """How much a line through the values climbs from the first to the last."""
    count = len(values)
    middle, mean = (count - 1) / 2, sum(values) / count
    spread = sum((at - middle) ** 2 for at in range(count))
    slope = sum((at - middle) * (value - mean) for at, value in enumerate(values)) / spread if spread else 0
    return slope * (count - 1)


def complaints(samples: Sequence[Sample], rules: Sequence[Rule]) -> list[str]:
    return [complaint for rule in rules for complaint in rule.complaints(samples)]


def sample() -> dict[str, int]:
    """What this process uses now. Memory counts after a collection, so that only what is kept is seen.

    Blocks are Python's own small pieces of memory; bytes are all of it, as far as somebody traces them.
    """
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "blocks": sys.getallocatedblocks(),
        "bytes": tracemalloc.get_traced_memory()[0],
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,
        "threads": threading.active_count(),
    }
