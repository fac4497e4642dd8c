"""How commands and options were spelled in versions up to 0.17, and what became of each.

This is the only place that knows them: whatever help shows is written elsewhere. To drop the old
spellings in a later major version, remove this module and what ``commands`` takes from it.

A spelling that was renamed works and says its new name on standard error. One that has no counterpart
fails, and says what there is instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any, Final, TypeVar, cast

import click

from ..exceptions import without_secrets
from .errors import USAGE, Failure

T = TypeVar("T")

_GIVEN = {"-r": "RESOURCE", "--resource": "RESOURCE", "--idempotency-key": "--key"}

RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "audit list": {"-l": "--limit"},
    "deploy": {"--iam": "--create-iam"},
    "entity reset": _GIVEN,
    "entity top-up": {**_GIVEN, "-a": "--limit", "--add": "--limit"},
    "lambda-export": {"-f": "--force"},
    "local logs": {"--tail": "--lines"},
    "usage list": {"-l": "--limit", "-p": "--plot"},
}
"""By command: the old option, and the option or argument that does the same."""

NEEDLESS: Final[Mapping[str, Mapping[str, str]]] = {
    "deploy": {"--no-provisioner": "there is none; `limits apply` writes limits itself"}
}
"""Options that ask for what is so anyway."""

_CLIENT = "it is a setting of each program: Repository.open({}=…)"
_SOFT = {"--soft NAME": "a limit says so itself: -l NAME:RATE:soft"}
_FULL = {
    "--full": "every apply looks at all that the file names, and buckets take up new limits by themselves"
}
_DOCKER = "no containers are used; `local up --engine` chooses what runs"

GONE: Final[Mapping[str, Mapping[str, str]]] = {
    "deploy": {
        "--enable-provisioner": (
            "`limits apply` writes limits itself, and `limits cfn-template` brings a function of its own"
        ),
        "--config-cache-ttl SECONDS": _CLIENT.format("config_cache_ttl"),
        "--bucket-ttl-multiplier N": _CLIENT.format("bucket_ttl_multiplier"),
    },
    "limits apply": _FULL,
    "limits cfn-template": _FULL,
    "local up": {"--docker-host URL": _DOCKER, "--image NAME": _DOCKER},
    **{f"local {verb}": {"--docker-host URL": _DOCKER} for verb in ("down", "logs", "status")},
    **dict.fromkeys(("entity set-limits", "resource set-defaults", "system set-defaults"), _SOFT),
}
"""Options without a counterpart, as they were written, and what there is instead."""

GONE_COMMANDS: Final[Mapping[str, str]] = {
    "loadtest": "load is not generated here; a checkout measures with `make bench`"
}
"""Commands of the program without a counterpart, with all that they were told."""

_SWITCHES = {
    "disable": ("disable", "--reason …"),
    "enable": ("enable", "--overrule"),
    "clear-disabled": ("enable", ""),
    "bypass": ("bypass", ""),
}

MOVED: Final[Mapping[str, tuple[str, str, str]]] = {
    f"{noun} {old}": (verb, f"--{noun}", more)
    for noun in ("entity", "resource")
    for old, (verb, more) in _SWITCHES.items()
}
"""Commands that a verb without a noun has taken over: that, the option for the name, and what else to say."""


class Former(click.Option):
    """A spelling that help does not show: it is told what became of it, or refused with that.

    One that stands for another option hands its value on to that one.
    """

    def __init__(
        self, written: str, told: str, option: click.Parameter | None = None, *, is_refused: bool = False
    ) -> None:
        old, _, value = written.partition(" ")
        self.old: str = old
        self.told: str = f"{self.old} {told}"
        self.option = option
        self.is_refused = is_refused
        # It has its word before any other option, a missing one included.
        super().__init__(
            [self.old, f"former{self.old.replace('-', '_')}"],
            hidden=True,
            is_eager=True,
            expose_value=False,
            is_flag=getattr(option, "is_flag", False) if option else not value,
            multiple=getattr(option, "multiple", False),
        )

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        if self.name in opts:
            if self.is_refused:
                ctx.fail(self.told)
            click.echo(f"note: {self.told}", err=True)
            if self.option is not None:
                cast(dict[str, Any], opts)[str(self.option.name)] = opts[str(self.name)]
        return None, args


class GoneCommand(click.Command):
    """A command that has no counterpart, whatever else is written behind it."""

    def __init__(self, path: str, instead: str) -> None:
        super().__init__(path.rpartition(" ")[2], hidden=True, add_help_option=False)
        self._told = f"`{path}` is gone: {instead}"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:  # noqa: ARG002
        raise click.UsageError(self._told, ctx.parent)


class MovedCommand(GoneCommand):
    """A command that is written in another way, which is shown with the words that were given."""

    def __init__(self, path: str, verb: str, option: str, more: str) -> None:
        super().__init__(path, "")
        self._told, self._verb, self._option, self._more = f"`{path}` is now `{verb}`", verb, option, more

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:  # noqa: ARG002
        # What an option takes is not known here, so only a name that comes first is known to be one.
        words = args if args and not args[0].startswith("-") else ["ID"]
        more = "" if self._more.split(" ")[0] in words else self._more
        given = (quote(without_secrets(word) if "://" in word else word) for word in words)
        raise Failure(
            self._told, " ".join(filter(None, ("zae-limiter", self._verb, self._option, *given, more))), USAGE
        )


def teach(name: str, command: click.Command) -> None:
    """Have a command of the program, and those in it, understand the old spellings."""
    for inner, renamed in _within(name, RENAMED):
        params = _find(command, inner).params
        known = {spelled: one for one in params for spelled in (*one.opts, str(one.name).upper())}
        params += [Former(old, f"is now {new}", known[new]) for old, new in renamed.items()]
    for inner, needless in _within(name, NEEDLESS):
        _find(command, inner).params += [
            Former(old, f"is not needed: {why}") for old, why in needless.items()
        ]
    for inner, gone in _within(name, GONE):
        former = [Former(old, f"is gone: {instead}", is_refused=True) for old, instead in gone.items()]
        _find(command, inner).params += former
    for inner, moved in _within(name, MOVED):
        group = cast(click.Group, _find(command, inner.rpartition(" ")[0]))
        group.add_command(MovedCommand(f"{name} {inner}", *moved))


def _within(name: str, told: Mapping[str, T]) -> list[tuple[str, T]]:
    """What is told of a command and of those in it, by the words behind its name."""
    return [
        (path.removeprefix(name).strip(), what) for path, what in told.items() if path.split(" ")[0] == name
    ]


def _find(command: click.Command, path: str) -> click.Command:
    """The command that these words lead to."""
    for word in path.split():
        command = cast(click.Group, command).commands[word]
    return command
