"""Requests to ASGI applications without a server: what is sent, message by message."""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.web.limits import read_back
from zae_limiter import Limit
from zae_limiter.web import RateLimitMiddleware, Rule, api_key

Message = dict[str, Any]

RPM = Limit.per_minute("rpm", 100)
TPM = Limit.per_day("tpm", 1_000)


def start(status: int = 200, **headers: str) -> Message:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


def body(chunk: bytes = b"", more: bool = False) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}


def answering(*messages: Message, then: BaseException | None = None) -> Callable[..., Any]:
    """An application that sends these, and raises afterwards if it is told to."""

    async def app(_scope: Message, _receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        if then is not None:
            raise then

    return app


OK = answering(start(), body(b"hi"))


def limited(limiter: Any, app: Callable[..., Any] = OK, **rule: Any) -> RateLimitMiddleware:
    given = {"resource": "api", "cost": {"rpm": 10}, "entity": api_key(), "limits": [RPM, TPM], **rule}
    return RateLimitMiddleware(app, limiter=limiter, rules=[Rule("/v1/*", **given)])


@dataclass
class Reply:
    """What an application has sent."""

    messages: list[Message] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self._start["status"])

    @property
    def _start(self) -> Message:
        return next(one for one in self.messages if one["type"].endswith("response.start"))

    @property
    def headers(self) -> dict[str, str]:
        pairs = [(name.decode(), value.decode()) for name, value in self._start["headers"]]
        assert all(name == name.lower() for name, _ in pairs)
        return dict(pairs)

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self.messages)

    @property
    def problem(self) -> Any:
        assert self.headers["content-type"] == "application/problem+json"
        return json.loads(self.body)

    def left(self, name: str = "rpm") -> int:
        """What the header says remains of a limit."""
        return int(read_back(self.headers.items(), "ratelimit")[name]["r"])


def http_scope(path: str, method: str = "GET", headers: dict[str, str] | None = None, **more: Any) -> Message:
    pairs = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1"}
    client = "192.0.2.7", 5000
    return {**scope, "method": method, "path": path, "headers": pairs, "client": client, **more}


async def call(app: Callable[..., Any], scope: Message, received: Iterable[Message] = ()) -> Reply:
    """Run an application on what is received; after that the client waits for ever."""
    coming, reply = list(received) or [{"type": "http.request", "body": b""}], Reply()

    async def receive() -> Message:
        if coming:
            return coming.pop(0)
        await asyncio.Event().wait()
        raise AssertionError("nobody gives this signal")

    async def send(message: Message) -> None:
        reply.messages.append(message)

    await app(scope, receive, send)
    return reply


async def get(app: Callable[..., Any], path: str, key: str | None = "key-1", **more: Any) -> Reply:
    headers = {} if key is None else {"x-api-key": key}
    return await call(app, http_scope(path, headers={**headers, **more.pop("headers", {})}, **more))
