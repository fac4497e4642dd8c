"""Stored configuration at four levels, and changes that take effect.

Every change bumps one counter of the namespace and stamps the level it touches with the new number,
in one transaction with its audit event. A level that is deleted leaves an empty record with its
stamp behind, so the newest stamp of the levels that matter to a bucket never falls: a bucket with a
higher one tells a client that its cache is old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..exceptions import RateLimiterUnavailable, ValidationError
from ..models import AuditAction, CacheStats, ConfigSource, Limit, LimiterConfig, OnUnavailable, check_limits
from ..naming import DEFAULT_RESOURCE, validate_entity_id, validate_resource
from ..repository_protocol import Equal, Item, Key, Put, Update, Value, Write
from ..schema import (
    GSI3,
    GSI4,
    SYSTEM_AUDIT,
    entity_config_key,
    gsi3_pk_entity_config,
    number,
    pk_resource,
    pk_system,
    resource_config_key,
    sk_config,
    sk_config_version,
    sk_entity_configs,
    starting,
    system_config_key,
    within_namespace,
)
from .buckets import BucketRecords
from .resolution import config_item, config_of, resolve
from .view import check_page_size, cursor_text, read_cursor

CHANGE_ATTEMPTS_MAX = 16


class Level(NamedTuple):
    """One level of configuration: where it is stored and under which name it is audited."""

    key: Key
    audit_id: str
    resource: str | None = None
    entity_id: str | None = None


class ConfigRecords(BucketRecords):
    # The system.

    async def set_system_defaults(
        self,
        limits: Sequence[Limit],
        on_unavailable: OnUnavailable | str | None = None,
        principal: str | None = None,
    ) -> None:
        """The limits of every entity and resource that has no others."""
        await self._set_limits("system", limits, on_unavailable, principal)

    async def get_system_defaults(self) -> tuple[list[Limit], OnUnavailable | None]:
        config = await self.get_config("system")
        return ([], None) if config is None else (list(config.limits), config.on_unavailable)

    async def delete_system_defaults(self, principal: str | None = None) -> None:
        await self._delete_config("system", principal)

    # A resource.

    async def set_resource_defaults(
        self,
        resource: str,
        limits: Sequence[Limit],
        on_unavailable: OnUnavailable | str | None = None,
        principal: str | None = None,
    ) -> None:
        """The limits of a resource for every entity that has none of its own."""
        await self._set_limits("resource", limits, on_unavailable, principal, resource=resource)

    async def get_resource_defaults(self, resource: str) -> list[Limit]:
        config = await self.get_config("resource", resource=resource)
        return [] if config is None else list(config.limits)

    async def delete_resource_defaults(self, resource: str, principal: str | None = None) -> None:
        await self._delete_config("resource", principal, resource=resource)

    async def list_resources_with_defaults(self) -> list[str]:
        return [str(item["resource"]) for item in await self._of_resources(sk_config()) if "resource" in item]

    # An entity.

    async def set_limits(
        self,
        entity_id: str,
        limits: Sequence[Limit],
        resource: str = DEFAULT_RESOURCE,
        on_unavailable: OnUnavailable | str | None = None,
        principal: str | None = None,
    ) -> None:
        """The entity's own limits, for one resource or for all."""
        await self._set_limits("entity", limits, on_unavailable, principal, entity_id, resource)

    async def get_limits(self, entity_id: str, resource: str = DEFAULT_RESOURCE) -> list[Limit]:
        config = await self.get_config("entity", entity_id, resource)
        return [] if config is None else list(config.limits)

    async def delete_limits(
        self, entity_id: str, resource: str = DEFAULT_RESOURCE, principal: str | None = None
    ) -> None:
        await self._delete_config("entity", principal, entity_id, resource)

    async def list_entities_with_custom_limits(
        self, resource: str = DEFAULT_RESOURCE, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        """Entities with limits of their own for a resource, and the cursor of the next page if any."""
        _check_level_resource(resource)
        query = starting(gsi3_pk_entity_config(self._namespace_id, resource), "", GSI3)
        query = query._replace(rows_max=check_page_size(limit), after=read_cursor(cursor))
        rows, after = await self._first_rows(query)
        prefix = f"{self._namespace_id}/ENTITY#"
        return [row.key.partition.removeprefix(prefix) for row in rows], cursor_text(after)

    async def list_resources_with_entity_configs(self) -> list[str]:
        found = await self._of_resources(sk_entity_configs())
        return [str(item["resource"]) for item in found if number(item, "entities") > 0]

    # Any level.

    async def get_config(
        self, level: str, identifier: str | None = None, resource: str | None = None
    ) -> LimiterConfig | None:
        """What one level says, ``None`` if it says nothing; ``level`` is system, resource or entity."""
        item = await self._get(self._level(level, identifier, resource).key)
        return None if item is None or not _says_anything(item) else config_of(item)

    async def set_config(
        self,
        level: str,
        config: LimiterConfig,
        identifier: str | None = None,
        resource: str | None = None,
        principal: str | None = None,
    ) -> None:
        """Replace what one level says as a whole."""
        at = self._level(level, identifier, resource)
        if config.limits:
            check_limits(config.limits)
        if level != "system" and (config.auto_update is not None or config.strict_version is not None):
            raise ValidationError(
                "level", level, "auto_update and strict_version exist at the system level only"
            )
        item = config_item(config)
        if not _says_anything(item):
            raise ValidationError("config", config, "it says nothing; delete the level instead")
        details = {"limits": [one.to_dict() for one in config.limits]}
        if config.on_unavailable is not None:
            details["on_unavailable"] = config.on_unavailable.value  # type: ignore[assignment]
        await self._change(at, item, principal, details)

    async def resolve_limits(
        self, entity_id: str, resource: str
    ) -> tuple[list[Limit] | None, OnUnavailable | None, ConfigSource | None]:
        """The limits that apply, the policy when the store is down, and the level of the limits."""
        validate_entity_id(entity_id)
        validate_resource(resource)
        found = resolve(await self._connection.fetch(self._levels(entity_id, resource)))
        return None if found.limits is None else list(found.limits), found.on_unavailable, found.source

    def invalidate_config_cache(self, entity_id: str | None = None, resource: str | None = None) -> None:
        """Read configuration anew: all of it, or what concerns an entity, a resource, or both."""
        self._connection.cache.invalidate(self._concerns(entity_id, resource))

    def get_cache_stats(self) -> CacheStats:
        return self._connection.cache.stats()

    async def _set_limits(
        self,
        level: str,
        limits: Sequence[Limit],
        on_unavailable: OnUnavailable | str | None,
        principal: str | None,
        entity_id: str | None = None,
        resource: str | None = None,
    ) -> None:
        policy = None if on_unavailable is None else OnUnavailable.of(on_unavailable)
        before = await self.get_config(level, entity_id, resource)
        if before is not None and policy is None:
            policy = before.on_unavailable
        config = LimiterConfig(
            check_limits(limits),
            policy,
            None if before is None else before.auto_update,
            None if before is None else before.strict_version,
        )
        await self.set_config(level, config, entity_id, resource, principal)

    async def _delete_config(
        self, level: str, principal: str | None, entity_id: str | None = None, resource: str | None = None
    ) -> None:
        await self._change(self._level(level, entity_id, resource), None, principal, {})

    async def _change(
        self, at: Level, item: dict[str, Value] | None, principal: str | None, details: dict[str, Any]
    ) -> None:
        """Write one level, its stamp, the counter and the audit event together; ``None`` deletes."""
        counter_key = Key(pk_system(self._namespace_id), sk_config_version())
        action = AuditAction.LIMITS_DELETED if item is None else AuditAction.LIMITS_SET
        for _ in range(CHANGE_ATTEMPTS_MAX):
            counter, before = await self._backend.batch_get([counter_key, at.key])
            was_there = before is not None and _says_anything(before)
            if item is None and not was_there:
                return
            version = number(counter or {}, "version") + 1
            stamped: dict[str, Value] = {**(item or {}), "config_version": version}
            stamped |= self._level_entries(at, listed=item is not None)
            seen = None if before is None else number(before, "config_version")
            writes: list[Write] = [
                Update(
                    counter_key,
                    set={"version": version, **within_namespace(self._namespace_id, counter_key)},
                    when=(Equal("version", version - 1 or None),),
                ),
                Put(at.key, stamped, when=(Equal("config_version", seen),)),
                self._audit(action, at.audit_id, principal, at.resource, details),
            ]
            if at.entity_id is not None and at.resource is not None and was_there != (item is not None):
                writes.append(self._count_entity_config(at.resource, -1 if was_there else 1))
            outcomes = await self._backend.transact_write(writes)
            if outcomes[0].applied:
                self._connection.cache.put(at.key, stamped, self._world.now_ms())
                self._connection.teller.reconsider()
                return
        raise RateLimiterUnavailable(f"{CHANGE_ATTEMPTS_MAX} attempts to change the limits were overtaken")

    def _level_entries(self, at: Level, *, listed: bool) -> dict[str, Value]:
        """The index entries of a level; one that was deleted is found by its namespace only."""
        entries = within_namespace(self._namespace_id, at.key)
        if listed:
            entries["resource"] = at.resource
            if at.entity_id is not None and at.resource is not None:
                entries["GSI3PK"] = gsi3_pk_entity_config(self._namespace_id, at.resource)
                entries["GSI3SK"] = at.entity_id
        return entries

    def _level(self, level: str, identifier: str | None, resource: str | None) -> Level:
        namespace_id = self._namespace_id
        if level == "system":
            if identifier is not None or resource is not None:
                raise ValidationError("level", level, "the system level takes no identifier and no resource")
            return Level(system_config_key(namespace_id), SYSTEM_AUDIT)
        if level == "resource":
            named = resource if identifier is None else identifier
            if named is None:
                raise ValidationError("resource", None, "name the resource whose config is meant")
            validate_resource(named)
            return Level(resource_config_key(namespace_id, named), f"$RESOURCE:{named}", named)
        if level == "entity":
            if identifier is None:
                raise ValidationError("identifier", None, "name the entity whose config is meant")
            validate_entity_id(identifier)
            named = _check_level_resource(DEFAULT_RESOURCE if resource is None else resource)
            return Level(entity_config_key(namespace_id, identifier, named), identifier, named, identifier)
        raise ValidationError("level", level, "use 'system', 'resource' or 'entity'")

    async def _of_resources(self, sort: str) -> list[Item]:
        """The records of one kind that belong to resources."""
        query = starting(self._namespace_id, pk_resource(self._namespace_id, ""), GSI4)
        keys = [row.key async for row in self._rows(query) if row.key.sort == sort]
        items = await self._backend.batch_get(keys) if keys else []
        return [item for item in items if item is not None]

    def _concerns(self, entity_id: str | None, resource: str | None) -> Callable[[Key], bool]:
        """Which cached records say something about an entity, a resource, or both."""
        namespace_id = self._namespace_id
        if entity_id is None and resource is None:
            return lambda key: key.partition.startswith(f"{namespace_id}/")
        if entity_id is None:
            assert resource is not None
            shared = resource_config_key(namespace_id, resource)
            return lambda key: key == shared or key.sort == sk_config(resource)
        mine = entity_config_key(namespace_id, entity_id, "").partition
        if resource is None:
            return lambda key: key.partition == mine
        return {*self._levels(entity_id, resource)}.__contains__


def _check_level_resource(resource: str) -> str:
    return resource if resource == DEFAULT_RESOURCE else validate_resource(resource)


def _says_anything(item: Item) -> bool:
    """Whether a config record is more than the stamp that a deletion left."""
    config = config_of(item)
    fields = (config.on_unavailable, config.auto_update, config.strict_version)
    return bool(config.limits) or any(value is not None for value in fields)
