"""Why an acquire goes by which limits: its way to them, read anew, with nothing taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from ..engine.account import Account
from ..engine.bucket_view import level, stored_terms, told_limit
from ..engine.law import TOKEN_MILLI, Rate
from ..engine.phased import terms_at
from ..engine.shares import Spread
from ..engine.split import levels, survey
from ..engine.switches import say_of
from ..models import Limit
from ..models.explanation import ExplainedBucket, ExplainedLevel, ExplainedPhase, Explanation
from ..models.refusing import Refusing
from ..models.schedules import schedule_of, window_at
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
    resolved, now_ms = resolve(stored[0]), scope.world.now_ms()
    said = zip(accounts, stored, images, strict=True)
    return Explanation(
        first.entity_id,
        resource,
        first.parent_id,
        first.cascade,
        tuple(_explained(scope, now_ms, first, *one) for one in said),
        resolved.on_unavailable or scope.connection.options.on_unavailable,
        resolved.policy_source,
        now_ms,
    )


def _explained(
    scope: Scope,
    now_ms: int,
    first: Account,
    account: Account,
    stored: Sequence[Item | None],
    images: Sequence[Item | None],
) -> ExplainedBucket:
    resolved = resolve(stored)
    source, own = resolved.source, say_of(account, first)
    stands = {name: levels(account, images, name, now_ms) for name in account.terms.rates}
    there = {name: at.balance(now_ms) for name, at in stands.items()}
    is_bypassed = any(switch is not None and switch.bypass is not None for switch in (first.switch, own))
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
        own,
        account.parent_id,
        account.cascade,
        resolved.cascade_source,
        () if is_bypassed else tuple(_refusing(account, stands, now_ms)),
        is_bypassed,
        {one.name: _phase(one, now_ms) for one in resolved.limits or () if one.schedule is not None},
    )


def _refusing(account: Account, stands: Mapping[str, Spread], now_ms: int) -> Iterator[Refusing]:
    """The limits of a bucket that cannot cover a single token, and when each can."""
    for name, at in stands.items():
        wait_ms = 0 if name in account.terms.soft else at.retry_after_ms(TOKEN_MILLI, now_ms)
        if wait_ms > 0:
            limit = told_limit(account.terms, name, terms_at(account.terms, now_ms).rates[name])
            until_ms = None if math.isinf(wait_ms) else now_ms + int(wait_ms)
            available, booked_ms = at.balance(now_ms) // 1000, at.booked_until_ms(now_ms)
            yield Refusing(account.entity_id, limit, available, now_ms, until_ms, booked_ms)


def _phase(limit: Limit, now_ms: int) -> ExplainedPhase:
    """Which numbers of its schedule a limit goes by."""
    rate = Rate.of(limit)
    assert limit.schedule is not None
    assert rate.schedule is not None
    at, phase = datetime.fromtimestamp(now_ms / 1000, UTC), schedule_of(rate.schedule).phase(now_ms)
    return ExplainedPhase(limit.at(at), window_at(limit.schedule, now_ms), phase.end_ms)


def _brought_along(images: Sequence[Item | None], now_ms: int) -> dict[str, int]:
    """What a bucket holds whose limits callers brought along; each of its shards knows its own."""
    there: dict[str, int] = {}
    for image in images:
        if image is not None and not is_deleted(image):
            terms = stored_terms(image)
            for name in terms.rates:
                there[name] = there.get(name, 0) + level(terms, name, image, now_ms).balance(now_ms)
    return there
