"""``zae-limiter system``, ``resource`` and ``config``: the limits that are stored at each level."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from shlex import quote
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.table import Table

from ..models import Limit, LimiterConfig, OnUnavailable
from ..models.grammar import EXAMPLES, limit_text, parse_limits_json
from ..models.money import shown_amount
from ..schema import resource_config_key
from .errors import NOT_FOUND, Failure
from .nouns import Noun, option, together
from .output import grid, plain, record
from .session import (
    Session,
    confirmed,
    limit_texts,
    make_sure,
    on_or_off,
    on_unavailable,
    principal,
    with_existing,
    with_limits,
    with_session,
)

LEVELS = ("system", "resource", "entity")


system: Final = Noun("system", help="Limits of whatever has no others.")


@system.verb("set-defaults", with_limits, with_session, meant="-l", epilog=EXAMPLES)
def set_system_defaults(session: Session, limits: tuple[Limit, ...], **how: Any) -> None:
    """Replace the default limits of the system."""
    session.repository.set_system_defaults(limits, **how)
    stored = config_data(session.repository.get_config("system"))
    session.output.done(stored, f"set the default limits of the system: {limit_texts(limits)}")


@system.verb("get-defaults", with_existing)
def get_system_defaults(session: Session) -> None:
    """Show the default limits of the system."""
    config = session.repository.get_config("system") or LimiterConfig()
    session.output.show(config_data(config), lambda: config_table(config))
    if not config.limits:
        session.output.remark(_nothing_set("the system", "system set-defaults"))


@system.verb("delete-defaults", confirmed, principal, with_existing)
def delete_system_defaults(session: Session, yes: bool, principal: str | None) -> None:
    """Delete the default limits of the system."""
    delete_level(session, yes, principal, "system")


resource: Final = Noun("resource", help="What is used, and its default limits.")


@resource.verb(
    "set-defaults", click.argument("resource"), with_limits, with_session, meant="-l", epilog=EXAMPLES
)
def set_resource_defaults(session: Session, resource: str, limits: tuple[Limit, ...], **how: Any) -> None:
    """Replace the default limits of a resource."""
    session.repository.set_resource_defaults(resource, limits, **how)
    stored = session.repository.get_resource_defaults(resource)
    session.output.done(stored, f"set the default limits of {resource!r}: {limit_texts(stored)}")


@resource.verb("get-defaults", click.argument("resource"), with_existing)
def get_resource_defaults(session: Session, resource: str) -> None:
    """Show the default limits of a resource."""
    limits = session.repository.get_resource_defaults(resource)
    show_limits(session, limits, f"resource {resource!r}", f"resource set-defaults {quote(resource)}")


@resource.verb("delete-defaults", click.argument("resource"), confirmed, principal, with_existing)
def delete_resource_defaults(session: Session, resource: str, yes: bool, principal: str | None) -> None:
    """Delete the default limits of a resource. Those of the system then apply."""
    delete_level(session, yes, principal, "resource", resource)


@resource.verb("set-cascade", click.argument("resource"), on_or_off, principal, with_session)
def set_cascade(session: Session, resource: str, cascade: bool, principal: str | None) -> None:
    """Say whether what entities consume of a resource, their parents consume too."""
    session.repository.set_resource_cascade(resource, cascade, principal)
    stored = config_data(session.repository.get_config("resource", resource))
    does = "consume from their parents too" if cascade else "consume from themselves alone"
    session.output.done(stored, f"entities now {does} on {resource!r}")


@resource.verb("clear-cascade", click.argument("resource"), principal, with_existing)
def clear_cascade(session: Session, resource: str, principal: str | None) -> None:
    """Leave it to each entity whether it cascades on a resource."""
    drop_cascade(session, principal, "resource", resource)


@resource.verb("list", with_existing)
def list_resources(session: Session) -> None:
    """List the resources that have default limits."""
    show_names(session, resources_with_limits(session))


def resources_with_limits(session: Session) -> list[str]:
    """The resources that have default limits; one whose level has but a switch or a policy has none."""
    repository = session.repository
    namespace_id = repository._async._scope.namespace_id
    named = {
        tuple(resource_config_key(namespace_id, name)): name
        for name in repository.list_resources_with_defaults()
    }
    levels = repository.batch_get_configs([(key[0], key[1]) for key in named]) if named else {}
    return [name for key, name in named.items() if key in levels and levels[key[0], key[1]][0]]


config: Final = Noun("config", help="Stored configuration, level by level.")


_of_level = together(
    option("--level", "Whose configuration.", type=click.Choice(LEVELS), required=True),
    option("--identifier", "The entity, or the resource, of that level.", metavar="ID"),
    option("--resource -r", "The resource; without it, an entity's for all.", metavar="NAME"),
)


@config.verb("get", _of_level, with_existing, meant="--level --identifier --resource")
def get(session: Session, **place: Any) -> None:
    """Show what one level says."""
    where = _checked_place(**place)
    found = session.repository.get_config(**place)
    if found is None:
        options = " ".join(f"--{name} {quote(value)}" for name, value in place.items() if value is not None)
        hint = f"zae-limiter config set {options} --limits …"
        raise Failure(f"nothing is stored at the {where}", hint, NOT_FOUND)
    session.output.show(config_data(found), lambda: config_table(found))


@config.verb("set", _of_level, meant="--level --identifier --resource")
@option("--limits", "A list of limits, as `get --output json` writes it.", metavar="JSON", required=True)
@on_unavailable
@principal
@with_session
def set_(
    session: Session, limits: str, on_unavailable: str | None, principal: str | None, **place: Any
) -> None:
    """Replace the limits of one level, and its policy if it is given."""
    where = _checked_place(**place)
    repository = session.repository
    before = repository.get_config(**place) or LimiterConfig()
    policy = before.on_unavailable if on_unavailable is None else OnUnavailable.of(on_unavailable)
    after = dataclasses.replace(before, limits=parse_limits_json(limits), on_unavailable=policy)
    repository.set_config(config=after, principal=principal, **place)
    stored = config_data(repository.get_config(**place))
    session.output.done(stored, f"set the {where}: {limit_texts(after.limits)}")


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


def delete_level(session: Session, yes: bool, principal: str | None, *place: str) -> None:
    """Delete what is stored at a place, which is a level and whose it is; it must be there, to the last."""
    repository, level, whose = session.repository, place[0], [repr(one) for one in place[1:]]
    delete: Callable[..., bool] = repository.delete_limits
    if level == "system":
        delete = repository.delete_system_defaults
        what, nothing = "default limits of the system", "the system has no default limits"
    elif level == "resource":
        delete = repository.delete_resource_defaults
        what, nothing = f"default limits of {whose[0]}", f"resource {whose[0]} has no default limits"
    else:
        what = f"limits of {whose[0]} on {whose[1]}"
        nothing = f"{whose[0]} has no limits of its own on {whose[1]}"
    found = repository.get_config(*place)
    if found:
        make_sure(yes, f"Delete the {what}?")
    if not found or not delete(*place[1:], principal=principal):
        raise Failure(f"{nothing}, so nothing was deleted", code=NOT_FOUND)
    data = dict(zip(("deleted", "resource"), place[1:] or place, strict=False))
    session.output.done(data, f"deleted the {what}")


def drop_cascade(session: Session, principal: str | None, *place: str) -> None:
    """Let a level say nothing of cascading any more; it must have said something."""
    repository, whose = session.repository, " on ".join(repr(one) for one in place[1:])
    before = repository.get_config(*place)
    if before is None or before.cascade is None:
        raise Failure(f"nothing is stored of how {whose} cascades", code=NOT_FOUND)
    if place[0] == "entity":
        repository.set_entity_cascade(place[1], None, place[2], principal)
    else:
        repository.set_resource_cascade(place[1], None, principal)
    session.output.done(config_data(repository.get_config(*place)), f"no policy is left for {whose}")


def show_names(session: Session, resources: list[str]) -> None:
    session.output.show(resources, lambda: grid(["resource"], [[one] for one in resources]))


def limits_table(limits: Sequence[Limit]) -> Table:
    numbers, rows = ("capacity", "refill", "every"), []
    for o in limits:
        amounts = [shown_amount(amount, o.unit) for amount in (o.capacity, o.refill_amount)]
        every = o.accrual or f"{o.refill_period_seconds} s"
        rows.append([o.name, *amounts, every, f"-l {quote(limit_text(o))}"])
    return grid(["limit", *numbers, "as an option"], rows, numbers=numbers)


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
