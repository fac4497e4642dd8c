"""A stack as it changes, and a table as it is moved: redrawn by a terminal, elsewhere told line by line.

All of it goes to standard error, because none of it is data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import click
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from ..infra.stack import STACK, StackEvent
from ..operate.migrations import PassProgress
from .output import console as console_of
from .output import grid
from .text import printable

COLOURS = {"COMPLETE": "green", "SKIPPED": "cyan", "PROGRESS": "yellow", "FAILED": "red"}


class Board:
    """What became of each resource so far."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or console_of(stderr=True)
        self._latest: dict[str, StackEvent] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
            line = f"{words(event.status):<16} {event.resource} ({event.kind}){reason}"
            click.echo(printable(line), err=True)

    def table(self) -> Table:
        rows = []
        for event in self._latest.values():
            colour = COLOURS.get(event.status.rpartition("_")[2], "")
            rows.append((event.resource, event.kind, Text(words(event.status), style=colour)))
        return grid(["resource", "kind", "status"], rows)


def words(status: str) -> str:
    """``CREATE_IN_PROGRESS`` as people say it."""
    return status.lower().replace("_", " ")


class Bar:
    """How far each pass has come, and how fast: a bar on a terminal, elsewhere a line for each tenth."""

    def __init__(self, ticks_ms: Callable[[], float]) -> None:
        self._ticks_ms = ticks_ms
        self._begun_ms: dict[str, float] = {}
        self._tenths: dict[str, int] = {}
        self._tasks: dict[str, Any] = {}
        self._said: set[str] = set()
        self._console = console_of(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,  # even an empty bar would leave a line behind
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, progress: PassProgress) -> None:
        begun_ms = self._begun_ms.setdefault(progress.what, self._ticks_ms())
        seconds = (self._ticks_ms() - begun_ms) / 1000
        speed = f"{progress.done / seconds:,.0f} rows/s" if seconds >= 0.1 else ""
        if not self._console.is_terminal:
            self._print(progress, speed)
            return
        if progress.what not in self._tasks:
            self._tasks[progress.what] = self._bars.add_task(progress.what, total=progress.total, speed=speed)
        task = self._tasks[progress.what]
        self._bars.update(task, completed=progress.done, total=progress.total, speed=speed)

    def _print(self, progress: PassProgress, speed: str) -> None:
        told = f"{progress.done:,} rows"
        if not progress.is_over:
            if progress.total <= progress.done:  # nobody knows yet how many there are
                return
            tenth = progress.done * 10 // progress.total
            if tenth <= self._tenths.get(progress.what, 0):
                return
            self._tenths[progress.what] = tenth
            told = f"{progress.done:,} of {progress.total:,} rows"
        click.echo(f"{progress.what}: {told}{f', {speed}' if speed else ''}", err=True)

    def say(self, index: str, what: str) -> None:
        line = f"index {index}: {what}"
        if line not in self._said:
            self._said.add(line)
            self._console.print(line)
