"""A stack as it changes: a table that a terminal redraws; elsewhere a line for each resource that is done.

All of it goes to standard error, because none of it is data.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..infra.stack import STACK, StackEvent
from .output import grid, printable

COLOURS = {"COMPLETE": "green", "SKIPPED": "cyan", "PROGRESS": "yellow", "FAILED": "red"}


class Board:
    """What became of each resource so far."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._latest: dict[str, StackEvent] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, event: StackEvent) -> None:
        """Something happened to a resource."""
        if event.kind == STACK:
            return
        self._latest[event.resource] = event
        if self._live is None and self._console.is_terminal:
            # Not before there is something to draw: a question may have to be asked first.
            self._live = Live(console=self._console, transient=True)
            self._live.start()
        if self._live is not None:
            self._live.update(self.table())
        elif not event.status.endswith("_IN_PROGRESS"):
            reason = f": {event.reason}" if event.is_failure else ""
            click.echo(
                printable(f"{words(event.status):<16} {event.resource} ({event.kind}){reason}"), err=True
            )

    def table(self) -> Table:
        table = grid(["resource", "kind"], ())
        table.add_column("status")
        for event in self._latest.values():
            status = words(event.status)
            colour = COLOURS.get(event.status.rpartition("_")[2], "")
            table.add_row(Text(event.resource), Text(event.kind), Text(status, style=colour))
        return table


def words(status: str) -> str:
    """``CREATE_IN_PROGRESS`` as people say it."""
    return status.lower().replace("_", " ")
