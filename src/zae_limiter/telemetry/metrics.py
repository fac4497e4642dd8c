"""Every metric by its name, with its unit and labels, and what it is now: the one table that exporters use.

Names follow the convention that is stable, ``aspnetcore.rate_limiting.*``: leases, queued, result. Times are
seconds, amounts are tokens. Which labels a metric has is fixed; their values are names of resources and
limits, of which there is a bounded number, words of ours, and the kind of the store. No metric names an
entity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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

_TEXTS = {
    "acquire": "acquires and consumes by what came of them; if refused, by the limit with the longest wait",
    "refusals": "refusals by each limit that refused; one acquire may be in several",
    "tokens": "tokens that were taken, that work cost besides (settled), and that came back (returned)",
    "wait.duration": "how long acquires that were told to wait did so before they were admitted",
    "queued": "acquires that wait for their turn now",
    "leases.active": "leases that are open now",
    "leases.ended": "leases by how they ended: as taken, corrected, given back, without a word, or in other"
    " hands",
    "degraded": "work that went ahead unchecked because the store did not answer",
    "soft_exceeded": "acquires that were admitted although a soft limit had not enough",
    "refunds_lost": "refunds and settlements of which nobody knows whether they were stored",
    "seats_lost": "seats of limits of concurrency that were not renewed in time",
    "store.duration": "how long calls to the store took; what a store answers at once is no call",
    "store.errors": "calls the store did not answer",
    "group.size": "how many orders one write carried out, of writes for which somebody stood in line",
    "config_cache": "records of configuration that were remembered (hit) or had to be read (miss)",
}


def _metric(
    name: str,
    kind: MetricKind,
    unit: str,
    labels: str,
    read: Callable[[Observer], Reading],
    ends: tuple[float, ...] = (),
) -> Metric:
    return Metric(f"zae_limiter.{name}", kind, unit, tuple(labels.split()), _TEXTS[name], read, ends)


def _seconds(ends_ms: Iterable[float]) -> tuple[float, ...]:
    return tuple(end / 1000 for end in ends_ms)


METRICS = (
    _metric("acquire", _COUNTER, "{acquire}", "result resource limit", _acquires),
    _metric("refusals", _COUNTER, "{refusal}", "resource limit", _by_limit(lambda cell: cell.refusals)),
    _metric("tokens", _COUNTER, "{token}", "kind resource limit", _tokens),
    _metric("wait.duration", _HISTOGRAM, "s", "resource", _waits, _seconds(WAIT_ENDS_MS)),
    _metric("queued", _GAUGE, "{acquire}", "", _waiting),
    _metric("leases.active", _GAUGE, "{lease}", "resource", _open),
    _metric("leases.ended", _COUNTER, "{lease}", "result resource", _ended),
    _metric("degraded", _COUNTER, "{acquire}", "", _engine("degraded")),
    _metric("soft_exceeded", _COUNTER, "{acquire}", "", _engine("soft_exceeded")),
    _metric("refunds_lost", _COUNTER, "{refund}", "", _engine("refunds_lost")),
    _metric("seats_lost", _COUNTER, "{seat}", "", _engine("seats_lost")),
    _metric("store.duration", _HISTOGRAM, "s", "verb", _calls, _seconds(CALL_ENDS_MS)),
    _metric("store.errors", _COUNTER, "{call}", "verb", _errors),
    _metric("group.size", _HISTOGRAM, "{order}", "", _groups, tuple(map(float, GROUP_ENDS))),
    _metric("config_cache", _COUNTER, "{lookup}", "result", _cache),
)

STORE = "store"
"""The last label of every series: the kind of the store."""
