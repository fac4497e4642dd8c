"""Metrics for OpenTelemetry: instruments that are asked when somebody exports, and never before.

An instrument that is asked has no histogram. So each of ours is two counters there, its ``.count`` and its
``.sum``, which give the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..exceptions import InfrastructureError
from .attached import Telemetry
from .metrics import METRICS, STORE, Bins, Metric, MetricKind

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

EXTRA = "opentelemetry is not there; install this package with its extra: opentelemetry"


def observe(telemetry: Telemetry, meter: Meter | None = None) -> None:
    """Have a telemetry read by a meter, that of the global provider without one.

    OpenTelemetry cannot forget an instrument: once the telemetry is closed it tells nothing any more.
    """
    try:
        from opentelemetry.metrics import get_meter
    except ImportError as error:
        raise InfrastructureError(EXTRA) from error
    target = get_meter("zae_limiter") if meter is None else meter
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True

    telemetry.on_close(end)
    for metric in METRICS:
        for suffix, unit, value_of in _parts(metric):

            def read(
                options: CallbackOptions,  # noqa: ARG001 - a callback is given them
                metric: Metric = metric,
                value_of: Callable[[Any], float] = value_of,
            ) -> Iterable[Observation]:
                return () if is_over else _observations(telemetry, metric, value_of)

            make: Any = target.create_observable_counter
            if metric.kind is MetricKind.GAUGE:
                make = target.create_observable_up_down_counter
            make(f"{metric.name}{suffix}", callbacks=[read], unit=unit, description=metric.text)


def _parts(metric: Metric) -> list[tuple[str, str, Callable[[Any], float]]]:
    """The instruments of a metric: the end of the name, the unit, and what of a point it tells."""
    if metric.kind is not MetricKind.HISTOGRAM:
        return [("", metric.unit, lambda value: value)]
    count: Callable[[Bins], float] = lambda bins: bins.observed  # noqa: E731
    total: Callable[[Bins], float] = lambda bins: bins.total  # noqa: E731
    return [(".count", "1", count), (".sum", metric.unit, total)]


def _observations(
    telemetry: Telemetry, metric: Metric, value_of: Callable[[Any], float]
) -> list[Observation]:
    from opentelemetry.metrics import Observation

    names = (*metric.labels, STORE)
    return [
        Observation(
            value_of(point.value),
            {f"zae_limiter.{name}": said for name, said in zip(names, point.labels, strict=True)},
        )
        for point in metric.points(telemetry.observer)
    ]
