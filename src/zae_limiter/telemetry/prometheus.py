"""Metrics for ``prometheus_client``: a collector that is asked when somebody scrapes, and never before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from ..exceptions import InfrastructureError
from .attached import Telemetry
from .metrics import METRICS, STORE, Bins, Metric, MetricKind, Point

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

EXTRA = "prometheus_client is not there; install this package with its extra: prometheus"


class PrometheusCollector:
    """Reads the numbers of a telemetry for whoever scrapes."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def describe(self) -> list[Family]:
        """Nothing is read to learn the names."""
        return [_family(metric, []) for metric in METRICS]

    def collect(self) -> Iterator[Family]:
        """All metrics as they are now."""
        observer = self._telemetry.observer
        for metric in METRICS:
            yield _family(metric, metric.points(observer))


def register(telemetry: Telemetry, registry: CollectorRegistry | None = None) -> PrometheusCollector:
    """Have a telemetry scraped with a registry, the default one without one, until it is closed."""
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise InfrastructureError(EXTRA) from error
    target, collector = registry or REGISTRY, PrometheusCollector(telemetry)
    target.register(collector)
    telemetry.on_close(lambda: target.unregister(collector))
    return collector


def _family(metric: Metric, points: list[Point]) -> Family:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    name = metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "")
    labels = (*metric.labels, STORE)
    family: Family
    if metric.kind is MetricKind.HISTOGRAM:
        family = HistogramMetricFamily(name, metric.text, labels=labels)
        for said, value in points:
            assert isinstance(value, Bins), metric.name
            ends = [*(repr(float(end)) for end in value.ends), "+Inf"]
            bins = list(zip(ends, map(float, accumulate(value.counts)), strict=True))
            family.add_metric(said, bins, value.total)
        return family
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = kind(name, metric.text, labels=labels)
    for said, value in points:
        assert not isinstance(value, Bins), metric.name
        family.add_metric(said, value)
    return family
