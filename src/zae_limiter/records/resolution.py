"""Which limits apply to an entity on a resource: pure.

Four levels are looked at in this order: the entity's own limits for the resource, the entity's own
for every resource, the resource's, the system's. The first level that has limits wins whole;
``on_unavailable``, ``cascade`` and the switch are each taken from the first level that says anything of it.

Each level counts its own changes, deletions included. The four counts are the version of what was read
(``engine.seen_changes``): of two views, each may have seen what the other has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..engine.seen_changes import stamp_of, version_of
from ..exceptions import DamagedRecordError
from ..models import ConfigSource, Limit, OnUnavailable
from ..models.switches import Switch
from ..naming import DEFAULT_RESOURCE
from ..repository_protocol import Item, Key
from ..schema import (
    entity_config_key,
    identifier,
    is_deleted,
    is_number,
    resource_config_key,
    system_config_key,
)
from .items import changes_of, check_settings, limits_of, policy_of, switch_of

SOURCES = (ConfigSource.ENTITY, ConfigSource.ENTITY_DEFAULT, ConfigSource.RESOURCE, ConfigSource.SYSTEM)
LASTING = frozenset({ConfigSource.ENTITY, ConfigSource.ENTITY_DEFAULT})
"""Levels that make the limits the entity's own."""
SWITCHES = frozenset({"off", "bypass"})


class Resolved(NamedTuple):
    limits: tuple[Limit, ...] | None
    on_unavailable: OnUnavailable | None
    source: ConfigSource | None
    version: int
    policy_source: ConfigSource | None = None
    """The level that says what to do when the store is down."""
    switch: Switch | None = None
    """The switch that decides, with its level; ``None`` if there is none at any."""
    cascade: bool | None = None
    """Whether entities cascade on the resource, whatever their records say."""
    cascade_source: ConfigSource | None = None
    records: tuple[Item | None, ...] = ()
    """All that an account, or those of a family, were worked out from, if they were."""


def level_keys(namespace_id: str, entity_id: str, resource: str) -> tuple[Key, ...]:
    """The config records of the four levels, in the order of ``SOURCES``."""
    return (
        entity_config_key(namespace_id, entity_id, resource),
        entity_config_key(namespace_id, entity_id, DEFAULT_RESOURCE),
        resource_config_key(namespace_id, resource),
        system_config_key(namespace_id),
    )


def resolve(items: Sequence[Item | None]) -> Resolved:
    """What the records of the four levels say together."""
    limits, on_unavailable, source, policy_source, switch, counts = None, None, None, None, None, list[int]()
    for level, item in zip(SOURCES, items, strict=True):
        said = item or {}
        counts.append(changes_of(said))
        check_settings(said, f"level {level.value!r}")  # what stops somebody stops them at any level
        # Damage at a level that others overrule is not their business.
        if limits is None and (found := limits_of(said, f"limits of the level {level.value!r}")):
            limits, source = found, level
        if limits is None and item is not None and not is_number(item.get("config_version")):
            raise DamagedRecordError(f"level {level.value!r}", "it is no configuration; set or delete it")
        if on_unavailable is None and (policy := policy_of(said)) is not None:
            on_unavailable, policy_source = policy, level
        if switch is None and (said.keys() & SWITCHES):
            switch = Switch(level, **switch_of(said, f"switch of the level {level.value!r}"))
    version, cascades = version_of(counts), cascade_policy(items)
    return Resolved(limits, on_unavailable, source, version, policy_source, switch, *cascades)


def cascade_policy(items: Sequence[Item | None]) -> tuple[bool | None, ConfigSource | None]:
    """Whether the levels say that entities cascade, or that they do not, and which one says it."""
    for level, item in zip(SOURCES, items, strict=True):
        if item is not None and isinstance(said := item.get("cascade"), bool):
            return said, level
    return None, None


def family_of(item: Item | None, policy: bool | None = None) -> tuple[str | None, bool]:
    """The parent and whether to cascade, as an entity's record or the copy in a bucket says.

    ``policy`` is what the levels say of the resource; ``None`` if they say nothing.
    """
    if item is None or is_deleted(item):
        return None, False
    return identifier(item.get("parent_id")), item.get("cascade") is True if policy is None else policy


def stamp_for(items: Sequence[Item | None]) -> int:
    """The version of a bucket that is told of these levels: who has missed a change of one reads again."""
    return stamp_of(version_of([changes_of(item or {}) for item in items]))
