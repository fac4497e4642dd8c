"""Which limits apply to an entity on a resource: pure.

Four levels are looked at in this order: the entity's own limits for the resource, the entity's own
for every resource, the resource's, the system's. The first level that has limits wins whole;
``on_unavailable`` is taken from the first level that says anything about it. The version is the
newest of all four, deleted levels included, so that it grows with every change that could matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..models import ConfigSource, Limit, LimiterConfig, OnUnavailable
from ..naming import DEFAULT_RESOURCE
from ..repository_protocol import Item, Key, Value
from ..schema import (
    config_attributes,
    config_limits,
    entity_config_key,
    number,
    resource_config_key,
    system_config_key,
)

SOURCES = (ConfigSource.ENTITY, ConfigSource.ENTITY_DEFAULT, ConfigSource.RESOURCE, ConfigSource.SYSTEM)
LASTING = frozenset({ConfigSource.ENTITY, ConfigSource.ENTITY_DEFAULT})
"""Levels that make the limits the entity's own."""


class Resolved(NamedTuple):
    limits: tuple[Limit, ...] | None
    on_unavailable: OnUnavailable | None
    source: ConfigSource | None
    version: int


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
    limits, on_unavailable, source, version = None, None, None, 0
    for level, item in zip(SOURCES, items, strict=True):
        if item is None:
            continue
        config = config_of(item)
        version = max(version, config.config_version)
        if limits is None and config.limits:
            limits, source = config.limits, level
        if on_unavailable is None:
            on_unavailable = config.on_unavailable
    return Resolved(limits, on_unavailable, source, version)


def config_of(item: Item) -> LimiterConfig:
    policy, auto_update, strict = (item.get(f) for f in ("on_unavailable", "auto_update", "strict_version"))
    return LimiterConfig(
        limits=config_limits(item),
        on_unavailable=OnUnavailable.of(policy) if isinstance(policy, str) else None,
        auto_update=auto_update if isinstance(auto_update, bool) else None,
        strict_version=strict if isinstance(strict, bool) else None,
        config_version=number(item, "config_version"),
    )


def config_item(config: LimiterConfig) -> dict[str, Value]:
    return {
        **config_attributes(config.limits),
        "on_unavailable": None if config.on_unavailable is None else config.on_unavailable.value,
        "auto_update": config.auto_update,
        "strict_version": config.strict_version,
        "config_version": config.config_version,
    }
