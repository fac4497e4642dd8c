"""Options, and commands that say what was likely meant by a word in the wrong place, or by one too many."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

import click

from ..exceptions import without_secrets
from .errors import USAGE, Failure

ALIASES: dict[str, tuple[str, ...]] = {"add": ("create", "register"), "create": ("register",)}
ALIASES |= {"get": ("show",), "ls": ("list",), "remove": ("delete",), "rm": ("delete",)}
"""What people call commands that have another name here."""


Command = Callable[..., None]


def decorated(function: Command, *decorators: Callable[[Command], Command]) -> Command:
    """The decorators as if they were written above the function, the first one uppermost."""
    return functools.reduce(lambda inner, decorate: decorate(inner), reversed(decorators), function)


def together(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several decorators as one."""
    return lambda function: decorated(function, *decorators)


def option(names: str, what: str, **settings: Any) -> Callable[[Any], Any]:
    """An option by its spellings, and what help says of it."""
    return click.option(*names.split(), help=what, **settings)


class Verb(click.Command):
    """A command. ``meant`` has the options that words too many were likely to be the values of, in order.

    ``instead`` has what there is for options of other programs that this command does not have.
    """

    def __init__(
        self, *args: Any, meant: str = "", instead: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self._meant, self._instead = meant.split(), instead or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        said = list(args)
        try:
            left = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            instead = {"-o": "did you mean: --json"} if _takes(self, "--json") else {}
            hint = (instead | dict(self._instead)).get(error.option_name)
            if hint is None:
                raise
            raise Failure(error.format_message(), hint, USAGE) from error
        except click.UsageError as error:
            # Others say themselves what is wrong, and with them the words cannot be told apart.
            if not self._meant or type(error) not in {click.UsageError, click.MissingParameter}:
                raise
            given, left, _ = self.make_parser(ctx).parse_args(said)
            self._refuse_swallowed(ctx, given)
            left = [without_secrets(word) if "://" in word else word for word in left]
            hint = " ".join(f"{option} {quote(word)}" for option, word in self._likely(given, left))
            if not hint:
                raise
            told = f"unexpected argument{'s' * (len(left) > 1)} {', '.join(map(repr, left))}"
            raise Failure(told, f"did you mean: {hint}", USAGE) from error
        if not ctx.resilient_parsing:
            self._refuse_twice(ctx, said)
        return left

    def _refuse_twice(self, ctx: click.Context, said: list[str]) -> None:
        """Of two values one would be passed over in silence."""
        _, _, order = self.make_parser(ctx).parse_args(said)
        for option in order:
            is_one = isinstance(option, click.Option) and not (option.multiple or option.is_flag)
            if is_one and order.count(option) > 1:
                ctx.fail(f"{max(option.opts, key=len)} was given twice; it takes one value")

    def _refuse_swallowed(self, ctx: click.Context, given: Mapping[str, Any]) -> None:
        """An option without its value takes the next option for one."""
        spellings = {spelling for option in self.params for spelling in option.opts}
        for option in self.params:
            if isinstance(option, click.Option) and (value := str(given.get(option.name or ""))) in spellings:
                ctx.fail(f"{option.opts[0]} needs a value, and {value} is an option")

    def _likely(self, given: Mapping[str, Any], words: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Words with the options that they were likely meant for; some are for none."""
        takes = {spelling: option for option in self.params for spelling in option.opts}
        free = [meant for meant in self._meant if takes[meant].multiple or takes[meant].name not in given]
        for word in words:
            choices = getattr(takes[free[0]].type, "choices", [word]) if free else []
            if "://" in word and "--store" in takes:
                yield "--store", word
            elif ":" in word and "-l" in takes and takes["-l"].name == "limits":
                yield "-l", word
            elif word in choices:
                yield free[0] if takes[free[0]].multiple else free.pop(0), word


def verb(name: str, *decorators: Callable[[Command], Command], **settings: Any) -> Callable[[Command], Verb]:
    """Make a function a command of this name, with the decorators as if they were written above it."""
    return lambda function: click.command(name, cls=Verb, **settings)(decorated(function, *decorators))


class Noun(click.Group):
    """A group of commands, all of whose options are written after the command."""

    def verb(
        self, name: str, *decorators: Callable[[Command], Command], **settings: Any
    ) -> Callable[[Command], Verb]:
        """Likewise, and have it in this group."""

        def add(function: Command) -> Verb:
            self.add_command(made := verb(name, *decorators, **settings)(function))
            return made

        return add

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if ctx.resilient_parsing or args[0] in self.commands or args[0].startswith("-"):
                raise
            from difflib import get_close_matches

            known = [name for name, command in self.commands.items() if not command.hidden]
            meant = [name for name in ALIASES.get(args[0], ()) if name in known]
            meant = meant or get_close_matches(args[0], known, cutoff=0.65)
            hint = " or ".join(f"{ctx.command_path} {name}" for name in meant)
            hint = f"did you mean: {hint}" if hint else f"{ctx.command_path} --help"
            raise Failure(f"no such command {args[0]!r}", hint, USAGE) from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not _takes(self, error.option_name):
                raise
            hint = f"put it after the command: {ctx.command_path} COMMAND {error.option_name}"
            raise Failure(f"{error.option_name} stands before the command", hint, USAGE) from error


def _takes(command: click.Command, option: str) -> bool:
    """Whether a command, or one of its group, has this option."""
    if isinstance(command, click.Group):
        return any(_takes(one, option) for one in command.commands.values())
    return any(option in (*one.opts, *one.secondary_opts) for one in command.params)
