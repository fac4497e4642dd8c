"""Limits for FastAPI, by route: a dependency that gives the lease, and a decorator for endpoints.

    RouteLimits(app, limiter=RateLimiter.open("sqlite:///limits.db"))

    @app.post("/chat")
    async def chat(lease: Annotated[Lease, Depends(limit("gpt-4", {"rpm": 1}, entity=bearer()))]): ...

The lease lives as long as the application's call, streams and background tasks included, whatever FastAPI
does with its dependencies meanwhile. What is charged and told is decided in ``charge`` and ``answers``.
"""
# Annotations are values here: FastAPI reads those of the dependency.

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Final, TypeVar, Unpack

from ..exceptions import RateLimitExceeded
from ..lease import Lease
from ..limiter import RateLimiter
from .answers import PROBLEM_TYPES, Answers
from .asgi import Exchange, RateLimitMiddleware
from .charge import REFUSALS
from .held import HeldLimiter, LimiterSource
from .identity import Identity
from .request import ASGIApp, ClientLeft, Message, Receive, Request, Scope, Send, encoded
from .routes import (
    Charges,
    RuleOptions,
    check_limited,
    make_current,
    missing,
    note_limited,
    route_match,
    route_rule,
    unchanged,
)
from .rules import Cost, Match, ResourceOf, Rule, Rules

try:
    from fastapi import Depends, FastAPI
    from fastapi.openapi.models import SecurityBase as SecurityModel
    from fastapi.openapi.models import SecuritySchemeType
    from fastapi.security.base import SecurityBase
    from starlette.requests import HTTPConnection
    from starlette.responses import Response
except ImportError as _error:
    raise missing("fastapi", _error) from _error

__all__ = ["RouteLimits", "limit", "limited"]

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

VISIT = "zae_limiter.visit"
"""Where the scope has what a request was charged."""

MARK = "zae_limiter"
"""Under this name FastAPI tells which operations have a limit; it is taken out of the document again."""


class RouteLimits:
    """Limits of a FastAPI application: by ``limit`` and ``limited`` at its routes, and by rules.

    All is as for ``RateLimitMiddleware``; rules may be left out. A mounted application is given to
    ``init_app`` of the same ``RouteLimits``.
    """

    def __init__(
        self,
        app: FastAPI | None = None,
        *,
        limiter: LimiterSource,
        rules: Rules | Iterable[Rule] = (),
        answers: Answers | None = None,
        entity: str | Identity | None = None,
    ) -> None:
        self.held: Final = HeldLimiter(limiter)
        self.rules: Final = Rules.of(rules, entity)
        self.entity = entity
        self.answers: Final = Answers() if answers is None else answers
        if app is not None:
            self.init_app(app)

    @property
    def limiter(self) -> RateLimiter:
        """The limiter, while the application runs."""
        if self.held.limiter is None:
            raise RuntimeError("the limiter is opened when the application starts, or by the first request")
        return self.held.limiter

    def init_app(self, app: FastAPI) -> None:
        """Limit an application: its routes, its answers to whoever is refused, and its document."""
        app.add_middleware(RoutesMiddleware, limits=self, routes=app.routes)
        for refusal in (*REFUSALS, ClientLeft):
            app.exception_handlers.setdefault(refusal, self._answer)  # one of your own wins
        described = app.openapi

        def openapi() -> dict[str, Any]:
            return self._document(described())

        app.openapi = openapi  # type: ignore[method-assign]

    async def _answer(self, connection: Any, error: Exception) -> Response:
        visit: RouteVisit | None = connection.scope.get(VISIT)
        if visit is not None:
            visit.charges.refuse()
        if isinstance(error, ClientLeft):
            return Response(status_code=400)  # which nobody reads
        answer = self.answers.refusal(error, () if visit is None else visit.charges.entity_ids)
        response = Response(b"" if connection.scope.get("method") == "HEAD" else answer.body, answer.status)
        response.raw_headers = encoded(answer.headers)
        return response

    def _document(self, document: dict[str, Any]) -> dict[str, Any]:
        """Add the refusals to the operations that can be refused."""
        components = document.get("components", {})
        schemes = components.get("securitySchemes", {})
        schemes.pop(MARK, None)
        if not schemes:
            components.pop("securitySchemes", None)
        rules = self.rules.current()
        for path, operations in document.get("paths", {}).items():
            for method, operation in operations.items():
                security = operation.get("security", [])
                is_limited = {MARK: []} in security or rules.match(method.upper(), path) is not None
                if {MARK: []} in security:
                    security.remove({MARK: []})
                if not security:
                    operation.pop("security", None)
                if is_limited:
                    for status, told in RESPONSES.items():
                        operation["responses"].setdefault(status, told)
        return document


PROBLEM: dict[str, Any] = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status", "detail", "error"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference", "examples": [f"{PROBLEM_TYPES}quota-exceeded"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "violated-policies": {"type": "array", "items": {"type": "string"}},
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
        },
    },
}
RESPONSES: dict[str, Any] = {
    status: {
        "description": description,
        "headers": {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}},
        "content": {"application/problem+json": {"schema": PROBLEM}},
    }
    for status, description in {
        "429": "A limit is exceeded",
        "503": "It cannot be said whether a limit is exceeded, or what is asked for is switched off",
    }.items()
}


class VisitRequest(Request):
    """A request whose body the application may have read before a limit asks for it."""

    __slots__ = ("is_read",)

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, receive)
        self.is_read: bool = False

    def know(self, connection: HTTPConnection) -> None:
        """Take over the body that FastAPI has read for the endpoint."""
        if self._body is None:
            self._body = getattr(connection, "_body", None)

    async def body(self, *limit_bytes: int, **named: int) -> bytes:
        if self._body is None and self.is_read:
            told = "the body of a form is read before its limit is asked; let the cost be known without it"
            raise RuntimeError(told)
        return await super().body(*limit_bytes, **named)

    async def receive(self) -> Message:
        self.is_read = True
        return await super().receive()


class RouteVisit:
    """One request on its way through an application."""

    __slots__ = ("charges", "limits", "request")

    def __init__(self, limits: RouteLimits, request: VisitRequest) -> None:
        self.limits: RouteLimits = limits
        self.request: VisitRequest = request
        self.charges: Final = Charges()

    async def charge(self, connection: HTTPConnection, rule: Rule) -> Lease:
        """Charge a route."""
        limits, request = self.limits, self.request
        entity = limits.rules.current().entity_or(limits.entity)
        match = route_match(rule, connection.path_params, entity)
        request.know(connection)
        return await self.charged(match, entity)

    async def charged(self, match: Match, entity: str | Identity | None) -> Lease:
        """Charge a rule; its lease is current until the response is over."""
        held = self.limits.held
        limiter = held.limiter or await held.open()
        charge = await self.charges.add(limiter, match, self.request, entity)
        charge.show(self.request.state)
        make_current(charge.lease)
        assert isinstance(charge.lease, Lease)
        return charge.lease


class RoutesMiddleware(RateLimitMiddleware):
    """As its parent, and it keeps what routes charge until the response and all after it is over."""

    def __init__(self, app: ASGIApp, limits: RouteLimits, routes: Iterable[Any] = ()) -> None:
        self.app = app
        self._limits, self._held, self._root = limits, limits.held, ""
        check_limited(_endpoints(routes))  # it is made when the application starts
        self._rules, self._entity, self._answers = limits.rules, limits.entity, limits.answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if VISIT in scope and scope[VISIT].limits is self._limits:  # a mounted application
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._visited(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _visited(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = VisitRequest(scope, receive)
        visit = scope[VISIT] = RouteVisit(self._limits, request)
        charges = visit.charges
        exchange = Exchange(charges, request, self._answers, send)
        try:
            with unchanged(Lease):
                await self._charge_by_rule(visit)
                await self.app(scope, exchange.receive, exchange.send)
        except GeneratorExit:  # who is thrown away may not wait: leases settle themselves
            raise
        except BaseException as error:
            await charges.end(exchange.ending(error))
            if charges.status is not None or not isinstance(error, (*REFUSALS, ClientLeft)):
                raise
            if not isinstance(error, ClientLeft):
                await self._refuse(error, request, send, charges.entity_ids)
        else:
            await charges.end(exchange.ending(None))
        finally:
            request.close()

    async def _charge_by_rule(self, visit: RouteVisit) -> None:
        rules, request = self._rules.current(), visit.request
        match = rules.match(request.method, request.path)
        if match is None:
            return
        await visit.charged(match, rules.entity_or(self._entity))


def _endpoints(routes: Iterable[Any]) -> Iterator[Any]:
    """What routes call, those of routers within them too."""
    for route in routes:
        within = getattr(route, "original_router", route)  # as FastAPI keeps a router that it includes
        yield from _endpoints(getattr(within, "routes", None) or ())
        if (endpoint := getattr(route, "endpoint", None)) is not None:
            yield endpoint


class LimitDependency(SecurityBase):
    """Charges a request and gives its lease; once in a request, wherever it is asked for."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.model: SecurityModel = SecurityModel(type=SecuritySchemeType.apiKey)
        self.scheme_name = MARK

    async def __call__(self, connection: HTTPConnection) -> Lease:
        if connection.scope["type"] != "http":
            raise RuntimeError("a WebSocket is limited by a rule: RouteLimits(app, …, rules=[Rule(…)])")
        visit: RouteVisit | None = connection.scope.get(VISIT)
        if visit is None or RateLimitExceeded not in connection.app.exception_handlers:
            told = "its application has no limiter: RouteLimits(app, limiter=…)"
            raise RuntimeError(f"{told}; a mounted one: limits.init_app(mounted)")
        return await visit.charge(connection, self.rule)


def limit(
    resource: ResourceOf, cost: Cost | None = None, **options: Unpack[RuleOptions]
) -> Callable[[HTTPConnection], Any]:
    """A dependency that charges a request and gives its lease: ``Depends(limit("gpt-4", {"rpm": 1}))``.

    All is as for ``Rule``; the resource may have names of the route.
    """
    return LimitDependency(route_rule(resource, cost, options))


def limited(
    resource: ResourceOf, cost: Cost | None = None, **options: Unpack[RuleOptions]
) -> Callable[[Endpoint], Endpoint]:
    """The same as a decorator, under that of the route, for an endpoint that does not need the lease."""
    dependency = limit(resource, cost, **options)

    def decorate(endpoint: Endpoint) -> Endpoint:
        try:
            signature = inspect.signature(endpoint, eval_str=True)
        except NameError:  # a name that only a type checker sees
            signature = inspect.signature(endpoint)
        own = signature.parameters
        name = f"zae_limiter_lease_{len(own)}"
        added = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=Depends(dependency))
        rest = [one for one in own.values() if one.kind is inspect.Parameter.VAR_KEYWORD]
        others = [one for one in own.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        called = functools.wraps(endpoint)(_without(name, endpoint))
        called.__signature__ = signature.replace(parameters=[*others, added, *rest])  # type: ignore[attr-defined]
        note_limited(endpoint, called)
        return called  # type: ignore[return-value]

    return decorate


def _without(name: str, endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The same kind of function, which drops an argument."""
    if inspect.isasyncgenfunction(endpoint):

        async def items(*given: Any, **named: Any) -> Any:
            del named[name]
            async with aclosing(endpoint(*given, **named)) as found:
                async for item in found:
                    yield item

        return items
    if inspect.isgeneratorfunction(endpoint):

        def listed(*given: Any, **named: Any) -> Any:
            del named[name]
            yield from endpoint(*given, **named)

        return listed
    if inspect.iscoroutinefunction(endpoint):

        async def awaited(*given: Any, **named: Any) -> Any:
            del named[name]
            return await endpoint(*given, **named)

        return awaited

    def called(*given: Any, **named: Any) -> Any:
        del named[name]
        return endpoint(*given, **named)

    return called
