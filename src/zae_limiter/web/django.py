"""Limits for Django, under ASGI and WSGI: a middleware with rules, and a decorator for views of every kind.

    MIDDLEWARE = [..., "zae_limiter.web.django.DjangoRateLimitMiddleware"]
    ZAE_LIMITER = {"limiter": "sqlite:///limits.db", "rules": [Rule("/v1/*", "api", {"rpm": 1}, …)]}

Where Django awaits, a ``RateLimiter`` is awaited; where it blocks, a ``SyncRateLimiter`` blocks. A lease
lives until the response has its content, and that of a stream until its last chunk. What is charged and told
is decided in ``charge`` and ``answers``.
"""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, TypeVar, Unpack

from ..exceptions import ValidationError
from ..lease import Lease
from ..limiter import RateLimiter
from ..runtime.colour import run_sync
from ..sync import SyncRateLimiter
from ..sync_lease import SyncLease
from .answers import Answers, RequestRefused
from .charge import REFUSALS, Ending, opened_sync
from .held import HeldLimiter, HeldSyncLimiter
from .request import BODY_BYTES_MAX, HeaderFields, RequestFacts, SyncRequest, parsed_json
from .routes import Charges, RuleOptions, make_current, missing, route_match, route_rule, unchanged
from .rules import Cost, Match, ResourceOf, Rule, Rules
from .wsgi import LimitedBody, Write

try:
    from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction, sync_to_async
    from django import conf
    from django.core.exceptions import RequestDataTooBig
    from django.core.signals import setting_changed
    from django.http import HttpRequest, HttpResponse, HttpResponseBase
    from django.utils.decorators import method_decorator
    from django.utils.module_loading import import_string
except ImportError as _error:
    raise missing("django", _error) from _error

__all__ = ["DjangoRateLimitMiddleware", "limited"]

View = TypeVar("View", bound=Callable[..., Any])

SETTING = "ZAE_LIMITER"
FIELDS = ("limiter", "rules", "answers", "entity")
MIDDLEWARE = "zae_limiter.web.django.DjangoRateLimitMiddleware"
VISIT = "_zae_limiter_visit"
"""Where a request has what it was charged."""


class DjangoLimits:
    """What ``settings.ZAE_LIMITER`` says.

    - ``limiter``: the URL of a store; or a limiter, a callable that opens one, or where to import either.
    - ``rules``: a list of ``Rule``, ``Rules.from_file(…)``, or the path of a file; may be left out.
    - ``answers``, ``entity``: as for the middleware of ASGI.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        if not isinstance(said, Mapping) or "limiter" not in said:
            raise ValidationError(SETTING, said, "write {'limiter': 'sqlite:///limits.db', 'rules': […]}")
        if unknown := sorted(set(said) - set(FIELDS)):
            raise ValidationError(SETTING, unknown[0], f"it has {', '.join(FIELDS)}")
        self.entity: Final = said.get("entity")
        self._source = said["limiter"]
        self.answers: Answers = said.get("answers") or Answers()
        rules = said.get("rules", ())
        if isinstance(rules, str | Path):
            rules = Rules.from_file(rules, entity=self.entity)
        self.rules: Final = Rules.of(rules, self.entity)

    @functools.cached_property
    def held(self) -> HeldLimiter:
        """The limiter where Django awaits."""
        return HeldLimiter(self._opening(RateLimiter.open))

    @functools.cached_property
    def held_sync(self) -> HeldSyncLimiter:
        """The limiter where Django blocks."""
        return HeldSyncLimiter(self._opening(SyncRateLimiter.open))

    def check(self, is_async: bool) -> HeldLimiter | HeldSyncLimiter:
        """Tell when the site starts that its limiter is of the wrong kind."""
        return self.held if is_async else self.held_sync

    def _opening(self, opened: Callable[[str], Any]) -> Any:
        source = self._source
        if not isinstance(source, str):
            return source
        return functools.partial(opened, source) if "://" in source else import_string(source)


@functools.lru_cache(1)
def configured() -> DjangoLimits:
    """The limits of this process."""
    return DjangoLimits(getattr(conf.settings, SETTING, None) or {})


def _forget(*, setting: str, **_: Any) -> None:
    if setting == SETTING:
        configured.cache_clear()


setting_changed.connect(_forget)  # which tests do


class DjangoRequest(SyncRequest):
    """A request as rules and callables see it; ``state`` has its attributes, and its META behind them."""

    __slots__ = ("original",)

    def __init__(self, original: HttpRequest) -> None:
        RequestFacts.__init__(self, original.META, original.method or "GET", original.path_info)
        self.original: Any = original
        self._body = None
        """What Django calls the request."""

    @property
    def scheme(self) -> str:
        return str(self.original.scheme)

    @property
    def state(self) -> MutableMapping[str, Any]:
        return ChainMap(vars(self.original), self.raw)

    def body(self, limit_bytes: int = BODY_BYTES_MAX) -> bytes:
        self._check_length(limit_bytes)
        try:
            found: bytes = self.original.body
        except RequestDataTooBig:
            raise RequestRefused(413, "the body is larger than the site accepts") from None
        if len(found) > limit_bytes:
            raise self._too_large(limit_bytes)
        return found


class AsyncDjangoRequest(DjangoRequest):
    """The same where Django awaits: its body is awaited, too."""

    __slots__ = ()

    async def body(self, limit_bytes: int = BODY_BYTES_MAX) -> bytes:  # type: ignore[override]
        return super().body(limit_bytes)

    async def json(self, limit_bytes: int = BODY_BYTES_MAX) -> Any:
        return parsed_json(await self.body(limit_bytes))


class DjangoVisit:
    """One request on its way through Django; ``is_async`` tells which limiter is asked."""

    __slots__ = ("charges", "is_async", "limits", "request")

    def __init__(self, original: HttpRequest, is_async: bool) -> None:
        self.limits: Final = configured()
        self.is_async: bool = is_async
        self.charges: Final = Charges()
        self.request: Final = (AsyncDjangoRequest if is_async else DjangoRequest)(original)
        setattr(original, VISIT, self)

    async def charge(self, match: Match) -> Lease | SyncLease:
        """Charge the request once more; with a sync limiter it never suspends, and may block."""
        limits, rules = self.limits, self.limits.rules.current()
        entity = rules.entity_or(limits.entity)
        if self.is_async:
            limiter = limits.held.limiter or await limits.held.open()
            charge = await self.charges.add(limiter, match, self.request, entity)
        else:
            limiter = limits.held_sync.open()._async
            charge = await self.charges.add(limiter, match, self.request, entity, opened=opened_sync)
        charge.show(vars(self.request.original))
        return charge.lease

    async def charge_by_rule(self) -> None:
        """Charge it by the first rule that fits."""
        match = self.limits.rules.current().match(self.request.method, self.request.path)
        if match is not None:
            make_current(await self.charge(match))

    def charge_blocking(self, match: Match) -> Lease | SyncLease:
        """The same for a view that blocks; where Django awaits, that runs in a thread."""
        return async_to_sync(self.charge)(match) if self.is_async else run_sync(self.charge(match))

    async def charge_awaiting(self, match: Match) -> Lease | SyncLease:
        """The same for a view that awaits."""
        if self.is_async:
            return await self.charge(match)
        return await sync_to_async(self.charge_blocking)(match)

    def end_blocking(self, ending: Ending) -> None:
        """End all charges, in a thread that may block."""
        if self.is_async:
            async_to_sync(self.charges.end)(ending)
        else:
            run_sync(self.charges.end(ending))

    async def end_awaiting(self, ending: Ending) -> None:
        """End all charges without blocking an event loop."""
        if self.is_async:
            await self.charges.end(ending)
        else:
            await sync_to_async(self.end_blocking)(ending)

    def refused(self, error: Exception) -> HttpResponse:
        """The answer to whoever is refused."""
        self.charges.refuse()
        answer = self.limits.answers.refusal(error, self.charges.entity_ids)
        response = HttpResponse(b"" if self.request.method == "HEAD" else answer.body, status=answer.status)
        for name, value in answer.headers:
            response.headers[name] = value
        return response

    def respond(self, response: HttpResponseBase) -> Ending | None:
        """Let a response tell how limits stand, and how it ended unless it is still to be streamed."""
        charges = self.charges
        charges.respond(response.status_code, HeaderFields([(k.lower(), v) for k, v in response.items()]))
        for name, value in self.limits.answers.of_lease(charges.lease):
            response.headers[name] = value
        if not charges.is_any:
            return Ending.DONE
        if not response.streaming:
            charges.feed(response.content)
            return Ending.FAILED if response.status_code >= 500 else Ending.DONE
        stream = StreamedBody(self)
        content = response.streaming_content
        response.streaming_content = AwaitedBody(stream, content) if response.is_async else stream.of(content)
        return None


class DjangoRateLimitMiddleware:
    """Limits the requests of a site as ``settings.ZAE_LIMITER`` says, and answers what ``limited`` refuses.

    A view finds its lease at ``request.lease``, and as ``Lease.current()`` or ``SyncLease.current()``; where
    several limits apply ``request.leases`` has those of all by their resources.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response, self._is_async = get_response, iscoroutinefunction(get_response)
        configured().check(self._is_async)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return self._awaited(request)
        visit = DjangoVisit(request, is_async=False)
        try:
            try:
                with unchanged(SyncLease):
                    run_sync(visit.charge_by_rule())
                    response = self._get_response(request)
            except REFUSALS as error:
                response = visit.refused(error)
            ending = visit.respond(response)
        except BaseException as error:
            visit.end_blocking(_ending(error))
            raise
        if ending is not None:
            visit.end_blocking(ending)
        return response

    async def _awaited(self, request: HttpRequest) -> Any:
        visit = DjangoVisit(request, is_async=True)
        try:
            try:
                with unchanged(Lease):
                    await visit.charge_by_rule()
                    response = await self._get_response(request)
            except REFUSALS as error:
                response = visit.refused(error)
            ending = visit.respond(response)
        except GeneratorExit:  # who is thrown away may not wait: leases settle themselves
            raise
        except BaseException as error:
            await visit.charges.end(_ending(error))
            raise
        if ending is not None:
            await visit.charges.end(ending)
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer what a view was refused while it worked."""
        return _visit(request).refused(error) if isinstance(error, REFUSALS) else None


def _ending(error: BaseException) -> Ending:
    """Who is cut off, as by a client that left, has not failed."""
    return Ending.FAILED if isinstance(error, Exception) else Ending.LEFT


class StreamedBody(LimitedBody):
    """The chunks of a response, which Django reads and closes."""

    def __init__(self, visit: DjangoVisit) -> None:
        super().__init__(visit.charges, visit.limits.answers, _never)
        self._visit, self._is_over = visit, False

    def __next__(self) -> bytes:
        try:
            return super().__next__()
        except StopIteration:
            raise
        except BaseException:
            self.close()  # under ASGI nobody else does
            raise

    def close(self) -> None:
        if not self._is_over:
            self._visit.end_blocking(self._ending())
            self._is_over = True

    async def read(self, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same for chunks that are awaited."""
        try:
            while True:
                with self._charge.lease._as_current():
                    try:
                        chunk = await anext(content)
                    except StopAsyncIteration:
                        self._is_complete = True
                        return
                self._note(chunk)
                yield chunk
        except Exception:
            self.has_failed = True
            raise
        finally:
            await self._visit.end_awaiting(self._ending())
            self._is_over = True


class AwaitedBody:
    """Chunks that are awaited, with a ``close`` that Django calls in a thread."""

    def __init__(self, stream: StreamedBody, content: AsyncIterator[bytes]) -> None:
        self._stream, self._content = stream, content

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.read(self._content)

    def close(self) -> None:
        self._stream.close()


def _never(*_: Any) -> Write:
    raise AssertionError("Django sends the headers itself")


def limited(
    resource: ResourceOf, cost: Cost | None = None, **options: Unpack[RuleOptions]
) -> Callable[[View], View]:
    """Charge whoever asks for a view: ``@limited("search", {"rpm": 1}, entity=api_key())``.

    For functions, plain and ``async``, and for classes of views. All is as for ``Rule``; the resource may
    have names of the route. The middleware has to be installed, whether or not it has rules.
    """
    rule = route_rule(resource, cost, options)

    def decorate(view: Any) -> Any:
        if isinstance(view, type):
            return method_decorator(decorate, name="dispatch")(view)
        return _awaiting(view, rule) if _is_awaited(view) else _blocking(view, rule)

    return decorate


def _is_awaited(view: Any) -> bool:
    """Also the method of a view whose methods are awaited, as Django binds it for a decorator."""
    of_view = getattr(getattr(view, "func", None), "__self__", None)
    return bool(iscoroutinefunction(view) or getattr(of_view, "view_is_async", False))


def _awaiting(view: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
    @functools.wraps(view)
    async def charged(request: HttpRequest, *given: Any, **named: Any) -> Any:
        visit = _visit(request)
        try:
            lease = await visit.charge_awaiting(_match(visit, rule, named))
        except REFUSALS as error:
            return visit.refused(error)
        with lease._as_current():
            return await view(request, *given, **named)

    return charged


def _blocking(view: Callable[..., Any], rule: Rule) -> Callable[..., Any]:
    @functools.wraps(view)
    def charged(request: HttpRequest, *given: Any, **named: Any) -> Any:
        visit = _visit(request)
        try:
            lease = visit.charge_blocking(_match(visit, rule, named))
        except REFUSALS as error:
            return visit.refused(error)
        with lease._as_current():
            return view(request, *given, **named)

    return charged


def _match(visit: DjangoVisit, rule: Rule, named: Mapping[str, Any]) -> Match:
    limits = visit.limits
    return route_match(rule, named, limits.rules.current().entity_or(limits.entity))


def _visit(request: HttpRequest) -> DjangoVisit:
    visit: DjangoVisit | None = getattr(request, VISIT, None)
    if visit is None:
        raise RuntimeError(f"nobody keeps what requests are charged: add {MIDDLEWARE!r} to MIDDLEWARE")
    return visit
