"""``zae-limiter metrics``: what is shipped for those who collect numbers. Nothing here asks a store."""

from __future__ import annotations

import click

from .nouns import Noun, option
from .output import Output, grid
from .session import with_output

metrics: Noun = Noun("metrics", help="Names of metrics, a dashboard for Grafana, alerts for Prometheus.")


@metrics.verb("list", option("--markdown", "As a table for a page.", is_flag=True), with_output)
def list_(output: Output, markdown: bool) -> None:
    """List all metrics with their units and labels."""
    from ..telemetry.shipped import metric_rows, metric_table

    if markdown:
        if output.is_json:
            raise click.UsageError("--markdown is text; it does not go with --output json")
        click.echo(metric_table())
        return
    rows = metric_rows()
    columns = ["name", "prometheus", "type", "unit", "labels", "text"]
    data = [dict(zip(columns, row, strict=True)) for row in rows]
    output.show(data, lambda: grid(columns[1:5], [row[1:5] for row in rows]))


@metrics.verb("dashboard", with_output)
def dashboard(output: Output) -> None:
    """Print a dashboard for Grafana, to be imported there."""
    from ..telemetry.shipped import dashboard as text

    del output  # it is JSON in any case
    click.echo(text(), nl=False)


@metrics.verb("alerts", with_output)
def alerts(output: Output) -> None:
    """Print rules for Prometheus, to be named under rule_files."""
    from ..telemetry.shipped import alerts as text

    if not output.json({"rules": text()}):
        click.echo(text(), nl=False)
