"""``zae-limiter entity``: who is limited, by which limits of their own, and what is left to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, Final

import click
from rich.console import Group, RenderableType

from ..bucket import rate_of
from ..engine.law import balance, wait_ms
from ..exceptions import EntityNotFoundError, InfrastructureError, InvalidNameError
from ..models import BucketState, Entity, Limit, LimiterConfig
from ..models.grammar import EXAMPLES
from ..models.money import shown_amount
from ..models.refusing import span
from ..naming import DEFAULT_RESOURCE
from ..records.ancestry import chain_above
from ..records.belongings import has_belongings, resources_with_own_limits
from ..runtime.colour import run_sync
from ..visualization.bars import Ink, debt_width, level
from .errors import NOT_FOUND, STORE_IN_USE, Failure, failure_of
from .levels import config_data, delete_level, drop_cascade, show_limits, show_names
from .nouns import Noun, option
from .output import COLUMN_GAP, ascii_option, console, grid, ink, plain, record
from .session import (
    Session,
    confirmed,
    cursor_option,
    entity_id,
    key,
    limit_option,
    limit_texts,
    make_sure,
    on_or_off,
    principal,
    resource_option,
    with_existing,
    with_limits,
    with_session,
)
from .switches import switch_text, switches_of_entities, switches_text

GAUGE_WIDTH, GAUGE_WIDTH_MIN = 20, 4


entity: Final = Noun("entity", help="Who is limited: API keys, users, projects.")


def _read_metadata(ctx: click.Context, _: click.Parameter, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"invalid --metadata {text!r}: it is not JSON: {error}", ctx) from None
    if not isinstance(data, dict):
        ctx.fail(f'invalid --metadata {text!r}: write an object, such as {{"plan": "free"}}')
    return data


@entity.verb("create", entity_id, meant="--parent")
@option("--display-name name", "What people call it.", metavar="TEXT")
@option("--parent parent_id", "The entity it belongs to.", metavar="ENTITY_ID")
@option(
    "--cascade/--no-cascade", "What it consumes, its parent consumes too.  [default: no]", show_default=False
)
@option("--metadata", "An object of your own.", metavar="JSON", callback=_read_metadata)
@principal
@with_session
def create(session: Session, entity_id: str, **properties: Any) -> None:
    """Record a new entity."""
    if properties["cascade"] and properties["parent_id"] is None:
        raise click.UsageError("--cascade needs a --parent")
    try:
        repository = session.repository
    except (InfrastructureError, InvalidNameError) as error:
        if session.stack is None:
            raise
        # Who is led nowhere by --name may have meant what people call the entity.
        failure = failure_of(error, click.get_current_context().meta.get(STORE_IN_USE, ""))
        meant = f"--name is the DynamoDB table; the entity's name is --display-name {quote(session.stack)}"
        hint = "; ".join(filter(None, (meant, failure.hint)))
        raise Failure(failure.message, hint, failure.code) from error
    session.output.done(repository.create_entity(entity_id, **properties), f"created entity {entity_id!r}")


@entity.verb("show", entity_id, with_existing)
def show(session: Session, entity_id: str) -> None:
    """Show one entity."""
    found = session.repository.get_entity(entity_id)
    if found is None:
        buckets = f"zae-limiter entity buckets {quote(entity_id)}"
        hint = f"entities need not be created; what it has used: {buckets}"
        raise Failure(str(EntityNotFoundError(entity_id)), hint, NOT_FOUND)
    scope, parent_id = session.repository._async._scope, found.parent_id
    above = [one.entity_id for one in run_sync(chain_above(scope, parent_id))] if parent_id else []
    own = session.repository.get_config("entity", entity_id) or LimiterConfig()
    switch = switch_text(own.disabled, own.bypass)
    fields = {
        "entity": found.entity_id,
        "name": found.name,
        "parent": parent_id,
        **({"ancestors": ", ".join(above)} if len(above) > 1 else {}),
        "cascade": found.cascade,
        **({"switch": switch} if switch else {}),
        "metadata": found.metadata,
        "created": found.created_at,
        "version": found.version,
    }
    session.output.show(
        {**plain(found), "ancestors": above, "disabled": own.disabled, "bypass": own.bypass},
        lambda: record(fields),
    )


@entity.verb("list", meant="--parent")
@option("--parent parent_id", "Only the children of this entity.", metavar="ENTITY_ID")
@option("--with-custom-limits", "Only those with limits of their own for it.", metavar="RESOURCE")
@limit_option
@cursor_option
@with_existing
def list_(
    session: Session, parent_id: str | None, with_custom_limits: str | None, limit: int, cursor: str | None
) -> None:
    """List entities in the order of their ids."""
    if parent_id is not None and with_custom_limits is not None:
        raise click.UsageError("--parent and --with-custom-limits cannot be combined")
    repository, after = session.repository, None
    if with_custom_limits is not None:
        ids, after = repository.list_entities_with_custom_limits(with_custom_limits, limit, cursor)
        # An entity may have limits without ever having been created.
        entities = [repository.get_entity(one) or Entity(one) for one in ids]
    elif parent_id is not None:
        entities = repository.get_children(parent_id)
    else:
        entities, after = repository.list_entities(limit, cursor)
    rows = [[one.entity_id, one.name, one.parent_id, one.cascade, one.created_at] for one in entities]
    columns = ["entity", "name", "parent", "cascade", "created"]
    thrown = switches_of_entities(session, {one.entity_id for one in entities})
    if thrown:
        columns.append("switch")
        rows = [[*row, switches_text(thrown.get(str(row[0]), ())) or None] for row in rows]
    data = {"entities": entities, "switches": [one for each in thrown.values() for one in each]}
    session.output.show({**data, "cursor": after}, lambda: grid(columns, rows))
    if after is not None:
        session.output.remark(f"there are more: --cursor {after}")


@entity.verb("set-parent", entity_id, meant="--parent")
@option("--parent parent_id", "The entity it belongs to from now on.", metavar="ENTITY_ID")
@option("--none no_parent", "It belongs to nobody from now on.", is_flag=True)
@option("--cascade/--no-cascade", "What it consumes, its parent consumes too.", default=None)
@key
@principal
@with_existing
def set_parent(session: Session, entity_id: str, parent_id: str | None, no_parent: bool, **how: Any) -> None:
    """Give an entity another parent, or none."""
    if (parent_id is not None) == no_parent:
        raise click.UsageError("give either --parent or --none")
    moved = session.repository.set_parent(entity_id, parent_id, **how)
    where = "belongs to nobody" if parent_id is None else f"belongs to {parent_id!r}"
    session.output.done(moved, f"entity {entity_id!r} now {where}")


@entity.verb("set-cascade", entity_id, on_or_off)
@option("--resource -r", "Only there; without it, wherever no policy says otherwise.")
@principal
@with_existing
def set_cascade(
    session: Session, entity_id: str, cascade: bool, resource: str | None, principal: str | None
) -> None:
    """Say whether what an entity consumes, its parent consumes too."""
    does = "consumes from its parent too" if cascade else "consumes from itself alone"
    if resource is None:
        moved = session.repository.update_entity(entity_id, cascade=cascade, principal=principal)
        session.output.done(moved, f"entity {entity_id!r} now {does}")
        return
    session.repository.set_entity_cascade(entity_id, cascade, resource, principal)
    stored = config_data(session.repository.get_config("entity", entity_id, resource))
    session.output.done(stored, f"entity {entity_id!r} now {does} on {resource!r}")


@entity.verb("clear-cascade", entity_id, resource_option, principal, with_existing, meant="--resource")
def clear_cascade(session: Session, entity_id: str, resource: str, principal: str | None) -> None:
    """Take back a policy of where it cascades."""
    drop_cascade(session, principal, "entity", entity_id, resource)


@entity.verb("delete", entity_id, confirmed, principal, with_existing)
def delete(session: Session, entity_id: str, yes: bool, principal: str | None) -> None:
    """Delete an entity with its limits and buckets."""
    known = session.repository.get_entity(entity_id)
    # An entity may have limits and buckets without ever having been created.
    if known is None and not run_sync(has_belongings(session.repository._async._scope, entity_id)):
        raise EntityNotFoundError(entity_id)
    make_sure(yes, f"Delete entity {entity_id!r} with its limits and buckets?")
    if not session.repository.delete_entity(entity_id, principal):  # somebody else was faster
        raise EntityNotFoundError(entity_id)
    session.output.done({"deleted": entity_id}, f"deleted entity {entity_id!r}")


@entity.verb(
    "set-limits", entity_id, resource_option, with_limits, with_session, meant="--resource", epilog=EXAMPLES
)
def set_limits(
    session: Session, entity_id: str, resource: str, limits: tuple[Limit, ...], **how: Any
) -> None:
    """Replace an entity's own limits. They are for one resource or for all."""
    session.repository.set_limits(entity_id, limits, resource, **how)
    stored = session.repository.get_limits(entity_id, resource)
    where = "all resources" if resource == DEFAULT_RESOURCE else repr(resource)
    session.output.done(stored, f"set the limits of {entity_id!r} on {where}: {limit_texts(stored)}")


@entity.verb("get-limits", entity_id, resource_option, with_existing, meant="--resource")
def get_limits(session: Session, entity_id: str, resource: str) -> None:
    """Show an entity's own limits."""
    limits = session.repository.get_limits(entity_id, resource)
    whose, setting = f"{entity_id!r} itself", f"entity set-limits {quote(entity_id)}"
    if resource != DEFAULT_RESOURCE:
        whose, setting = f"{whose} on {resource!r}", f"{setting} -r {quote(resource)}"
    elif not (limits or session.output.is_json):
        own = run_sync(resources_with_own_limits(session.repository._async._scope, entity_id))
        some = ", ".join(f"{name} (-r {quote(name)})" for name in own if name != DEFAULT_RESOURCE)
        if some:
            session.output.note(f"{whose} has no limits for all resources; it has some for: {some}")
            return
    show_limits(session, limits, whose, setting)


@entity.verb("delete-limits", entity_id, resource_option, confirmed, principal, meant="--resource")
@with_existing
def delete_limits(session: Session, entity_id: str, resource: str, yes: bool, principal: str | None) -> None:
    """Delete an entity's own limits. Others then apply."""
    delete_level(session, yes, principal, "entity", entity_id, resource)


@entity.verb("list-resources", with_existing)
def list_resources(session: Session) -> None:
    """List resources with limits of entities."""
    show_names(session, session.repository.list_resources_with_entity_configs())


@entity.verb("buckets", entity_id, meant="--resource")
@option("--resource -r", "Only this one.")
@option("--shards by_shard", "Show each shard of a bucket by itself.", is_flag=True)
@ascii_option
@with_existing
def buckets(session: Session, entity_id: str, resource: str | None, by_shard: bool) -> None:
    """Show how full the buckets of an entity are.

    Debt is drawn to the left of the line at which a bucket is empty.
    """
    states = session.repository.get_buckets(entity_id, resource)
    rows = bucket_levels(states, session.connection.world.now_ms(), by_shard=by_shard)
    session.output.show(rows, lambda: _buckets_table(rows, _units(session, entity_id, rows)))
    if not rows:
        of_resource = "" if resource is None else f" for {resource!r}"
        session.output.remark(f"{entity_id!r} has no buckets{of_resource} yet")


def bucket_levels(
    states: Sequence[BucketState], now_ms: int, *, by_shard: bool = False
) -> list[dict[str, Any]]:
    """One row for each limit of each bucket; what its shards hold is added up, or shown one by one."""
    parts: dict[tuple[str, str, int], list[BucketState]] = {}
    for state in states:
        shard = state.shard_id if by_shard else 0
        parts.setdefault((state.resource, state.limit_name, shard), []).append(state)
    rows = []
    for (resource, limit, shard), shards in sorted(parts.items()):
        held = [balance(rate_of(one), one.tokens_milli, one.last_refill_ms, now_ms) for one in shards]
        waits_ms = [
            wait_ms(rate_of(one), one.capacity_milli - milli, now_ms)
            for one, milli in zip(shards, held, strict=True)
        ]
        rows.append(
            {
                "resource": resource,
                "limit": limit,
                **({"shard": shard} if by_shard else {"shards": len(shards)}),
                "available": sum(held) // 1000,
                "capacity": sum(one.capacity_milli for one in shards) // 1000,
                **({"held": shards[0].held} if shards[0].held is not None else {}),
                "full_in_seconds": max(waits_ms) / 1000,
                "total_consumed": sum(one.total_consumed_milli for one in shards) // 1000,
            }
        )
    return rows


def _units(session: Session, entity_id: str, rows: list[dict[str, Any]]) -> dict[tuple[str, str], str | None]:
    """What limits of resources count, where that is money: the level that applies says it, no bucket does."""
    return {
        (resource, name): unit
        for resource in dict.fromkeys(row["resource"] for row in rows)
        for name, unit in units_of(session, entity_id, resource).items()
    }


def units_of(session: Session, entity_id: str, resource: str) -> dict[str, str | None]:
    """What the limits that apply count: a unit of money, or nothing in particular."""
    limits, _, _ = session.repository.resolve_limits(entity_id, resource)
    return {limit.name: limit.unit for limit in limits or ()}


def _buckets_table(rows: list[dict[str, Any]], units: Mapping[tuple[str, str], str | None]) -> RenderableType:
    """The levels as bars; how many shards there are is told where there are several."""
    if not rows:
        return Group()
    out = console()
    shards = [name for name in ("shard", "shards") if any(row.get(name, 1) != 1 for row in rows)]
    held = ["held"] if any("held" in row for row in rows) else []
    numbers = (*shards, "available", "capacity", *held, "full in")
    columns = ["resource", "limit", *numbers]
    texts = []
    for row in rows:
        unit = units.get((row["resource"], row["limit"]))
        amounts = {name: shown_amount(row[name], unit) for name in ("available", "capacity")}
        shown = {name: str(row.get(name, "")) for name in columns[:-1]} | amounts
        full_in_ms = round(row["full_in_seconds"] * 1000)
        at_most = "at most " if "held" in row else ""  # a seat is free when somebody is done
        texts.append([*shown.values(), f"{at_most}{span(full_in_ms)}" if full_in_ms else "now"])
    taken = sum(max(map(len, column)) + COLUMN_GAP for column in zip(columns, *texts, strict=True))
    levels = _levels([(row["available"], row["capacity"]) for row in rows], out.width - taken, ink(out))
    at = columns.index("available")
    with_levels = [[*text[:at], drawn, *text[at:]] for text, drawn in zip(texts, levels, strict=True)]
    return grid([*columns[:at], "level", *columns[at:]], with_levels, numbers=numbers)


def _levels(levels: list[tuple[int, int]], width: int, drawn: Ink) -> list[str]:
    """Bars that fit into a column, with as much room for debt as they need."""
    gauge_width = GAUGE_WIDTH
    while gauge_width > GAUGE_WIDTH_MIN and gauge_width + 1 + debt_width(levels, gauge_width) > width:
        gauge_width -= 1
    room = debt_width(levels, gauge_width)
    return [level(available, capacity, gauge_width, room, drawn) for available, capacity in levels]
