"""Transports for ``httpx`` whose requests wait for their turn."""

from __future__ import annotations

from ..runtime.colour import run_sync
from .like_httpx import LikeHttpx
from .provider import Provider

try:
    import httpx
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError('httpx is not installed; run: pip install "httpx>=0.28"') from _error


class AsyncHttpxTransport(httpx.AsyncBaseTransport):
    """Sends through another transport, each request at its turn."""

    def __init__(self, provider: Provider, transport: httpx.AsyncBaseTransport | None = None) -> None:
        provider.check_colour(sync=False)
        self._provider, self._inner = provider, transport or httpx.AsyncHTTPTransport()
        self._library = LikeHttpx(self._inner, httpx, is_async=True)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._provider.exchange(self._library, request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class HttpxTransport(httpx.BaseTransport):
    """The sync twin of ``AsyncHttpxTransport``."""

    def __init__(self, provider: Provider, transport: httpx.BaseTransport | None = None) -> None:
        provider.check_colour(sync=True)
        self._provider, self._inner = provider, transport or httpx.HTTPTransport()
        self._library = LikeHttpx(self._inner, httpx, is_async=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        got: httpx.Response = run_sync(self._provider.exchange(self._library, request))
        return got

    def close(self) -> None:
        self._inner.close()
