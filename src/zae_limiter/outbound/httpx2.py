"""Transports for ``httpx2`` whose requests wait for their turn."""

from __future__ import annotations

from ..runtime.colour import run_sync
from .provider import LocalAnswer, Provider

try:
    import httpx2
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('httpx2 is not installed; run: pip install "httpx2>=2.16"') from error

UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""After these nothing was sent."""


class AsyncHttpx2Transport(httpx2.AsyncBaseTransport):
    """Sends through another transport, each request at its turn."""

    def __init__(self, provider: Provider, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        provider.check_colour(sync=False)
        self._provider, self._inner = provider, transport or httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        lease = await self._provider.admit(request)
        if isinstance(lease, LocalAnswer):
            return httpx2.Response(lease.status, headers=lease.headers, content=lease.body, request=request)
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException as error:
            await self._provider.failed(lease, sent=not isinstance(error, UNSENT))
            raise
        await self._provider.answered(lease, response.status_code, response.headers.multi_items())
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class Httpx2Transport(httpx2.BaseTransport):
    """The sync twin of ``AsyncHttpx2Transport``."""

    def __init__(self, provider: Provider, transport: httpx2.BaseTransport | None = None) -> None:
        provider.check_colour(sync=True)
        self._provider, self._inner = provider, transport or httpx2.HTTPTransport()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        lease = run_sync(self._provider.admit(request))
        if isinstance(lease, LocalAnswer):
            return httpx2.Response(lease.status, headers=lease.headers, content=lease.body, request=request)
        try:
            response = self._inner.handle_request(request)
        except BaseException as error:
            run_sync(self._provider.failed(lease, sent=not isinstance(error, UNSENT)))
            raise
        run_sync(self._provider.answered(lease, response.status_code, response.headers.multi_items()))
        return response

    def close(self) -> None:
        self._inner.close()
