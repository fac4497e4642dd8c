"""Requests to ASGI applications without a server: what is sent, message by message."""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.web.limits import read_back

Message = dict[str, Any]


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
