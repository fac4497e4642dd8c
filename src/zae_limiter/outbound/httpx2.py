"""Transports for ``httpx2`` whose requests wait for their turn."""

from __future__ import annotations

from ..runtime.colour import run_sync
from .provider import LocalAnswer, Provider, Told

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
        self._library = _AsyncHttpx2(self._inner)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._provider.exchange(self._library, request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Httpx2Transport(httpx2.BaseTransport):
    """The sync twin of ``AsyncHttpx2Transport``."""

    def __init__(self, provider: Provider, transport: httpx2.BaseTransport | None = None) -> None:
        provider.check_colour(sync=True)
        self._provider, self._inner = provider, transport or httpx2.HTTPTransport()
        self._library = _SyncHttpx2(self._inner)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return run_sync(self._provider.exchange(self._library, request))

    def close(self) -> None:
        self._inner.close()


class _Httpx2:
    """What an exchange asks of the library in either colour."""

    def is_unsent(self, error: BaseException) -> bool:
        return isinstance(error, UNSENT)

    def local(self, request: httpx2.Request, answer: LocalAnswer) -> httpx2.Response:
        return httpx2.Response(answer.status, headers=answer.headers, content=answer.body, request=request)

    def told(self, got: httpx2.Response) -> Told:
        return got.status_code, got.headers.multi_items()


class _AsyncHttpx2(_Httpx2):
    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        return await self._inner.handle_async_request(request)

    async def close(self, got: httpx2.Response) -> None:
        await got.aclose()


class _SyncHttpx2(_Httpx2):
    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self._inner = inner

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        return self._inner.handle_request(request)

    async def close(self, got: httpx2.Response) -> None:
        got.close()
