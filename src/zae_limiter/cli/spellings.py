"""How commands and options were spelled in versions up to 0.17, and what became of each.

This is the only place that knows them: whatever help shows is written elsewhere. To drop the old
spellings in a later major version, remove this module and the call of ``teach``.

A spelling that was renamed works and says its new name on standard error. One that has no counterpart
fails, and says what there is instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import click

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
_SOFT = {"--soft NAME": "this version has no soft limits; every limit that is set may refuse"}
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

_SWITCH = "this version has no switches; limits are what it enforces: `{} …`"

GONE_COMMANDS: Final[Mapping[str, str]] = {
    **{f"entity {verb}": _SWITCH.format("entity set-limits") for verb in ("bypass", "disable", "enable")},
    "entity clear-disabled": _SWITCH.format("entity delete-limits"),
    "loadtest": "load is not generated here; a checkout measures with `make bench`",
    **{f"resource {verb}": _SWITCH.format("resource set-defaults") for verb in ("disable", "enable")},
    **{
        f"resource {verb}": _SWITCH.format("resource delete-defaults")
        for verb in ("bypass", "clear-disabled")
    },
}
"""Commands without a counterpart, with all that they were told."""


class Former(click.Option):
    """A spelling that help does not show: it is told what became of it, or refused with that.

    One that stands for another option hands its value on to that one.
    """

    def __init__(
        self, written: str, told: str, option: click.Parameter | None = None, *, is_refused: bool = False
    ) -> None:
        self.old, _, value = written.partition(" ")
        self.told, self.option, self.is_refused = f"{self.old} {told}", option, is_refused
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


def teach(program: click.Group) -> None:
    """Have a program understand the old spellings."""
    for path, options in RENAMED.items():
        params = _find(program, path).params
        known = {name: one for one in params for name in (*one.opts, str(one.name).upper())}
        params += [Former(old, f"is now {new}", known[new]) for old, new in options.items()]
    for path, options in NEEDLESS.items():
        _find(program, path).params += [Former(old, f"is not needed: {why}") for old, why in options.items()]
    for path, options in GONE.items():
        gone = [Former(old, f"is gone: {instead}", is_refused=True) for old, instead in options.items()]
        _find(program, path).params += gone
    for path, instead in GONE_COMMANDS.items():
        cast(click.Group, _find(program, path.rpartition(" ")[0])).add_command(GoneCommand(path, instead))


def _find(command: click.Command, path: str) -> click.Command:
    """The command that these words lead to."""
    for word in path.split():
        command = cast(click.Group, command).commands[word]
    return command
