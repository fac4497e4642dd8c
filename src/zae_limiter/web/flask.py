"""Limits for Flask: an extension with rules for an application, and a decorator for its views.

    limits = RateLimits(app, limiter=SyncRateLimiter.open("sqlite:///limits.db"), rules=[…])

Requests are charged where Flask calls what runs before a request, and refusals are answered by its error
handlers, so that whatever runs after a request sees them too. The lease lives until Flask tears the request
down, and that of a stream until the server closes the body. What is charged and told is decided in ``charge``
and ``answers``.
"""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final, TypeVar, Unpack

from ..runtime.colour import run_sync
from ..sync import SyncRateLimiter
from ..sync_lease import SyncLease
from .answers import Answers
from .charge import REFUSALS, Ending, opened_sync
from .held import HeldSyncLimiter
from .identity import Identity
from .request import SyncRequest
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
from .wsgi import PREFIX, Environ, LimitedBody, StartResponse, WSGIApp

try:
    from flask import Flask, current_app, g, request
    from flask.wrappers import Response
except ImportError as _error:
    raise missing("flask", _error) from _error

__all__ = ["RateLimits", "limited"]

View = TypeVar("View", bound=Callable[..., Any])

VISIT = "zae_limiter.visit"
"""Where the environ has what a request was charged."""


class RateLimits:
    """Limits of a Flask application: by rules, and by ``limited`` at its views.

    All is as for ``WSGIRateLimitMiddleware``; rules may be left out. A view finds its lease at ``g.lease``,
    and as ``SyncLease.current()``; where several limits apply ``g.leases`` has those of all by their
    resources. Make this after what tells whose request it is, for functions that run before a request do so
    in their order.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        limiter: SyncRateLimiter | Callable[[], SyncRateLimiter],
        rules: Rules | Iterable[Rule] = (),
        answers: Answers | None = None,
        entity: str | Identity | None = None,
    ) -> None:
        self.held: Final = HeldSyncLimiter(limiter)
        self.entity = entity
        self.rules: Final = Rules.of(rules, entity).check_sync()
        self.answers: Final = Answers() if answers is None else answers
        if app is not None:
            self.init_app(app)

    @property
    def limiter(self) -> SyncRateLimiter:
        """The limiter of this process, which is opened if it was not yet."""
        return self.held.open()

    def init_app(self, app: Flask) -> None:
        """Limit an application; several may share their limits."""
        app.extensions["zae_limiter"] = self
        app.wsgi_app = VisitedApp(app.wsgi_app, self, app.view_functions)  # type: ignore[method-assign]
        app.before_request(self._charge_by_rule)
        app.after_request(self._note)
        app.teardown_request(self._end)
        for refusal in REFUSALS:
            if refusal not in app.error_handler_spec[None][None]:  # one of your own wins
                app.register_error_handler(refusal, self._answer)

    def _charge_by_rule(self) -> None:
        visit, rules = _visit(), self.rules.current()
        match = rules.match(visit.request.method, visit.request.path)
        if match is not None:
            entity = rules.entity_or(self.entity)
            make_current(visit.charge(match, entity))

    def _note(self, response: Response) -> Response:
        _visit().response = response
        if response.is_streamed and response.status_code >= 400 and response.content_length is not None:
            response.make_sequence()  # the page of an error, which looks like a stream
        return response

    def _end(self, _: BaseException | None) -> None:
        """The body of a whole response may be thrown away without being closed, as in tests."""
        visit: FlaskVisit | None = request.environ.get(VISIT)
        if visit is None or (response := visit.response) is None or response.is_streamed:
            return
        charges = visit.charges
        if visit.request.method != "HEAD" and not response.direct_passthrough:
            charges.feed(response.get_data())
        run_sync(charges.end(Ending.FAILED if response.status_code >= 500 else Ending.DONE))

    def _answer(self, error: Exception) -> Response:
        charges = _visit().charges
        charges.refuse()
        answer = self.answers.refusal(error, charges.entity_ids)
        response = Response(answer.body, answer.status)
        response.headers.clear()
        response.headers.extend(answer.headers)
        return response


class FlaskRequest(SyncRequest):
    """A request as rules and callables see it; ``state`` is what ``g`` has, and the environ behind it."""

    __slots__ = ()

    @property
    def state(self) -> MutableMapping[str, Any]:
        return ChainMap(g.__dict__, self.raw)

    def body(self, *limit_bytes: int, **named: int) -> bytes:
        if self._body is None and "stream" in request.__dict__:
            self._body = request.get_data()  # which is nothing if it was read as a form
            if not self._body and request.content_length:
                raise RuntimeError("the body was read before; let the cost be known without it")
        return super().body(*limit_bytes, **named)


class FlaskVisit:
    """One request on its way through an application."""

    __slots__ = ("charges", "limits", "request", "response")

    def __init__(self, limits: RateLimits, environ: Environ) -> None:
        self.limits: RateLimits = limits
        self.request: Final = FlaskRequest(environ)
        self.charges: Final = Charges()
        self.response: Response | None = None
        """What Flask answers, once it knows."""

    def charge(self, match: Match, entity: str | Identity | None) -> SyncLease:
        """Charge the request once more."""
        limiter = self.limits.held.open()._async
        adding = self.charges.add(limiter, match, self.request, entity, opened=opened_sync)
        charge = run_sync(adding)
        charge.show(g.__dict__)
        charge.show(self.request.raw, PREFIX)
        assert isinstance(charge.lease, SyncLease)
        return charge.lease


class VisitedApp:
    """Keeps what a request is charged until its response is over."""

    def __init__(self, app: WSGIApp, limits: RateLimits, views: Mapping[str, Callable[..., Any]]) -> None:
        self.app = app
        self._limits, self._views = limits, views
        self._is_checked = False

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if not self._is_checked:  # by now all views have their routes
            check_limited(self._views.values())
            self._is_checked = True
        visit = environ[VISIT] = FlaskVisit(self._limits, environ)
        body = LimitedBody(visit.charges, self._limits.answers, start_response)
        try:
            with unchanged(SyncLease):
                return body.of(self.app(environ, body.start_response))
        except BaseException:
            body.has_failed = True
            body.close()
            raise


def limited(
    resource: ResourceOf, cost: Cost | None = None, **options: Unpack[RuleOptions]
) -> Callable[[View], View]:
    """Charge whoever asks for a view: ``@limited("search", {"rpm": 1}, entity=api_key())``, under the route.

    All is as for ``Rule``; the resource may have names of the route.
    """
    rule = route_rule(resource, cost, options)

    def decorate(view: View) -> View:
        @functools.wraps(view)
        def charged(*given: Any, **named: Any) -> Any:
            visit = _visit()
            entity = visit.limits.rules.current().entity_or(visit.limits.entity)
            lease = visit.charge(route_match(rule, request.view_args or {}, entity), entity)
            with lease._as_current():
                return current_app.ensure_sync(view)(*given, **named)

        note_limited(view, charged)
        return charged  # type: ignore[return-value]

    return decorate


def _visit() -> FlaskVisit:
    visit: FlaskVisit | None = request.environ.get(VISIT)
    if visit is None:
        raise RuntimeError("the application has no limiter: RateLimits(app, limiter=…)")
    return visit
