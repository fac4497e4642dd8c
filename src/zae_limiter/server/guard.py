"""What holds for every request, whatever it is for: limits on its size, number and time, and safe headers.

Pure ASGI, around all routes. A request that has no answer after the deadline is given up; one whose answer
has begun, such as a stream, is not. Headers that a route sets itself are left as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..exceptions import ValidationError
from ..web.answers import RequestRefused
from ..web.request import ASGIApp, Message, Receive, Scope, Send
from .config import is_loopback
from .problems import answer_to, problem

if TYPE_CHECKING:
    from .state import ServerState

SAFE_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
"""What every answer has unless it says otherwise itself."""


class Guard:
    """Around all routes."""

    def __init__(self, app: ASGIApp, server: ServerState) -> None:
        self._app, self._server, self._config = app, server, server.config
        self._under_way: set[_Guarded] = set()
        self._is_local = server.config.insecure_no_tokens and is_loopback("host", server.config.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._is_local and is_foreign(scope["headers"]):
            told = problem(403, "this server needs no token, so it answers to names of this machine only")
            await told(scope, receive, _with_safe_headers(send))
            return
        if has_two_lengths(scope["headers"]):
            told = problem(400, "send Content-Length or Transfer-Encoding", [("Connection", "close")])
            await told(scope, receive, _with_safe_headers(send))
            return
        if head_bytes(scope) > self._config.header_bytes_max:  # what came at once, uvicorn lets pass
            told = problem(431, f"the head is larger than {self._config.header_bytes_max} bytes")
            await told(scope, receive, _with_safe_headers(send))
            return
        # Whoever asks whether it lives would end it if it was only busy.
        if len(self._under_way) >= self._config.concurrent_max and scope["path"] != "/healthz":
            told = problem(503, "too many requests are under way", [("Retry-After", "1")])
            await told(scope, receive, _with_safe_headers(send))
            return
        await _Guarded(self._app, self._config.request_seconds_max, self._under_way).serve(
            scope, _bounded(receive, scope, self._config.body_bytes_max), _with_safe_headers(send)
        )


def head_bytes(scope: Scope) -> int:
    """How large the head of a request is, but for a few signs."""
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return headers + len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))


def has_two_lengths(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request says twice how long it is.

    What is in front may go by the other one, and then this body has somebody else's request in it.
    """
    names = {name for name, _ in headers}
    return b"content-length" in names and b"transfer-encoding" in names


def is_foreign(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request may come from a page of somebody else that is open in a browser of this machine.

    Such a page can have its own name lead here, which ``Host`` tells; or ask by ours, which browsers tell:
    all of them by ``Origin`` with whatever may change something.
    """
    said = [(name, value.decode("latin-1").strip().lower()) for name, value in headers]
    hosts = [text for name, text in said if name == b"host"]
    for name, text in said:
        if name == b"sec-fetch-site" and text in ("cross-site", "same-site"):
            return True
        if name == b"origin" and text.partition("://")[2] not in hosts:
            return True
    return not all(_is_of_this_machine(host) for host in hosts)


def _is_of_this_machine(text: str) -> bool:
    """Whether a ``Host`` leads nowhere else."""
    host = text if text.endswith("]") else text.rpartition(":")[0] or text
    try:
        return is_loopback("Host", host.strip("[]"))
    except ValidationError:
        return False


class _Guarded:
    """One request; it is under way until its answer begins, for whoever does not read that costs no work."""

    def __init__(self, app: ASGIApp, seconds_max: float, under_way: set[_Guarded]) -> None:
        self._app, self._seconds_max, self._under_way = app, seconds_max, under_way
        self._has_begun = False

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        deadline = asyncio.timeout(self._seconds_max)

        async def noting(message: Message) -> None:
            self._has_begun = True
            self._under_way.discard(self)
            if deadline.when() is not None and not deadline.expired():
                deadline.reschedule(None)
            await send(message)

        self._under_way.add(self)
        try:
            try:
                async with deadline:
                    await self._app(scope, receive, noting)
            finally:
                self._under_way.discard(self)
        except TimeoutError as error:
            if not deadline.expired():
                await self._fail(error, scope, receive, send)
            elif not self._has_begun:
                told = problem(503, "the request took too long and was given up", [("Retry-After", "1")])
                await told(scope, receive, send)
        except Exception as error:
            await self._fail(error, scope, receive, send)

    async def _fail(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        if self._has_begun:
            raise error  # the server closes the connection, which is all that can still be told
        await answer_to(error)(scope, receive, send)


def _bounded(receive: Receive, scope: Scope, bytes_max: int) -> Receive:
    """What the client sends, refused as soon as it is too much."""
    too_large = RequestRefused(413, f"the body is larger than {bytes_max} bytes")
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    announced = int(lengths[0][:16]) if lengths and lengths[0].isdigit() else 0  # so many digits are too many
    seen = 0

    async def receiving() -> Message:
        nonlocal seen
        if announced > bytes_max:
            raise too_large
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > bytes_max:
                raise too_large
        return message

    return receiving


def _with_safe_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            known = {name.lower() for name, _ in headers}
            headers += [one for one in SAFE_HEADERS if one[0] not in known]
            message = {**message, "headers": headers}
        await send(message)

    return sending
