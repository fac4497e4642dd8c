"""WSGI middleware: a lease around every request that a rule limits, for threads and processes that block.

The lease lives as long as the body: until the server calls its ``close``, which it does in any case. The
status and the headers of an application are known when it calls ``start_response``, which may be as late as
its first chunk. What is charged is decided in ``charge``, what is told in ``answers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from types import TracebackType
from typing import Any, TypeAlias

from ..runtime.colour import run_sync
from ..sync import SyncRateLimiter
from .answers import Answers, HttpAnswer
from .charge import REFUSALS, Charged, Ending, begin, lets_pass, opened_sync
from .held import HeldSyncLimiter
from .identity import Identity
from .request import HeaderFields, SyncRequest
from .rules import Rule, Rules

Environ: TypeAlias = dict[str, Any]
ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType]
Write: TypeAlias = Callable[[bytes], object]
StartResponse: TypeAlias = Callable[..., Write]
WSGIApp: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

PREFIX = "zae_limiter."
"""Before ``lease`` and ``leases``, where an application finds them in the environ."""


class WSGIRateLimitMiddleware:
    """Limits the requests of a WSGI application.

    ``limiter`` is a ``SyncRateLimiter``, or a callable that opens one, which the first request does. All else
    is as for ``RateLimitMiddleware``. The application finds its lease at ``environ["zae_limiter.lease"]``,
    and as ``SyncLease.current()``.
    """

    def __init__(
        self,
        app: WSGIApp,
        *,
        limiter: SyncRateLimiter | Callable[[], SyncRateLimiter],
        rules: Rules | Iterable[Rule],
        answers: Answers | None = None,
        entity: str | Identity | None = None,
    ) -> None:
        self.app = app
        self._held = HeldSyncLimiter(limiter)
        self._rules, self._entity = Rules.of(rules, entity).check_sync(), entity
        self._answers = Answers() if answers is None else answers

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        rules, request = self._rules.current(), SyncRequest(environ)
        try:
            match = rules.match(request.method, request.path)
        except REFUSALS as error:
            return refuse_sync(self._answers.refusal(error), request.method, start_response)
        if match is None:
            return self.app(environ, start_response)
        entity = rules.entity_or(self._entity)
        try:
            limiter = self._held.open()._async
        except REFUSALS as error:
            if lets_pass(match.rule, error):
                return self.app(environ, start_response)
            return refuse_sync(self._answers.refusal(error), request.method, start_response)
        try:
            charge = run_sync(begin(limiter, match, request, entity, opened_sync))
        except REFUSALS as error:
            return refuse_sync(self._answers.refusal(error), request.method, start_response)
        charge.show(environ, PREFIX)
        body = LimitedBody(charge, self._answers, start_response, request.method)
        try:
            with charge.lease._as_current():
                return body.of(self.app(environ, body.start_response))
        except BaseException as error:
            body.has_failed = True
            body.close()
            if charge.status is not None or not isinstance(error, REFUSALS):
                raise
            # What the application was refused while it worked.
            answer = self._answers.refusal(error, charge.entity_ids)
            return refuse_sync(answer, request.method, start_response)


class LimitedBody:
    """One response on its way to the client: what the server iterates over, and closes."""

    def __init__(
        self, charge: Charged, answers: Answers, start_response: StartResponse, method: str = "GET"
    ) -> None:
        self._charge, self._answers, self._start, self._method = charge, answers, start_response, method
        self._body: Iterable[bytes] = ()
        self._chunks: Iterator[bytes] | None = None
        self._is_complete = self._is_begun = False
        self.has_failed: bool = False

    def of(self, body: Iterable[bytes]) -> LimitedBody:
        """The same for what an application has returned."""
        self._body = body
        return self

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None
    ) -> Write:
        """What the application calls: it may do so again, with an error, as long as nothing was sent."""
        if not self._is_begun:
            code = int(status.partition(" ")[0])
            self._charge.respond(code, HeaderFields([(name.lower(), value) for name, value in headers]))
        told = [*headers, *self._answers.of_lease(self._charge.lease)]
        write = self._start(status, told) if exc_info is None else self._start(status, told, exc_info)

        def written(chunk: bytes) -> object:
            self._note(chunk)
            return write(chunk)

        return written

    def __iter__(self) -> LimitedBody:
        return self

    def __next__(self) -> bytes:
        # The lease is current during a step and not between two, where the server's own work goes on.
        with self._charge.lease._as_current():
            try:
                if self._chunks is None:
                    self._chunks = iter(self._body)
                chunk = next(self._chunks)
            except StopIteration:
                self._is_complete = True
                raise
            except REFUSALS as error:
                self.has_failed = True
                if self._charge.status is not None:
                    raise
                return self._refuse(error)
            except BaseException:
                self.has_failed = True
                raise
        self._note(chunk)
        return chunk

    def _refuse(self, error: Exception) -> bytes:
        """Answer what a generator was refused before it had begun a response."""
        run_sync(self._charge.end(self._ending()))
        answer = refuse_sync(self._answers.refusal(error, self._charge.entity_ids), self._method, self._start)
        self._chunks = iter(())
        return b"".join(answer)

    def _note(self, chunk: bytes) -> None:
        self._is_begun = self._is_begun or bool(chunk)
        self._charge.feed(chunk)

    def close(self) -> None:
        """What a server calls when the response is over, or its client is gone."""
        try:
            if (close := getattr(self._body, "close", None)) is not None:
                with self._charge.lease._as_current():
                    close()
        finally:
            run_sync(self._charge.end(self._ending()))

    def _ending(self) -> Ending:
        status = self._charge.status
        if status is not None and status >= 500:
            return Ending.FAILED
        if self._is_complete and status is not None:
            return Ending.DONE
        if self.has_failed or status is None:
            return Ending.LEFT if self._is_begun else Ending.FAILED
        return Ending.LEFT


def refuse_sync(answer: HttpAnswer, method: str, start_response: StartResponse) -> list[bytes]:
    """A whole answer, as a WSGI application gives it."""
    start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", list(answer.headers))
    return [] if method == "HEAD" else [answer.body]
