"""The levels of configuration, and changes of them that take effect.

A level counts its changes in ``config_version``, and a change is one transaction of the level and its
audit event. A level that is deleted leaves an empty record with its count behind, so that the counts
of the levels which matter to a bucket never fall: a bucket that has seen more of them tells a client
that its cache is old.

``born`` names the audit event by which a level came to have limits, a policy or a switch. It tells what was
made from what was made, deleted and made again by somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from ..engine.seen_changes import has_missed, stamp_of, together
from ..exceptions import DamagedRecordError, RateLimiterUnavailable, ValidationError
from ..models import AuditAction, LimiterConfig
from ..naming import DEFAULT_RESOURCE, validate_entity_id, validate_resource
from ..repository_protocol import Absent, Check, Delete, Equal, Exists, Item, Key, Put, Update, Value, Write
from ..schema import (
    RESOURCE_AUDIT,
    SYSTEM_AUDIT,
    bucket_key,
    entity_config_key,
    entity_key,
    gsi3_pk_entity_config,
    number,
    parse_bucket_pk,
    pinned,
    resource_config_key,
    system_config_key,
    text,
    within_namespace,
)
from .audit import audited
from .belongings import bucket_keys, clear_out, count_entity_config, mend_counts
from .families import stored_levels
from .items import check_settings, config_item, configured_names, readable_config, unknown_settings
from .resolution import cascade_policy, family_of, stamp_for
from .scope import Scope
from .switch_list import switch_entry

CHANGE_ATTEMPTS_MAX = 16


class ConfigLevel(NamedTuple):
    """One level of configuration: where it is stored and under which name it is audited."""

    key: Key
    audit_id: str
    resource: str | None = None
    entity_id: str | None = None


class Claim(NamedTuple):
    """A record that says who made a level; ``born`` is added to it, to say which life of the level."""

    key: Key
    item: Mapping[str, Value]


def level_at(scope: Scope, level: str, identifier: str | None, resource: str | None) -> ConfigLevel:
    """A level by its name, and the names that go with it."""
    namespace_id = scope.namespace_id
    if level == "system":
        if identifier is not None or resource is not None:
            raise ValidationError("level", level, "the system level takes no identifier and no resource")
        return ConfigLevel(system_config_key(namespace_id), SYSTEM_AUDIT)
    if level == "resource":
        named = resource if identifier is None else identifier
        if named is None:
            raise ValidationError("resource", None, "name the resource whose config is meant")
        validate_resource(named)
        return ConfigLevel(resource_config_key(namespace_id, named), RESOURCE_AUDIT + named, named)
    if level == "entity":
        if identifier is None:
            raise ValidationError("identifier", None, "name the entity whose config is meant")
        validate_entity_id(identifier)
        named = check_level_resource(DEFAULT_RESOURCE if resource is None else resource)
        return ConfigLevel(entity_config_key(namespace_id, identifier, named), identifier, named, identifier)
    raise ValidationError("level", level, "use 'system', 'resource' or 'entity'")


async def change_level(
    scope: Scope,
    at: ConfigLevel,
    revise: Callable[[LimiterConfig, str | None], LimiterConfig | None],
    principal: str | None,
    claim: Claim | None = None,
) -> bool:
    """Write what a level is to say from now on, its count and the audit event together.

    ``revise`` is told what the level says and when it was born, and returns ``None`` to leave it. A
    level that says nothing any more is deleted, and deleting what is not there changes nothing. A
    ``claim`` comes and goes with the level. Returns whether anything was written.
    """
    await scope.check_namespace()
    entity_id, resource = at.entity_id, at.resource or ""
    alive: tuple[Equal, ...] = (Equal("status", None),)
    for _ in range(CHANGE_ATTEMPTS_MAX):
        before = await scope.get(at.key) or {}
        said, born = readable_config(before), text(before, "born")
        revised = revise(said, born)
        if revised is None:
            return False
        config = replace(revised, config_version=said.config_version + 1)
        listed = says_anything(config)
        if listed:
            check_settings(before, f"level {at.audit_id!r}", replacing=True)
        was_listed = says_anything(said) or bool(configured_names(before))
        if not listed and not was_listed and not any(unknown_settings(before)):
            return False
        told = _told(config) if listed else None
        audit = audited(scope, _action(said, config), at.audit_id, principal, at.resource, told)
        made, gone = not governs(said) and governs(config), governs(said) and not governs(config)
        born = text(audit.item, "event_id") if made else None if gone else born
        item = config_item(config) | {"born": born} | _level_entries(scope, at, listed=listed)
        if config.has_switch:
            since, by = text(audit.item, "timestamp"), principal
            if _switched(said) == _switched(config):
                since, by = text(before, "switched_at"), text(before, "switched_by")
            item |= {"switched_at": since, "switched_by": by, **switch_entry(scope.namespace_id, at.key)}
        writes: list[Write] = [Put(at.key, item, when=pinned(before, "config_version")), audit]
        if entity_id is not None:
            writes.append(Check(entity_key(scope.namespace_id, entity_id), when=alive))
            if was_listed != listed:
                writes.append(count_entity_config(scope, resource, 1 if listed else -1))
        if claim is not None and (made or gone):
            writes.append(Put(claim.key, {**claim.item, "born": born}) if made else Delete(claim.key))
        outcomes = await scope.write_together(writes)
        if outcomes[0].applied:
            scope.connection.learn(at.key, {a: v for a, v in item.items() if v is not None})
            if entity_id is not None:
                await _stamp_buckets(scope, entity_id, resource, moved=said.cascade is not config.cascade)
            return True
        if entity_id is not None:
            if not outcomes[2].held:
                alive = pinned(outcomes[2].item or {}, "status")
                if Equal("status", "deleted") in alive:  # somebody died while deleting the entity
                    await clear_out(scope, entity_id)
                    alive = (Equal("status", None),)
            await mend_counts(scope, writes, outcomes)
    raise RateLimiterUnavailable(f"{CHANGE_ATTEMPTS_MAX} attempts to change the limits were overtaken")


def _level_entries(scope: Scope, at: ConfigLevel, *, listed: bool) -> dict[str, Value]:
    """The index entries of a level; one that was deleted is found by its namespace only."""
    entries = within_namespace(scope.namespace_id, at.key)
    if listed:
        entries["resource"] = at.resource
        if at.entity_id is not None and at.resource is not None:
            entries["GSI3PK"] = gsi3_pk_entity_config(scope.namespace_id, at.resource)
            entries["GSI3SK"] = at.entity_id
    return entries


async def _stamp_buckets(scope: Scope, entity_id: str, resource: str, *, moved: bool) -> None:
    """Let the entity's buckets refuse whoever goes by its older limits, if the store tells nobody.

    A bucket that is missed, because the index lags or this process dies, is used under the older limits
    until caches expire. ``moved`` says that the entity may have another family now, which they carry.
    """
    if scope.connection.tells_changes:
        return
    whole = None if resource == DEFAULT_RESOURCE else resource
    with suppress(RateLimiterUnavailable, DamagedRecordError):
        if whole is not None:  # which is there even if its index entry is not yet
            await _stamp(scope, entity_id, [bucket_key(scope.namespace_id, entity_id, whole)], moved=moved)
        async for keys in bucket_keys(scope, entity_id, whole):
            parts = [key for key in keys if whole is None or parse_bucket_pk(key.partition).shard_id]
            await _stamp(scope, entity_id, parts, moved=moved)


async def _stamp(scope: Scope, entity_id: str, buckets: Sequence[Key], *, moved: bool) -> None:
    """Let buckets have seen the levels as they are now, and forget nothing else that they have seen."""
    if not buckets:
        return
    levels, images = await stored_levels(scope, buckets, with_buckets=True)
    owner = await scope.get(entity_key(scope.namespace_id, entity_id)) if moved else None
    for _ in range(CHANGE_ATTEMPTS_MAX):
        stamps = list[Write]()
        for key, image in images.items():
            cascade = {"cascade": family_of(owner, cascade_policy(levels[key])[0])[1]} if moved else {}
            stamps += _stamped(key, image, stamp_for(levels[key]), cascade)
        outcomes = await scope.must_write(stamps)
        refused = [(s.key, o.item) for s, o in zip(stamps, outcomes, strict=True) if not o.applied]
        images = {key: image for key, image in refused if image is not None}
        if not images:
            return


def _stamped(key: Key, image: Item | None, stamp: int, beside: Mapping[str, Value]) -> list[Update]:
    """The write that tells a bucket of changes, none if it has seen them.

    One that was not there may have been made since, by somebody who has not: the store is asked for it.
    """
    if image is None:
        return [Update(key, when=(Exists(), Absent()))]
    seen = number(image, "cv")
    if not has_missed(seen, stamp):
        return []
    told = {"cv": stamp_of(together(seen, stamp)), **beside}
    return [Update(key, set=told, when=(Exists(), *pinned(image, "cv")))]


def check_level_resource(resource: str) -> str:
    own = isinstance(resource, str) and resource == DEFAULT_RESOURCE
    return resource if own else validate_resource(resource)


def says_anything(config: LimiterConfig) -> bool:
    """Whether a level is more than the count that a deletion left."""
    return governs(config) or config.auto_update is not None or config.strict_version is not None


def governs(config: LimiterConfig) -> bool:
    """Whether a level has limits, a policy or a switch, which is what it is there for."""
    policies = config.on_unavailable, config.cascade
    return bool(config.limits) or policies != (None, None) or config.has_switch


def _action(before: LimiterConfig, after: LimiterConfig) -> AuditAction:
    """What somebody did to a level: to its switch, if that is all that is different, or to its limits."""
    if replace(before, **_switched(after)) != replace(after, config_version=before.config_version):
        return AuditAction.LIMITS_SET if says_anything(after) else AuditAction.LIMITS_DELETED
    if _switched(before) == _switched(after):
        return AuditAction.LIMITS_SET
    if after.bypass is not None:
        return AuditAction.BYPASSED
    return AuditAction.DISABLED if after.disabled else AuditAction.ENABLED


def _switched(config: LimiterConfig) -> dict[str, Any]:
    return {"disabled": config.disabled, "bypass": config.bypass}


def _told(config: LimiterConfig) -> dict[str, Any]:
    """A level as the audit trail tells it."""
    fields = {
        "on_unavailable": config.on_unavailable and config.on_unavailable.value,
        "cascade": config.cascade,
        "auto_update": config.auto_update,
        "strict_version": config.strict_version,
        "disabled": config.disabled,
        "bypass": config.bypass and config.bypass.value,
    }
    told = {name: value for name, value in fields.items() if value is not None}
    return {"limits": [limit.to_dict() for limit in config.limits], **told}
