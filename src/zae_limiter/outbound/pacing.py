"""How requests to a provider wait for their turn, and what its answers change, for all who send.

A provider is an entity whose limits are the provider's own, in a bucket that all workers share: whoever sends
acquires, with ``wait``. What the provider says binds everybody by the same bucket. Other limits are stored as
the entity's. A refusal is a *pause*: one of those who were refused takes off the bucket what it holds and
what accrues until the pause is over, so nobody gets a turn before, and afterwards all go on one by one.
Whoever had a place in the line already is late by the length of the pause. A provider that says nothing of
its limits is slowed by each pause, and let go faster again a little at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..exceptions import RateLimitExceeded, ValidationError
from ..lease import Lease
from ..limiter import RateLimiter
from ..models import Limit, LimitKind, check_limits
from ..models.checks import wait_ms
from ..models.leases import LeaseStatus
from ..naming import validate_entity_id, validate_resource
from ..records.providers import declare, ease, get_provider, pause
from .told import ProviderAnswer, ToldLimit

PAUSE_SECONDS = 1.0
"""For how long nobody sends if the provider does not say."""

PAUSE_SECONDS_MAX = 3_600.0
SLOWED, FASTER = 0.8, 0.05
"""By how much an unsaid limit is lowered by a pause, and raised again: by so much of what was declared."""

EASE_MS = 2_000
"""How long nobody was refused before an unsaid limit is raised, and between two raises."""

CORRECT_MS = 1_000
SLACK = 0.02
"""By how much of its capacity a limit may have less than we believe before we believe the provider."""


class Pacing:
    """The turns of one provider's requests."""

    def __init__(
        self, limiter: RateLimiter, entity_id: str, resource: str, limits: Sequence[Limit], wait: float
    ) -> None:
        self._limiter, self._scope = limiter, limiter.repository._scope
        self._entity_id, self._resource = validate_entity_id(entity_id), validate_resource(resource)
        self._declared = {limit.name: limit for limit in check_limits(limits)}
        if not self._declared:
            raise ValidationError("limits", limits, "say what the provider allows, to begin with")
        for limit in self._declared.values():
            if limit.kind is not LimitKind.RATE:
                raise ValidationError("limits", limit, "a provider's limits are plain rates; use per_minute")
        wait_ms(wait)
        self._wait = wait
        self._is_declared = False
        self._eased_ticks = 0.0
        self._corrected_ticks = -math.inf

    async def admit(self, amounts: Mapping[str, int]) -> Lease:
        """Wait for one's turn; the lease is to be given to ``answered`` or ``failed``.

        Raises ``RateLimitExceeded`` if that would take too long.
        """
        await self._declare()
        world = self._scope.world
        asked_ms, begun = world.now_ms(), world.ticks_ms()
        while True:
            left = self._wait - (world.ticks_ms() - begun) / 1000
            lease = await self._limiter.acquire(
                self._entity_id, self._resource, amounts, wait=max(0.0, left), on_error="refund"
            )
            if not lease.waited_ms or lease.degraded:
                return lease
            try:
                if await self._sit_out(asked_ms, begun):
                    return lease
            except BaseException:
                await lease.cancel()
                raise
            await lease.cancel()  # and be told by the bucket how long it takes
            asked_ms = world.now_ms()

    async def _sit_out(self, asked_ms: int, begun: float) -> bool:
        """Be as late as a pause is long that began since one asked; whether that is soon enough."""
        world = self._scope.world
        while True:
            known = await get_provider(self._scope, self._entity_id, self._resource)
            late_ms = known.until_ms - max(known.paused_ms, asked_ms)
            if known.paused_ms <= asked_ms or late_ms <= 0:
                return True
            if world.ticks_ms() - begun + late_ms > self._wait * 1000:
                return False
            asked_ms = known.until_ms
            await self._scope.backend.colour.sleep(late_ms / 1000)

    async def answered(self, lease: Lease, answer: ProviderAnswer) -> None:
        """Learn from an answer, and end the lease."""
        try:
            if not lease.degraded:
                await self._learn(lease, answer)
        finally:
            await lease.commit()

    async def failed(self, lease: Lease, *, sent: bool) -> None:
        """There was no answer: what may have been sent counts."""
        await (lease.commit() if sent else lease.cancel())

    async def _learn(self, lease: Lease, answer: ProviderAnswer) -> None:
        now_at = {status.limit_name: status for status in lease.public_statuses}
        told = {one.name: one for one in answer.told if one.name in now_at}
        said = {name: one.limit for name, one in told.items() if one.limit}
        if any(said[name] != now_at[name].limit.refill_amount for name in said):
            await self._set({name: status.limit for name, status in now_at.items()}, said)
        if answer.refused:
            await self._pause(lease, answer, now_at, is_said=bool(said))
            return
        short = [one for name, one in told.items() if _is_short(one, now_at[name])]
        if short:
            await self._correct(lease, short)
        if not said:
            await self._ease(now_at)

    async def _declare(self) -> None:
        """Store the limits that were given for the provider, unless that was done before."""
        if self._is_declared:
            return
        text = json.dumps([limit.to_dict() for limit in self._declared.values()], sort_keys=True)
        known = await get_provider(self._scope, self._entity_id, self._resource)
        if known.declared != text:
            await self._store(list(self._declared.values()))
            await declare(self._scope, self._entity_id, self._resource, text)
        self._is_declared = True

    async def _set(self, now_at: Mapping[str, Limit], amounts: Mapping[str, int]) -> None:
        """Go by other amounts from now on, all of us; whoever was faster has done it."""
        stored = await self._limiter.repository.get_limits(self._entity_id, self._resource)
        known = {limit.name: limit for limit in stored} or dict(now_at)
        wanted = {
            name: _scaled(self._declared.get(name, limit), amounts.get(name, limit.refill_amount))
            for name, limit in known.items()
        }
        if wanted != known:
            await self._store(list(wanted.values()))

    async def _store(self, limits: Sequence[Limit]) -> None:
        principal = f"provider:{self._entity_id}"[:256]
        await self._limiter.repository.set_limits(
            self._entity_id, list(limits), self._resource, principal=principal
        )

    async def _pause(
        self, lease: Lease, answer: ProviderAnswer, now_at: Mapping[str, LeaseStatus], *, is_said: bool
    ) -> None:
        wait = PAUSE_SECONDS if answer.retry_after_seconds is None else answer.retry_after_seconds
        now_ms = self._scope.world.now_ms()
        until_ms = now_ms + math.ceil(min(wait, PAUSE_SECONDS_MAX) * 1000)
        before = await pause(self._scope, self._entity_id, self._resource, now_ms, until_ms)
        if before is None:
            return  # somebody else was told the same, and acts
        lasts_ms = until_ms - max(now_ms, before.until_ms)
        limits = [status.limit for status in now_at.values()]
        found = await self._limiter.available(self._entity_id, self._resource)
        debts = {limit.name: max(0, found.get(limit.name, 0)) + _accrual(limit, lasts_ms) for limit in limits}
        await lease.adjust({name: debt for name, debt in debts.items() if debt})
        if not is_said:
            slower = {limit.name: max(1, math.floor(limit.refill_amount * SLOWED)) for limit in limits}
            if await ease(self._scope, self._entity_id, self._resource, now_ms, CORRECT_MS) is not None:
                await self._set({limit.name: limit for limit in limits}, slower)

    async def _correct(self, lease: Lease, short: Sequence[ToldLimit]) -> None:
        """Take off what others, who are not ours, have used."""
        ticks = self._scope.world.ticks_ms()
        if ticks - self._corrected_ticks < CORRECT_MS:
            return
        self._corrected_ticks = ticks
        found = await self._limiter.available(self._entity_id, self._resource)
        over = {one.name: found.get(one.name, 0) - (one.remaining or 0) for one in short}
        over = {name: amount for name, amount in over.items() if amount > 0}
        now_ms = self._scope.world.now_ms()
        if over and await ease(self._scope, self._entity_id, self._resource, now_ms, CORRECT_MS) is not None:
            await lease.adjust(over)

    async def _ease(self, now_at: Mapping[str, LeaseStatus]) -> None:
        """Let requests go a little faster again, if nobody was refused for a while."""
        ticks, limits = self._scope.world.ticks_ms(), [status.limit for status in now_at.values()]
        slow = [limit for limit in limits if limit.refill_amount < self._most(limit)]
        if not slow or ticks - self._eased_ticks < EASE_MS:
            return
        self._eased_ticks = ticks
        now_ms = self._scope.world.now_ms()
        known = await get_provider(self._scope, self._entity_id, self._resource)
        if known.until_ms > now_ms - EASE_MS:
            return
        if await ease(self._scope, self._entity_id, self._resource, now_ms, EASE_MS) is None:
            return
        faster = {
            limit.name: min(self._most(limit), limit.refill_amount + self._step(limit)) for limit in slow
        }
        await self._set({limit.name: limit for limit in limits}, faster)

    def _most(self, limit: Limit) -> int:
        return self._declared.get(limit.name, limit).refill_amount

    def _step(self, limit: Limit) -> int:
        return max(1, math.floor(self._most(limit) * FASTER))


def _scaled(declared: Limit, amount: int) -> Limit:
    """A limit as it was declared, with another refill, and a burst in proportion."""
    if amount == declared.refill_amount:
        return declared
    capacity = max(1, declared.capacity * amount // declared.refill_amount)
    return replace(declared, capacity=capacity, refill_amount=amount)


def _accrual(limit: Limit, lasts_ms: int) -> int:
    return limit.refill_amount * lasts_ms // (limit.refill_period_seconds * 1000)


def _is_short(told: ToldLimit, status: LeaseStatus) -> bool:
    """Whether the provider has noticeably less for us than we had left when we asked for the request."""
    slack = max(2, math.ceil(status.limit.capacity * SLACK))
    return told.remaining is not None and status.remaining > told.remaining + slack


def told_refusal(error: RateLimitExceeded) -> tuple[int, dict[str, str]]:
    """The status and headers of an answer that no provider gave: the turn would have come too late."""
    wait = error.retry_after_seconds
    headers = {"retry-after": error.retry_after_header, "x-zae-limiter": "refused"}
    if math.isinf(wait) or wait > 120:
        return 429, {**headers, "x-should-retry": "false"}
    return 429, {**headers, "retry-after-ms": str(math.ceil(wait * 1000))}
