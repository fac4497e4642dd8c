"""One request as rules and callables see it, the same for ASGI and WSGI.

Everything is worked out when somebody asks for it, for most requests are asked for a path and one header.
The path is decoded, and relative to where the application is mounted, as the application's own routes are.
A body that was read here is buffered once, up to a bound, and given to the application again.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from io import BufferedReader, BytesIO, RawIOBase
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from ..runtime.beside import Listener
from ..runtime.within import Work
from .answers import RequestRefused
from .drafts import Header

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_BYTES_MAX = 10 * 2**20
"""How much of a body is read for a callable that asks for it, unless it says otherwise."""

WRAPPED_MAX = 64
"""In how many middlewares an application is looked for."""

AHEAD_BYTES_MAX = 2**20
"""How much of a body is taken in while its request waits its turn."""

T = TypeVar("T")


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

    __slots__ = (
        *("_ahead", "_body", "_chunks", "_has_more"),
        *("_is_listening", "_is_replayed", "_listener", "_receive"),
    )

    def __init__(self, scope: Scope, receive: Receive, root: str = "") -> None:
        super().__init__(scope, scope.get("method", "GET"), route_path(scope, root))
        self._receive, self._is_replayed = receive, True
        self._body: bytes | None = None
        self._chunks: list[bytes] | None = None
        """What was read of the body, if nobody has read all of it."""
        self._has_more = True
        self._listener: Listener | None = None
        """Who listens for the client to leave, or did."""

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
            if self._chunks is None:
                self._chunks = []
            size = sum(map(len, self._chunks))
            while self._has_more and size <= limit_bytes:
                message = await self._next()
                if message["type"] != "http.request":
                    raise ClientLeft
                self._chunks.append(message.get("body", b""))
                self._has_more, self._is_replayed = message.get("more_body", False), False
                size += len(self._chunks[-1])
            if self._has_more:
                raise self._too_large(limit_bytes)
            self._body = b"".join(self._chunks)
        if len(self._body) > limit_bytes:
            raise self._too_large(limit_bytes)
        return self._body

    async def json(self, limit_bytes: int = BODY_BYTES_MAX) -> Any:
        """The body as JSON; what is none is answered with 400."""
        return parsed_json(await self.body(limit_bytes))

    async def receive(self) -> Message:
        """What the application receives: the body first, if it was read here."""
        if self._is_replayed:
            return await (self._receive() if self._listener is None else self._next())
        self._is_replayed = True
        body = b"".join(self._chunks or ()) if self._body is None else self._body
        return {"type": "http.request", "body": body, "more_body": self._has_more}

    async def unless_left(self, work: Work[T], undo: Callable[[T], Work[None]]) -> T:
        """Do something, unless the client leaves meanwhile: then it is given up, ``ClientLeft``.

        What the client sends is kept for the application, up to a bound; beyond that nobody listens.
        """
        self._is_listening = True
        if self._listener is None:
            self._ahead = deque[Message]()
        if self._listener is None or (self._listener.is_over and not self._listener.has_heard):
            self._listener = Listener(self._listen())
        try:
            done = await self._listener.unless_heard(work, undo)
        finally:
            self._is_listening = False
        if done is None:
            raise ClientLeft
        return done

    async def _listen(self) -> bool:
        while self._is_listening and sum(len(one.get("body", b"")) for one in self._ahead) < AHEAD_BYTES_MAX:
            message = await self._receive()
            self._ahead.append(message)
            if message["type"] == "http.disconnect":
                return True
        return False

    async def _next(self) -> Message:
        """The next message, of which some were heard before."""
        if self._listener is not None:
            if not self._ahead and not self._listener.is_over:
                await self._listener.wait()
            if self._ahead:
                is_last = len(self._ahead) == 1 and self._listener.has_heard
                return self._ahead[0] if is_last else self._ahead.popleft()
        return await self._receive()

    def close(self) -> None:
        """The response is over, so nobody waits for the client any more."""
        if self._listener is not None:
            self._listener.stop()


class _Joined(RawIOBase):
    """What was read of an input, and after that the rest of it."""

    def __init__(self, begun: bytes, rest: Any) -> None:
        self._begun, self._rest = BytesIO(begun), rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._begun.read(len(buffer)) or self._rest.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


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
                self.raw["wsgi.input"] = BufferedReader(_Joined(found, self.raw["wsgi.input"]))
                raise self._too_large(limit_bytes)
            if length:  # otherwise nothing was read
                self.raw["wsgi.input"] = BytesIO(found)
            self._body = found
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


def route_path(scope: Scope, root: str = "") -> str:
    """The path as routes of the application see it: without where the application is mounted."""
    path: str = scope["path"]
    root = root or scope.get("root_path", "")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
        return path[len(root) :]
    return path


def root_of(app: object) -> str:
    """What FastAPI takes for its root path itself, whatever the server says; also within other middleware."""
    for _ in range(WRAPPED_MAX):
        if any(kind.__module__.partition(".")[0] == "fastapi" for kind in type(app).__mro__):
            return str(getattr(app, "root_path", ""))
        app = getattr(app, "app", None)
    return ""
