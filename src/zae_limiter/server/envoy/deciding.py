"""One decision for all descriptors of a request: they are admitted together, or nothing is changed.

First what only asks is looked at, then what needs something is taken in one acquire, then what was used
already is counted, and what is given back comes last. Nobody holds a lease when it is over. A call that is
cancelled before its acquire is through has taken nothing; whatever is counted after that is finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from ...engine.demand import seats_of
from ...engine.remaining import seen_now, standings_of
from ...exceptions import (
    NoLimitsError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SwitchedOff,
    ValidationError,
)
from ...joint import JointLease
from ...lease import Lease
from ...limiter import RateLimiter
from ...models import LimitKind, OnUnavailable
from ...models.demand import Demand
from ...web.drafts import Status
from .asking import AskedHits, Place, at_odds, limits_of, merged_amounts, merged_needs, policy_of
from .refunds import give_back_hits

Own = Mapping[Place, Sequence[Status]]
"""How the limits of whoever asked stand; no parent's are among them."""


class Unanswerable(Exception):
    """What was set up does not go together; the message names no entity, and is told to whoever asked."""


class Verdict(NamedTuple):
    """What became of a request."""

    own: Own
    over: frozenset[int] = frozenset()
    """Which of its descriptors are over their limit."""
    refusal: RateLimitExceeded | SwitchedOff | None = None


async def decide(limiter: RateLimiter, asked: Sequence[AskedHits | None]) -> Verdict:
    """Admit all descriptors of a request, or refuse it; those that no rule is for are ``None``."""
    odd = at_odds([one for one in asked if one is not None and one.unit is None])
    closed = [at for at, one in enumerate(asked) if one and (_is_closed(one) or one.place in odd)]
    if closed:
        return Verdict({}, frozenset(closed))
    known = [one for one in asked if one is not None and one.unit is None]
    deciding = _Deciding(limiter, known)
    try:
        with _explained(known):
            return Verdict(await deciding.carry_out())
    except SwitchedOff as error:
        place = error.entity_id, error.resource
        over = [at for at, one in enumerate(asked) if one and one.place == place]
        return Verdict({}, frozenset(over or _needing(asked)), error)
    except RateLimitExceeded as error:
        own: dict[Place, list[Status]] = {}
        for status in error.statuses:
            own.setdefault((status.entity_id, status.resource), []).append(status)
        return Verdict(own, frozenset(await _over(limiter, asked, error)), error)


def _is_closed(one: AskedHits) -> bool:
    """Whether Envoy sent along that nothing may pass."""
    return one.unit is not None and not (one.is_refund or one.is_look or one.rule.afterwards)


def _needing(asked: Sequence[AskedHits | None]) -> list[int]:
    """Those that can be refused."""
    return [
        at
        for at, one in enumerate(asked)
        if one and not one.is_refund and (one.is_look or not one.rule.afterwards)
    ]


async def _over(
    limiter: RateLimiter, asked: Sequence[AskedHits | None], error: RateLimitExceeded
) -> Sequence[int]:
    """Which descriptors a refusal is about: those charged to a bucket that refused, be it a parent's."""
    needing = _needing(asked)
    if len(needing) == 1:
        return needing
    refused = {(status.entity_id, status.resource, status.limit_name) for status in error.violations}
    over = []
    for at in needing:
        one = asked[at]
        assert one is not None
        charged = {one.place}
        if not all((entity, what) in charged for entity, what, _ in refused):
            try:
                accounts = (await limiter.repository.plan(*one.place, one.limits)).accounts
            except (RateLimiterUnavailable, SwitchedOff, ValidationError):  # since a moment ago
                return needing
            charged |= {(account.entity_id, account.resource) for account in accounts}
        if any((e, r) in charged and name in one.amounts for e, r, name in refused):
            over.append(at)
    return over or needing


@contextmanager
def _explained(asked: Sequence[AskedHits]) -> Iterator[None]:
    """What the limiter cannot be asked, told without the name of an entity."""
    names = ", ".join(dict.fromkeys(name for one in asked for name in one.amounts))
    resources = ", ".join(dict.fromkeys(repr(one.place[1]) for one in asked))
    try:
        yield
    except NoLimitsError as error:
        way_out = "store some by `zae-limiter resource set-defaults`, or let no rule be for such descriptors"
        raise Unanswerable(f"no limits are stored for {error.resource!r}; {way_out}") from error
    except ValidationError as error:
        told = f"a hit on {resources} cannot be taken of {names}: {error.field} {error.value!r}"
        raise Unanswerable(f"{told} is not to be had; give its rule another `cost`") from error


class _Deciding:
    """The steps of a decision."""

    def __init__(self, limiter: RateLimiter, asked: Sequence[AskedHits]) -> None:
        self._limiter, self._limits = limiter, limits_of(asked)
        self._refunds = [one for one in asked if one.is_refund]
        others = [one for one in asked if not one.is_refund]
        self._looks = [one for one in others if one.is_look]
        self._takes = [one for one in others if not one.is_look]
        self._own: dict[Place, Sequence[Status]] = {}

    async def carry_out(self) -> Own:
        if self._looks:
            await self._look()
        if self._takes:
            await self._take()
        if self._refunds:
            await self._give_back()
        return self._own

    async def _look(self) -> None:
        """Refuse what is in debt."""
        try:
            for place, nothing in merged_needs(self._looks).items():
                one_each = dict.fromkeys(nothing, 1)  # a refusal is to tell when there is something again
                found = await self._limiter.check_availability(*place, one_each, self._limits[place])
                _check_no_seats(status.kind for status in found.statuses)
                stood = [replace(s, exceeded=s.exceeded and s.available < 0) for s in found.statuses]
                if any(status.exceeded for status in stood):
                    raise RateLimitExceeded(stood, place[0])
                self._own[place] = [status for status in stood if status.entity_id == place[0]]
        except RateLimiterUnavailable as error:
            self._let_through(self._looks, error)

    async def _take(self) -> None:
        """Take what is needed, count what was used already, and hold nothing."""
        limiter, needs = self._limiter, merged_needs(self._takes)
        policy = policy_of(self._takes)
        demands = [Demand(*place, amounts, self._limits[place]) for place, amounts in needs.items()]
        try:
            if len(demands) == 1:
                (one,) = demands
                asking = limiter.acquire(one.entity_id, one.resource, one.consume, one.limits, policy)
                lease: Lease = await asking.open()
            else:
                lease = await limiter.acquire(demands, on_unavailable=policy).open()
        except RateLimitExceeded as error:
            _check_no_seats(status.kind for status in error.statuses)
            raise
        try:
            _check_no_seats(LimitKind.CONCURRENT for _ in seats_of(lease._later))
            parts = lease.parts if isinstance(lease, JointLease) else (lease,)
            used = merged_amounts([one for one in self._takes if one.rule.afterwards])
            for part in parts:
                place = part._entity_id, part._resource
                if place in used:
                    await part.adjust(used[place])
                self._own[place] = part._standings(is_public=True)
        except BaseException:
            await lease.cancel()
            raise
        await lease.commit()
        for part in parts:
            if (place := (part._entity_id, part._resource)) in used:
                self._own[place] = self._as_seen(part)

    def _as_seen(self, part: Lease) -> Sequence[Status]:
        """How a bucket stands after it was written to."""
        return standings_of(seen_now(self._limiter.repository.writer, part._accounts[:1]))

    async def _give_back(self) -> None:
        repository, amounts = self._limiter.repository, merged_amounts(self._refunds)
        try:
            lost = await give_back_hits(repository, amounts, self._limits)
        except RateLimiterUnavailable as error:
            self._let_through(self._refunds, error)
            return
        if lost:
            self._let_through(self._refunds, lost[0])
            return
        for place in amounts:
            plan = repository.plans.get(place)
            if plan is not None:
                self._own[place] = standings_of(seen_now(repository.writer, plan.accounts[:1]))

    def _let_through(self, asked: Sequence[AskedHits], error: RateLimiterUnavailable) -> None:
        """Answer unchecked while the store is down, if the policy is to."""
        repository, policy = self._limiter.repository, policy_of(asked)
        for one in asked:
            repository.check_switches_when_down(*one.place)
            if (policy or repository.policy_when_down(*one.place)) is OnUnavailable.BLOCK:
                raise error
        repository.writer.let_through("answering Envoy", error)


def _check_no_seats(kinds: Iterator[LimitKind]) -> None:
    """Nobody could give a seat back: Envoy asks before the work, and tells nobody when it ends."""
    if any(kind is LimitKind.CONCURRENT for kind in kinds):
        told = "a rule asks for seats, which Envoy never gives back; limit concurrency by leases over HTTP"
        raise Unanswerable(told)
