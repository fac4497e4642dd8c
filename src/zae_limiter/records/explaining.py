"""Why an acquire goes by which limits: its way to them, read anew, with nothing taken."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.bucket_view import Account, level, stored_terms
from ..engine.split import levels, survey
from ..models import ConfigSource, OnUnavailable
from ..models.explanation import ExplainedBucket, ExplainedLevel, Explanation
from ..naming import validate_entity_id, validate_resource
from ..repository_protocol import Item
from ..schema import is_deleted
from .buckets import BucketRecords
from .items import limits_of, policy_of
from .resolution import LASTING, SOURCES, resolve


class ExplanationRecords(BucketRecords):
    async def explain(self, entity_id: str, resource: str) -> Explanation:
        """Which limits an acquire would go by, at which level, why, and which of them binds now.

        It is read from the store, not from memory. Nothing is consumed.
        """
        validate_entity_id(entity_id)
        validate_resource(resource)
        await self.notice_changes()
        accounts, _ = await self._family(entity_id, resource, None, fresh=True)
        stored = [await self._connection.fetch(self._levels(one.entity_id, resource)) for one in accounts]
        images = await survey(self.writer, accounts)
        shown = zip(accounts, stored, images, strict=True)
        policy, source = _policy(stored[0])
        return Explanation(
            entity_id,
            resource,
            accounts[0].parent_id,
            accounts[0].cascade,
            tuple(self._explained(*one) for one in shown),
            policy or self._connection.options.on_unavailable,
            source,
            _grandparent(accounts),
        )

    def _explained(
        self, account: Account, stored: Sequence[Item | None], images: Sequence[Item | None]
    ) -> ExplainedBucket:
        now_ms, source = self._world.now_ms(), resolve(stored).source
        there = {name: levels(account, images, name, now_ms).balance(now_ms) for name in account.terms.rates}
        if not there:
            there = _brought_along(images, now_ms)
        at_once = self._connection.tells_changes or source in LASTING
        return ExplainedBucket(
            account.entity_id,
            tuple(
                ExplainedLevel(at, limits_of(item or {}, str(at)), policy_of(item or {}), at is source)
                for at, item in zip(SOURCES, stored, strict=True)
            ),
            {name: tokens_milli // 1000 for name, tokens_milli in there.items()},
            0 if at_once else self._connection.options.config_cache_ttl_seconds,
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


def _grandparent(accounts: Sequence[Account]) -> str | None:
    """Whom the parent that is charged would charge as well, if it were the one who acquires."""
    for parent in accounts[1:]:
        if parent.cascade and parent.parent_id != parent.entity_id:
            return parent.parent_id
    return None


def _policy(stored: Sequence[Item | None]) -> tuple[OnUnavailable | None, ConfigSource | None]:
    """What to do when the store is down, and the first level that says so."""
    for at, item in zip(SOURCES, stored, strict=True):
        if (policy := policy_of(item or {})) is not None:
            return policy, at
    return None, None
