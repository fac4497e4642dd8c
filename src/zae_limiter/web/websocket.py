"""WebSockets: a lease for the connection, and amounts for each message that comes in.

A connection that is refused is answered with the very response that a request would get, where the server
can send one before the handshake; otherwise it is closed with a code. A message that is refused closes the
connection: 1013, try again later, or 1008 where that is pointless. What is charged is decided in ``charge``.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from ..exceptions import RateLimiterUnavailable, RateLimitExceeded
from ..limiter import RateLimiter
from ..models.refusing import POINTLESS_SECONDS
from .answers import Answers, retry_seconds
from .charge import REFUSALS, Ending, RequestCharge, acquired, awaited, begin
from .drafts import whole_seconds
from .identity import Identity
from .request import ASGIApp, Message, Request, Send, encoded
from .rules import Match

TRY_AGAIN_LATER, POLICY_VIOLATION = 1013, 1008

Handshake: TypeAlias = tuple[Match, Request, str | Identity | None]
"""The rule of a connection, its request, and whose it is where the rule does not say so."""


async def serve_websocket(
    app: ASGIApp, limiter: RateLimiter, answers: Answers, handshake: Handshake, send: Send
) -> None:
    """Let a connection through if its rule admits it, and each message that it receives after that."""
    match, request, entity = handshake
    try:
        charge = await begin(limiter, match, request, entity)
    except REFUSALS as error:
        await turn_away(error, answers, request, send)
        return
    request.state["lease"] = charge.lease
    connection = SocketExchange(charge, limiter, request, answers, send)
    try:
        with charge.lease._as_current():
            await app(request.raw, connection.receive, connection.send)
    except GeneratorExit:  # who is thrown away may not wait: the lease settles itself
        raise
    except BaseException as error:
        await charge.end(connection.ending(error))
        raise
    await charge.end(connection.ending(None))


async def turn_away(error: Exception, answers: Answers, request: Request, send: Send) -> None:
    """Refuse a handshake: by a response if the server can send one, else by a code."""
    answer = answers.refusal(error)
    if (await request.receive())["type"] != "websocket.connect":
        return
    if "websocket.http.response" in (request.raw.get("extensions") or {}):
        start: dict[str, Any] = {"type": "websocket.http.response.start", "status": answer.status}
        await send({**start, "headers": encoded(answer.headers)})
        await send({"type": "websocket.http.response.body", "body": answer.body})
    else:
        await send(closing(error))


def closing(error: Exception) -> dict[str, Any]:
    """The message that closes a connection for a refusal. Its reason has at most 123 bytes."""
    code, reason = POLICY_VIOLATION, "refused"
    if isinstance(error, RateLimitExceeded):
        wait = retry_seconds(error.violations)
        if not math.isinf(wait):
            reason = f"retry after {whole_seconds(wait)} s"
        if wait <= POINTLESS_SECONDS:
            code = TRY_AGAIN_LATER
    elif isinstance(error, RateLimiterUnavailable):
        code, reason = TRY_AGAIN_LATER, "try again later"
    return {"type": "websocket.close", "code": code, "reason": reason}


class SocketExchange:
    """One connection while it is open."""

    __slots__ = ("_answers", "_charge", "_closed", "_is_answered", "_limiter", "_request", "_send")

    def __init__(
        self, charge: RequestCharge, limiter: RateLimiter, request: Request, answers: Answers, send: Send
    ) -> None:
        self._charge, self._limiter, self._request = charge, limiter, request
        self._answers, self._send = answers, send
        self._closed: Message | None = None
        """What the application is told since this closed the connection."""
        self._is_answered = False
        """Whether somebody has answered the handshake, or is gone."""

    async def receive(self) -> Message:
        if self._closed is not None:
            return self._closed
        message = await self._request.receive()
        if message["type"] == "websocket.disconnect":
            self._is_answered = True
        elif message["type"] == "websocket.receive" and self._charge.rule.messages is not None:
            try:
                await self._charge_for(message)
            except REFUSALS as error:
                close = closing(error)
                self._closed = {**close, "type": "websocket.disconnect"}
                await self._send(close)
                return self._closed
        return message

    async def _charge_for(self, message: Message) -> None:
        """Take what a message costs, for good: a connection may live too long to hold it."""
        rule, cost = self._charge.rule, self._charge.rule.messages
        if callable(cost):
            text = message.get("text")
            data = text if text is not None else message.get("bytes")
            cost = await awaited(cost(self._request, data))
        if cost:
            async with acquired(self._limiter, rule, self._charge.demand._replace(cost=cost)):
                pass

    async def send(self, message: Message) -> None:
        if self._closed is not None:  # it cannot know yet
            return
        kind = message["type"]
        if kind == "websocket.accept":
            headers = encoded(self._answers.of_lease(self._charge.lease))
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        elif kind == "websocket.http.response.start":
            self._charge.status = message["status"]
        await self._send(message)
        self._is_answered = True

    def ending(self, error: BaseException | None) -> Ending:
        """How the connection ended: a peer that closes it is the ordinary way."""
        status = self._charge.status
        if status is not None and status >= 500:
            return Ending.FAILED
        if error is None or self._closed is not None:
            return Ending.DONE if self._is_answered else Ending.FAILED
        return Ending.LEFT if self._is_answered or not isinstance(error, Exception) else Ending.FAILED
