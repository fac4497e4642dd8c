"""Metrics as Prometheus reads them, as text: it needs no library.

The format is version 0.0.4, which every Prometheus and every scraper of its kind reads. Names and labels
are escaped, so whatever programs send as a name stays within its quotes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from .metrics import METRICS, STORE, Bins, Metric, MetricKind, Point
from .observer import Observer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus_name(metric: Metric) -> str:
    """What a metric is called there: with its unit, and ``_total`` if it only grows."""
    name = metric.name.replace(".", "_")
    name += "_seconds" if metric.unit == "s" else ""
    return f"{name}_total" if metric.kind is MetricKind.COUNTER else name


def prometheus_text(observer: Observer) -> str:
    """All metrics of an observer as they are now."""
    return text_of([(metric, metric.points(observer)) for metric in METRICS])


def text_of(families: Iterable[tuple[Metric, Iterable[Point]]], *more_labels: str) -> str:
    """Metrics with their points as text; points may have labels besides those of their metric."""
    lines: list[str] = []
    for metric, points in families:
        name, names = prometheus_name(metric), (*metric.labels, STORE, *more_labels)
        lines += [f"# HELP {name} {metric.text}", f"# TYPE {name} {metric.kind.value}"]
        for labels, value in points:
            told = [f'{label}="{_escaped(said)}"' for label, said in zip(names, labels, strict=True)]
            if isinstance(value, Bins):
                ends = [*(repr(float(end)) for end in value.ends), "+Inf"]
                for end, count in zip(ends, accumulate(value.counts), strict=True):
                    bin_labels = ",".join((*told, f'le="{end}"'))
                    lines.append(f"{name}_bucket{{{bin_labels}}} {count}")
                lines.append(f"{name}_sum{{{','.join(told)}}} {_number(value.total)}")
                lines.append(f"{name}_count{{{','.join(told)}}} {value.observed}")
            else:
                lines.append(f"{name}{{{','.join(told)}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(value: str) -> str:
    text = value.encode("utf-8", "replace").decode()
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
