"""From samples to figures: medians, spreads and ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Sample = Mapping[str, Any]
"""One round as a worker reports it: operations, seconds, cpu_seconds, p50_us, p99_us."""
Combine = Callable[..., float | None]


@dataclass(frozen=True)
class Figure:
    """The median of several rounds, and the range they span."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The range as a part of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


@dataclass(frozen=True)
class Measured:
    """What the rounds of one contestant in one case say."""

    throughput: Figure
    p50_us: Figure
    p99_us: Figure
    cpu_us: Figure

    def figure(self, metric: str) -> Figure:
        found: Figure = getattr(self, metric)
        return found


def figure(values: Sequence[float]) -> Figure:
    return Figure(statistics.median(values), min(values), max(values))


VALUES: dict[str, Callable[[Sample], float]] = {
    "throughput": lambda it: it["operations"] / it["seconds"],
    "p50_us": lambda it: it["p50_us"],
    "p99_us": lambda it: it["p99_us"],
    "cpu_us": lambda it: it["cpu_seconds"] / it["operations"] * 1e6,
}
"""What a round says of each metric, if anything succeeded in it."""


def combined(parts: Sequence[Sequence[Sample]], metric: str, work: Combine) -> Figure | None:
    """What is worked out from the medians of some contestants, and the range of the same round by round.

    They take turns, so rounds of one number are neighbours; one in which nothing succeeded is left out.
    """
    read = VALUES[metric]
    told = [[read(it) for it in samples if it["operations"]] for samples in parts]
    if not all(told):
        return None
    value = work(*map(statistics.median, told))
    rounds = [each for each in zip(*parts, strict=False) if all(it["operations"] for it in each)]
    each = [found for one in rounds if (found := work(*map(read, one))) is not None]
    return None if value is None else Figure(value, min([value, *each]), max([value, *each]))


def percentile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that at least ``part`` of all values do not exceed."""
    if not ordered:
        raise ValueError("no values, no percentile")
    rank = -(-len(ordered) * part // 1)  # rounded up
    return ordered[max(int(rank), 1) - 1]


def measured(samples: Sequence[Sample]) -> Measured:
    """The figures of some rounds; a round in which nothing succeeded says nothing and is left out."""
    told = [sample for sample in samples if sample["operations"]]
    if not told:
        raise ValueError("no round has an operation that succeeded")
    return Measured(
        **{metric: figure([read(sample) for sample in told]) for metric, read in VALUES.items()},
    )


def ratio(ours: float, theirs: float) -> float | None:
    """How many times theirs ours is; ``None`` if there is nothing to divide by."""
    return ours / theirs if theirs else None


def compact(value: float) -> str:
    """Three significant digits, with separators where a number is long."""
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 100:
        return f"{rounded:,.0f}"
    return f"{rounded:.9f}".rstrip("0").rstrip(".")


def times(value: float | None) -> str:
    """A ratio for people: ``12×``, ``0.4×``."""
    return "–" if value is None else f"{compact(value)}×"
