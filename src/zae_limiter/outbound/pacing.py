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
from ..models import Limit, LimitKind, LimitStatus, check_limits
from ..models.checks import TOKENS_MAX, wait_ms
from ..models.leases import LeaseStatus
from ..naming import validate_entity_id, validate_resource
from ..records.providers import declare, ease, get_provider, may_raise, pause
from .told import ProviderAnswer, ToldLimit

PAUSE_SECONDS = 1.0
"""For how long nobody sends if the provider does not say."""

PAUSE_SECONDS_MAX = 3_600.0
SLOWED = 0.8
"""What a pause leaves of an unsaid limit."""

PROBE_SECONDS = 5
"""How often somebody asks at least, as far as what was declared lets it."""

EASE_MS, FASTER_MS = 2_000, 160_000
"""How long nobody was refused before an unsaid limit is raised, and between two raises.

Each raises it by that part of what was declared which the time without a refusal is of ``FASTER_MS``: by
little near where it was refused, and by ever more where nobody is. From nothing that takes 26 seconds.
"""

RAISE_MS = 10_000
"""How often a limit is raised because the provider says so; lowered it is at once.

Models that have limits of their own may be told of in turn, by those who take them for one.
"""

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
        self.declared: dict[str, Limit] = {limit.name: limit for limit in check_limits(limits)}
        if not self.declared:
            raise ValidationError("limits", limits, "say what the provider allows, to begin with")
        for limit in self.declared.values():
            if limit.kind is not LimitKind.RATE:
                raise ValidationError("limits", limit, "a provider's limits are plain rates; use per_minute")
        wait_ms(wait)
        self._wait = wait
        self._is_declared = False
        self._eased_ticks = 0.0
        self._corrected_ticks = self._raised_ticks = -math.inf

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
            if lease.degraded:
                return lease
            try:
                in_time = not lease.waited_ms or await self._sit_out(asked_ms, begun)
                if in_time and not await self._hold(lease, begun):
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
            await self._sleep(late_ms)

    async def _hold(self, lease: Lease, begun: float) -> bool:
        """Send nothing while a pause lasts, whatever the bucket holds; whether to ask for a turn again.

        Debt alone does not keep a pause: a cut forgives some of it, a raise gives more than is owed. Whoever
        is let through by that charges the rest, and asks again when the pause is over.
        """
        world = self._scope.world
        known = await get_provider(self._scope, self._entity_id, self._resource)
        now_ms = world.now_ms()
        rest_ms = known.until_ms - now_ms
        if rest_ms <= 0:
            return False
        statuses = {status.limit_name: status for status in lease.public_statuses}
        limits = {name: status.limit for name, status in statuses.items()}
        is_late = world.ticks_ms() - begun + rest_ms > self._wait * 1000
        is_exact = lease.waited_ms and not any(_accrual(limit, rest_ms) for limit in limits.values())
        if not is_exact or is_late:
            asked = lease.consumed
            await self._renew(lease, limits, now_ms)
            await (lease.commit() if lease.consumed != asked else lease.cancel())
        if is_late:
            raise RateLimitExceeded(
                [
                    LimitStatus(
                        *(self._entity_id, self._resource, name, limit, min(0, statuses[name].remaining)),
                        *(asked.get(name, 0), True, rest_ms / 1000),
                    )
                    for name, limit in limits.items()
                ],
                self._entity_id,
            )
        await self._sleep(rest_ms)
        return not is_exact or await self._hold(lease, begun)

    async def _sleep(self, lasts_ms: int) -> None:
        if self._scope.world.nap is not None:
            self._scope.world.nap(lasts_ms / 1000)
        else:
            await self._scope.backend.colour.sleep(lasts_ms / 1000)

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
        said = {
            name: as_told(self.declared.get(name, now_at[name].limit), one)
            for name, one in told.items()
            if one.limit
        }
        await self._heed(said, {name: status.limit for name, status in now_at.items()})
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
        text = json.dumps([limit.to_dict() for limit in self.declared.values()], sort_keys=True)
        known = await get_provider(self._scope, self._entity_id, self._resource)
        if known.declared != text:
            await self._store(list(self.declared.values()))
            await declare(self._scope, self._entity_id, self._resource, text)
        self._is_declared = True

    async def _heed(self, said: Mapping[str, Limit], now_at: Mapping[str, Limit]) -> None:
        """Go by the limits that the provider says, if they are other ones."""
        slower = {name: limit for name, limit in said.items() if _is_faster(now_at[name], limit)}
        faster = {name: limit for name, limit in said.items() if _is_faster(limit, now_at[name])}
        if faster and not await self._may_raise():
            faster = {}
        if slower or faster:
            await self._set(now_at, slower | faster)

    async def _may_raise(self) -> bool:
        world = self._scope.world
        ticks = world.ticks_ms()
        if ticks - self._raised_ticks < RAISE_MS:
            return False
        self._raised_ticks = ticks
        return await may_raise(self._scope, self._entity_id, self._resource, world.now_ms(), RAISE_MS)

    async def _set(self, now_at: Mapping[str, Limit], others: Mapping[str, Limit]) -> None:
        """Go by other limits from now on, all of us; whoever was faster has done it."""
        stored = await self._limiter.repository.get_limits(self._entity_id, self._resource)
        known = {limit.name: limit for limit in stored} or dict(now_at)
        wanted = {name: others.get(name, limit) for name, limit in known.items()}
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
        wait = _pause_seconds(answer, lease.consumed)
        now_ms = self._scope.world.now_ms()
        until_ms = now_ms + math.ceil(min(wait, PAUSE_SECONDS_MAX) * 1000)
        before = await pause(self._scope, self._entity_id, self._resource, now_ms, until_ms)
        if before is None:  # somebody else was told the same, and acts
            await self._renew(lease, {name: status.limit for name, status in now_at.items()}, now_ms)
            return
        lasts_ms = until_ms - max(now_ms, before.until_ms)
        limits = [status.limit for status in now_at.values()]
        found = await self._limiter.available(self._entity_id, self._resource)
        debts = {limit.name: max(0, found.get(limit.name, 0)) + _accrual(limit, lasts_ms) for limit in limits}
        lacks = {
            limit.name: found.get(limit.name, 0) + _accrual(limit, until_ms - now_ms) for limit in limits
        }
        await lease.adjust({name: most for name, debt in debts.items() if (most := max(debt, lacks[name]))})
        if not is_said and before.until_ms <= now_ms:  # else it was a pause that did not last, and no haste
            slower = {
                limit.name: self._with(
                    limit, max(self._least(limit), math.floor(limit.refill_amount * SLOWED))
                )
                for limit in limits
            }
            if await ease(self._scope, self._entity_id, self._resource, now_ms, CORRECT_MS) is not None:
                await self._set({limit.name: limit for limit in limits}, slower)

    async def _renew(self, lease: Lease, limits: Mapping[str, Limit], now_ms: int) -> None:
        """Charge what a pause lacks that was noted a while ago, though one of us was let through.

        Whoever noted it may have died before it charged anything, and a cut of a limit forgives debt.
        """
        known = await get_provider(self._scope, self._entity_id, self._resource)
        if now_ms - known.paused_ms < CORRECT_MS or known.until_ms <= now_ms:
            return
        if await ease(self._scope, self._entity_id, self._resource, now_ms, CORRECT_MS) is None:
            return
        found = await self._limiter.available(self._entity_id, self._resource)
        rest_ms = known.until_ms - now_ms
        first = lease.consumed  # who comes first when it is over finds as much
        lacks = {
            name: found.get(name, 0) + _accrual(limit, rest_ms) - first.get(name, 0)
            for name, limit in limits.items()
        }
        await lease.adjust({name: amount for name, amount in lacks.items() if amount > 0})

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
        quiet_ms = now_ms - known.until_ms
        if quiet_ms < EASE_MS:
            return
        if await ease(self._scope, self._entity_id, self._resource, now_ms, EASE_MS) is None:
            return
        faster = {
            limit.name: self._with(
                limit, min(most, limit.refill_amount + max(1, most * quiet_ms // FASTER_MS))
            )
            for limit in slow
            if (most := self._most(limit))
        }
        await self._set({limit.name: limit for limit in limits}, faster)

    def _with(self, limit: Limit, amount: int) -> Limit:
        """A limit with another refill in the period that it has, and the burst of what was declared."""
        declared = self.declared.get(limit.name, limit)
        return _scaled(declared, max(1, amount), limit.refill_period_seconds)

    def _most(self, limit: Limit) -> int:
        """What was declared, in the period of the limit."""
        declared = self.declared.get(limit.name, limit)
        return declared.refill_amount * limit.refill_period_seconds // declared.refill_period_seconds

    def _least(self, limit: Limit) -> int:
        """So much that somebody asks now and then, else nobody would learn that it goes again."""
        return min(self._most(limit), -(-limit.refill_period_seconds // PROBE_SECONDS))


def as_told(declared: Limit, told: ToldLimit) -> Limit:
    """A limit as the provider tells it, in its own window if that is known, else in the declared period."""
    period, window = declared.refill_period_seconds, told.window_seconds
    if window is None or (told.is_window_least and window < period):
        window = period
    return _scaled(declared, told.limit or 1, window)


def _scaled(declared: Limit, amount: int, period_seconds: int) -> Limit:
    """A limit as it was declared, with another refill, and a burst in proportion."""
    now, before = amount * declared.refill_period_seconds, declared.refill_amount * period_seconds
    if now == before:
        return declared
    capacity = min(max(1, declared.capacity * now // before), TOKENS_MAX)
    return replace(declared, capacity=capacity, refill_amount=amount, refill_period_seconds=period_seconds)


def _is_faster(one: Limit, other: Limit) -> bool:
    return one.refill_amount * other.refill_period_seconds > other.refill_amount * one.refill_period_seconds


def _pause_seconds(answer: ProviderAnswer, asked: Mapping[str, int]) -> float:
    """How long a refusal lasts: as it says, or until what was used up is there again."""
    if answer.retry_after_seconds is not None:
        return answer.retry_after_seconds
    used_up = (one for one in answer.told if (one.remaining or 0) < max(1, asked.get(one.name, 1)))
    return max((one.reset_seconds or 0.0 for one in used_up), default=0.0) or PAUSE_SECONDS


def _accrual(limit: Limit, lasts_ms: int) -> int:
    return limit.refill_amount * lasts_ms // (limit.refill_period_seconds * 1000)


def _is_short(told: ToldLimit, status: LeaseStatus) -> bool:
    """Whether the provider has noticeably less for us than we had left when we asked for the request."""
    slack = max(2, math.ceil(status.limit.capacity * SLACK))
    return told.remaining is not None and status.remaining > told.remaining + slack
