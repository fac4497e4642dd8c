"""Groups and commands that say what was likely meant by a word in the wrong place."""

from __future__ import annotations

from shlex import quote
from typing import Any

import click

from .errors import USAGE, Failure


class Verb(click.Command):
    """A command. ``meant`` is the option that a word too many was likely to be the value of."""

    def __init__(self, *args: Any, meant: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._meant = meant

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        said = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            # Others say themselves what is wrong, and with them the words cannot be told apart.
            if not self._meant or type(error) not in {click.UsageError, click.MissingParameter}:
                raise
            _, left, _ = self.make_parser(ctx).parse_args(said)
            if not left:
                raise
            raise Failure(
                f"unexpected argument{'s' * (len(left) > 1)} {', '.join(map(repr, left))}",
                f"did you mean: {' '.join(f'{self._option_of(word)} {quote(word)}' for word in left)}",
                USAGE,
            ) from error

    def _option_of(self, word: str) -> str:
        limits = any(option.name == "limits" and "-l" in option.opts for option in self.params)
        return "-l" if limits and ":" in word else self._meant


class Noun(click.Group):
    """A group of commands, all of whose options are written after the command."""

    command_class = Verb

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not _takes(self, error.option_name):
                raise
            raise Failure(
                f"{error.option_name} stands before the command",
                f"put it after the command: {ctx.command_path} COMMAND {error.option_name}",
                USAGE,
            ) from error


def _takes(command: click.Command, option: str) -> bool:
    """Whether a command, or one of its group, has this option."""
    if isinstance(command, click.Group):
        return any(_takes(one, option) for one in command.commands.values())
    return any(option in (*one.opts, *one.secondary_opts) for one in command.params)
