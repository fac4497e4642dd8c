"""The family of an entity on a resource, and the copies of it that buckets carry.

The record of an entity says who its parent is and whether it cascades. A level of configuration may say for a
resource, or for all, whether entities cascade there: it overrules the record. Buckets carry a copy of what
comes of both, so that a process which trusts its cache learns of a change from the reply to its next write.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..exceptions import DamagedRecordError, RateLimiterUnavailable
from ..models import Entity
from ..repository_protocol import Exists, Item, Key, Update
from ..schema import parse_bucket_pk
from .belongings import bucket_keys
from .resolution import cascade_policy, level_keys
from .scope import Scope


def copy_family(key: Key, parent_id: str | None, cascade: bool) -> Update:
    return Update(key, set={"parent_id": parent_id, "cascade": cascade}, when=(Exists(),))


async def tell_buckets(scope: Scope, entity: Entity) -> None:
    """Copy the family of an entity into its buckets; one that is missed puts itself right when used."""
    with suppress(RateLimiterUnavailable, DamagedRecordError):
        async for keys in bucket_keys(scope, entity.entity_id):
            levels, _ = await stored_levels(scope, keys)
            policies = [cascade_policy(levels[key])[0] for key in keys]
            cascades = [entity.cascade if policy is None else policy for policy in policies]
            pairs = zip(keys, cascades, strict=True)
            await scope.must_write([copy_family(key, entity.parent_id, cascade) for key, cascade in pairs])


async def stored_levels(
    scope: Scope, buckets: Sequence[Key], *, with_buckets: bool = False
) -> tuple[dict[Key, list[Item | None]], dict[Key, Item | None]]:
    """What the four levels say that matter to some buckets and, if asked for, the buckets, read at once."""
    places = {key: parse_bucket_pk(key.partition) for key in buckets}
    levels = {key: level_keys(scope.namespace_id, at.entity_id, at.resource) for key, at in places.items()}
    images = buckets if with_buckets else ()
    wanted = list(dict.fromkeys([*images, *(key for keys in levels.values() for key in keys)]))
    items = dict(zip(wanted, await scope.backend.batch_get(wanted), strict=True)) if wanted else {}
    by_bucket = {bucket: [items[key] for key in keys] for bucket, keys in levels.items()}
    return by_bucket, {bucket: items[bucket] for bucket in images}
