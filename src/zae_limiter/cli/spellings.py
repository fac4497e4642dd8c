"""How commands and options were spelled in versions up to 0.17, and what became of each.

This is the only place that knows them: whatever help shows is written elsewhere. To drop the old
spellings in a later major version, remove this module and the call of ``teach``.

A spelling that was renamed works and says its new name on standard error. One that has no counterpart
fails, and says what there is instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import click

RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "audit list": {"-l": "--limit"},
    "deploy": {"--iam": "--create-iam"},
    "lambda-export": {"-f": "--force"},
    "local logs": {"--tail": "--lines"},
    "usage list": {"-l": "--limit", "-p": "--plot"},
}
"""By command: the old option, and the one that does the same."""

NEEDLESS: Final[Mapping[str, Mapping[str, str]]] = {
    "deploy": {"--no-provisioner": "there is none; `limits apply` writes limits itself"},
}
"""Options that ask for what is so anyway."""

_CLIENT = "it is a setting of each program: Repository.open({}=…)"
_SOFT = "this version has no soft limits; every limit that is set may refuse"
_FULL = "every apply looks at all that the file names, and buckets take up new limits by themselves"
_DOCKER = "no containers are used; `local up --engine` chooses what runs"

GONE: Final[Mapping[str, Mapping[str, str]]] = {
    "deploy": {
        "--enable-provisioner": (
            "`limits apply` writes limits itself, and `limits cfn-template` brings a function of its own"
        ),
        "--config-cache-ttl SECONDS": _CLIENT.format("config_cache_ttl"),
        "--bucket-ttl-multiplier N": _CLIENT.format("bucket_ttl_multiplier"),
    },
    "entity set-cascade": {"--resource NAME": "an entity cascades on every resource or on none"},
    "entity set-limits": {"--soft NAME": _SOFT},
    "limits apply": {"--full": _FULL},
    "limits cfn-template": {"--full": _FULL},
    "local down": {"--docker-host URL": _DOCKER},
    "local logs": {"--docker-host URL": _DOCKER},
    "local status": {"--docker-host URL": _DOCKER},
    "local up": {"--docker-host URL": _DOCKER, "--image NAME": _DOCKER},
    "resource set-defaults": {"--soft NAME": _SOFT},
    "system set-defaults": {"--soft NAME": _SOFT},
}
"""Options without a counterpart, as they were written, and what there is instead."""

_SWITCH = "this version has no switches; limits are what it enforces: `{} …`"
_CASCADE = "cascading is a property of an entity: `entity set-cascade ENTITY_ID on|off`"
_BALANCE = (
    "this version does not write balances by hand; larger limits take effect at once: `entity set-limits …`"
)

GONE_COMMANDS: Final[Mapping[str, str]] = {
    "entity bypass": _SWITCH.format("entity set-limits"),
    "entity clear-cascade": _CASCADE,
    "entity clear-disabled": _SWITCH.format("entity delete-limits"),
    "entity disable": _SWITCH.format("entity set-limits"),
    "entity enable": _SWITCH.format("entity set-limits"),
    "entity reset": _BALANCE,
    "entity top-up": _BALANCE,
    "loadtest": "load is not generated here; a checkout measures with `make bench`",
    "resource bypass": _SWITCH.format("resource delete-defaults"),
    "resource clear-cascade": _CASCADE,
    "resource clear-disabled": _SWITCH.format("resource delete-defaults"),
    "resource disable": _SWITCH.format("resource set-defaults"),
    "resource enable": _SWITCH.format("resource set-defaults"),
    "resource set-cascade": _CASCADE,
}
"""Commands without a counterpart, with all that they were told."""


class Former(click.Option):
    """A spelling that help does not show: it is told what became of it, or refused with that."""

    def __init__(self, written: str, told: str, *, is_refused: bool = False, **settings: Any) -> None:
        self.old, _, value = written.partition(" ")
        self.told, self.is_refused = f"{self.old} {told}", is_refused
        settings = {"is_flag": not value} | settings
        name = f"former{self.old.replace('-', '_')}"
        # It has its word before any other option, a missing one included.
        super().__init__([self.old, name], hidden=True, is_eager=True, expose_value=False, **settings)

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        if self.name in opts:
            if self.is_refused:
                ctx.fail(self.told)
            click.echo(f"note: {self.told}", err=True)
            self.pass_on(cast(dict[str, Any], opts))
        return None, args

    def pass_on(self, said: dict[str, Any]) -> None:
        """Give the value to the option that this stands for; ``said`` is all that was written."""


class Renamed(Former):
    """Another name of an option, or of the yes or the no of a switch."""

    def __init__(self, old: str, new: str, option: click.Option) -> None:
        super().__init__(old, f"is now {new}", is_flag=option.is_flag, multiple=option.multiple)
        self._new, self._option = new, option

    def pass_on(self, said: dict[str, Any]) -> None:
        value, name = said[str(self.name)], str(self._option.name)
        if self.is_flag:
            value = self._new in self._option.opts
        elif self.multiple:
            value = [*said.get(name, ()), *value]
        said[name] = value


class GoneCommand(click.Command):
    """A command that has no counterpart, whatever else is written behind it."""

    def __init__(self, path: str, instead: str) -> None:
        super().__init__(path.rpartition(" ")[2], hidden=True, add_help_option=False)
        self._told = f"`{path}` is gone: {instead}"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:  # noqa: ARG002
        raise click.UsageError(self._told, ctx.parent)


def teach(program: click.Group) -> None:
    """Have a program understand the old spellings."""
    for path, options in RENAMED.items():
        command = find(program, path)
        known = dict(_options(command))
        command.params += [Renamed(old, new, known[new]) for old, new in options.items()]
    for path, options in NEEDLESS.items():
        find(program, path).params += [Former(old, f"is not needed: {why}") for old, why in options.items()]
    for path, options in GONE.items():
        find(program, path).params += [
            Former(old, f"is gone: {instead}", is_refused=True) for old, instead in options.items()
        ]
    for path, instead in GONE_COMMANDS.items():
        parent = find(program, path.rpartition(" ")[0])
        assert isinstance(parent, click.Group), f"{path} is a command of a group"
        parent.add_command(GoneCommand(path, instead))


def find(program: click.Group, path: str) -> click.Command:
    """The command that these words lead to."""
    command: click.Command = program
    for word in path.split():
        assert isinstance(command, click.Group), f"{path} is a command"
        command = command.commands[word]
    return command


def _options(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    for option in command.params:
        if isinstance(option, click.Option):
            yield from ((name, option) for name in (*option.opts, *option.secondary_opts))
