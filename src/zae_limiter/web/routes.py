"""Limits by route, for frameworks that know their own routes: what their modules have in common.

A request may be charged by a rule of the middleware and by its route, several times. All charges go the same
way as one: the response is told of all of them, each limit once, and ends them alike; if one is refused, all
are given back. What is charged is decided in ``charge``, what is told in ``answers``; no framework is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from typing import Any, TypedDict

from ..exceptions import ValidationError
from ..lease import Lease
from ..limiter import RateLimiter
from ..models import Limit, OnUnavailable
from ..models.leases import LeaseStatus, OnError
from ..runtime.current import Current, During
from ..sync_lease import SyncLease
from .charge import REFUSALS, Ending, RequestCharge, begin
from .identity import Identity
from .request import RequestFacts
from .rules import _SEGMENT_NAME, Cost, Match, ResourceOf, Rule


class RuleOptions(TypedDict, total=False):
    """What else can be said of a route's limit, as for ``Rule``."""

    entity: str | Identity | None
    limits: Sequence[Limit] | None
    wait: float | None
    on_unavailable: OnUnavailable | str | None
    on_error: OnError | str | None
    usage: Callable[..., Any] | None


def route_rule(resource: ResourceOf, cost: Cost | None, options: RuleOptions) -> Rule:
    """The rule of a route; its resource may have names of the route, ``"model-{model}"``."""
    if resource is None:
        raise ValidationError("resource", resource, "say what the route uses, such as 'gpt-4'")
    names = _SEGMENT_NAME.findall(resource) if isinstance(resource, str) else []
    path = "".join(f"/{{{name}}}" for name in dict.fromkeys(names)) or "/*"
    return Rule(path, resource, cost, **options)


def route_match(rule: Rule, found: Mapping[str, Any], entity: str | Identity | None) -> Match:
    """A rule and the names of a route; a mistake of the program is told when the route is first used."""
    if rule.entity is None and entity is None:
        told = "say whose requests they are: entity=api_key(), or entity=client_address()"
        raise ValidationError(f"entity of {rule.resource!r}", None, told)
    names = {name: str(value) for name, value in found.items()}
    if unknown := set(rule.names) - set(names):
        told = f"the route has no name {sorted(unknown)[0]!r}"
        raise ValidationError("resource", rule.resource, told)
    return Match(rule, names)


class Leases:
    """The leases of a request, as far as its response needs to know."""

    __slots__ = ("_each",)

    def __init__(self, each: Sequence[Lease | SyncLease]) -> None:
        self._each = each

    @property
    def statuses(self) -> Sequence[LeaseStatus]:
        return [status for lease in self._each for status in lease.statuses]

    @property
    def public_statuses(self) -> Sequence[LeaseStatus]:
        return [status for lease in self._each for status in lease.public_statuses]

    def _as_current(self) -> AbstractContextManager[None]:
        return self._each[-1]._as_current() if self._each else nullcontext()


class Charges:
    """All charges of one request, none to begin with."""

    __slots__ = ("_each", "is_refused", "status")

    def __init__(self) -> None:
        self._each: list[RequestCharge] = []
        self.status: int | None = None
        """Of the response, once it has one."""
        self.is_refused = False
        """Whether the response tells of a refusal, so that nothing is charged."""

    async def add(
        self,
        limiter: RateLimiter,
        match: Match,
        request: RequestFacts,
        entity: str | Identity | None,
        **opened: Any,
    ) -> Any:
        """Charge the request once more: the lease, or one of ``REFUSALS``."""
        try:
            charge = await begin(limiter, match, request, entity, **opened)
        except REFUSALS:
            self.is_refused = True
            raise
        self._each.append(charge)
        return charge.lease

    @property
    def is_any(self) -> bool:
        """Whether there is one."""
        return bool(self._each)

    @property
    def lease(self) -> Leases:
        """What a refusal tells is in its answer."""
        return Leases(() if self.is_refused else [charge.lease for charge in self._each])

    def respond(self, status: int, headers: Mapping[str, str]) -> None:
        """The response begins."""
        self.status = status
        for charge in self._each:
            charge.respond(status, headers)

    def feed(self, chunk: bytes) -> None:
        """A piece of the body is about to be sent."""
        for charge in self._each:
            charge.feed(chunk)

    async def end(self, ending: Ending) -> None:
        """End all of them as the response ended, whatever happens to one of them."""
        async with AsyncExitStack() as stack:
            for charge in self._each:
                stack.push_async_callback(charge.end, Ending.FAILED if self.is_refused else ending)


def make_current(lease: Lease | SyncLease) -> None:
    """Let a lease be current until the block of ``unchanged`` ends."""
    lease._place.set(lease)


def unchanged(colour: type[Current]) -> During:
    """A block after which the same lease is current as before."""
    return During(colour._place, colour._place.get(None))


def missing(framework: str, error: ImportError) -> ImportError:
    """What to do about a framework that is not installed."""
    told = f"{error}; install this package with its extra: {framework}"
    return ImportError(told, name=error.name)
