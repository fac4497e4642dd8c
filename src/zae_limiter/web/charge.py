"""What a request is charged, from the rule that it falls under to the end of its response.

One place for all frameworks: who asks for what is found, a lease is taken and stays open, the response is
metered, and the lease ends as the response did. It is written as coroutines; over a sync limiter none of them
suspends, which is how WSGI uses it. What clients are told is decided in ``answers``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from contextlib import AbstractContextManager
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
from ..models import OnUnavailable
from ..models.leases import OnError
from ..runtime.logs import logger
from ..sync_lease import SyncAcquisition, SyncLease
from .answers import RequestRefused, Told
from .identity import Identity
from .request import Request, RequestFacts
from .rules import Match, Rule

T = TypeVar("T")

REFUSALS = (RateLimitExceeded, RateLimiterUnavailable, SwitchedOff, RequestRefused)
"""What ``Answers.refusal`` has an answer to."""


class ResponseMeter(Protocol):
    """Reads what a response really cost from its body."""

    def feed(self, chunk: bytes) -> None:
        """A piece of the body, as it is sent."""

    def amounts(self) -> Mapping[str, int] | None:
        """The totals so far by limit; ``None`` as long as nothing is known."""


Meter = ResponseMeter  # as users call it; a class of that name is in the engine
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
    REFUSED = "refused"
    """Another charge of the same request was refused, so that it was not served."""


class HeldLease(Told, Protocol):
    """A lease of either colour, or all those of a request, as far as a response needs to know."""

    def _as_current(self) -> AbstractContextManager[None]: ...


class Charged(Protocol):
    """What a response is on its way with: one charge, or all those of a request."""

    status: int | None

    @property
    def lease(self) -> HeldLease: ...

    @property
    def entity_ids(self) -> Collection[str]: ...

    def respond(self, status: int, headers: Mapping[str, str]) -> None: ...

    def feed(self, chunk: bytes) -> None: ...

    async def end(self, ending: Ending) -> None: ...


class RequestCharge:
    """What one request holds, and what its response has cost so far."""

    __slots__ = ("_is_over", "_lease", "_meter", "_names", "demand", "lease", "request", "rule", "status")

    def __init__(self, rule: Rule, request: RequestFacts, lease: Lease | SyncLease, demand: Demanded) -> None:
        self.rule: Rule = rule
        self.request: RequestFacts = request
        self.lease: Lease | SyncLease = lease
        self.demand: Demanded = demand
        self._lease = lease._async if isinstance(lease, SyncLease) else lease
        self._is_over, self._names = False, request.path_params
        self._meter: ResponseMeter | None = None
        self.status: int | None = None
        """Of the response, once it has one."""

    @property
    def entity_ids(self) -> Collection[str]:
        """Who was charged, and may be told so."""
        return (self.demand.entity_id,)

    def show(self, state: MutableMapping[str, Any], prefix: str = "") -> None:
        """Put the lease where the application finds it: the innermost alone, and all by their resources."""
        state[f"{prefix}lease"] = self.lease
        state.setdefault(f"{prefix}leases", {})[self.demand.resource] = self.lease

    def respond(self, status: int, headers: Mapping[str, str]) -> None:
        """The response begins: make the meter of the rule, if there is one."""
        self.status = status
        if (usage := self.rule.usage) is not None:
            self.request.path_params = self._names  # another charge may have others
            try:
                self._meter = usage(self.request, status, headers)
            except Exception:
                logger.exception("the meter of %s could not be made", self.rule.path)

    def feed(self, chunk: bytes) -> None:
        """A piece of the body is about to be sent."""
        if self._meter is not None and chunk:
            self.request.path_params = self._names
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
        gives_back = gives_back or ending is Ending.REFUSED
        # What could not be stored is logged and counted where it happened; who asked has had the answer.
        try:
            if ending is not Ending.DONE and gives_back:
                await lease.cancel()
                return
            if self._meter is not None and (totals := self._totals()):
                await self._settle(totals)
            if ending is not Ending.DONE and on_error is OnError.KEEP:
                held = lease.consumed
                await self._settle({name: n for name, n in self.demand.cost.items() if n > held.get(name, 0)})
            await lease.commit()
        except (RateLimiterUnavailable, LeaseExpiredError):
            pass

    def _totals(self) -> dict[str, int]:
        self.request.path_params = self._names
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
    said: Any = who if isinstance(who, str) or who is None else who(request)
    entity_id: str | None = said if isinstance(said, str) else await awaited(said)
    if not entity_id:  # a text that is empty names nobody, either
        challenge = getattr(who, "challenge", "Bearer")
        missing = getattr(who, "missing", "nothing says whose request it is")
        raise RequestRefused(401, missing, [("WWW-Authenticate", challenge)])
    resource, cost = rule.resource, rule.cost
    assert resource is not None
    assert cost is not None
    if not isinstance(resource, str):
        resource = await awaited(resource(request))
    elif rule.is_resource_chosen:
        resource = rule.named_resource(match.names)
    return Demanded(entity_id, resource, await awaited(cost(request)) if callable(cost) else cost)


def lets_pass(rule: Rule, error: Exception) -> bool:
    """Whether a request passes although its limiter could not even be opened."""
    return isinstance(error, RateLimiterUnavailable) and rule.on_unavailable is OnUnavailable.ALLOW


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
    """Charge a request: an open lease, or one of ``REFUSALS``, or ``ClientLeft`` if it waits for nobody."""
    demand = await demanded(match, request, entity)
    acquisition = acquired(limiter, match.rule, demand)
    lease: Lease | SyncLease
    try:
        if match.rule.wait is not None and isinstance(request, Request) and request.raw["type"] == "http":
            lease = await request.unless_left(acquisition.open(), Lease.cancel)
        else:
            lease = await opened(acquisition)
    except NoLimitsError as error:
        raise _unknown(match.rule, error) from error
    return RequestCharge(match.rule, request, lease, demand)


def acquired(limiter: RateLimiter, rule: Rule, demand: Demanded) -> Acquisition:
    """What a rule asks of a limiter; what callables make of a request and cannot be is a client's mistake."""
    try:
        return limiter.acquire(
            *(*demand, rule.limits, rule.on_unavailable), on_error=rule.on_error, wait=rule.wait
        )
    except InvalidIdentifierError as error:
        if isinstance(rule.entity, str):
            raise
        raise RequestRefused(400, "who asks cannot be the id of anybody") from error
    except InvalidNameError as error:
        raise _unknown(rule, error) from error
    except ValidationError as error:
        if not callable(rule.cost) and not callable(rule.messages):
            raise
        logger.info("a request of %s asks for amounts that cannot be: %s", rule.path, error)
        raise RequestRefused(400, "it asks for amounts that cannot be") from error


def _unknown(rule: Rule, error: ValidationError) -> Exception:
    """Where the path says which resource it is, an unknown one is the mistake of whoever asked."""
    if rule.is_resource_chosen:
        return RequestRefused(404, "there is no such resource")
    if isinstance(error, NoLimitsError):
        told = f"a rule without limits of its own goes by those of {rule.resource!r}, and there are none"
        error.add_note(
            f"{told}; store some by `zae-limiter resource set-defaults`, or say limits=[…] in the rule"
        )
    return error


async def opened_sync(acquisition: Acquisition) -> SyncLease:
    """The open lease of a limiter whose store was opened for sync."""
    return SyncAcquisition(acquisition).open()
