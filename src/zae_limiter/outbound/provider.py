"""``Provider``: somebody else's API that limits us, as all our workers send to it.

It says which requests cost what, and puts a turn before and a look behind each of them. What is decided is in
``pacing``. What a client library calls things is in a module of its name, which it hands to ``exchange``; the
order in which an exchange goes, and what is closed and given back when it breaks off, is here, once for all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from ..exceptions import RateLimiterUnavailable, RateLimitExceeded, ValidationError, ZAELimiterError
from ..lease import Lease
from ..limiter import RateLimiter
from ..models import Limit
from ..models.checks import AMOUNTS_HINT, check_mapping, needs_milli
from ..models.refusing import retry_headers
from ..runtime.logs import logger
from ..sync import SyncRateLimiter
from .pacing import Pacing
from .told import read_answer

if TYPE_CHECKING:
    from . import httpx as for_httpx
    from . import httpx2 as for_httpx2
    from . import requests as for_requests


Cost: TypeAlias = Mapping[str, int] | Callable[[Any], Mapping[str, int]]
"""What a request takes of each limit, or how to tell; the request is the client library's own."""


Told: TypeAlias = tuple[int, Iterable[tuple[str, str]]]
"""The status and the headers of an answer."""

Asked = TypeVar("Asked")
Got = TypeVar("Got")


class LocalAnswer(NamedTuple):
    """An answer to a request that was not sent."""

    status: int
    headers: dict[str, str]
    body: bytes


class Library(Protocol[Asked, Got]):  # type: ignore[misc]  # Asked is only ever given
    """A client library, as far as an exchange needs it; those of a sync one never suspend."""

    async def send(self, request: Asked, /) -> Got: ...

    def is_unsent(self, error: BaseException, /) -> bool:
        """Whether nothing was sent by a ``send`` that raised this."""

    def local(self, request: Asked, answer: LocalAnswer, /) -> Got:
        """An answer that nobody sent, as one of the library's."""

    def told(self, got: Got, /) -> Told: ...

    async def close(self, got: Got, /) -> None: ...


class Provider:
    """Whom requests are sent to, and what it allows.

    - ``limiter``: a ``RateLimiter`` for async clients, a ``SyncRateLimiter`` for sync ones.
    - ``name``: the entity that stands for the provider, or for an account there. All who use the same name in
      the same namespace share its limits.
    - ``limits``: what it allows, to begin with; what it says itself counts from then on.
    - ``cost``: what a request takes, 1 of the first limit if not said.
    - ``names``: how the provider's words are called here, such as ``{"requests": "rpm", "tokens": "tpm"}``.
    - ``wait``: how many seconds a request may wait for its turn.
    - ``raises``: whether a request whose turn would come too late raises ``RateLimitExceeded``. Otherwise it
      is answered like by the provider, with status 429, and the header ``x-zae-limiter: refused``.
    """

    def __init__(
        self,
        limiter: RateLimiter | SyncRateLimiter,
        name: str,
        limits: Sequence[Limit],
        *,
        resource: str = "api",
        cost: Cost | None = None,
        names: Mapping[str, str] | None = None,
        wait: float = 60.0,
        raises: bool = False,
    ) -> None:
        if not isinstance(limiter, RateLimiter | SyncRateLimiter):
            raise ValidationError("limiter", limiter, "pass a RateLimiter, or a SyncRateLimiter")
        self.is_sync: bool = isinstance(limiter, SyncRateLimiter)
        inner = limiter._async if isinstance(limiter, SyncRateLimiter) else limiter
        self._pacing = Pacing(inner, name, resource, limits, wait)
        self._cost = _checked_cost({limits[0].name: 1} if cost is None else cost, self._pacing.declared)
        self._names, self._raises = _checked_names(names or {}, self._pacing.declared), raises
        self._world = inner.repository._scope.world

    def httpx_transport(self, transport: Any = None) -> for_httpx.AsyncHttpxTransport:
        """A transport for ``httpx.AsyncClient`` that sends through another one."""
        from .httpx import AsyncHttpxTransport

        return AsyncHttpxTransport(self, transport)

    def httpx2_transport(self, transport: Any = None) -> for_httpx2.AsyncHttpx2Transport:
        """A transport for ``httpx2.AsyncClient``, which openai and anthropic use."""
        from .httpx2 import AsyncHttpx2Transport

        return AsyncHttpx2Transport(self, transport)

    def sync_httpx_transport(self, transport: Any = None) -> for_httpx.HttpxTransport:
        """A transport for ``httpx.Client``."""
        from .httpx import HttpxTransport

        return HttpxTransport(self, transport)

    def sync_httpx2_transport(self, transport: Any = None) -> for_httpx2.Httpx2Transport:
        """A transport for ``httpx2.Client``, which the sync clients of openai and anthropic use."""
        from .httpx2 import Httpx2Transport

        return Httpx2Transport(self, transport)

    def requests_adapter(self, **options: Any) -> for_requests.PacedAdapter:
        """An adapter to mount on a ``requests.Session``; options are those of ``HTTPAdapter``."""
        from .requests import PacedAdapter

        return PacedAdapter(self, **options)

    def check_colour(self, *, sync: bool) -> None:
        """Refuse a client whose colour, async or sync, is not the limiter's."""
        if self.is_sync != sync:
            fits = "SyncRateLimiter" if sync else "RateLimiter"
            raise ValidationError("limiter", self, f"this client needs a provider with a {fits}")

    async def exchange(self, library: Library[Asked, Got], request: Asked) -> Got:
        """Send a request at its turn, learn from the answer, and hand it on."""
        lease = await self._admit(request)
        if isinstance(lease, LocalAnswer):
            return library.local(request, lease)
        try:
            got = await library.send(request)
        except BaseException as error:
            await self._failed(lease, sent=not library.is_unsent(error))
            raise
        try:
            await self._answered(lease, *library.told(got))
        except BaseException:  # nobody gets it any more, and its connection is wanted back
            await library.close(got)
            raise
        return got

    async def _admit(self, request: Any) -> Lease | LocalAnswer:
        """Wait for a request's turn; if that would take too long, the answer that it gets."""
        amounts = self._cost(request) if callable(self._cost) else self._cost
        try:
            return await self._pacing.admit(amounts)
        except RateLimitExceeded as refusal:
            if self._raises:
                raise
            return _local(429, dict(retry_headers(refusal.retry_after_seconds)), refusal.public_dict())
        except RateLimiterUnavailable:
            if self._raises:
                raise
            told = {"error": "rate_limiter_unavailable", "message": "the store of the limits does not answer"}
            return _local(503, {"Retry-After": "1"}, told)

    async def _answered(self, lease: Lease, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Learn from an answer; whatever comes of that, the answer stands."""
        answer = read_answer(status, headers, self._world.now_ms())
        told = tuple(one._replace(name=self._names.get(one.name, one.name)) for one in answer.told)
        try:
            await self._pacing.answered(lease, answer._replace(told=told))
        except ZAELimiterError as error:
            logger.warning("what a provider said could not be stored: %s", error)

    async def _failed(self, lease: Lease, *, sent: bool) -> None:
        """There was no answer to a request."""
        try:
            await self._pacing.failed(lease, sent=sent)
        except ZAELimiterError as error:
            logger.warning("a request that came to nothing could not be given back: %s", error)


def _checked_cost(cost: Cost, declared: Mapping[str, Limit]) -> Cost:
    """What every request takes, unless that is told by each: of limits that there are, and not too much."""
    if callable(cost):
        return cost
    kept = check_mapping("cost", cost, AMOUNTS_HINT)
    if not needs_milli(kept):
        raise ValidationError("cost", cost, "a request takes something; " + AMOUNTS_HINT)
    for name, amount in kept.items():
        if name not in declared:
            raise ValidationError("cost", cost, f"no limit is called {name!r}; use {_shown(declared)}")
        if amount > declared[name].capacity:
            reason = (
                f"no request would ever be sent: {name!r} holds {declared[name].capacity}; give it a burst"
            )
            raise ValidationError("cost", cost, reason)
    return kept


def _checked_names(names: Mapping[str, str], declared: Mapping[str, Limit]) -> dict[str, str]:
    kept = check_mapping("names", names, "pass names by the provider's words, such as {'requests': 'rpm'}")
    for name in kept.values():
        if name not in declared:
            raise ValidationError("names", names, f"no limit is called {name!r}; use {_shown(declared)}")
    return kept


def _shown(declared: Mapping[str, Limit]) -> str:
    return " or ".join(map(repr, declared))


def _local(status: int, headers: dict[str, str], told: Mapping[str, Any]) -> LocalAnswer:
    error = {"message": f"not sent: {told['message']}", "type": told["error"]}  # where SDKs look for it
    about = {"x-zae-limiter": "refused", "content-type": "application/json"}
    return LocalAnswer(status, headers | about, json.dumps({**told, "error": error}).encode())
