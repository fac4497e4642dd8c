"""Pure ASGI middleware: a lease around every request that a rule limits.

The lease lives as long as the application's call: the body that it streams and the tasks that it runs
afterwards. Nothing here waits but for the limiter, the client and the application, so the event loop is never
blocked. What is charged is decided in ``charge``, what is told in ``answers``, WebSockets in ``websocket``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from .answers import Answers
from .charge import REFUSALS, Charged, Ending, begin, lets_pass
from .held import HeldLimiter, LimiterSource
from .identity import Identity
from .request import (
    ASGIApp,
    ClientLeft,
    HeaderFields,
    Message,
    Receive,
    Request,
    Scope,
    Send,
    encoded,
    root_of,
)
from .rules import Match, Rule, Rules
from .websocket import serve_websocket, turn_away

COMPLETING = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
"""Messages by which a server is to send a file itself, which ends the body unless they say otherwise."""


class RateLimitMiddleware:
    """Limits the requests of an ASGI application.

    - ``limiter``: a ``RateLimiter``; or ``RateLimiter.open(…)``, or a callable that opens one, which is done
      when the application starts.
    - ``rules``: a list of ``Rule``, the first that fits wins, or ``Rules.from_file(…)``.
    - ``answers``: what clients are told.
    - ``entity``: whose requests they are where a rule does not say so.

    The application finds its lease at ``request.state.lease``, and as ``Lease.current()``; where several are
    stacked, ``request.state.leases`` has those of all by their resources.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limiter: LimiterSource,
        rules: Rules | Iterable[Rule],
        answers: Answers | None = None,
        entity: str | Identity | None = None,
    ) -> None:
        self.app = app
        self._held, self._root = HeldLimiter(limiter), root_of(app)
        self._rules, self._entity = Rules.of(rules, entity), entity
        self._answers = Answers() if answers is None else answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(scope, receive, send)
            return
        if kind in ("http", "websocket"):
            rules = self._rules.current()
            request = Request(scope, receive, self._root)
            try:
                match = rules.match(request.method, request.path)
            except REFUSALS as error:
                await self._refuse(error, request, send)
                return
            if match is not None:
                try:
                    await self._limited(kind, request, match, rules, send)
                finally:
                    request.close()
                return
        await self.app(scope, receive, send)

    async def _limited(self, kind: str, request: Request, match: Match, rules: Rules, send: Send) -> None:
        try:
            limiter = self._held.limiter or await self._held.open()
        except REFUSALS as error:
            if lets_pass(match.rule, error):
                await self.app(request.raw, request.receive, send)
            else:
                await self._refuse(error, request, send)
            return
        entity = rules.entity_or(self._entity)
        if kind == "websocket":
            await serve_websocket(self.app, limiter, self._answers, (match, request, entity), send)
            return
        try:
            charge = await begin(limiter, match, request, entity)
        except ClientLeft:
            return
        except REFUSALS as error:
            await self._refuse(error, request, send)
            return
        charge.show(request.state)
        exchange = Exchange(charge, request, self._answers, send)
        try:
            with charge.lease._as_current():
                await self.app(request.raw, exchange.receive, exchange.send)
        except GeneratorExit:  # who is thrown away may not wait: the lease settles itself
            raise
        except BaseException as error:
            await charge.end(exchange.ending(error))
            if charge.status is not None or not isinstance(error, REFUSALS):
                raise
            # What the application was refused while it worked.
            await self._refuse(error, request, send, charge.entity_ids)
        else:
            await charge.end(exchange.ending(None))

    async def _refuse(
        self, error: Exception, request: Request, send: Send, own: Collection[str] = ()
    ) -> None:
        if request.raw["type"] == "websocket":
            await turn_away(error, self._answers, request, send)
            return
        answer = self._answers.refusal(error, own)
        start: dict[str, Any] = {"type": "http.response.start", "status": answer.status}
        await send({**start, "headers": encoded(answer.headers)})
        await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else answer.body})

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the limiter when the application starts, and close it when it ends."""
        if self._held.is_given:
            await self.app(scope, receive, send)
            return
        await Life(self.app, self._held, receive, send).live(scope)


class Exchange:
    """One response on its way to the client."""

    __slots__ = ("_answers", "_charge", "_is_complete", "_is_left", "_receive", "_send")

    def __init__(self, charge: Charged, request: Request, answers: Answers, send: Send) -> None:
        self._charge, self._answers = charge, answers
        self._receive, self._send = request.receive, send
        self._is_complete = self._is_left = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._is_left = True
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body":
            self._charge.feed(message.get("body", b""))
            is_last = not message.get("more_body", False)
        elif kind == "http.response.start":
            is_last = False
            if self._charge.status is None:  # another one comes too late
                message = self._begin(message)
        else:
            is_last = kind in COMPLETING and not message.get("more_body", False)
        try:
            await self._send(message)
        except OSError:
            self._is_left = True
            raise
        if is_last:
            self._is_complete = True

    def _begin(self, message: Message) -> Message:
        """The start of the response, with what its client is told."""
        headers = list(message.get("headers", ()))
        self._charge.respond(message["status"], _Decoded(headers))
        return {**message, "headers": [*headers, *encoded(self._answers.of_lease(self._charge.lease))]}

    def ending(self, error: BaseException | None) -> Ending:
        """How the response ended, for an application that returned, or raised this."""
        status = self._charge.status
        if status is not None and status >= 500:
            return Ending.FAILED
        if self._is_complete:
            return Ending.DONE
        is_cut_off = error is not None and not isinstance(error, Exception)  # cancelled, for one
        if status is not None or self._is_left or is_cut_off:
            return Ending.LEFT
        return Ending.FAILED


class _Decoded(HeaderFields):
    """Headers of a response, for a meter that asks for them."""

    __slots__ = ("_decoded", "_raw")

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self._raw = raw
        self._decoded: list[tuple[str, str]] | None = None

    @property
    def _pairs(self) -> list[tuple[str, str]]:  # type: ignore[override]
        if self._decoded is None:
            self._decoded = [
                (key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in self._raw
            ]
        return self._decoded


class Life:
    """An application from its start to its end, whether or not it wants to hear of that."""

    def __init__(self, app: ASGIApp, held: HeldLimiter, receive: Receive, send: Send) -> None:
        self._app, self._held, self._receive, self._send = app, held, receive, send
        self._is_told = self._is_answered = False

    async def live(self, scope: Scope) -> None:
        try:
            try:
                await self._app(scope, self._received, self._sent)
            except Exception:
                if self._is_told or self._is_answered:
                    raise  # for the server to judge, as it would without this
                await self._alone()  # the application does not want to hear of it
        finally:
            await self._held.close()

    async def _received(self) -> Message:
        message = await self._receive()
        if message["type"] == "lifespan.startup":
            self._is_told = True
            try:
                await self._held.open()
            except Exception as error:
                self._is_answered = True
                await self._send({"type": "lifespan.startup.failed", "message": f"the limiter: {error}"})
                raise
        return message

    async def _sent(self, message: Message) -> None:
        self._is_answered = True
        if message["type"].startswith("lifespan.shutdown."):  # after which a server may end us at once
            await self._held.close()
        await self._send(message)

    async def _alone(self) -> None:
        await self._received()
        await self._send({"type": "lifespan.startup.complete"})
        while (await self._receive())["type"] != "lifespan.shutdown":
            pass
        await self._sent({"type": "lifespan.shutdown.complete"})
