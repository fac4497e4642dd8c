"""Transports for ``httpx2`` whose requests wait for their turn."""

from __future__ import annotations

from ..runtime.colour import run_sync
from .like_httpx import LikeHttpx
from .provider import Provider

try:
    import httpx2
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError('httpx2 is not installed; run: pip install "httpx2>=2.16"') from _error


class AsyncHttpx2Transport(httpx2.AsyncBaseTransport):
    """Sends through another transport, each request at its turn."""

    def __init__(self, provider: Provider, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        provider.check_colour(sync=False)
        self._provider, self._inner = provider, transport or httpx2.AsyncHTTPTransport()
        self._library = LikeHttpx(self._inner, httpx2, is_async=True)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._provider.exchange(self._library, request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Httpx2Transport(httpx2.BaseTransport):
    """The sync twin of ``AsyncHttpx2Transport``."""

    def __init__(self, provider: Provider, transport: httpx2.BaseTransport | None = None) -> None:
        provider.check_colour(sync=True)
        self._provider, self._inner = provider, transport or httpx2.HTTPTransport()
        self._library = LikeHttpx(self._inner, httpx2, is_async=False)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        got: httpx2.Response = run_sync(self._provider.exchange(self._library, request))
        return got

    def close(self) -> None:
        self._inner.close()
