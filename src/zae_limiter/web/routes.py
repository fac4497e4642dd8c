"""Limits by route, for frameworks that know their own routes: what their modules have in common.

A request may be charged by a rule of the middleware and by its route, several times. All charges go the same
way as one: the response is told of all of them, each limit once, and ends them alike; if one is refused, all
are given back. What is charged is decided in ``charge``, what is told in ``answers``; no framework is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext, suppress
from typing import Any, TypedDict
from weakref import WeakKeyDictionary, WeakSet

from ..engine.remaining import Standing
from ..exceptions import ValidationError
from ..lease import Lease
from ..limiter import RateLimiter
from ..models import Limit, OnUnavailable
from ..models.leases import OnError
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
    try:
        return Rule(path, resource, cost, **options)
    except ValidationError as error:
        if not error.field.endswith(f" of {path!r}"):
            raise
        # The path is none that a user wrote.
        field = error.field.replace(f" of {path!r}", f" of {resource!r}")
        raise ValidationError(field, error.value, error.reason) from None


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


_limited: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()
"""Endpoints, and what the decorator has made of each."""


def note_limited(endpoint: Any, made: Any) -> None:
    """The decorator has made something of an endpoint, which is what a route is to have."""
    with suppress(TypeError):  # of what nobody can refer to weakly nothing is known
        _limited.setdefault(endpoint, WeakSet()).add(made)


def check_limited(endpoints: Iterable[Any]) -> None:
    """Tell of endpoints that were limited only after their routes had them, which limits nothing."""
    routed = list(endpoints)
    for endpoint in routed:
        with suppress(TypeError):
            if (made := _limited.get(endpoint)) is not None and not any(one in made for one in routed):
                told = f"{endpoint.__name__!r} is not limited: its route was made before its limit"
                raise RuntimeError(f"{told}; write @limited(…) under the decorator of the route")


class Leases:
    """The leases of a request, as far as its response needs to know."""

    __slots__ = ("_each",)

    def __init__(self, each: Sequence[Lease | SyncLease]) -> None:
        self._each = each

    def _standings(self, *, is_public: bool = False) -> list[Standing]:
        return [standing for lease in self._each for standing in lease._standings(is_public=is_public)]

    def _as_current(self) -> AbstractContextManager[None]:
        return self._each[-1]._as_current() if self._each else nullcontext()


class Charges:
    """All charges of one request, none to begin with."""

    __slots__ = ("_each", "_refused", "entity_ids", "status")

    def __init__(self) -> None:
        self._each: list[RequestCharge] = []
        self.status: int | None = None
        """Of the response, once it has one."""
        self.entity_ids: set[str] = set()
        """Who was charged, or was to be."""
        self._refused: Ending | None = None
        """How the charges end if the response tells of a refusal."""

    async def add(
        self,
        limiter: RateLimiter,
        match: Match,
        request: RequestFacts,
        entity: str | Identity | None,
        **opened: Any,
    ) -> RequestCharge:
        """Charge the request once more, or raise one of ``REFUSALS``."""
        try:
            charge = await begin(limiter, match, request, entity, **opened)
        except REFUSALS as error:
            self._refused = Ending.REFUSED
            if (asked := getattr(error, "entity_id", None)) is not None:
                self.entity_ids.add(asked)
            raise
        self._each.append(charge)
        self.entity_ids.add(charge.demand.entity_id)
        return charge

    def refuse(self) -> None:
        """The response will tell of a refusal: of a charge, or of what the application asked for itself."""
        self._refused = self._refused or Ending.FAILED

    @property
    def is_any(self) -> bool:
        """Whether there is one."""
        return bool(self._each)

    @property
    def lease(self) -> Leases:
        """What a refusal tells is in its answer."""
        return Leases(() if self._refused else [charge.lease for charge in self._each])

    def respond(self, status: int, headers: Mapping[str, str]) -> None:
        """The response begins; one that is good tells of no refusal, for somebody has caught it."""
        self.status = status
        if status < 400:
            self._refused = None
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
                stack.push_async_callback(charge.end, self._refused or ending)


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
