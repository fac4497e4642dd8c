"""Switches: what is off, past its limits, or on whatever broader levels say.

A level has one switch. It is thrown by whoever names the level: nobody for the system, a resource, an entity
for all resources, or both for the entity's own on that resource. The most specific level that has a switch
decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from ..exceptions import ValidationError
from ..models import Bypass, LimiterConfig
from ..models.checks import check_flag
from ..models.switches import ThrownSwitch, check_reason
from ..repository_protocol import Key
from .items import limits_of
from .levels import ConfigLevel, change_level, level_at
from .scope import PAGE_MAX, Scope, cursor_text, paged, readable
from .switch_list import all_switches, switches_between, thrown_switch_of


async def disable(
    scope: Scope,
    *,
    entity_id: str | None = None,
    resource: str | None = None,
    reason: str,
    principal: str | None = None,
) -> None:
    """Refuse every acquire with a reason: of all, on a resource, of an entity, or of it on a resource.

    Whoever is refused is told the reason: ``ResourceDisabled``, or ``PermissionDenied`` for an entity's own.
    Nothing is taken from anybody, and limits stay as they are. A parent's refuses its children as well.

    >>> await limiter.disable(resource="gpt-4", reason="maintenance")
    >>> lease = await limiter.acquire("key-1", "gpt-4", {"rpm": 1}).open()
    Traceback (most recent call last):
    zae_limiter.exceptions.ResourceDisabled: 'gpt-4' is disabled at the level 'resource': maintenance
    """
    await _throw(scope, entity_id, resource, principal, disabled=check_reason(reason))


async def enable(
    scope: Scope,
    *,
    entity_id: str | None = None,
    resource: str | None = None,
    overrule: bool = False,
    principal: str | None = None,
) -> bool:
    """Take a switch away that was set at this very level; returns whether anything was changed.

    Broader levels decide from then on. With ``overrule`` it is on in any case: acquires go by the limits
    though a broader level is off, or past them.
    """
    check_flag("overrule", overrule)
    return await _throw(scope, entity_id, resource, principal, disabled=False if overrule else None)


async def bypass(
    scope: Scope,
    *,
    entity_id: str | None = None,
    resource: str | None = None,
    counted: bool = True,
    principal: str | None = None,
) -> None:
    """Let every acquire pass, whatever the limits say: of all, on a resource, of an entity, or of both.

    It is charged all the same, into debt, unless it is not to be ``counted``: then
    nothing is written.
    """
    check_flag("counted", counted)
    how = Bypass.COUNTED if counted else Bypass.UNCOUNTED
    await _throw(scope, entity_id, resource, principal, bypass=how)


async def list_switches(
    scope: Scope, limit: int = 100, cursor: str | None = None
) -> tuple[list[ThrownSwitch], str | None]:
    """Every level with a switch: the system's, then resources', then entities'; and the next page's cursor.

    The last page is the one without a cursor; a page may be short, or empty, and have one.
    """
    query = all_switches(scope.namespace_id)
    rows, after = await scope.first_rows(paged(query, limit, cursor))
    return await _thrown(scope, [row.key for row in rows]), cursor_text(after, query)


async def switches_of(scope: Scope, entity_ids: Collection[str]) -> list[ThrownSwitch]:
    """The switches of some entities: one look into the list between the first and the last of them.

    It reads no record of an entity that has none. Where very many switches lie between, each entity is looked
    for by itself.
    """
    if not entity_ids:
        return []
    some = switches_between(scope.namespace_id, entity_ids)
    rows, after = await scope.first_rows(some._replace(rows_max=PAGE_MAX))
    if after is not None:
        each = [switches_between(scope.namespace_id, [entity_id]) for entity_id in sorted(entity_ids)]
        rows = [row for one in each for row in (await scope.first_rows(one._replace(rows_max=PAGE_MAX)))[0]]
    found = await _thrown(scope, [row.key for row in rows])
    return [one for one in found if one.entity_id in entity_ids]


async def _thrown(scope: Scope, keys: Sequence[Key]) -> list[ThrownSwitch]:
    """The switches of levels that an index named, those that can be read."""
    found = await scope.get_all(keys)
    said = readable(lambda named: thrown_switch_of(*named), found.items())
    return [one for one in said if one is not None]


async def _throw(
    scope: Scope, entity_id: str | None, resource: str | None, principal: str | None, **position: Any
) -> bool:
    at, switch = _level(scope, entity_id, resource), {"disabled": None, "bypass": None, **position}
    limits_of(await scope.get(at.key) or {}, "limits")  # which stay as they are, and must not get lost

    def revised(before: LimiterConfig, _: str | None) -> LimiterConfig | None:
        after = replace(before, **switch)
        return None if after == before else after

    return await change_level(scope, at, revised, principal)


def _level(scope: Scope, entity_id: str | None, resource: str | None) -> ConfigLevel:
    """The level that is named by an entity, a resource, both, or neither."""
    for name, value in (("entity_id", entity_id), ("resource", resource)):
        if not isinstance(value, str | None):
            raise ValidationError(name, value, "pass its name, or leave it out")
    if entity_id is not None:
        return level_at(scope, "entity", entity_id, resource)
    return level_at(scope, "system" if resource is None else "resource", None, resource)
