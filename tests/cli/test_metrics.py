"""``zae-limiter metrics``: what is shipped is printed, to be passed on, and no store is touched."""

import json

from tests.cli.conftest import Run
from zae_limiter.telemetry.metrics import METRICS
from zae_limiter.telemetry.shipped import alerts, dashboard, metric_table


def test_what_is_shipped_is_printed_as_it_is(run: Run) -> None:
    """A dashboard and rules, byte for byte."""
    assert run("metrics", "dashboard").stdout == dashboard()
    assert run("metrics", "alerts").stdout == alerts()
    assert run("metrics", "list", "--markdown").stdout == metric_table() + "\n"


def test_metrics_are_listed(run: Run) -> None:
    """For people by what Prometheus calls them, for programs with all there is."""
    assert "zae_limiter_acquire_total" in run("metrics", "list").stdout
    found = json.loads(run("metrics", "list", "--json").stdout)
    assert [row["name"] for row in found] == [metric.name for metric in METRICS]
