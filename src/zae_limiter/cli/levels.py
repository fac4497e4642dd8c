"""``zae-limiter system``, ``resource`` and ``config``: the limits that are stored at each level."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from shlex import quote
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table

from ..models import Limit, LimiterConfig, OnUnavailable
from .errors import NOT_FOUND, Failure
from .grammar import limit_text, parse_limits_json
from .nouns import Noun
from .output import grid, plain, record
from .session import (
    Command,
    Session,
    confirmed,
    decorated,
    limit_texts,
    make_sure,
    on_unavailable,
    principal,
    with_existing,
    with_limits,
    with_session,
)


@click.group(cls=Noun)
def system() -> None:
    """Limits of whatever has no others."""


@system.command("set-defaults", meant="-l")
@with_limits
@with_session
def set_system_defaults(session: Session, limits: tuple[Limit, ...], **how: Any) -> None:
    """Replace the default limits of the system."""
    session.repository.set_system_defaults(limits, **how)
    stored = config_data(session.repository.get_config("system"))
    session.output.done(stored, f"set the default limits of the system: {limit_texts(limits)}")


@system.command("get-defaults")
@with_existing
def get_system_defaults(session: Session) -> None:
    """Show the default limits of the system."""
    config = session.repository.get_config("system") or LimiterConfig()
    session.output.show(config_data(config), lambda: config_table(config))
    if not config.limits:
        session.output.remark(_nothing_set("the system", "system set-defaults"))


@system.command("delete-defaults")
@confirmed
@principal
@with_existing
def delete_system_defaults(session: Session, yes: bool, principal: str | None) -> None:
    """Delete the default limits of the system."""
    delete_level(
        session,
        yes,
        ("system",),
        lambda: session.repository.delete_system_defaults(principal),
        "default limits of the system",
        "the system has no default limits",
    )


@click.group(cls=Noun)
def resource() -> None:
    """What is used, and its default limits."""


@resource.command("set-defaults", meant="-l")
@click.argument("resource")
@with_limits
@with_session
def set_resource_defaults(session: Session, resource: str, limits: tuple[Limit, ...], **how: Any) -> None:
    """Replace the default limits of a resource."""
    session.repository.set_resource_defaults(resource, limits, **how)
    stored = session.repository.get_resource_defaults(resource)
    session.output.done(stored, f"set the default limits of {resource!r}: {limit_texts(stored)}")


@resource.command("get-defaults")
@click.argument("resource")
@with_existing
def get_resource_defaults(session: Session, resource: str) -> None:
    """Show the default limits of a resource."""
    limits = session.repository.get_resource_defaults(resource)
    show_limits(session, limits, f"resource {resource!r}", f"resource set-defaults {quote(resource)}")


@resource.command("delete-defaults")
@click.argument("resource")
@confirmed
@principal
@with_existing
def delete_resource_defaults(session: Session, resource: str, yes: bool, principal: str | None) -> None:
    """Delete the default limits of a resource. Those of the system then apply."""
    delete_level(
        session,
        yes,
        ("resource", resource),
        lambda: session.repository.delete_resource_defaults(resource, principal),
        f"default limits of {resource!r}",
        f"resource {resource!r} has no default limits",
    )


@resource.command("list")
@with_existing
def list_resources(session: Session) -> None:
    """List the resources that have default limits."""
    show_names(session, session.repository.list_resources_with_defaults())


@click.group(cls=Noun)
def config() -> None:
    """Stored configuration, level by level."""


def _of_level(function: Command) -> Command:
    return decorated(
        function,
        click.option(
            "--level",
            type=click.Choice(["system", "resource", "entity"]),
            required=True,
            help="Whose configuration.",
        ),
        click.option("--identifier", metavar="ID", help="The entity, or the resource, of that level."),
        click.option(
            "--resource", "-r", metavar="NAME", help="The resource; without it, an entity's for all."
        ),
    )


@config.command(meant="--level --identifier --resource")
@_of_level
@with_existing
def get(session: Session, level: str, identifier: str | None, resource: str | None) -> None:
    """Show what one level says."""
    where = _checked_place(level, identifier, resource)
    found = session.repository.get_config(level, identifier, resource)
    if found is None:
        given = {"identifier": identifier, "resource": resource}
        options = "".join(f" --{name} {quote(value)}" for name, value in given.items() if value is not None)
        hint = f"zae-limiter config set --level {level}{options} --limits …"
        raise Failure(f"nothing is stored at the {where}", hint, NOT_FOUND)
    session.output.show(config_data(found), lambda: config_table(found))


@config.command("set", meant="--level --identifier --resource")
@_of_level
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
    where = _checked_place(level, identifier, resource)
    repository = session.repository
    before = repository.get_config(level, identifier, resource) or LimiterConfig()
    policy = before.on_unavailable if on_unavailable is None else OnUnavailable.of(on_unavailable)
    after = dataclasses.replace(before, limits=parse_limits_json(limits), on_unavailable=policy)
    repository.set_config(level, after, identifier, resource, principal)
    stored = repository.get_config(level, identifier, resource)
    session.output.done(config_data(stored), f"set the {where}: {limit_texts(after.limits)}")


def _checked_place(level: str, identifier: str | None, resource: str | None) -> str:
    """How a level is named; each wants to know whose it is, in its own way."""
    if level == "system" and (identifier is not None or resource is not None):
        raise click.UsageError("--level system takes neither --identifier nor --resource")
    if level == "resource" and identifier is None and resource is None:
        raise click.UsageError("--level resource needs --resource")
    if level == "entity" and identifier is None:
        raise click.UsageError("--level entity needs --identifier")
    of = "" if identifier is None else f" of {identifier!r}"
    return f"{level} level{of}{'' if resource is None else f' for {resource!r}'}"


def delete_level(
    session: Session,
    yes: bool,
    place: tuple[str, ...],
    delete: Callable[[], LimiterConfig | bool | None],
    what: str,
    nothing: str,
) -> None:
    """Delete what is stored at a place, which is a level and whose it is; it must be there, to the last."""
    found = session.repository.get_config(*place)
    if found:
        make_sure(yes, f"Delete the {what}?")
    if not found or not delete():
        raise Failure(f"{nothing}, so nothing was deleted", code=NOT_FOUND)
    of_resource = {"resource": place[2]} if len(place) == 3 else {}
    session.output.done({"deleted": (place[1:] or place)[0], **of_resource}, f"deleted the {what}")


def show_names(session: Session, resources: list[str]) -> None:
    session.output.show(resources, lambda: grid(["resource"], [[one] for one in resources]))


def limits_table(limits: Sequence[Limit]) -> Table:
    return grid(
        ["limit", "capacity", "refill", "every", "as an option"],
        [
            (o.name, o.capacity, o.refill_amount, f"{o.refill_period_seconds} s", f"-l {limit_text(o)}")
            for o in limits
        ],
        numbers=("capacity", "refill", "every"),
    )


def show_limits(session: Session, limits: Sequence[Limit], whose: str, setting: str) -> None:
    """Limits of one level; where there are none, that and the command that sets some."""
    if limits or session.output.is_json:
        session.output.show(limits, lambda: limits_table(limits))
    else:
        session.output.note(_nothing_set(whose, setting))


def _nothing_set(whose: str, setting: str) -> str:
    return f"{whose} has no limits; set some: zae-limiter {setting} -l rpm:60"


def config_table(config: LimiterConfig) -> RenderableType:
    """One level as a whole: its settings and its limits."""
    data = config_data(config)
    settings = {name: value for name, value in data.items() if name != "limits" and value is not None}
    return Group(record(settings), limits_table(config.limits))


def config_data(config: LimiterConfig | None) -> dict[str, Any]:
    """One level as JSON; a level that says nothing has no limits and nulls."""
    data: dict[str, Any] = plain(config or LimiterConfig())
    return data
