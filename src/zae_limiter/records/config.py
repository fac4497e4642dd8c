"""Stored configuration at four levels, and changes that take effect.

A level counts its changes in ``config_version``, and a change is one transaction of the level and its
audit event. A level that is deleted leaves an empty record with its count behind, so that the counts
of the levels which matter to a bucket never fall: a bucket that has seen more of them tells a client
that its cache is old.

``born`` names the audit event by which a level came to have limits or a policy. It tells what was made
from what was made, deleted and made again by somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from ..established import Done, deprecated
from ..exceptions import DamagedRecordError, RateLimiterUnavailable, ValidationError
from ..models import (
    AuditAction,
    CacheStats,
    ConfigSource,
    Limit,
    LimiterConfig,
    OnUnavailable,
    check_limits,
    is_limits,
)
from ..naming import DEFAULT_RESOURCE, validate_entity_id, validate_resource
from ..repository_protocol import AtMost, Check, Delete, Equal, Item, Key, Put, Update, Value, Write
from ..schema import (
    GSI3,
    GSI4,
    RESOURCE_AUDIT,
    SYSTEM_AUDIT,
    bucket_key,
    configured_names,
    entity_config_key,
    entity_key,
    gsi3_pk_entity_config,
    number,
    parse_bucket_pk,
    pinned,
    pk_entity,
    pk_resource,
    resource_config_key,
    sk_config,
    sk_entity_configs,
    starting,
    system_config_key,
    text,
    within_namespace,
)
from .buckets import BucketRecords
from .items import check_settings, config_item, config_of, readable_config, unknown_settings
from .raw_writes import check_keys
from .resolution import least_version, resolve
from .view import PAGE_MAX, cursor_text

CHANGE_ATTEMPTS_MAX = 16
LEVELS_HINT = "use 'system', 'resource' or 'entity'"


class Level(NamedTuple):
    """One level of configuration: where it is stored and under which name it is audited."""

    key: Key
    audit_id: str
    resource: str | None = None
    entity_id: str | None = None


class Claim(NamedTuple):
    """A record that says who made a level; ``born`` is added to it, to say which life of the level."""

    key: Key
    item: Mapping[str, Value]


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
        """The limits of the system level, and what it says of a store that does not answer."""
        config = await self.get_config("system")
        return ([], None) if config is None else (list(config.limits), config.on_unavailable)

    async def delete_system_defaults(self, principal: str | None = None) -> bool:
        """Delete what the system level says; returns whether it said anything."""
        return await self._delete_config("system", principal)

    # A resource.

    async def set_resource_defaults(
        self,
        resource: str,
        limits: Sequence[Limit],
        principal: str | None = None,
        on_unavailable: OnUnavailable | str | None = None,
    ) -> None:
        """The limits of a resource for every entity that has none of its own."""
        await self._set_limits("resource", limits, on_unavailable, principal, resource=resource)

    async def get_resource_defaults(self, resource: str) -> list[Limit]:
        """The limits of a resource; empty if it has none of its own."""
        config = await self.get_config("resource", resource=resource)
        return [] if config is None else list(config.limits)

    async def delete_resource_defaults(self, resource: str, principal: str | None = None) -> bool:
        """Delete what a resource's level says; returns whether it said anything."""
        return await self._delete_config("resource", principal, resource=resource)

    async def list_resources_with_defaults(self) -> list[str]:
        """The resources that have limits of their own, in the order of their names."""
        return [name for name, item in await self._of_resources(sk_config()) if "resource" in item]

    # An entity.

    async def set_limits(
        self,
        entity_id: str,
        limits: Sequence[Limit],
        resource: str = DEFAULT_RESOURCE,
        principal: str | None = None,
        on_unavailable: OnUnavailable | str | None = None,
    ) -> None:
        """The entity's own limits, for one resource or for all."""
        await self._set_limits("entity", limits, on_unavailable, principal, entity_id, resource)

    async def get_limits(self, entity_id: str, resource: str = DEFAULT_RESOURCE) -> list[Limit]:
        """The entity's own limits, for one resource or for all; empty if it has none."""
        config = await self.get_config("entity", entity_id, resource)
        return [] if config is None else list(config.limits)

    async def delete_limits(
        self, entity_id: str, resource: str = DEFAULT_RESOURCE, principal: str | None = None
    ) -> bool:
        """Delete the entity's own limits, for one resource or for all; returns whether there were any."""
        return await self._delete_config("entity", principal, entity_id, resource)

    async def list_entities_with_custom_limits(
        self, resource: str = DEFAULT_RESOURCE, limit: int | None = None, cursor: str | None = None
    ) -> tuple[list[str], str | None]:
        """Entities with limits of their own for a resource, and the cursor of the next page if any.

        Without a ``limit`` a page is as long as pages get. The last page is the one without a cursor; a page
        may be short, or empty, and have one.
        """
        _check_level_resource(resource)
        limit = PAGE_MAX if limit is None else limit
        query = starting(gsi3_pk_entity_config(self._namespace_id, resource), "", GSI3)
        rows, after = await self._first_rows(self._paged(query, limit, cursor))
        prefix = pk_entity(self._namespace_id, "")
        return [row.key.partition.removeprefix(prefix) for row in rows], cursor_text(after, query)

    async def list_resources_with_entity_configs(self) -> list[str]:
        """The resources for which entities have limits of their own."""
        found = await self._of_resources(sk_entity_configs())
        return [name for name, item in found if number(item, "entities") > 0]

    # Any level.

    async def get_config(
        self, level: str, identifier: str | None = None, resource: str | None = None
    ) -> LimiterConfig | None:
        """What one level says, ``None`` if it says nothing; ``level`` is system, resource or entity."""
        item = await self._get(self._level(level, identifier, resource).key)
        config = config_of(item or {})
        return config if _says_anything(config) else None

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
        if not isinstance(config, LimiterConfig):
            raise ValidationError("config", config, "pass a LimiterConfig")
        if config.limits:
            check_limits(config.limits)
        if level != "system" and (config.auto_update is not None or config.strict_version is not None):
            raise ValidationError(
                "level", level, "auto_update and strict_version exist at the system level only"
            )
        if not _says_anything(config):
            raise ValidationError("config", config, "it says nothing; delete the level instead")
        await self._change(at, lambda *_: config, principal)

    async def resolve_limits(
        self, entity_id: str, resource: str
    ) -> tuple[list[Limit] | None, OnUnavailable | None, ConfigSource | None]:
        """The limits that apply, the policy when the store is down, and the level of the limits."""
        validate_entity_id(entity_id)
        validate_resource(resource)
        await self.notice_changes()
        found = resolve(await self._connection.fetch(self._levels(entity_id, resource)))
        return None if found.limits is None else list(found.limits), found.on_unavailable, found.source

    def invalidate_config_cache(self, entity_id: str | None = None, resource: str | None = None) -> Done:
        """Read configuration anew: all of it, or what concerns an entity, a resource, or both.

        It is done when the call returns; the answer may be awaited, and need not be.
        """
        self._connection.invalidate(self._concerns(entity_id, resource))
        return Done()

    async def batch_get_configs(
        self, keys: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[list[Limit], OnUnavailable | None]]:
        """What several levels say, each by the key of its record; a level that says nothing is left out."""
        wanted = check_keys(self._namespace_id, keys)
        items = await self._backend.batch_get(wanted) if wanted else []
        levels = {key: config_of(item or {}) for key, item in zip(wanted, items, strict=True)}
        return {
            (key.partition, key.sort): (list(config.limits), config.on_unavailable)
            for key, config in levels.items()
            if _says_anything(config)
        }

    def get_cache_stats(self) -> CacheStats:
        """How often configuration was remembered, and how much of it."""
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
        if isinstance(principal, str) and principal in tuple(
            OnUnavailable
        ):  # a policy must not be taken for somebody's name
            raise ValidationError("principal", principal, "pass on_unavailable by its name")
        if is_limits(entity_id) or is_limits(resource):
            order = {"entity": "set_limits(entity_id, limits, resource)"}
            told = order.get(level, "set_resource_defaults(resource, limits)")
            raise ValidationError("limits", limits, f"the arguments are in another order: {told}")
        are_none = is_limits(limits) and not limits
        if are_none and policy is None:
            deprecated("setting no limits", "delete them instead", stacklevel=4)
        checked = () if are_none else check_limits(limits)

        def revised(before: LimiterConfig, _: str | None) -> LimiterConfig:
            return replace(before, limits=checked, on_unavailable=policy or before.on_unavailable)

        await self._change(self._level(level, entity_id, resource), revised, principal)

    async def _set_policy(self, policy: OnUnavailable) -> None:
        """Store what the system level says of a store that does not answer, unless it says so already."""

        def revised(before: LimiterConfig, _: str | None) -> LimiterConfig | None:
            return None if before.on_unavailable is policy else replace(before, on_unavailable=policy)

        await self._change(self._level("system", None, None), revised, None)

    async def _delete_config(
        self, level: str, principal: str | None, entity_id: str | None = None, resource: str | None = None
    ) -> bool:
        at = self._level(level, entity_id, resource)
        return await self._change(at, lambda *_: LimiterConfig(), principal)

    async def _change(
        self,
        at: Level,
        revise: Callable[[LimiterConfig, str | None], LimiterConfig | None],
        principal: str | None,
        claim: Claim | None = None,
    ) -> bool:
        """Write what a level is to say from now on, its count and the audit event together.

        ``revise`` is told what the level says and when it was born, and returns ``None`` to leave it. A
        level that says nothing any more is deleted, and deleting what is not there changes nothing. A
        ``claim`` comes and goes with the level. Returns whether anything was written.
        """
        await self._check_namespace()
        alive: tuple[Equal, ...] = (Equal("status", None),)
        for _ in range(CHANGE_ATTEMPTS_MAX):
            before = await self._get(at.key) or {}
            said, born = readable_config(before), text(before, "born")
            revised = revise(said, born)
            if revised is None:
                return False
            config = replace(revised, config_version=said.config_version + 1)
            listed = _says_anything(config)
            if listed:
                check_settings(before, f"level {at.audit_id!r}", replacing=True)
            was_listed = _says_anything(said) or bool(configured_names(before))
            if not listed and not was_listed and not any(unknown_settings(before)):
                return False
            audit = self._audit(
                AuditAction.LIMITS_SET if listed else AuditAction.LIMITS_DELETED,
                at.audit_id,
                principal,
                at.resource,
                _told(config) if listed else None,
            )
            made, gone = not governs(said) and governs(config), governs(said) and not governs(config)
            born = text(audit.item, "event_id") if made else None if gone else born
            item = config_item(config) | {"born": born} | self._level_entries(at, listed=listed)
            writes: list[Write] = [Put(at.key, item, when=pinned(before, "config_version")), audit]
            if at.entity_id is not None and at.resource is not None:
                owner = entity_key(self._namespace_id, at.entity_id)
                writes.append(Check(owner, when=alive))
                if was_listed != listed:
                    writes.append(self._count_entity_config(at.resource, 1 if listed else -1))
            if claim is not None and (made or gone):
                writes.append(Put(claim.key, {**claim.item, "born": born}) if made else Delete(claim.key))
            outcomes = await self._write_together(writes)
            if outcomes[0].applied:
                self._connection.learn(at.key, {a: v for a, v in item.items() if v is not None})
                if at.entity_id is not None and at.resource is not None:
                    await self._stamp_buckets(at.entity_id, at.resource)
                return True
            if at.entity_id is not None and at.resource is not None:
                if not outcomes[2].held:
                    alive = pinned(outcomes[2].item or {}, "status")
                    if Equal("status", "deleted") in alive:  # somebody died while deleting the entity
                        await self._clear_out(at.entity_id)
                        alive = (Equal("status", None),)
                await self._mend_counts(writes, outcomes)
        raise RateLimiterUnavailable(f"{CHANGE_ATTEMPTS_MAX} attempts to change the limits were overtaken")

    async def _stamp_buckets(self, entity_id: str, resource: str) -> None:
        """Let the entity's buckets refuse whoever goes by its older limits, if the store tells nobody.

        A bucket that is missed, because the index lags or this process dies, is used under the older limits
        until caches expire.
        """
        if self._connection.tells_changes:
            return
        whole = None if resource == DEFAULT_RESOURCE else resource
        with suppress(RateLimiterUnavailable, DamagedRecordError):
            if whole is not None:  # which is there even if its index entry is not yet
                await self._stamp([bucket_key(self._namespace_id, entity_id, whole)])
            async for keys in self._bucket_keys(entity_id, whole):
                await self._stamp(
                    [key for key in keys if whole is None or parse_bucket_pk(key.partition).shard_id]
                )

    async def _stamp(self, buckets: Sequence[Key]) -> None:
        """Raise the version of buckets above that of whoever has not seen the levels as they are now."""
        if not buckets:
            return
        addresses = [parse_bucket_pk(key.partition) for key in buckets]
        levels = {at.resource: self._levels(at.entity_id, at.resource) for at in addresses}
        wanted = list(dict.fromkeys(key for keys in levels.values() for key in keys))
        items = dict(zip(wanted, await self._backend.batch_get(wanted), strict=True))
        versions = {name: least_version([items[key] for key in keys]) for name, keys in levels.items()}
        stamps = [
            Update(key, set={"cv": versions[at.resource]}, when=(AtMost("cv", versions[at.resource] - 1),))
            for key, at in zip(buckets, addresses, strict=True)
        ]
        await self._must_write(stamps)

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
        if not isinstance(level, str):
            raise ValidationError("level", level, LEVELS_HINT)
        if level == "system":
            if identifier is not None or resource is not None:
                raise ValidationError("level", level, "the system level takes no identifier and no resource")
            return Level(system_config_key(namespace_id), SYSTEM_AUDIT)
        if level == "resource":
            named = resource if identifier is None else identifier
            if named is None:
                raise ValidationError("resource", None, "name the resource whose config is meant")
            validate_resource(named)
            return Level(resource_config_key(namespace_id, named), RESOURCE_AUDIT + named, named)
        if level == "entity":
            if identifier is None:
                raise ValidationError("identifier", None, "name the entity whose config is meant")
            validate_entity_id(identifier)
            named = _check_level_resource(DEFAULT_RESOURCE if resource is None else resource)
            return Level(entity_config_key(namespace_id, identifier, named), identifier, named, identifier)
        raise ValidationError("level", level, LEVELS_HINT)

    async def _of_resources(self, sort: str) -> list[tuple[str, Item]]:
        """The records of one kind that belong to resources, with their resources."""
        prefix = pk_resource(self._namespace_id, "")
        query = starting(self._namespace_id, prefix, GSI4)
        keys = [row.key async for row in self._rows(query) if row.key.sort == sort]
        items = await self._backend.batch_get(keys) if keys else []
        named = zip((key.partition.removeprefix(prefix) for key in keys), items, strict=True)
        return [(name, item) for name, item in named if item is not None]

    def _concerns(self, entity_id: str | None, resource: str | None) -> Callable[[Key], bool]:
        """Which cached records say something about an entity, a resource, or both."""
        mine = f"{self._namespace_id}/"
        if entity_id is not None:
            owner = entity_key(self._namespace_id, validate_entity_id(entity_id))
            if resource is None:
                return lambda key: key.partition == owner.partition
            return {owner, *self._levels(entity_id, validate_resource(resource))}.__contains__
        if resource is None:
            return lambda key: key.partition.startswith(mine)
        own = sk_config(validate_resource(resource))
        shared = resource_config_key(self._namespace_id, resource)
        return lambda key: key == shared or (key.sort == own and key.partition.startswith(mine))


def _check_level_resource(resource: str) -> str:
    own = isinstance(resource, str) and resource == DEFAULT_RESOURCE
    return resource if own else validate_resource(resource)


def _says_anything(config: LimiterConfig) -> bool:
    """Whether a level is more than the count that a deletion left."""
    fields = (config.on_unavailable, config.auto_update, config.strict_version)
    return bool(config.limits) or any(value is not None for value in fields)


def governs(config: LimiterConfig) -> bool:
    """Whether a level has limits or a policy, which is what it is there for."""
    return bool(config.limits) or config.on_unavailable is not None


def _told(config: LimiterConfig) -> dict[str, Any]:
    """A level as the audit trail tells it."""
    fields = {
        "on_unavailable": config.on_unavailable and config.on_unavailable.value,
        "auto_update": config.auto_update,
        "strict_version": config.strict_version,
    }
    told = {name: value for name, value in fields.items() if value is not None}
    return {"limits": [limit.to_dict() for limit in config.limits], **told}
