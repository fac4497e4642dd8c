"""``zae-limiter config``: any level of configuration as a whole, with limits in JSON."""

from __future__ import annotations

import dataclasses
from shlex import quote

import click

from ..models import LimiterConfig, OnUnavailable
from .errors import NOT_FOUND, Failure
from .grammar import parse_limits_json
from .levels import config_data, config_table
from .nouns import Noun
from .session import Session, limit_texts, on_unavailable, principal, with_existing, with_session

LEVELS = ("system", "resource", "entity")
_level = click.option("--level", type=click.Choice(LEVELS), required=True, help="Whose configuration.")
_identifier = click.option("--identifier", metavar="ID", help="The entity, or the resource, of that level.")
_resource = click.option(
    "--resource", "-r", metavar="NAME", help="The resource; without it, an entity's for all."
)


@click.group(cls=Noun)
def config() -> None:
    """Stored configuration, level by level."""


@config.command(meant="--level --identifier --resource")
@_level
@_identifier
@_resource
@with_existing
def get(session: Session, level: str, identifier: str | None, resource: str | None) -> None:
    """Show what one level says."""
    check_place(level, identifier, resource)
    found = session.repository.get_config(level, identifier, resource)
    if found is None:
        raise Failure(
            f"nothing is stored at the {level} level{_place(identifier, resource)}",
            f"zae-limiter config set --level {level}{_options(identifier, resource)} --limits …",
            NOT_FOUND,
        )
    session.output.show(config_data(found), lambda: config_table(found))


@config.command("set", meant="--level --identifier --resource")
@_level
@_identifier
@_resource
@click.option(
    "--limits", metavar="JSON", required=True, help="A list of limits, as `get --output json` writes it."
)
@on_unavailable
@principal
@with_session
def set_(
    session: Session,
    level: str,
    identifier: str | None,
    resource: str | None,
    limits: str,
    on_unavailable: str | None,
    principal: str | None,
) -> None:
    """Replace the limits of one level, and its policy if it is given."""
    check_place(level, identifier, resource)
    repository = session.repository
    before = repository.get_config(level, identifier, resource) or LimiterConfig()
    after = dataclasses.replace(
        before,
        limits=parse_limits_json(limits),
        on_unavailable=before.on_unavailable if on_unavailable is None else OnUnavailable.of(on_unavailable),
    )
    repository.set_config(level, after, identifier, resource, principal)
    stored = repository.get_config(level, identifier, resource)
    session.output.done(
        config_data(stored),
        f"set the {level} level{_place(identifier, resource)}: {limit_texts(after.limits)}",
    )


def check_place(level: str, identifier: str | None, resource: str | None) -> None:
    """Each level wants to know whose it is, in its own way."""
    if level == "system" and (identifier is not None or resource is not None):
        raise click.UsageError("--level system takes neither --identifier nor --resource")
    if level == "resource" and identifier is None and resource is None:
        raise click.UsageError("--level resource needs --resource")
    if level == "entity" and identifier is None:
        raise click.UsageError("--level entity needs --identifier")


def _place(identifier: str | None, resource: str | None) -> str:
    of = "" if identifier is None else f" of {identifier!r}"
    return of if resource is None else f"{of} for {resource!r}"


def _options(identifier: str | None, resource: str | None) -> str:
    given = {"identifier": identifier, "resource": resource}
    return "".join(f" --{name} {quote(value)}" for name, value in given.items() if value is not None)
