"""Real servers and clients that hang up: balances equal the books of those who asked.

A third of all streams is left at random. ``WEB_STREAMS`` says how many there are: some in the suite, 500 by
night.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from tests.web.limits import Bytes
from tests.web.servers import PATIENCE_S, SERVERS, Streams, client_of, serving, until
from zae_limiter import Lease, Limit, RateLimiter
from zae_limiter.web import RateLimitMiddleware, Rule, api_key

STREAMS = int(os.environ.get("WEB_STREAMS", "40"))
CHUNKS = 6
EVENT = b"data: 0123456789\n\n"
NEVER = 10 * 366 * 86_400
RPM, TPM = Limit("rpm", 10**6, 1, NEVER), Limit("tpm", 10**9, 1, NEVER)
SEATS = Limit.concurrent("parallel", 1_000, hold="1h")
LIMITS = [RPM, TPM, SEATS]
COST = {"rpm": 1, "tpm": 77, "parallel": 1}


class Events:
    """Server-sent events: another one as soon as its client wants it."""

    def __init__(self) -> None:
        self.wanted: dict[str, asyncio.Queue[None]] = {}
        self.ended: Counter[str] = Counter()
        self.cleaned: list[str] = []
        self.gate = asyncio.Event()

    async def stream(self, request: StarletteRequest) -> StreamingResponse:
        name = request.path_params["name"]
        return StreamingResponse(self._events(name), media_type="text/event-stream")

    async def _events(self, name: str) -> AsyncIterator[bytes]:
        try:
            for _ in range(CHUNKS):
                yield EVENT
                await self.wanted[name].get()
        finally:
            self.ended[name] += 1

    async def background(self, request: StarletteRequest) -> PlainTextResponse:
        async def clean(lease: Lease) -> None:
            await self.gate.wait()
            assert Lease.current() is lease
            await lease.adjust(tpm=23)
            self.cleaned.append("done")

        return PlainTextResponse("0123", background=BackgroundTask(clean, request.state.lease))

    async def slow(self, request: StarletteRequest) -> JSONResponse:
        raise ValueError("it fails") if request.query_params else AssertionError("it is asked to")

    def app(self, limiter: Any) -> Starlette:
        paths = {"/v1/events/{name}": self.stream, "/v1/background": self.background, "/v1/fail": self.slow}
        app = Starlette(routes=[Route(path, endpoint) for path, endpoint in paths.items()])
        app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=RULES)
        return app


RULES = [Rule("/v1/*", "api", COST, entity=api_key(), limits=LIMITS, usage=Bytes)]


async def read(streams: Streams, events: Events, name: str, chunks: int) -> int:
    """Read so many events of a stream and hang up, or to its end; how many bytes were sent."""
    events.wanted[name] = asyncio.Queue()
    received = b""
    headers = {"x-api-key": f"key-{int(name) % 7}"}
    async with aclosing(streams.read(f"/v1/events/{name}", headers)) as body:
        async for chunk in body:
            received += chunk
            if len(received) == chunks * len(EVENT) and chunks < CHUNKS:
                break
            if len(received) % len(EVENT) == 0:
                events.wanted[name].put_nowait(None)
    return len(received)


@pytest.mark.parametrize("kind", SERVERS)
async def test_streams_whose_clients_hang_up(kind: str) -> None:
    """What was sent is what each key pays; every seat comes back."""
    dice, events, books = random.Random(7), Events(), Counter[str]()
    async with await RateLimiter.open("memory://") as limiter:
        app = events.app(limiter)
        async with serving(kind, app) as url, Streams(kind, url) as streams:

            async def one(number: int) -> None:
                chunks = dice.randrange(1, CHUNKS) if dice.random() < 1 / 3 else CHUNKS
                sent = await read(streams, events, str(number), chunks)
                assert sent == chunks * len(EVENT)
                books[f"key-{number % 7}"] += sent

            for first in range(0, STREAMS, 50):
                batch = range(first, min(first + 50, STREAMS))
                await asyncio.wait_for(asyncio.gather(*map(one, batch)), PATIENCE_S)
            await until(lambda: sum(events.ended.values()) == STREAMS)
        asked = Counter(f"key-{number % 7}" for number in range(STREAMS))
        for key, sent in books.items():
            left = await limiter.available(key, "api", LIMITS)
            assert left == {"rpm": 10**6 - asked[key], "tpm": 10**9 - sent, "parallel": 1_000}
        assert limiter.refunds_lost == 0


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_background_task_holds_the_lease(kind: str) -> None:
    """The client has its response; the lease ends when the task has, and what that noted counts."""
    events = Events()
    async with await RateLimiter.open("memory://") as limiter:
        async with serving(kind, events.app(limiter)) as url, client_of(kind) as client:
            async with client.stream(
                "GET", f"{url}/v1/background", headers={"x-api-key": "key-1"}
            ) as response:
                body = b"".join([chunk async for chunk in response.aiter_raw()])
            assert (body, events.cleaned) == (b"0123", [])
            assert (await limiter.available("key-1", "api", LIMITS))["parallel"] == 999
            events.gate.set()
            await until(lambda: bool(events.cleaned))
        left = await limiter.available("key-1", "api", LIMITS)
        assert (left["tpm"], left["parallel"]) == (10**9 - 4, 1_000)


@pytest.mark.parametrize("kind", SERVERS)
async def test_an_application_that_fails(kind: str) -> None:
    """The server answers 500, and nothing is charged."""
    events = Events()
    async with await RateLimiter.open("memory://") as limiter:
        async with serving(kind, events.app(limiter)) as url, client_of(kind) as client:
            response = await client.get(f"{url}/v1/fail?now=1", headers={"x-api-key": "key-1"})
            assert response.status_code == 500
            unknown = await client.get(f"{url}/v1/nothing", headers={"x-api-key": "key-1"})
            assert (unknown.status_code, "ratelimit" in unknown.headers) == (404, True)
        assert (await limiter.available("key-1", "api", LIMITS))["rpm"] == 10**6 - 1


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_limiter_lives_as_long_as_the_server(kind: str, tmp_path: Any) -> None:
    """It is opened when the server starts, and closed when it ends; a refusal goes over the wire."""
    source = f"sqlite:///{tmp_path}/limits.db?timeout_ms=60000"
    rules = [Rule("/*", "api", {"rpm": 1}, entity=api_key(), limits=[Limit.per_day("rpm", 1)])]
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("hi"))])
    middleware = RateLimitMiddleware(app, limiter=lambda: RateLimiter.open(source), rules=rules)
    async with serving(kind, middleware) as url, client_of(kind) as client:
        statuses = [(await client.get(url, headers={"x-api-key": "key-1"})) for _ in range(2)]
        assert [one.status_code for one in statuses] == [200, 429]
        assert statuses[1].headers["content-type"] == "application/problem+json"
        assert statuses[1].headers["x-should-retry"] == "false"
        limiter = middleware._held.limiter
        assert limiter is not None
    assert not await limiter.is_available()


async def test_a_refused_websocket() -> None:
    """The handshake is answered with the status of a request, and an admitted one goes through."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})

    limits = [Limit.per_day("rpm", 1)]
    rules = [Rule("/ws", "chat", {"rpm": 1}, entity="key-1", limits=limits)]
    asked = "GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    asked += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    async with await RateLimiter.open("memory://") as limiter:
        middleware = RateLimitMiddleware(app, limiter=limiter, rules=rules)
        async with serving("hypercorn h1", middleware) as url:
            for status in (b"101", b"429"):
                reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
                writer.write(asked.encode())
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
                assert head.split()[1] == status
                assert b'ratelimit: "rpm";r=0' in head.lower()
                writer.close()
