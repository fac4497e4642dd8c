"""The reference of the command line, from the tree of commands that runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from zae_limiter.cli.app import program

PROGRAM = "zae-limiter"
CHECKED = "<!-- checked: tests/site/test_reference.py -->\n"


def tree() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command that help shows, with all its words, groups before what they hold."""

    def below(
        words: str, command: click.Command, context: click.Context
    ) -> Iterator[tuple[str, click.Command, click.Context]]:
        yield words, command, context
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                if found is not None and not found.hidden:
                    inner = click.Context(found, info_name=name, parent=context)
                    yield from below(f"{words} {name}", found, inner)

    settings = dict(program.context_settings)
    yield from below(PROGRAM, program, click.Context(program, info_name=PROGRAM, **settings))


def options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def anchor(words: str) -> str:
    return words.removeprefix(PROGRAM).strip().replace(" ", "-") or PROGRAM


def page() -> str:
    """All commands as Markdown."""
    parts = [
        "# Commands and options",
        f"Every command of `{PROGRAM}`, from the program itself; `--help` after any of them says the same."
        " What they do together is in [the command line](../cli.md).",
    ]
    for words, command, context in tree():
        parts += described(words, command, context)
    return "\n\n".join(part for part in parts if part) + "\n"


def described(words: str, command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"{'#' * min(4, 1 + len(words.split()))} `{words}` {{ #{anchor(words)} }}"
    usage = " ".join([words, *command.collect_usage_pieces(context)])
    yield f"{CHECKED}```text\n{usage}\n```"
    yield prose(command.help or "")
    if isinstance(command, click.Group):
        found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        names = [name for name, one in found if one is not None and not one.hidden]
        yield "Commands: " + ", ".join(f"[`{name}`](#{anchor(f'{words} {name}')})" for name in names) + "."
    rows = [row(one, context) for one in options(command)]
    if rows:
        yield "| option | meaning |\n|---|---|\n" + "\n".join(rows)


def row(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    said = record[1] if record else option.help or ""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    # A bar within code ends no cell, and would be shown with the backslash that spares others.
    value = "" if option.is_flag or option.count else f" `{option.make_metavar(context)}`"
    return f"| {names}{value} | {cell(said)} |"


def cell(text: str) -> str:
    """A text that does not end a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def prose(text: str) -> str:
    """Help as Markdown: what click keeps as it is becomes a block."""
    parts = []
    for piece in re.split(r"\n\s*\n", inspect.cleandoc(text)) if text else []:
        if piece.startswith("\b"):
            kept = piece.removeprefix("\b").strip("\n")
            parts.append(f"{CHECKED}```text\n{kept}\n```")
        else:
            parts.append(piece.replace("<", "&lt;"))
    return "\n\n".join(parts)
