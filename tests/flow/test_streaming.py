"""Streamed responses of real servers on loopback, whose clients hang up at every chunk in turn.

Each response holds a lease: ten tokens at first, seven more for every chunk. When the client is gone, the
bucket has given out what was noted until then, whichever way the server learned of it.
"""

import asyncio
import contextlib
import queue
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
import uvicorn

from tests.flow.clients import RESOURCE, Store, rpm
from zae_limiter import RateLimiter, SyncRateLimiter, SyncRepository

CHUNKS = 6
TAKEN, PER_CHUNK = 10, 7
LIMIT = rpm(1_000)
CHUNK = b"0123456789abcdef"
PATIENCE_S = 60
"""A guard against hanging; nothing is measured by it."""


# A real ASGI server.


class App:
    """Streams chunks to a client that is asked after each whether it wants another one."""

    def __init__(self, limiter: RateLimiter, how: str) -> None:
        self._limiter, self._how = limiter, how
        self.wanted: asyncio.Queue[None] = asyncio.Queue()
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[..., Any]) -> None:
        await receive()  # the request
        await send({"type": "http.response.start", "status": 200, "headers": []})
        respond = asyncio.ensure_future(self._respond(scope["path"][1:], send))
        gone = asyncio.ensure_future(_gone(receive))
        await asyncio.wait([respond, gone], return_when=asyncio.FIRST_COMPLETED)
        for task in (respond, gone):
            task.cancel()
        await asyncio.wait([respond, gone])

    async def _respond(self, entity_id: str, send: Callable[..., Any]) -> None:
        stream = self._stream(entity_id)
        if self._how == "dropped":
            await self._pass_on(stream, send)
        else:
            async with aclosing(stream):  # type: ignore[type-var]
                await self._pass_on(stream, send)
        await send({"type": "http.response.body", "body": b""})

    async def _pass_on(self, stream: AsyncIterator[bytes], send: Callable[..., Any]) -> None:
        async for chunk in stream:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if self._how != "cancelled at work":
                await self.wanted.get()

    async def _stream(self, entity_id: str) -> AsyncIterator[bytes]:
        try:
            async with self._limiter.acquire(entity_id, RESOURCE, {"rpm": TAKEN}, [LIMIT]) as lease:
                for _ in range(CHUNKS):
                    await lease.adjust(rpm=PER_CHUNK)
                    yield CHUNK
                    if self._how == "cancelled at work":
                        await self.wanted.get()
        finally:
            self.ended.set()


async def _gone(receive: Callable[[], Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def served(app: App) -> AsyncIterator[int]:
    """The port of a server that runs in this loop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


async def read_and_hang_up(app: App, port: int, path: str, chunks: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
    for number in range(chunks):
        if number:
            app.wanted.put_nowait(None)
        await reader.readuntil(CHUNK)
    if chunks == CHUNKS:  # to the end
        app.wanted.put_nowait(None)
        await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


HOW = ["closed", "dropped", "cancelled at work"]
"""The server closes the generator; or leaves that to the garbage; or cancels it while it makes a chunk."""


@pytest.mark.parametrize("how", HOW)
async def test_client_of_an_asgi_server_hangs_up(store: Store, how: str) -> None:
    """At every chunk in turn the balance is what was settled; cancelled work has cost nothing."""
    client = await store.client()
    for chunks in range(1, CHUNKS + 1):
        app, entity_id = App(client.limiter, how), f"key-{chunks}"
        async with served(app) as port:
            await asyncio.wait_for(read_and_hang_up(app, port, entity_id, chunks), PATIENCE_S)
            await asyncio.wait_for(app.ended.wait(), PATIENCE_S)
        failed = how == "cancelled at work" and chunks < CHUNKS
        cost = 0 if failed else TAKEN + PER_CHUNK * chunks
        assert (await store.used(entity_id), await store.left(entity_id)) == (cost, 1_000 - cost)
    assert client.limiter.refunds_lost == 0


# A real WSGI server.


class SyncApp:
    """The same for a server that learns that the client is gone when it cannot send any more."""

    def __init__(self, limiter: SyncRateLimiter) -> None:
        self._limiter = limiter
        self.wanted: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.ended = threading.Event()
        self.noted = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [])
        return self._stream(environ["PATH_INFO"][1:])

    def _stream(self, entity_id: str) -> Iterator[bytes]:
        try:
            with self._limiter.acquire(entity_id, RESOURCE, {"rpm": TAKEN}, [LIMIT]) as lease:
                for _ in range(CHUNKS):
                    lease.adjust(rpm=PER_CHUNK)
                    self.noted += 1
                    yield CHUNK
                    self.wanted.get(timeout=PATIENCE_S)
        finally:
            self.ended.set()


class Silent(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served_sync(app: SyncApp) -> Iterator[int]:
    with make_server("127.0.0.1", 0, app, handler_class=Silent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def read_and_reset(app: SyncApp, port: int, path: str, chunks: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /%s HTTP/1.0\r\n\r\n" % path.encode())
        received = b""
        for number in range(chunks):
            if number:
                app.wanted.put(None)
            while received.count(CHUNK) <= number:
                received += connection.recv(4096)
        # Closed without a word, so that the server's next chunk finds nobody.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for _ in range(CHUNKS):
        app.wanted.put(None)
    assert app.ended.wait(PATIENCE_S)


def test_client_of_a_wsgi_server_hangs_up(store: Store) -> None:
    """The server closes the generator, at every chunk in turn: the balance is what was settled."""
    backend = store.open_backend(sync=True)
    with SyncRateLimiter(SyncRepository.over(backend, world=store.clock.world)) as limiter:
        for chunks in range(1, CHUNKS + 1):
            app, entity_id = SyncApp(limiter), f"key-{chunks}"
            with served_sync(app) as port:
                read_and_reset(app, port, entity_id, chunks)
            assert chunks <= app.noted <= CHUNKS
            cost = TAKEN + PER_CHUNK * app.noted
            left = limiter.available(entity_id, RESOURCE, [LIMIT])
            assert (store.run(store.used(entity_id)), left) == (cost, {"rpm": 1_000 - cost})
        assert limiter.refunds_lost == 0
