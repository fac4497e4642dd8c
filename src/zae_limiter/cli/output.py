"""What a command prints: a table for people or JSON for programs.

Only data goes to standard output. Text from the store is shown without its control characters, so
that a name cannot move the cursor.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..visualization.bars import ASCII, BLOCKS, Ink

WIDTH_WITHOUT_TERMINAL = 120


class Output:
    """Where the data of one command goes, and in which form."""

    def __init__(self, form: str) -> None:
        self.is_json = form == "json"

    def show(self, data: Any, table: Callable[[], RenderableType]) -> None:
        """Print data: as it is, or the table that is made of it."""
        if self.is_json:
            click.echo(json.dumps(plain(data), indent=2))
        else:
            console().print(table())

    def done(self, data: Any, message: str) -> None:
        """Report a change: its result as JSON, or a sentence."""
        if self.is_json:
            click.echo(json.dumps(plain(data), indent=2))
        else:
            self.note(message)

    def note(self, message: str) -> None:
        """Say something about the data, which is no data itself."""
        click.echo(printable(message), err=True)


def console(*, stderr: bool = False) -> Console:
    """Standard output or error. Without a terminal its width is that of ``COLUMNS``, or generous."""
    out = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = WIDTH_WITHOUT_TERMINAL
    return out


def ink(out: Console) -> Ink:
    """What this console can draw with."""
    return ASCII if out.options.ascii_only else BLOCKS


def grid(columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> Table:
    """A table; the columns in ``numbers`` are set to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    return table


def record(fields: Mapping[str, object]) -> Table:
    """One thing: a line for each field."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column("field", style="bold")
    table.add_column("value", overflow="fold")
    for name, value in fields.items():
        table.add_row(name, cell(value))
    return table


def cell(value: object) -> Text:
    if value is None or value == {}:
        return Text("-")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, Mapping):
        value = json.dumps(value)
    return Text(printable(str(value)))


def printable(text: str) -> str:
    """Text in which nothing but a new line steers a terminal.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def plain(data: Any) -> Any:
    """Data as JSON can say it; a wait that never ends is null."""
    if is_dataclass(data) and not isinstance(data, type):
        data = asdict(data)
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(one) for one in data]
    return None if isinstance(data, float) and math.isinf(data) else data
