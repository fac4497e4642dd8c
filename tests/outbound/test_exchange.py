"""One request through each client library: what was sent counts, and nothing that was opened stays open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest
import requests

from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.outbound import Provider
from zae_limiter.outbound.pacing import Pacing

DAY = [Limit.per_day("requests", 10)]
NOBODY = "http://127.0.0.1:9"


class Hung(BaseException):
    """What ends a thread or a task in the middle of something: an interrupt, a cancellation."""


@contextlib.contextmanager
def sync_client(library: str, provider: Provider, inner: Any = None) -> Iterator[Any]:
    """A client of a library whose requests wait for their turn, and are sent through something else."""
    if library == "requests":
        with requests.Session() as session:
            session.mount("http://", provider.requests_adapter())
            yield session
        return
    transports = {"httpx": provider.sync_httpx_transport, "httpx2": provider.sync_httpx2_transport}
    with {"httpx": httpx, "httpx2": httpx2}[library].Client(transport=transports[library](inner)) as client:
        yield client


SYNC = ("httpx", "httpx2", "requests")
UNREACHED = (httpx.ConnectError, httpx2.ConnectError, requests.ConnectionError)


@pytest.mark.parametrize("library", SYNC)
def test_a_request_that_reached_nobody_costs_nothing(library: str) -> None:
    """Whatever the library calls it that nobody listens."""
    with SyncRateLimiter.open("memory://") as limiter:
        provider = Provider(limiter, "vendor", DAY)
        with sync_client(library, provider) as client, pytest.raises(UNREACHED):
            client.get(NOBODY)
        assert limiter.available("vendor", "api") == {"requests": 10}


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_an_async_request_that_reached_nobody_costs_nothing(library: str) -> None:
    """As with the sync clients."""

    async def main() -> dict[str, int]:
        async with RateLimiter.open("memory://") as limiter:
            provider = Provider(limiter, "vendor", DAY)
            transports = {"httpx": provider.httpx_transport, "httpx2": provider.httpx2_transport}
            clients: dict[str, Any] = {"httpx": httpx.AsyncClient, "httpx2": httpx2.AsyncClient}
            async with clients[library](transport=transports[library]()) as client:
                with pytest.raises(UNREACHED):
                    await client.get(NOBODY)
            return await limiter.available("vendor", "api")

    assert asyncio.run(main()) == {"requests": 10}


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_who_is_cancelled_while_an_answer_is_learned_from_closes_it(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its connection would never go back to the pool, and the pool would be empty one day."""
    module: Any = {"httpx": httpx, "httpx2": httpx2}[library]
    closed: list[bool] = []

    class Body(module.AsyncByteStream):  # type: ignore[misc]
        async def aclose(self) -> None:
            closed.append(True)

    class Inner(module.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, _: object) -> Any:
            return module.Response(200, stream=Body())

    async def main() -> dict[str, int]:
        learning = asyncio.Event()

        async def hangs(*_: object) -> None:
            learning.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Pacing, "_learn", hangs)
        async with RateLimiter.open("memory://") as limiter:
            provider = Provider(limiter, "vendor", DAY)
            transports = {"httpx": provider.httpx_transport, "httpx2": provider.httpx2_transport}
            async with module.AsyncClient(transport=transports[library](Inner())) as client:
                task = asyncio.create_task(client.get("http://vendor.test"))
                await learning.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            return await limiter.available("vendor", "api")

    assert asyncio.run(main()) == {"requests": 9}
    assert closed == [True]


@pytest.mark.parametrize("library", SYNC)
def test_who_is_interrupted_while_an_answer_is_learned_from_closes_it(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a thread nothing is cancelled, but anything may be interrupted."""
    closed: list[bool] = []

    async def hangs(*_: object) -> None:
        raise Hung

    monkeypatch.setattr(Pacing, "_learn", hangs)
    with SyncRateLimiter.open("memory://") as limiter:
        provider = Provider(limiter, "vendor", DAY)
        inner = _closing(library, closed, monkeypatch)
        with sync_client(library, provider, inner) as client, pytest.raises(Hung):
            client.get("http://vendor.test")
        assert limiter.available("vendor", "api") == {"requests": 9}
    assert closed == [True]


def _closing(library: str, closed: list[bool], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What answers with something that notes when it is closed."""
    if library == "requests":

        class Noting(requests.Response):
            status_code = 200

            def close(self) -> None:
                closed.append(True)

        monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", lambda *_, **__: Noting())
        return None
    module: Any = {"httpx": httpx, "httpx2": httpx2}[library]

    class Body(module.SyncByteStream):  # type: ignore[misc]
        def close(self) -> None:
            closed.append(True)

    class Inner(module.BaseTransport):  # type: ignore[misc]
        def handle_request(self, _: object) -> Any:
            return module.Response(200, stream=Body())

    return Inner()
