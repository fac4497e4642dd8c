"""Real servers on loopback: uvicorn and hypercorn in the loop of a test, gunicorn, and clients for them."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded
from hypercorn.asyncio import serve
from hypercorn.config import Config

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 120
"""A guard against hanging; nothing is measured by it."""

SERVERS = ["uvicorn h11", "uvicorn httptools", "hypercorn h1", "hypercorn h2"]


@asynccontextmanager
async def serving(kind: str, app: Callable[..., Any]) -> AsyncIterator[str]:
    """The address of a server that runs in this loop, with the start and the end of its application."""
    name, protocol = kind.split()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if name == "uvicorn":
            config = uvicorn.Config(app, http=protocol, ws="none", lifespan="on", log_config=None)
            server = uvicorn.Server(config)
            running = asyncio.ensure_future(server.serve(sockets=[listener]))
            try:
                await until(lambda: server.started or running.done())
                yield f"http://127.0.0.1:{port}"
            finally:
                server.should_exit = True
                await asyncio.wait_for(running, PATIENCE_S)
            return
        settings, over = Config(), asyncio.Event()
        settings.bind, settings.loglevel, settings.graceful_timeout = (
            [f"fd://{listener.fileno()}"],
            "CRITICAL",
            1,
        )
        running = asyncio.ensure_future(serve(app, settings, shutdown_trigger=over.wait))  # type: ignore[arg-type]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            over.set()
            try:
                await asyncio.wait_for(running, PATIENCE_S)
            finally:
                listener.detach()  # the server has closed it


@contextmanager
def gunicorn(app: str, folder: Path, worker: str = "sync", **environment: str) -> Iterator[str]:
    """The address of gunicorn with two workers that are processes, and keep what they have in a folder."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        command = [sys.executable, "-m", "gunicorn", "--workers", "2", "--worker-class", worker]
        command += ["--bind", f"fd://{number}", "--log-level", "critical", "--no-control-socket", app]
        given = {**os.environ, "GUNICORN_FOLDER": str(folder), **environment}
        server = subprocess.Popen(command, cwd=ROOT, env=given, pass_fds=[number])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.terminate()
            server.wait(PATIENCE_SECONDS)


def client_of(kind: str) -> httpx.AsyncClient:
    """One that speaks what the server is to be asked in, and waits as long as it takes."""
    is_h2 = kind.endswith("h2")
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(http1=not is_h2, http2=is_h2, timeout=PATIENCE_S, limits=limits, trust_env=False)


class Streams:
    """Requests of one client, which hangs up on a response when it leaves the loop over its body."""

    def __init__(self, kind: str, url: str) -> None:
        self._is_h2, self._url, self._client = kind.endswith("h2"), url, client_of(kind)

    async def __aenter__(self) -> "Streams":
        if self._is_h2:
            self._h2 = await H2.connect(int(self._url.rpartition(":")[2]))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()
        if self._is_h2:
            await self._h2.close()

    async def read(self, path: str, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
        if self._is_h2:
            async with aclosing(self._h2.read(path, headers)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        async with self._client.stream("GET", f"{self._url}{path}", headers=headers) as response:
            assert (response.status_code, "ratelimit" in response.headers) == (200, True)
            async for chunk in response.aiter_raw():
                yield chunk


class H2:
    """One connection of HTTP/2, whose streams can be reset: the other clients here never tell a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._protocol = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._events: dict[int, asyncio.Queue[Any]] = {}
        self._protocol.initiate_connection()
        self._flush()
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def connect(cls, port: int) -> "H2":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def read(self, path: str, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
        number = self._protocol.get_next_available_stream_id()
        events = self._events[number] = asyncio.Queue()
        head = {":method": "GET", ":path": path, ":authority": "x", ":scheme": "http", **headers}
        self._protocol.send_headers(number, list(head.items()), end_stream=True)
        self._flush()
        is_over = False
        try:
            while not is_over:
                event = await events.get()
                if isinstance(event, ResponseReceived):
                    found = dict(event.headers)
                    assert (found[":status"], "ratelimit" in found) == ("200", True)
                elif isinstance(event, DataReceived) and event.data:
                    yield event.data
                is_over = isinstance(event, StreamEnded)
        finally:
            if not is_over:
                self._protocol.reset_stream(number)
                self._flush()

    async def _listen(self) -> None:
        while data := await self._reader.read(65_536):
            for event in self._protocol.receive_data(data):
                if isinstance(event, DataReceived):
                    self._protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if (number := getattr(event, "stream_id", None)) in self._events:
                    self._events[number].put_nowait(event)
            self._flush()

    def _flush(self) -> None:
        self._writer.write(self._protocol.data_to_send())

    async def close(self) -> None:
        self._listening.cancel()
        self._writer.close()
        await asyncio.wait([self._listening])


async def until(is_so: Callable[[], bool]) -> None:
    """Return as soon as it is so."""

    async def wait() -> None:
        while not is_so():  # noqa: ASYNC110 - whoever makes it so gives no signal
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), PATIENCE_S)
