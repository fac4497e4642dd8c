"""Stored configuration as lists that somebody scrolls: levels of resources, of entities, of one entity.

A page is one query and one read of what it names, however long the list is. A level that cannot be read is
left out and told to the log; one that says nothing any more is left out too, so a page may be short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..models import LimiterConfig
from ..naming import DEFAULT_RESOURCE, validate_entity_id
from ..repository_protocol import Item, Key, Query
from ..schema import GSI3, GSI4, gsi3_pk_entity_config, pk_entity, pk_resource, sk_config, starting
from .items import config_of
from .levels import check_level_resource, says_anything
from .scope import Scope, cursor_text, paged, readable
from .switch_list import place_of


@dataclass(frozen=True, slots=True)
class LevelEntry:
    """What one level says, and whose it is; neither an entity nor a resource for the system's."""

    entity_id: str | None
    resource: str | None
    config: LimiterConfig


async def resource_levels(
    scope: Scope, limit: int = 100, cursor: str | None = None
) -> tuple[list[LevelEntry], str | None]:
    """What resources say, in the order of their names, and the cursor of the next page."""
    query = starting(scope.namespace_id, pk_resource(scope.namespace_id, ""), GSI4)
    return await _page(scope, query, limit, cursor)


async def entity_levels(
    scope: Scope, resource: str = DEFAULT_RESOURCE, limit: int = 100, cursor: str | None = None
) -> tuple[list[LevelEntry], str | None]:
    """What entities say for a resource, or for all, in the order of their ids, and the next cursor."""
    partition = gsi3_pk_entity_config(scope.namespace_id, check_level_resource(resource))
    return await _page(scope, starting(partition, "", GSI3), limit, cursor)


async def own_levels(scope: Scope, entity_id: str, limit: int = 100) -> list[LevelEntry]:
    """What an entity says itself, resource by resource; the first of it."""
    query = starting(pk_entity(scope.namespace_id, validate_entity_id(entity_id)), sk_config(""))
    rows, _ = await scope.first_rows(query._replace(rows_max=limit))
    return _levels([(row.key, row.item) for row in rows])


async def _page(
    scope: Scope, query: Query, limit: int, cursor: str | None
) -> tuple[list[LevelEntry], str | None]:
    query = paged(query, limit, cursor)
    rows, after = await scope.first_rows(query)
    found = await scope.get_all([row.key for row in rows if row.key.sort.startswith(sk_config())])
    return _levels(list(found.items())), cursor_text(after, query)


def _levels(found: Sequence[tuple[Key, Item]]) -> list[LevelEntry]:
    return [one for one in readable(_level_of, found) if one is not None and says_anything(one.config)]


def _level_of(found: tuple[Key, Item]) -> LevelEntry | None:
    place = place_of(found[0])
    return None if place is None else LevelEntry(*place, config_of(found[1]))
