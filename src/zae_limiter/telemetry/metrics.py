"""Every metric by its name, with its unit and labels, and what it is now: the one table that exporters use.

Names follow the convention that is stable, ``aspnetcore.rate_limiting.*``: leases, queued, result. Times are
seconds, amounts are tokens. Which labels a metric has is fixed; their values are names of resources and
limits, of which there is a bounded number, words of ours, and the kind of the store. No metric names an
entity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ..engine.histogram import GROUP_ENDS, Histogram
from .cells import WAIT_ENDS_MS, Cell
from .measured import CALL_ENDS_MS
from .observer import Observer


class MetricKind(StrEnum):
    COUNTER = "counter"
    """A number that only grows."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Bins(NamedTuple):
    """A histogram as it is now: the ends of its bins, how many are in each, and the sum of all."""

    ends: tuple[float, ...]
    counts: tuple[int, ...]
    """One more than ends; not cumulative."""
    total: float

    @property
    def observed(self) -> int:
        """How many there are in all bins."""
        return sum(self.counts)


class Point(NamedTuple):
    """One series now: the values of its labels, in the order of the metric's, and its value."""

    labels: tuple[str, ...]
    value: float | Bins


Reading = Iterator[Point]


@dataclass(frozen=True, slots=True)
class Metric:
    """One name, and how what it stands for is read."""

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    text: str
    read: Callable[[Observer], Reading]
    ends: tuple[float, ...] = ()
    """The ends of its bins, if it is a histogram."""

    def points(self, observer: Observer) -> list[Point]:
        """All its series as they are now; each also has the kind of the store, as the last label."""
        store = observer.store_kind
        return [Point((*labels, store), value) for labels, value in self.read(observer)]


def _bins(histogram: Histogram, scale: float = 1) -> Bins:
    """A histogram in the unit that is shown."""
    ends = tuple(end / scale for end in histogram.ends)
    return Bins(ends, tuple(histogram.counts), histogram.total / scale)


RESULTS = ("admitted", "bypassed", "degraded", "unavailable", "disabled", "denied", "failed", "cancelled")


def _acquires(observer: Observer) -> Reading:
    for resource, cell in observer.cells.named():
        for result in RESULTS:
            if count := getattr(cell, result):
                yield Point((result, resource, ""), count)
        for limit, count in cell.refused.copy().items():
            yield Point(("refused", resource, limit), count)


def _by_limit(numbers: Callable[[Cell], dict[str, int]]) -> Callable[[Observer], Reading]:
    def read(observer: Observer) -> Reading:
        for resource, cell in observer.cells.named():
            for limit, count in numbers(cell).copy().items():
                yield Point((resource, limit), count)

    return read


def _tokens(observer: Observer) -> Reading:
    for resource, cell in observer.cells.named():
        for kind, numbers in (("taken", cell.taken), ("settled", cell.settled), ("returned", cell.returned)):
            for limit, amount_milli in numbers.copy().items():
                yield Point((kind, resource, limit), amount_milli / 1000)


def _waits(observer: Observer) -> Reading:
    for resource, cell in observer.cells.named():
        if cell.waits.count:
            yield Point((resource,), _bins(cell.waits, 1000))


def _open(observer: Observer) -> Reading:
    for resource, cell in observer.cells.named():
        if cell.opened:
            yield Point((resource,), cell.open)


ENDS = {
    "committed": "committed",
    "settled": "settled_leases",
    "refunded": "refunded",
    "forgotten": "forgotten",
    "handed_over": "handed_over",
}
"""The words for how a lease ended, and where it is counted."""


def _ended(observer: Observer) -> Reading:
    for resource, cell in observer.cells.named():
        for result, attribute in ENDS.items():
            if count := getattr(cell, attribute):
                yield Point((result, resource), count)


def _engine(name: str) -> Callable[[Observer], Reading]:
    def read(observer: Observer) -> Reading:
        yield Point((), getattr(observer.engine_counts(), name))

    return read


def _calls(observer: Observer) -> Reading:
    measured = observer.measured
    for verb, histogram in () if measured is None else measured.calls.items():
        yield Point((verb,), _bins(histogram, 1000))


def _errors(observer: Observer) -> Reading:
    measured = observer.measured
    for verb, count in () if measured is None else measured.errors.items():
        yield Point((verb,), count)


def _cache(observer: Observer) -> Reading:
    counts = observer.engine_counts()
    yield Point(("hit",), counts.cache_hits)
    yield Point(("miss",), counts.cache_misses)


def _groups(observer: Observer) -> Reading:
    yield Point((), _bins(observer.repository.writer.group_sizes))


def _waiting(observer: Observer) -> Reading:
    yield Point((), observer.waiting)


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

METRICS = (
    Metric(
        "zae_limiter.acquire",
        _COUNTER,
        "{acquire}",
        ("result", "resource", "limit"),
        "acquires and consumes by what came of them; if refused, by the limit with the longest wait",
        _acquires,
    ),
    Metric(
        "zae_limiter.refusals",
        _COUNTER,
        "{refusal}",
        ("resource", "limit"),
        "refusals by each limit that refused; one acquire may be in several",
        _by_limit(lambda cell: cell.refusals),
    ),
    Metric(
        "zae_limiter.tokens",
        _COUNTER,
        "{token}",
        ("kind", "resource", "limit"),
        "tokens that were taken, that work cost besides (settled), and that came back (returned)",
        _tokens,
    ),
    Metric(
        "zae_limiter.wait.duration",
        _HISTOGRAM,
        "s",
        ("resource",),
        "how long acquires that were told to wait did so before they were admitted",
        _waits,
        tuple(end / 1000 for end in WAIT_ENDS_MS),
    ),
    Metric("zae_limiter.queued", _GAUGE, "{acquire}", (), "acquires that wait for their turn now", _waiting),
    Metric("zae_limiter.leases.active", _GAUGE, "{lease}", ("resource",), "leases that are open now", _open),
    Metric(
        "zae_limiter.leases.ended",
        _COUNTER,
        "{lease}",
        ("result", "resource"),
        "leases by how they ended: as taken, corrected, given back, without a word, or in other hands",
        _ended,
    ),
    Metric(
        "zae_limiter.degraded",
        _COUNTER,
        "{acquire}",
        (),
        "work that went ahead unchecked because the store did not answer",
        _engine("degraded"),
    ),
    Metric(
        "zae_limiter.soft_exceeded",
        _COUNTER,
        "{acquire}",
        (),
        "acquires that were admitted although a soft limit had not enough",
        _engine("soft_exceeded"),
    ),
    Metric(
        "zae_limiter.refunds_lost",
        _COUNTER,
        "{refund}",
        (),
        "refunds and settlements of which nobody knows whether they were stored",
        _engine("refunds_lost"),
    ),
    Metric(
        "zae_limiter.seats_lost",
        _COUNTER,
        "{seat}",
        (),
        "seats of limits of concurrency that were not renewed in time",
        _engine("seats_lost"),
    ),
    Metric(
        "zae_limiter.store.duration",
        _HISTOGRAM,
        "s",
        ("verb",),
        "how long calls to the store took; what a store answers at once is no call",
        _calls,
        tuple(end / 1000 for end in CALL_ENDS_MS),
    ),
    Metric(
        "zae_limiter.store.errors", _COUNTER, "{call}", ("verb",), "calls the store did not answer", _errors
    ),
    Metric(
        "zae_limiter.group.size",
        _HISTOGRAM,
        "{order}",
        (),
        "how many orders one write carried out, of writes for which somebody stood in line",
        _groups,
        tuple(float(end) for end in GROUP_ENDS),
    ),
    Metric(
        "zae_limiter.config_cache",
        _COUNTER,
        "{lookup}",
        ("result",),
        "records of configuration that were remembered (hit) or had to be read (miss)",
        _cache,
    ),
)

STORE = "store"
"""The last label of every series: the kind of the store."""
