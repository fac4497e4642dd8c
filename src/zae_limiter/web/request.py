"""One request as rules and callables see it, the same for ASGI and WSGI.

Everything is worked out when somebody asks for it, for most requests are asked for a path and one header.
The path is decoded, and relative to where the application is mounted, as the application's own routes are.
A body that was read here is buffered once, up to a bound, and given to the application again.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from .answers import RequestRefused
from .drafts import Header

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_BYTES_MAX = 10 * 2**20
"""How much of a body is read for a callable that asks for it, unless it says otherwise."""


class ClientLeft(Exception):
    """The client is gone, so nobody waits for an answer."""


class HeaderFields(Mapping[str, str]):
    """Headers by their names, upper or lower case; several of one name are one text, with commas."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def all(self, name: str) -> list[str]:
        """Every value that was sent under a name, in order."""
        wanted = name.lower()
        return [value for key, value in self._pairs if key == wanted]

    def __getitem__(self, name: str) -> str:
        values = self.all(name)
        if not values:
            raise KeyError(name)
        return ("; " if name.lower() == "cookie" else ", ").join(values)

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._pairs))

    def __len__(self) -> int:
        return len(dict(self._pairs))


class RequestFacts(ABC):
    """What is known of a request before its body is read."""

    __slots__ = ("_headers", "method", "path", "path_params", "raw")

    raw: MutableMapping[str, Any]
    """The scope of ASGI, or the environ of WSGI."""
    method: str
    path: str
    path_params: Mapping[str, str]
    """The names of the rule's path, and what stands there."""

    def __init__(self, raw: MutableMapping[str, Any], method: str, path: str) -> None:
        self.raw, self.method, self.path = raw, method.upper(), path or "/"
        self.path_params = {}
        self._headers: HeaderFields | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.method} {self.path!r}>"

    @property
    def headers(self) -> HeaderFields:
        """The headers of the request."""
        if self._headers is None:
            self._headers = HeaderFields(self._pairs())
        return self._headers

    @property
    def query(self) -> dict[str, str]:
        """The query of the URL; of a name that is given twice the last counts."""
        return dict(parse_qsl(self._query(), keep_blank_values=True))

    @property
    @abstractmethod
    def client_host(self) -> str | None:
        """The address that the connection came from; ``None`` where there is none, as on a Unix socket."""

    @property
    @abstractmethod
    def scheme(self) -> str:
        """``http``, ``https``, ``ws`` or ``wss``, as the server says."""

    @property
    @abstractmethod
    def state(self) -> MutableMapping[str, Any]:
        """What middleware in front of this has put there, and what the application finds."""

    @abstractmethod
    def _pairs(self) -> list[tuple[str, str]]: ...

    @abstractmethod
    def _query(self) -> str: ...

    def _too_large(self, limit_bytes: int) -> RequestRefused:
        return RequestRefused(413, f"the body is larger than {limit_bytes} bytes")

    def _check_length(self, limit_bytes: int) -> int | None:
        length = self.headers.get("content-length", "")
        if not (length.isascii() and length.isdecimal()):
            return None
        if len(length) > 15 or int(length) > limit_bytes:
            raise self._too_large(limit_bytes)
        return int(length)


class Request(RequestFacts):
    """A request of an ASGI server; a handshake of a WebSocket too."""

    __slots__ = ("_body", "_is_replayed", "_receive")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, scope.get("method", "GET"), route_path(scope))
        self._receive, self._is_replayed = receive, True
        self._body: bytes | None = None

    @property
    def client_host(self) -> str | None:
        client = self.raw.get("client")
        return None if not client else str(client[0])

    @property
    def scheme(self) -> str:
        return str(self.raw.get("scheme", "http"))

    @property
    def state(self) -> MutableMapping[str, Any]:
        state: MutableMapping[str, Any] = self.raw.setdefault("state", {})
        return state

    def _pairs(self) -> list[tuple[str, str]]:
        return [
            (key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in self.raw["headers"]
        ]

    def _query(self) -> str:
        return bytes(self.raw.get("query_string", b"")).decode("latin-1")

    async def body(self, limit_bytes: int = BODY_BYTES_MAX) -> bytes:
        """The whole body, which the application still gets; a larger one is answered with 413."""
        if self._body is None:
            if self.raw["type"] != "http":
                raise RuntimeError("a WebSocket has no body: let its cost be known from path and headers")
            self._check_length(limit_bytes)
            chunks, size, more = list[bytes](), 0, True
            while more:
                message = await self._receive()
                if message["type"] != "http.request":
                    raise ClientLeft
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > limit_bytes:
                    raise self._too_large(limit_bytes)
                more = message.get("more_body", False)
            self._body, self._is_replayed = b"".join(chunks), False
        if len(self._body) > limit_bytes:
            raise self._too_large(limit_bytes)
        return self._body

    async def json(self, limit_bytes: int = BODY_BYTES_MAX) -> Any:
        """The body as JSON; what is none is answered with 400."""
        return parsed_json(await self.body(limit_bytes))

    async def receive(self) -> Message:
        """What the application receives: the body first, if it was read here."""
        if self._is_replayed:
            return await self._receive()
        self._is_replayed = True
        return {"type": "http.request", "body": self._body, "more_body": False}


class SyncRequest(RequestFacts):
    """A request of a WSGI server."""

    __slots__ = ("_body",)

    def __init__(self, environ: MutableMapping[str, Any]) -> None:
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        super().__init__(environ, environ.get("REQUEST_METHOD", "GET"), path)
        self._body: bytes | None = None

    @property
    def client_host(self) -> str | None:
        return self.raw.get("REMOTE_ADDR") or None

    @property
    def scheme(self) -> str:
        return str(self.raw.get("wsgi.url_scheme", "http"))

    @property
    def state(self) -> MutableMapping[str, Any]:
        return self.raw

    def _pairs(self) -> list[tuple[str, str]]:
        named = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}
        pairs = []
        for key, value in self.raw.items():
            if key.startswith("HTTP_"):
                pairs.append((key[5:].replace("_", "-").lower(), value))
            elif value and (name := named.get(key)) is not None:
                pairs.append((name, value))
        return pairs

    def _query(self) -> str:
        return str(self.raw.get("QUERY_STRING", ""))

    def body(self, limit_bytes: int = BODY_BYTES_MAX) -> bytes:
        """The whole body, which the application still gets; a larger one is answered with 413."""
        if self._body is None:
            length = self._check_length(limit_bytes)
            if length is None:  # a server that says where the input ends can be read to the end
                length = limit_bytes + 1 if self.raw.get("wsgi.input_terminated") else 0
            found = self.raw["wsgi.input"].read(length) if length else b""
            if len(found) > limit_bytes:
                raise self._too_large(limit_bytes)
            self._body, self.raw["wsgi.input"] = found, BytesIO(found)
        if len(self._body) > limit_bytes:
            raise self._too_large(limit_bytes)
        return self._body

    def json(self, limit_bytes: int = BODY_BYTES_MAX) -> Any:
        """The body as JSON; what is none is answered with 400."""
        return parsed_json(self.body(limit_bytes))


@lru_cache(64)
def _name(name: str) -> bytes:
    return name.lower().encode("latin-1")


def encoded(headers: Iterable[Header]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI has them."""
    return [(_name(name), value.encode("latin-1")) for name, value in headers]


def parsed_json(body: bytes) -> Any:
    """What a client sent as JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, "the body is not JSON") from error


def route_path(scope: Scope) -> str:
    """The path as routes of the application see it: without where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
        return path[len(root) :]
    return path
