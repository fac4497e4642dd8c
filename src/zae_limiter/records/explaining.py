"""Why an acquire goes by which limits: its way to them, read anew, with nothing taken."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.account import Account
from ..engine.bucket_view import level, stored_terms
from ..engine.split import levels, survey
from ..engine.switches import say_of
from ..models.explanation import ExplainedBucket, ExplainedLevel, Explanation
from ..repository_protocol import Item
from ..schema import is_deleted
from .items import config_of
from .resolution import LASTING, SOURCES, level_keys, resolve
from .scope import Scope


async def explanation(scope: Scope, accounts: Sequence[Account]) -> Explanation:
    """What an acquire that charges these accounts would go by, the entity's first."""
    first, resource = accounts[0], accounts[0].resource
    keys = [level_keys(scope.namespace_id, one.entity_id, resource) for one in accounts]
    stored = [await scope.connection.fetch(levels) for levels in keys]
    images = await survey(scope.connection.writer, accounts)
    resolved = resolve(stored[0])
    return Explanation(
        first.entity_id,
        resource,
        first.parent_id,
        first.cascade,
        tuple(_explained(scope, first, *one) for one in zip(accounts, stored, images, strict=True)),
        resolved.on_unavailable or scope.connection.options.on_unavailable,
        resolved.policy_source,
    )


def _explained(
    scope: Scope,
    first: Account,
    account: Account,
    stored: Sequence[Item | None],
    images: Sequence[Item | None],
) -> ExplainedBucket:
    now_ms, resolved = scope.world.now_ms(), resolve(stored)
    source = resolved.source
    there = {name: levels(account, images, name, now_ms).balance(now_ms) for name in account.terms.rates}
    at_once = scope.connection.tells_changes or source in LASTING
    return ExplainedBucket(
        account.entity_id,
        tuple(
            ExplainedLevel(
                at, said.limits, said.on_unavailable, at is source, said.disabled, said.bypass, said.cascade
            )
            for at, said in zip(SOURCES, map(config_of, (item or {} for item in stored)), strict=True)
        ),
        {name: milli // 1000 for name, milli in (there or _brought_along(images, now_ms)).items()},
        0 if at_once else scope.connection.options.config_cache_ttl_seconds,
        say_of(account, first),
        account.parent_id,
        account.cascade,
        resolved.cascade_source,
    )


def _brought_along(images: Sequence[Item | None], now_ms: int) -> dict[str, int]:
    """What a bucket holds whose limits callers brought along; each of its shards knows its own."""
    there: dict[str, int] = {}
    for image in images:
        if image is not None and not is_deleted(image):
            terms = stored_terms(image)
            for name in terms.rates:
                there[name] = there.get(name, 0) + level(terms, name, image, now_ms).balance(now_ms)
    return there
