"""Stored configuration at four levels: what they say, and saying something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..established import Done, deprecated
from ..exceptions import ValidationError
from ..models import CacheStats, ConfigSource, Limit, LimiterConfig, OnUnavailable, check_limits, is_limits
from ..models.checks import check_flag
from ..naming import DEFAULT_RESOURCE, validate_entity_id, validate_resource
from ..repository_protocol import Item, Key
from ..schema import (
    GSI3,
    GSI4,
    entity_key,
    gsi3_pk_entity_config,
    number,
    pk_entity,
    pk_resource,
    resource_config_key,
    sk_config,
    sk_entity_configs,
    starting,
)
from .input import check_keys
from .items import config_of
from .levels import ConfigLevel, change_level, check_level_resource, level_at, says_anything
from .resolution import level_keys, resolve
from .scope import PAGE_MAX, Scope, cursor_text, paged


async def set_system_defaults(
    scope: Scope,
    limits: Sequence[Limit],
    on_unavailable: OnUnavailable | str | None = None,
    principal: str | None = None,
) -> None:
    """The limits of every entity and resource that has no others.

    >>> await limiter.set_system_defaults([Limit.per_minute("rpm", 10)])
    >>> await limiter.available("key-1", "a new resource")
    {'rpm': 10}
    """
    await _set_limits(scope, "system", limits, on_unavailable, principal)


async def get_system_defaults(scope: Scope) -> tuple[list[Limit], OnUnavailable | None]:
    """The limits of the system level, and what it says of a store that does not answer."""
    config = await _config_at(scope, "system")
    return list(config.limits), config.on_unavailable


async def delete_system_defaults(scope: Scope, principal: str | None = None) -> bool:
    """Delete what the system level says, but for its switch; returns whether it said anything."""
    return await _delete_config(scope, "system", principal)


async def set_resource_defaults(
    scope: Scope,
    resource: str,
    limits: Sequence[Limit],
    principal: str | None = None,
    on_unavailable: OnUnavailable | str | None = None,
) -> None:
    """The limits of a resource for every entity that has none of its own.

    >>> await limiter.set_resource_defaults("search", [Limit.per_hour("calls", 100)])
    >>> await limiter.available("anybody", "search")
    {'calls': 100}
    """
    await _set_limits(scope, "resource", limits, on_unavailable, principal, resource=resource)


async def get_resource_defaults(scope: Scope, resource: str) -> list[Limit]:
    """The limits of a resource; empty if it has none of its own."""
    return list((await _config_at(scope, "resource", resource)).limits)


async def delete_resource_defaults(scope: Scope, resource: str, principal: str | None = None) -> bool:
    """Delete what a resource's level says, but for its switch; returns whether it said anything."""
    return await _delete_config(scope, "resource", principal, resource=resource)


async def list_resources_with_defaults(scope: Scope) -> list[str]:
    """The resources that have limits of their own, in the order of their names."""
    found = await _of_resources(scope, sk_config())
    return [name for name, item in found.items() if "resource" in item]


async def set_limits(
    scope: Scope,
    entity_id: str,
    limits: Sequence[Limit],
    resource: str = DEFAULT_RESOURCE,
    principal: str | None = None,
    on_unavailable: OnUnavailable | str | None = None,
) -> None:
    """The entity's own limits, for one resource or for all.

    >>> await limiter.set_limits("key-1", [Limit.per_minute("rpm", 600)], resource="gpt-4")
    >>> await limiter.available("key-1", "gpt-4")
    {'rpm': 600}
    """
    await _set_limits(scope, "entity", limits, on_unavailable, principal, entity_id, resource)


async def get_limits(scope: Scope, entity_id: str, resource: str = DEFAULT_RESOURCE) -> list[Limit]:
    """The entity's own limits, for one resource or for all; empty if it has none."""
    return list((await _config_at(scope, "entity", entity_id, resource)).limits)


async def delete_limits(
    scope: Scope, entity_id: str, resource: str = DEFAULT_RESOURCE, principal: str | None = None
) -> bool:
    """Delete the entity's own limits, for one resource or for all; returns whether there were any.

    A switch stays where it is.
    """
    return await _delete_config(scope, "entity", principal, entity_id, resource)


async def list_entities_with_custom_limits(
    scope: Scope, resource: str = DEFAULT_RESOURCE, limit: int | None = None, cursor: str | None = None
) -> tuple[list[str], str | None]:
    """Entities with limits of their own for a resource, and the cursor of the next page if any.

    Without a ``limit`` a page is as long as pages get. The last page is the one without a cursor; a page
    may be short, or empty, and have one.
    """
    check_level_resource(resource)
    limit = PAGE_MAX if limit is None else limit
    query = starting(gsi3_pk_entity_config(scope.namespace_id, resource), "", GSI3)
    rows, after = await scope.first_rows(paged(query, limit, cursor))
    prefix = pk_entity(scope.namespace_id, "")
    return [row.key.partition.removeprefix(prefix) for row in rows], cursor_text(after, query)


async def list_resources_with_entity_configs(scope: Scope) -> list[str]:
    """The resources for which entities have limits of their own."""
    found = await _of_resources(scope, sk_entity_configs())
    return [name for name, item in found.items() if number(item, "entities") > 0]


async def get_config(
    scope: Scope, level: str, identifier: str | None = None, resource: str | None = None
) -> LimiterConfig | None:
    """What one level says, ``None`` if it says nothing; ``level`` is system, resource or entity."""
    config = await _config_at(scope, level, identifier, resource)
    return config if says_anything(config) else None


async def _config_at(
    scope: Scope, level: str, identifier: str | None = None, resource: str | None = None
) -> LimiterConfig:
    return config_of(await scope.get(level_at(scope, level, identifier, resource).key) or {})


async def set_config(
    scope: Scope,
    level: str,
    config: LimiterConfig,
    identifier: str | None = None,
    resource: str | None = None,
    principal: str | None = None,
) -> None:
    """Replace what one level says as a whole."""
    at = level_at(scope, level, identifier, resource)
    if not isinstance(config, LimiterConfig):
        raise ValidationError("config", config, "pass a LimiterConfig")
    if config.limits:
        check_limits(config.limits)
    if level != "system" and (config.auto_update is not None or config.strict_version is not None):
        raise ValidationError("level", level, "auto_update and strict_version exist at the system level only")
    if not says_anything(config):
        raise ValidationError("config", config, "it says nothing; delete the level instead")
    await change_level(scope, at, lambda *_: config, principal)


async def resolve_limits(
    scope: Scope, entity_id: str, resource: str
) -> tuple[list[Limit] | None, OnUnavailable | None, ConfigSource | None]:
    """The limits that apply, the policy when the store is down, and the level of the limits."""
    validate_entity_id(entity_id)
    validate_resource(resource)
    await scope.notice_changes()
    found = resolve(await scope.connection.fetch(level_keys(scope.namespace_id, entity_id, resource)))
    return None if found.limits is None else list(found.limits), found.on_unavailable, found.source


def invalidate_config_cache(scope: Scope, entity_id: str | None = None, resource: str | None = None) -> Done:
    """Read configuration anew: all of it, or what concerns an entity, a resource, or both.

    It is done when the call returns; the answer may be awaited, and need not be.
    """
    scope.connection.invalidate(_concerns(scope, entity_id, resource))
    return Done()


async def batch_get_configs(
    scope: Scope, keys: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], tuple[list[Limit], OnUnavailable | None]]:
    """What several levels say, each by the key of its record; a level that says nothing is left out."""
    found = await scope.get_all(check_keys(scope.namespace_id, keys))
    levels = {key: config_of(item) for key, item in found.items()}
    return {
        (key.partition, key.sort): (list(config.limits), config.on_unavailable)
        for key, config in levels.items()
        if says_anything(config)
    }


def get_cache_stats(scope: Scope) -> CacheStats:
    """How often configuration was remembered, and how much of it."""
    return scope.connection.cache.stats()


async def _set_limits(
    scope: Scope,
    level: str,
    limits: Sequence[Limit],
    on_unavailable: OnUnavailable | str | None,
    principal: str | None,
    entity_id: str | None = None,
    resource: str | None = None,
) -> None:
    policy = None if on_unavailable is None else OnUnavailable.of(on_unavailable)
    # A policy must not be taken for somebody's name.
    if isinstance(principal, str) and principal in tuple(OnUnavailable):
        raise ValidationError("principal", principal, "pass on_unavailable by its name")
    if is_limits(entity_id) or is_limits(resource):
        order = {"entity": "set_limits(entity_id, limits, resource)"}
        told = order.get(level, "set_resource_defaults(resource, limits)")
        raise ValidationError("limits", limits, f"the arguments are in another order: {told}")
    are_none = is_limits(limits) and not limits
    if are_none and policy is None:
        deprecated("setting no limits", "delete them instead")
    checked = () if are_none else check_limits(limits)

    def revised(before: LimiterConfig, _: str | None) -> LimiterConfig:
        return replace(before, limits=checked, on_unavailable=policy or before.on_unavailable)

    await change_level(scope, level_at(scope, level, entity_id, resource), revised, principal)


async def set_entity_cascade(
    scope: Scope,
    entity_id: str,
    cascade: bool | None,
    resource: str | None = None,
    principal: str | None = None,
) -> None:
    """Say whether an entity cascades on a resource, or on all; ``None`` says nothing of it any more.

    What is said for a resource is stronger than what is said for all, and both than the entity's record.
    """
    await _set_cascade(scope, level_at(scope, "entity", entity_id, resource), cascade, principal)


async def set_resource_cascade(
    scope: Scope, resource: str, cascade: bool | None, principal: str | None = None
) -> None:
    """Say whether entities cascade on a resource, whatever they do elsewhere; ``None`` leaves it to them."""
    await _set_cascade(scope, level_at(scope, "resource", None, resource), cascade, principal)


async def _set_cascade(scope: Scope, at: ConfigLevel, cascade: bool | None, principal: str | None) -> None:
    """Change what a level says of cascading, and nothing else."""
    if cascade is not None:
        check_flag("cascade", cascade)

    def revised(before: LimiterConfig, _: str | None) -> LimiterConfig | None:
        return None if before.cascade is cascade else replace(before, cascade=cascade)

    await change_level(scope, at, revised, principal)


async def set_policy(scope: Scope, policy: OnUnavailable) -> None:
    """Store what the system level says of a store that does not answer, unless it says so already."""

    def revised(before: LimiterConfig, _: str | None) -> LimiterConfig | None:
        return None if before.on_unavailable is policy else replace(before, on_unavailable=policy)

    await change_level(scope, level_at(scope, "system", None, None), revised, None)


async def _delete_config(
    scope: Scope, level: str, principal: str | None, entity_id: str | None = None, resource: str | None = None
) -> bool:
    def revised(before: LimiterConfig, _: str | None) -> LimiterConfig | None:
        kept = LimiterConfig(disabled=before.disabled, bypass=before.bypass)
        nothing = before.has_switch and kept == replace(before, config_version=0)
        return None if nothing else kept  # a switch is thrown by those who throw switches

    return await change_level(scope, level_at(scope, level, entity_id, resource), revised, principal)


async def _of_resources(scope: Scope, sort: str) -> dict[str, Item]:
    """The records of one kind that belong to resources, by resource."""
    prefix = pk_resource(scope.namespace_id, "")
    rows = scope.rows(starting(scope.namespace_id, prefix, GSI4))
    keys = [row.key async for row in rows if row.key.sort == sort]
    found = await scope.get_all(keys)
    return {key.partition.removeprefix(prefix): item for key, item in found.items()}


def _concerns(scope: Scope, entity_id: str | None, resource: str | None) -> Callable[[Key], bool]:
    """Which cached records say something about an entity, a resource, or both."""
    mine = f"{scope.namespace_id}/"
    if entity_id is not None:
        owner = entity_key(scope.namespace_id, validate_entity_id(entity_id))
        if resource is None:
            return lambda key: key.partition == owner.partition
        return {owner, *level_keys(scope.namespace_id, entity_id, validate_resource(resource))}.__contains__
    if resource is None:
        return lambda key: key.partition.startswith(mine)
    own = sk_config(validate_resource(resource))
    shared = resource_config_key(scope.namespace_id, resource)
    return lambda key: key == shared or (key.sort == own and key.partition.startswith(mine))
