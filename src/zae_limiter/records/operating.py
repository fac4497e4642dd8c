"""Operators' verbs on buckets: ``top_up``, ``reset`` and ``forgive``.

Each is one transaction of the shards that get something, the audit event and the record of its key. Who has a
bucket need not have been created, and a bucket that was never used is full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.account import Account
from ..engine.bucket_view import is_renewed, shard_count, stored_terms
from ..engine.law import Rate
from ..engine.operator_writes import Gift, gifts, give
from ..engine.phased import terms_at
from ..engine.split import known_images, shard_account, shard_keys, survey
from ..exceptions import RateLimiterUnavailable, ValidationError
from ..models import TOKENS_MAX, AuditAction, check_count, check_mapping
from ..models.accruals import CONCURRENT
from ..models.changes import BucketChange
from ..models.checks import AMOUNTS_HINT
from ..naming import validate_entity_id, validate_limit_name, validate_principal, validate_resource
from ..repository_protocol import Item, Write
from ..schema import BOOKED, bucket_key, bucket_limit_names, is_deleted, is_number, number, stored_rate
from .audit import audited
from .buckets import BucketRecords
from .once import ATTEMPTS_MAX, Proposal, once, request_of
from .scope import Scope

ACTIONS = {
    Gift.TOP_UP: AuditAction.BUCKET_TOPPED_UP,
    Gift.RESET: AuditAction.BUCKET_RESET,
    Gift.FORGIVE: AuditAction.BUCKET_FORGIVEN,
}


async def top_up(
    scope: Scope,
    entity_id: str,
    resource: str,
    amounts: Mapping[str, int],
    key: str | None = None,
    principal: str | None = None,
) -> BucketChange:
    """Give tokens to a bucket, as far as there is room.

    >>> async with limiter.acquire("key-1", "gpt-4", {"tpm": 2_000}):
    ...     given = await limiter.top_up("key-1", "gpt-4", {"tpm": 500})
    >>> given.after
    {'tpm': 8500}

    Sent again with the same ``key`` within a day it counts once, and answers the same. Without a key it gets
    one of its own, by which it tries again itself if the reply is lost.
    """
    given = check_mapping("amounts", amounts, AMOUNTS_HINT)
    for name, amount in given.items():
        validate_limit_name(name)
        check_count(f"amount of {name!r}", amount, TOKENS_MAX)
    if not given:
        raise ValidationError("amounts", amounts, "say how many tokens of which limit")
    said = {"entity_id": entity_id, "resource": resource, "amounts": given}
    return await _Giving(scope, Gift.TOP_UP, said, key, principal).carry_out()


async def reset(
    scope: Scope,
    entity_id: str,
    resource: str,
    limits: Sequence[str] | None = None,
    key: str | None = None,
    principal: str | None = None,
) -> BucketChange:
    """Fill a bucket: all its limits, or those that are named. See ``top_up`` for ``key``.

    What somebody has booked who waits for one of them is given as well; it begins when it was told to.
    """
    said = {"entity_id": entity_id, "resource": resource, "limits": _checked_names(limits)}
    return await _Giving(scope, Gift.RESET, said, key, principal).carry_out()


async def forgive(
    scope: Scope,
    entity_id: str,
    resource: str,
    limits: Sequence[str] | None = None,
    key: str | None = None,
    principal: str | None = None,
) -> BucketChange:
    """Let a bucket off its debts: what is below zero becomes zero. See ``top_up`` for ``key``.

    So does what is below zero because somebody waits; it begins when it was told to.
    """
    said = {"entity_id": entity_id, "resource": resource, "limits": _checked_names(limits)}
    return await _Giving(scope, Gift.FORGIVE, said, key, principal).carry_out()


SEATS = (
    "it counts who is at work: a seat comes back when its lease ends, or after its hold; name other limits"
)


class _Giving:
    """One verb at work on one bucket."""

    def __init__(
        self, scope: Scope, kind: Gift, said: Mapping[str, Any], key: str | None, principal: str | None
    ) -> None:
        self._entity_id = validate_entity_id(said["entity_id"])
        self._resource = validate_resource(said["resource"])
        self._principal = None if principal is None else validate_principal(principal)
        self._amounts: Mapping[str, int] = said.get("amounts", {})
        self._names: Sequence[str] | None = list(self._amounts) or said.get("limits")
        self._scope, self._kind = scope, kind
        self._buckets = BucketRecords(scope.connection, scope.namespace_name, scope.namespace_id)
        self._writer = scope.connection.writer
        self._request = request_of(scope, kind.value, said, key)

    async def carry_out(self) -> BucketChange:
        entity_id, resource = self._entity_id, self._resource
        try:
            answer = await once(self._scope, self._request, self._propose)
        finally:  # whoever was refused a moment ago may be served now
            self._writer.reconsider(bucket_key(self._scope.namespace_id, entity_id, resource))
        if answer is None:
            verb = f"{self._kind.value} of {entity_id!r} on {resource!r}"
            raise RateLimiterUnavailable(f"{ATTEMPTS_MAX} attempts were overtaken: {verb} changed nothing")
        return _change_of(entity_id, resource, self._request.key, answer.said)

    async def _propose(self) -> Proposal | None:
        """What to give by the bucket as it is now; ``None`` if others were faster.

        It has the limits that are stored by now, else a cut that is still to be carried out would take what
        is given.
        """
        account, _ = await self._buckets._fresh(self._entity_id, self._resource, None)
        writer = self._writer
        shards = shard_keys(account, shard_count(writer.image(account.key)))
        if len(shards) > 1:
            await writer.look(shards[1:])
        self._chosen(account)  # before anything is written
        if behind := self._behind(account):
            for shard in behind:
                await writer.bring_up_to_date(shard)
            await survey(writer, [account])
            if self._behind(account):
                return None
        return self._proposal(account)

    def _images(self, account: Account) -> list[Item | None]:
        """All shards as last seen; what a deletion left behind is none."""
        seen = known_images(self._writer, account)
        return [None if is_deleted(image) else image for image in seen]

    def _chosen(self, account: Account) -> list[str]:
        """The limits that are meant; what callers bring along to a bucket that is not there nobody knows."""
        rates = {**account.terms.rates, **_rates_in(self._images(account))}
        known = [name for name, rate in rates.items() if rate.accrual != CONCURRENT]
        for name in self._names or (() if known else rates):
            if name in rates and name not in known:
                raise ValidationError("limit", name, SEATS)
            if rates and name not in known:
                has = f"{self._entity_id!r} has {', '.join(rates)} on {self._resource!r}"
                raise ValidationError("limit", name, f"{has}; name one of these")
        return known if self._names is None else [name for name in self._names if name in known]

    def _behind(self, account: Account) -> list[Account]:
        """The shards that go by an older configuration, or by a wrong origin; not those of other callers."""
        found, now_ms = [], self._scope.world.now_ms()
        for shard_id, image in enumerate(self._images(account)):
            if image is None:
                continue
            shard = shard_account(account, shard_id, image)
            if not (shard.terms.rates and number(image, "cv") and is_renewed(shard.terms, image)):
                shard = shard._replace(key=account.shard_key(shard_id), terms=stored_terms(image))
            if self._writer.is_behind(shard, now_ms):
                found.append(shard)
        return found

    def _proposal(self, account: Account) -> Proposal:
        """The writes that give what there is room for, with the audit event if that is anything."""
        images, chosen, now_ms = self._images(account), self._chosen(account), self._scope.world.now_ms()
        held = _rates_in(images)
        gift = gifts(self._kind, [name for name in chosen if name in held], images, now_ms, self._amounts)
        # A limit that the bucket does not have yet is full.
        full = {name: rate.capacity_milli for name, rate in terms_at(account.terms, now_ms).rates.items()}
        milli = {name: gift.before[name] if name in held else full[name] for name in chosen}
        before = {name: milli[name] // 1000 for name in chosen}
        after = {name: (milli[name] + gift.given.get(name, 0)) // 1000 for name in chosen}
        given = {name: after[name] - before[name] for name in chosen}
        over = {name: left for name, n in self._amounts.items() if (left := n - given.get(name, 0)) > 0}
        booked = {name: -(-milli // 1000) for name, milli in gift.booked.items()}
        shards = zip(shard_keys(account, len(images)), images, gift.by_shard, gift.ended, strict=True)
        writes: list[Write] = [
            give(key, image, mine, now_ms, ended)
            for key, image, mine, ended in shards
            if image is not None and (mine or ended)
        ]
        line: dict[str, Any] = (
            {"booked": booked, "booked_until_ms": _booked_until_ms(images)} if booked else {}
        )
        if writes:
            told = {"key": self._request.key, "amounts": given, "before": before, "after": after, **line}
            whose = self._entity_id, self._principal, self._resource
            writes.append(audited(self._scope, ACTIONS[self._kind], *whose, {**told, "shards": len(writes)}))
        answer = {"before": before, "given": given, "after": after, "over": over, **line}
        return Proposal(writes, {"used": bool(held), **answer})


def _booked_until_ms(images: Sequence[Item | None]) -> int:
    """Until when somebody may wait for one of the shards."""
    return max(number(image, BOOKED) for image in images if image is not None)


def _rates_in(images: Sequence[Item | None]) -> dict[str, Rate]:
    """The limits that a bucket has, each by one of its shards."""
    there = [image for image in images if image is not None]
    names = dict.fromkeys(name for image in there for name in bucket_limit_names(image))
    return {name: rate for image in there for name in names if (rate := stored_rate(image, name)) is not None}


def _checked_names(limits: Sequence[str] | None) -> list[str] | None:
    if limits is None:
        return None
    if isinstance(limits, str) or not isinstance(limits, Sequence) or not limits:
        raise ValidationError(
            "limits", limits, "name limits, such as ['tpm'], or leave it out for all of them"
        )
    return sorted({validate_limit_name(name) for name in limits})


def _change_of(entity_id: str, resource: str, key: str, said: Mapping[str, Any]) -> BucketChange:
    told = {
        field: {name: n for name, n in amounts.items() if is_number(n)}
        for field in ("before", "given", "after", "over", "booked")
        if isinstance(amounts := said.get(field), dict)
    }
    until_ms = at_ms if is_number(at_ms := said.get("booked_until_ms")) else None
    return BucketChange(entity_id, resource, key, said.get("used") is True, **told, booked_until_ms=until_ms)
