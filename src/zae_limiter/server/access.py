"""Who may ask for what: by a token, or by the cookie of a page that was opened with one.

What is sent is compared with all tokens in constant time. A cookie is signed with a key of this start of the
server and tells the name of its token, so every worker knows it and none remembers it; changing something by
cookie needs a header that no foreign page can send. Nothing here knows what a request is for.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..runtime.world import World
from ..web.answers import RequestRefused
from .tokens import Token, TokenScope

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

SECRET_LETTERS_MAX = 256

SESSION_SECONDS = 12 * 3600
PAGE_HEADER = "x-zae-limiter"
"""What the page sends with each request that changes something: no page of somebody else can."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Caller(NamedTuple):
    """Whoever asks, as far as it matters."""

    name: str
    """Of the token; audit events have it as their principal."""
    scopes: frozenset[TokenScope]
    by_cookie: bool = False


ANYBODY = Caller("anybody", frozenset(TokenScope))


class AccessControl:
    """Tells who asks, and refuses whoever may not.

    ``allowed`` are the scopes that this server grants at all, whatever a token says. Where ``open_to_all``
    somebody else checks who asks, or nobody does.
    """

    def __init__(
        self,
        tokens: Sequence[Token],
        session_key: bytes,
        *,
        allowed: Collection[TokenScope] = frozenset(TokenScope),
        open_to_all: bool = False,
        cookie: str = "zae-limiter-session",
        world: World | None = None,
    ) -> None:
        self._tokens, self._key, self._world = tuple(tokens), session_key, world or World()
        self._by_name = {token.name: token for token in self._tokens}
        self.cookie = cookie
        self._allowed, self._open = frozenset(allowed), open_to_all

    def require(self, request: HTTPConnection, *scopes: TokenScope) -> Caller:
        """Whoever asks, if all these scopes are granted; else a refusal that is answered with 401 or 403."""
        caller = self.caller(request)
        if caller is None:
            raise RequestRefused(
                401,
                "send a token that this server knows: Authorization: Bearer …",
                [("WWW-Authenticate", 'Bearer realm="zae-limiter"')],
            )
        for scope in scopes:
            if scope not in self._allowed:
                raise RequestRefused(403, f"this server does not grant {scope.value!r} to anybody")
            if scope not in caller.scopes:
                raise RequestRefused(403, f"this token is not good for {scope.value!r}")
        is_safe = request.scope.get("method", "GET") in SAFE_METHODS
        if caller.by_cookie and not is_safe and PAGE_HEADER not in request.headers:
            raise RequestRefused(403, f"a request by cookie needs the header {PAGE_HEADER}")
        return caller

    def caller(self, request: HTTPConnection) -> Caller | None:
        """Whoever asks, by a token or a cookie; a token that is wrong is not made good by a cookie."""
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.bearer(secret.strip())
        found = self._of_cookie(request.cookies.get(self.cookie, ""))
        if found is not None:
            return found
        return ANYBODY._replace(scopes=self._allowed) if self._open else None

    def bearer(self, secret: str) -> Caller | None:
        """Whoever has this token."""
        if not 0 < len(secret) <= SECRET_LETTERS_MAX:
            return None
        sent = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
        found = None
        for token in self._tokens:  # all of them, so that it takes as long for each
            if hmac.compare_digest(token.sha256, sent):
                found = token
        return None if found is None else Caller(found.name, found.scopes & self._allowed)

    def session(self, caller: Caller) -> str:
        """The value of a cookie for somebody who has shown a token."""
        said = f"{caller.name}:{self._world.now_ms() // 1000 + SESSION_SECONDS}"
        return f"{said}:{self._signed(said)}"

    def _of_cookie(self, value: str) -> Caller | None:
        said, _, signature = value[:SECRET_LETTERS_MAX].rpartition(":")
        if not hmac.compare_digest(self._signed(said).encode(), signature.encode("utf-8", "surrogatepass")):
            return None
        name, _, until = said.rpartition(":")
        token = self._by_name.get(name)
        if token is None or int(until) <= self._world.now_ms() // 1000:
            return None
        return Caller(name, token.scopes & self._allowed, by_cookie=True)

    def _signed(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
