"""All commands of the program by name: where each is, and what help says of it.

A command is loaded when it is run, or when somebody asks for its help; the list of all loads none. What
stands here of a command is the first sentence of its docstring, which a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

from .spellings import GONE_COMMANDS, GoneCommand, teach

PLACES = {
    "aggregate": ("aggregate:aggregate", "Follow the store and write usage snapshots."),
    "audit": ("audit:audit", "Who changed what."),
    "bypass": ("switches:bypass", "Let every acquire pass, whatever the limits say."),
    "cfn-template": ("export:cfn_template", "Print the CloudFormation template of the stack."),
    "check": ("status:check", "Check whether this version may use a store."),
    "completion": ("export:completion", "Print a script that lets your shell complete commands."),
    "config": ("levels:config", "Stored configuration, level by level."),
    "copy": ("copy:copy", "Copy namespaces from one store to another, with all records and balances."),
    "delete": ("deploy:delete", "Delete a stack."),
    "demo": ("demo:demo", "Watch the limiter work on a fresh embedded store."),
    "deploy": ("deploy:deploy", "Deploy a table and all that belongs to it."),
    "disable": (
        "switches:disable",
        "Refuse every acquire of an entity, on a resource, or of an entity on a resource.",
    ),
    "enable": ("switches:enable", "Take a switch away that disable or bypass has set; the very same one."),
    "entity": ("operators:entity", "Who is limited: API keys, users, projects."),
    "explain": ("explain:explain", "Show which limits apply to an entity, and why."),
    "lambda-export": ("export:lambda_export", "Write the package of the aggregator's function."),
    "limits": ("limits:limits", "The limits of a namespace as a file."),
    "list": ("status:list_", "List the stacks that are deployed in an AWS region."),
    "local": ("local:local", "An AWS, Redis or PostgreSQL of your own, for development."),
    "metrics": ("metrics:metrics", "Names of metrics, a dashboard for Grafana, alerts for Prometheus."),
    "namespace": ("namespace:namespace", "Tenants that share a store."),
    "resource": ("levels:resource", "What is used, and its default limits."),
    "serve": ("serve:serve", "Answer programs of any language over HTTP."),
    "status": ("status:status", "Show how a store and what is deployed around it are doing."),
    "switches": ("switches:switches", "List all switches: what is off, past its limits, or on in any case."),
    "system": ("levels:system", "Limits of whatever has no others."),
    "table": ("table:table", "A DynamoDB table with nothing around it."),
    "upgrade": (
        "upgrade:upgrade",
        "Bring a store up to date: its table, its records, and the function of its stack.",
    ),
    "usage": ("usage:usage", "What was used, and when."),
    "version": ("status:version", "Show installed versions, and those of a store."),
    "watch": ("watch:watch", "Watch who is near a limit, and who is refused."),
}
"""Module and name there, and one sentence."""

ABOUT = {name: about for name, (_, about) in PLACES.items()}


class Commands(MutableMapping[str, click.Command]):
    """The commands by name, each loaded when it is asked for; those that are gone tell what there is now."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {
            name: GoneCommand(name, instead) for name, instead in GONE_COMMANDS.items()
        }

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module, _, place = PLACES[name][0].partition(":")
            command: click.Command = getattr(import_module(f".{module}", __package__), place)
            teach(name, command)
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**PLACES, **self._loaded})

    def __len__(self) -> int:
        return len({**PLACES, **self._loaded})
