"""What a lone acquire costs beside a bare request, in CPU of this process: sync, async, with TLS, without.

``make bench CASES=lone``. DynamoDB Local speaks no TLS, so a proxy in a process of its own does, with a
certificate made for the run. All cases take turns in short windows, of which some in a row are a round. The
least of a round counts: whatever else a machine does only adds to a window.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.backends.dynamodb import open_backend

from . import engine
from .cases import BARE, TLS
from .floors import BareBench, Requests

WINDOWS_OF_ROUND, ACQUIRES, WARM_UP = 10, 20, 5
URL = "dynamodb://bench-lone?region=eu-west-1&timeout_ms=60000&endpoint_url="
NEEDS, LIMITS = {"rpm": 1}, [Limit.per_minute("rpm", 10**9)]

Step = Callable[[], Awaitable[object]]


def certificate(folder: Path) -> Path:
    """A key and a certificate of its own making for the loopback, in one file."""
    file = folder / "loopback.pem"
    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    made = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    written = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    subprocess.run(["openssl", "req", *made, *written, *subject], check=True, capture_output=True)
    file.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return file


def proxy(file: Path, engine_url: str, told: Connection) -> None:
    """Speak TLS, and pass on what is in it."""
    behind = urlsplit(engine_url)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve() -> None:
        async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection(behind.hostname, behind.port)
            await asyncio.gather(carry(reader, back), carry(there, writer), return_exceptions=True)

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        server = await asyncio.start_server(joined, "127.0.0.1", 0, ssl=context)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def in_tls(engine_url: str) -> Iterator[str]:
    """The address of a proxy with TLS before an engine; from now on its certificate is trusted."""
    with tempfile.TemporaryDirectory() as folder:
        file = certificate(Path(folder))
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=proxy, args=(file, engine_url, theirs), daemon=True
        )
        process.start()
        os.environ["AWS_CA_BUNDLE"] = str(Path(folder, "cert.pem"))
        try:
            yield f"https://127.0.0.1:{ours.recv()}"
        finally:
            process.terminate()
            process.join()


class Bare(BareBench):
    """The bare request, which may go through TLS."""

    def __init__(self, endpoint: str, url: str) -> None:
        super().__init__(endpoint)
        if url.startswith("https"):
            self._requests.close()
            requests, context = Requests(url.replace("https", "http")), ssl.create_default_context()
            context.load_verify_locations(os.environ["AWS_CA_BUNDLE"])
            requests._socket = context.wrap_socket(requests._socket, server_hostname="127.0.0.1")
            self._requests = requests

    async def step(self) -> None:
        self._requests.send("UpdateItem", self._update)


def steps_of(url: str, limiter: RateLimiter, stack: ExitStack) -> dict[str, Step]:
    """One acquire of each colour."""
    sync = stack.enter_context(SyncRateLimiter.open(url))

    async def async_step() -> None:
        async with limiter.acquire("async", "api", NEEDS):
            pass

    async def sync_step() -> None:
        with sync.acquire("sync", "api", NEEDS):
            pass

    return {"sync": sync_step, "async": async_step}


async def measure(endpoints: dict[str, str], plain: str, windows: int) -> dict[str, list[float]]:
    """Microseconds for each step, by case; a window of each in turn."""
    spent: dict[str, list[float]] = {}
    with ExitStack() as stack:
        steps: dict[str, Step] = {}
        for kind, endpoint in endpoints.items():
            bare = Bare(plain, endpoint)
            stack.callback(bare.close)
            if kind == next(iter(endpoints)):
                bare.found()
            limiter = await RateLimiter.open(URL + endpoint)._open()
            await limiter.set_system_defaults(LIMITS)
            named = {BARE: bare.step, **steps_of(URL + endpoint, limiter, stack)}
            steps |= {f"{name}{kind}": step for name, step in named.items()}
        for _ in range(windows):
            for name, step in steps.items():
                for _ in range(WARM_UP):
                    await step()
                began = time.process_time()
                for _ in range(ACQUIRES):
                    await step()
                spent.setdefault(name, []).append((time.process_time() - began) / ACQUIRES * 1e6)
    return spent


async def make_table(endpoint: str) -> None:
    backend = open_backend(URL + endpoint)
    await backend.create_table()
    await backend.close()


def rounds_of(windows: list[float]) -> list[float]:
    """The least of each round."""
    starts = range(0, len(windows), WINDOWS_OF_ROUND)
    return [round(min(windows[start : start + WINDOWS_OF_ROUND]), 1) for start in starts]


def main(windows: str) -> None:
    with engine.running() as plain, in_tls(plain) as secured:
        asyncio.run(make_table(plain))
        spent = asyncio.run(measure({"": plain, TLS: secured}, plain, int(windows)))
    print(json.dumps({name: rounds_of(each) for name, each in spent.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
