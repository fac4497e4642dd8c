"""What is shipped for those who collect: a dashboard for Grafana, rules for Prometheus, a table of names."""

from __future__ import annotations

from importlib.resources import files

from .exposition import prometheus_name
from .metrics import METRICS, STORE


def dashboard() -> str:
    """A dashboard for Grafana, as JSON to be imported."""
    return _shipped("dashboard.json")


def alerts() -> str:
    """Rules for Prometheus, as a file of rules."""
    return _shipped("alerts.yaml")


def _shipped(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def metric_rows() -> list[tuple[str, str, str, str, str, str]]:
    """Every metric: its name, what Prometheus calls it, its type, its unit, its labels, and what it tells."""
    return [
        (
            metric.name,
            prometheus_name(metric),
            metric.kind.value,
            metric.unit,
            ", ".join((*metric.labels, STORE)),
            metric.text,
        )
        for metric in METRICS
    ]


def metric_table() -> str:
    """The same as a page shows it."""
    lines = ["| name | in Prometheus | type | unit | labels | what it tells |", "|---|---|---|---|---|---|"]
    for name, there, kind, unit, labels, text in metric_rows():
        lines.append(f"| `{name}` | `{there}` | {kind} | {unit} | {labels} | {text} |")
    return "\n".join(lines)
