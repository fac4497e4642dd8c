"""The list of switches: every level that has one is an entry of an index, written together with the level.

So the list is as exact as the levels, whoever dies when. On DynamoDB it lags like any index; whoever reads it
looks at the level itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..models import ConfigSource
from ..models.switches import ThrownSwitch
from ..naming import DEFAULT_RESOURCE
from ..repository_protocol import LAST, Item, Key, Query, Value
from ..schema import GSI2, pk_entity, pk_resource, pk_system, sk_config, starting, text
from .items import switch_of

_ANY, _NAME = "[^/#]+", "([^#]+)"
_SYSTEM = re.compile(pk_system(_ANY) + sk_config())
_RESOURCE = re.compile(pk_resource(_ANY, _NAME) + sk_config())
_ENTITY = re.compile(pk_entity(_ANY, _NAME) + sk_config(_NAME))


def gsi2_pk_switches(namespace_id: str) -> str:
    return f"{namespace_id}/SWITCHES"


def gsi2_sk_switch(entity_id: str | None, resource: str | None) -> str:
    """``0`` for the system, ``1#{resource}``, ``2#{entity}#{resource}``: in the order of the list."""
    if entity_id is not None:
        return f"2#{entity_id}#{resource}"
    return "0" if resource is None else f"1#{resource}"


def switch_entry(namespace_id: str, key: Key) -> dict[str, Value]:
    """The entry in the list of a level that has a switch."""
    place = place_of(key)
    assert place is not None, "only levels have switches"
    return {"GSI2PK": gsi2_pk_switches(namespace_id), "GSI2SK": gsi2_sk_switch(*place)}


def place_of(key: Key) -> tuple[str | None, str | None] | None:
    """Whose level a key addresses, and for which resource; ``None`` for any other key."""
    place = key.partition + key.sort
    if (entity := _ENTITY.fullmatch(place)) is not None:
        return entity[1], entity[2]
    if (resource := _RESOURCE.fullmatch(place)) is not None:
        return None, resource[1]
    return None if _SYSTEM.fullmatch(place) is None else (None, None)


def all_switches(namespace_id: str) -> Query:
    """Every level with a switch."""
    return starting(gsi2_pk_switches(namespace_id), "", GSI2)


def switches_between(namespace_id: str, entity_ids: Iterable[str]) -> Query:
    """The levels with a switch of entities, from the first of some to the last."""
    places = sorted(gsi2_sk_switch(entity_id, "") for entity_id in entity_ids)
    return Query(gsi2_pk_switches(namespace_id), places[0], places[-1] + LAST, GSI2)


def thrown_switch_of(key: Key, item: Item) -> ThrownSwitch | None:
    """A level as the list shows it; ``None`` if it has no switch any more, or is no level."""
    place = place_of(key)
    if place is None or (item.get("off") is None and item.get("bypass") is None):
        return None
    said = switch_of(item, f"switch of {gsi2_sk_switch(*place)!r}")
    since, by = text(item, "switched_at"), text(item, "switched_by")
    entity_id, resource = place
    level = ConfigSource.SYSTEM if resource is None else ConfigSource.RESOURCE
    if entity_id is not None:
        is_for_all = resource == DEFAULT_RESOURCE
        level = ConfigSource.ENTITY_DEFAULT if is_for_all else ConfigSource.ENTITY
        resource = None if is_for_all else resource
    return ThrownSwitch(level, **said, entity_id=entity_id, resource=resource, since=since, by=by)
