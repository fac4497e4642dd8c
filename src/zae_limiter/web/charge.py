"""What a request is charged, from the rule that it falls under to the end of its response.

One place for all frameworks: who asks for what is found, a lease is taken and stays open, the response is
metered, and the lease ends as the response did. It is written as coroutines; over a sync limiter none of them
suspends, which is how WSGI uses it. What clients are told is decided in ``answers``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, suppress
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from ..acquisition import Acquisition
from ..exceptions import (
    InvalidIdentifierError,
    InvalidNameError,
    LeaseExpiredError,
    NoLimitsError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SwitchedOff,
    ValidationError,
)
from ..lease import Lease
from ..limiter import RateLimiter
from ..models.leases import OnError
from ..sync_lease import SyncAcquisition, SyncLease
from .answers import RequestRefused, Told
from .identity import Identity
from .request import RequestFacts
from .rules import Match, Rule

T = TypeVar("T")
logger = logging.getLogger("zae_limiter")

REFUSALS = (RateLimitExceeded, RateLimiterUnavailable, SwitchedOff, RequestRefused)
"""What ``Answers.refusal`` has an answer to."""


class ResponseMeter(Protocol):
    """Reads what a response really cost from its body."""

    def feed(self, chunk: bytes) -> None:
        """A piece of the body, as it is sent."""

    def amounts(self) -> Mapping[str, int] | None:
        """The totals so far by limit; ``None`` as long as nothing is known."""


Meter = ResponseMeter
MeterFactory: TypeAlias = Callable[[Any, int, Mapping[str, str]], ResponseMeter | None]
"""From a request, the status of its response and the headers of that."""


class Demanded(NamedTuple):
    """Who asks for what, and how much of it."""

    entity_id: str
    resource: str
    cost: Mapping[str, int]


class Ending(Enum):
    """How a response ended."""

    DONE = "done"
    """It was sent to its end."""
    LEFT = "left"
    """The client hung up, or the work was cut off in the middle of the response."""
    FAILED = "failed"
    """The application raised before it had answered, or answered with 5xx."""


class HeldLease(Told, Protocol):
    """A lease of either colour, or all those of a request, as far as a response needs to know."""

    def _as_current(self) -> AbstractContextManager[None]: ...


class Charged(Protocol):
    """What a response is on its way with: one charge, or all those of a request."""

    status: int | None

    @property
    def lease(self) -> HeldLease: ...

    def respond(self, status: int, headers: Mapping[str, str]) -> None: ...

    def feed(self, chunk: bytes) -> None: ...

    async def end(self, ending: Ending) -> None: ...


class RequestCharge:
    """What one request holds, and what its response has cost so far."""

    __slots__ = ("_is_over", "_lease", "_meter", "demand", "lease", "request", "rule", "status")

    def __init__(self, rule: Rule, request: RequestFacts, lease: Lease | SyncLease, demand: Demanded) -> None:
        self.rule, self.request, self.lease, self.demand = rule, request, lease, demand
        self._lease = lease._async if isinstance(lease, SyncLease) else lease
        self._is_over = False
        self._meter: ResponseMeter | None = None
        self.status: int | None = None
        """Of the response, once it has one."""

    def respond(self, status: int, headers: Mapping[str, str]) -> None:
        """The response begins: make the meter of the rule, if there is one."""
        self.status = status
        if (usage := self.rule.usage) is not None:
            try:
                self._meter = usage(self.request, status, headers)
            except Exception:
                logger.exception("the meter of %s could not be made", self.rule.path)

    def feed(self, chunk: bytes) -> None:
        """A piece of the body is about to be sent."""
        if self._meter is not None and chunk:
            try:
                self._meter.feed(chunk)
            except Exception:
                logger.exception("the meter of %s failed, and reads no further", self.rule.path)
                self._meter = _Stopped(self._totals())

    async def end(self, ending: Ending) -> None:
        """End the lease as the response ended. A second end does nothing."""
        if self._is_over:
            return
        self._is_over = True
        on_error, lease = self.rule.on_error, self._lease
        gives_back = ending is Ending.FAILED if on_error is None else on_error is OnError.REFUND
        # What could not be stored is logged and counted where it happened; who asked has had the answer.
        with suppress(RateLimiterUnavailable, LeaseExpiredError):
            if ending is not Ending.DONE and gives_back:
                await lease.cancel()
                return
            if totals := self._totals():
                await self._settle(totals)
            if ending is not Ending.DONE and on_error is OnError.KEEP:
                held = lease.consumed
                await self._settle({name: n for name, n in self.demand.cost.items() if n > held.get(name, 0)})
            await lease.commit()

    def _totals(self) -> dict[str, int]:
        try:
            return {} if self._meter is None else dict(self._meter.amounts() or {})
        except Exception:
            logger.exception("the meter of %s failed, so what was taken counts", self.rule.path)
            return {}

    async def _settle(self, totals: Mapping[str, int]) -> None:
        try:
            await self._lease.settle(totals)
        except ValidationError:  # the totals that are good count all the same
            for name, total in totals.items():
                try:
                    await self._lease.settle({name: total})
                except ValidationError as error:
                    logger.warning("the meter of %s is not followed: %s", self.rule.path, error)


class _Stopped:
    """What a meter had read before it failed."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        self._read = totals

    def feed(self, chunk: bytes) -> None:
        del chunk

    def amounts(self) -> Mapping[str, int]:
        return self._read


async def demanded(match: Match, request: RequestFacts, entity: str | Identity | None) -> Demanded:
    """Who asks for what, and how much of it; ``entity`` says so where the rule does not."""
    rule, request.path_params = match.rule, match.names
    who = rule.entity if rule.entity is not None else entity
    entity_id = who if isinstance(who, str) or who is None else await awaited(who(request))
    if entity_id is None:
        challenge = getattr(who, "challenge", "Bearer")
        raise RequestRefused(401, "who asks is not told", [("WWW-Authenticate", challenge)])
    if isinstance(rule.resource, str):
        resource = rule.named_resource(match.names) if rule.is_resource_chosen else rule.resource
    else:
        assert rule.resource is not None
        resource = await awaited(rule.resource(request))
    cost = rule.cost
    assert cost is not None
    return Demanded(entity_id, resource, await awaited(cost(request)) if callable(cost) else cost)


async def awaited(found: T | Awaitable[T]) -> T:
    """What a callable gave, awaited if it has to be."""
    return await found if isinstance(found, Awaitable) else found


async def begin(
    limiter: RateLimiter,
    match: Match,
    request: RequestFacts,
    entity: str | Identity | None = None,
    opened: Callable[[Acquisition], Awaitable[Lease | SyncLease]] = Acquisition.open,
) -> RequestCharge:
    """Charge a request: an open lease, or one of ``REFUSALS``."""
    demand = await demanded(match, request, entity)
    acquisition = acquired(limiter, match.rule, demand)
    try:
        lease = await opened(acquisition)
    except NoLimitsError as error:
        raise _unknown(match.rule, error) from error
    return RequestCharge(match.rule, request, lease, demand)


def acquired(limiter: RateLimiter, rule: Rule, demand: Demanded) -> Acquisition:
    """What a rule asks of a limiter; a resource that nobody can have asked for in earnest is not found."""
    try:
        return limiter.acquire(
            *(*demand, rule.limits, rule.on_unavailable), on_error=rule.on_error, wait=rule.wait
        )
    except InvalidIdentifierError:
        raise
    except InvalidNameError as error:
        raise _unknown(rule, error) from error


def _unknown(rule: Rule, error: ValidationError) -> Exception:
    """Where the path says which resource it is, an unknown one is the mistake of whoever asked."""
    return RequestRefused(404, "there is no such resource") if rule.is_resource_chosen else error


async def opened_sync(acquisition: Acquisition) -> SyncLease:
    """The open lease of a limiter whose store was opened for sync."""
    return SyncAcquisition(acquisition).open()
