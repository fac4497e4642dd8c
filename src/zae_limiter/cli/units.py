"""What limits count, where that is money: the level that applies says it, neither a bucket nor usage does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TypeAlias

from ..exceptions import DamagedRecordError
from ..records.belongings import resources_with_own_limits
from ..records.resolution import level_keys, resolve
from ..runtime.colour import run_sync
from .session import Session

Units: TypeAlias = dict[str, str]
"""By limit, the unit of those that count money."""

ENTITIES_MAX = 100
"""Of how many entities with limits of their own it is asked whether they count the same as the others."""

NOBODY = "_"
"""Stands for whoever has no limits of its own."""


def units_of_places(session: Session, places: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Units]:
    """What the limits of entities on resources count, as they are now; one read for all of them."""
    connection, namespace_id = session.connection, session.repository.namespace_id
    keys = {place: level_keys(namespace_id, *place) for place in places}
    distinct = list(dict.fromkeys(key for levels in keys.values() for key in levels))
    items = dict(zip(distinct, run_sync(connection.fetch(distinct)), strict=True)) if distinct else {}
    found: dict[tuple[str, str], Units] = {}
    for place, levels in keys.items():
        with suppress(DamagedRecordError):  # what cannot be read counts nothing in particular
            limits = resolve([items[key] for key in levels]).limits or ()
            found[place] = {limit.name: limit.unit for limit in limits if limit.unit is not None}
    return found


def units_of_all(session: Session, entity_id: str | None, resource: str | None) -> Units:
    """What the limits of an entity count on all resources, of a resource for all entities, or of both."""
    repository = session.repository
    if entity_id is not None and resource is not None:
        return units_of_places(session, [(entity_id, resource)]).get((entity_id, resource), {})
    if resource is not None:
        others, _ = repository.list_entities_with_custom_limits(resource, ENTITIES_MAX)
        return agreed(units_of_places(session, [(one, resource) for one in (NOBODY, *others)]).values())
    assert entity_id is not None, "usage is of an entity, of a resource, or of both"
    own = run_sync(resources_with_own_limits(repository._async._scope, entity_id))
    known = dict.fromkeys((*own, *repository.list_resources_with_defaults(), NOBODY))
    return agreed(units_of_places(session, [(entity_id, one) for one in known]).values())


def agreed(several: Iterable[Mapping[str, str]]) -> Units:
    """The units in which sums can be told: where none of those that have one says another."""
    said: dict[str, set[str]] = {}
    for units in several:
        for name, unit in units.items():
            said.setdefault(name, set()).add(unit)
    return {name: unit for name, (unit, *others) in said.items() if not others}
