"""Transports for ``httpx`` whose requests wait for their turn."""

from __future__ import annotations

from ..runtime.colour import run_sync
from .provider import LocalAnswer, Provider, Told

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
        self._library = _AsyncHttpx(self._inner)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._provider.exchange(self._library, request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class HttpxTransport(httpx.BaseTransport):
    """The sync twin of ``AsyncHttpxTransport``."""

    def __init__(self, provider: Provider, transport: httpx.BaseTransport | None = None) -> None:
        provider.check_colour(sync=True)
        self._provider, self._inner = provider, transport or httpx.HTTPTransport()
        self._library = _SyncHttpx(self._inner)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return run_sync(self._provider.exchange(self._library, request))

    def close(self) -> None:
        self._inner.close()


class _Httpx:
    """What an exchange asks of the library in either colour."""

    def is_unsent(self, error: BaseException) -> bool:
        return isinstance(error, UNSENT)

    def local(self, request: httpx.Request, answer: LocalAnswer) -> httpx.Response:
        return httpx.Response(answer.status, headers=answer.headers, content=answer.body, request=request)

    def told(self, got: httpx.Response) -> Told:
        return got.status_code, got.headers.multi_items()


class _AsyncHttpx(_Httpx):
    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def send(self, request: httpx.Request) -> httpx.Response:
        return await self._inner.handle_async_request(request)

    async def close(self, got: httpx.Response) -> None:
        await got.aclose()


class _SyncHttpx(_Httpx):
    def __init__(self, inner: httpx.BaseTransport) -> None:
        self._inner = inner

    async def send(self, request: httpx.Request) -> httpx.Response:
        return self._inner.handle_request(request)

    async def close(self, got: httpx.Response) -> None:
        got.close()
