"""Transports for ``httpx`` whose requests wait for their turn."""

from __future__ import annotations

from ..runtime.colour import run_sync
from .provider import LocalAnswer, Provider

try:
    import httpx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('httpx is not installed; run: pip install "httpx>=0.28"') from error

UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""After these nothing was sent."""


class AsyncHttpxTransport(httpx.AsyncBaseTransport):
    """Sends through another transport, each request at its turn."""

    def __init__(self, provider: Provider, transport: httpx.AsyncBaseTransport | None = None) -> None:
        provider.check_colour(sync=False)
        self._provider, self._inner = provider, transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lease = await self._provider.admit(request)
        if isinstance(lease, LocalAnswer):
            return httpx.Response(lease.status, headers=lease.headers, content=lease.body, request=request)
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException as error:
            await self._provider.failed(lease, sent=not isinstance(error, UNSENT))
            raise
        await self._provider.answered(lease, response.status_code, response.headers.multi_items())
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class HttpxTransport(httpx.BaseTransport):
    """The sync twin of ``AsyncHttpxTransport``."""

    def __init__(self, provider: Provider, transport: httpx.BaseTransport | None = None) -> None:
        provider.check_colour(sync=True)
        self._provider, self._inner = provider, transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        lease = run_sync(self._provider.admit(request))
        if isinstance(lease, LocalAnswer):
            return httpx.Response(lease.status, headers=lease.headers, content=lease.body, request=request)
        try:
            response = self._inner.handle_request(request)
        except BaseException as error:
            run_sync(self._provider.failed(lease, sent=not isinstance(error, UNSENT)))
            raise
        run_sync(self._provider.answered(lease, response.status_code, response.headers.multi_items()))
        return response

    def close(self) -> None:
        self._inner.close()
