"""What a command prints: a table for people or JSON for programs.

Only data goes to standard output. Text from the store is shown without its control characters, so
that a name cannot move the cursor.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from ..models import Limit
from ..visualization.bars import ASCII, BLOCKS, Ink
from ..visualization.wording import wrapped
from .text import printable

WIDTH_WITHOUT_TERMINAL = 120
COLUMN_GAP = 3
DRAWN_PLAINLY = "zae_limiter.cli.ascii"
"""Under this name the context of a command remembers ``--ascii``."""


class Output:
    """Where the data of one command goes, and in which form."""

    def __init__(self, form: str) -> None:
        self.is_json: bool = form == "json"

    def json(self, data: Any) -> bool:
        """Print data if it is to be JSON, and tell whether it is."""
        if self.is_json:
            click.echo(json.dumps(plain(data), indent=2))
        return self.is_json

    def show(self, data: Any, table: Callable[[], RenderableType]) -> None:
        """Print data: as it is, or the table that is made of it."""
        if not self.json(data):
            console().print(table())

    def done(self, data: Any, message: str) -> None:
        """Report a change: its result as JSON, or a sentence."""
        if not self.json(data):
            self.note(message)

    def remark(self, message: str) -> None:
        """Say something to people that programs see in the data."""
        if not self.is_json:
            self.note(message)

    def note(self, message: str) -> None:
        """Say something about the data, which is no data itself."""
        click.echo(printable(message), err=True)


class PlainConsole(Console):
    """One that shows nothing but plain characters, whatever it could show."""

    encoding = "ascii"


def _draw_plainly(ctx: click.Context, _: click.Parameter, plainly: bool) -> None:
    ctx.meta[DRAWN_PLAINLY] = plainly


ascii_option: Final = click.option(
    "--ascii",
    help="Draw with plain characters only.",
    is_flag=True,
    expose_value=False,
    callback=_draw_plainly,
)
"""An option of commands that draw; ``console`` knows whether it was given."""


def console(*, stderr: bool = False) -> Console:
    """Standard output or error. Without a terminal its width is that of ``COLUMNS``, or generous."""
    out = _console(Console, stderr)
    ctx = click.get_current_context(silent=True)
    if out.is_dumb_terminal or (ctx is not None and ctx.meta.get(DRAWN_PLAINLY)):
        out = _console(PlainConsole, stderr)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = WIDTH_WITHOUT_TERMINAL
    return out


def _console(kind: type[Console], stderr: bool) -> Console:
    return kind(stderr=stderr, highlight=False, markup=False, emoji=False)


def ink(out: Console) -> Ink:
    """What this console can draw with."""
    return ASCII if out.options.ascii_only else BLOCKS


class Grid(Table):
    """A table that breaks no word: where a terminal is too narrow for it, each row becomes a record."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = [[_plain(column.header), *map(_plain, column.cells)] for column in self.columns]
        widest = [max(map(cell_len, of)) for of in texts]
        natural = [max(n, column.min_width or 0) for n, column in zip(widest, self.columns, strict=True)]
        least = [max((cell_len(word) for text in of for word in text.split()), default=1) for of in texts]
        room = options.max_width - COLUMN_GAP * (len(self.columns) - 1)
        if sum(natural) > room:
            if sum(least) > room:
                yield Text("\n".join(_record_lines(texts, options.max_width)))
                return
            while sum(natural) > room:  # the widest column gives way first, and none below its longest word
                shrinking = [n for n, width in enumerate(natural) if width > least[n]]
                natural[max(shrinking, key=lambda n: natural[n])] -= 1
            for column, width in zip(self.columns, natural, strict=True):
                column.width, column.min_width = width, None
        yield from super().__rich_console__(console, options)


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _record_lines(texts: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """A line for each field; a value that has no room beside its name stands below it."""
    margin = max(len(of[0]) for of in texts) + 2
    for row in range(1, len(texts[0])):
        if row > 1:
            yield ""
        for name, value in ((of[0], of[row]) for of in texts):
            if not value:
                continue
            first, indent = f"{name:<{margin}}", margin
            if margin + max(map(cell_len, value.split()), default=0) > width:
                yield name
                first, indent = "  ", 2
            for line in wrapped(value, width - indent):
                yield f"{first}{line}"
                first = " " * indent


def grid(columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> Table:
    """A table; the columns in ``numbers`` are set to the right."""
    table = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
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
    if isinstance(value, Text):
        return value
    if value is None or value == {}:
        return Text("-")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, Mapping):
        value = json.dumps(value)
    return Text(printable(str(value)))


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "level"), counted(2, "level")
    ('1 level', '2 levels')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def plain(data: Any) -> Any:
    """Data as JSON can say it; a wait that never ends is null."""
    if isinstance(data, Limit):
        data = data.to_dict()
    elif is_dataclass(data) and not isinstance(data, type):
        data = {one.name: getattr(data, one.name) for one in fields(data)}
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(one) for one in data]
    return None if isinstance(data, float) and math.isinf(data) else data
