"""HTTP over real sockets with TLS: whom it answers, and a client whose body does not come."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.engines.certificates import Authority
from tests.patience import PATIENCE_SECONDS, wait_beside
from tests.server.asking import SECRET, config
from tests.server.serving import serving
from zae_limiter.server.run import server_of

ACQUIRE = b"POST /v1/acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
HEAD = ACQUIRE + b"Authorization: Bearer " + SECRET.encode() + b"\r\nContent-Length: 100\r\n\r\n"


def test_it_speaks_tls(tmp_path: Path) -> None:
    """To whoever trusts its certificate, and to nobody in plain text."""
    authority = Authority(tmp_path)
    certificate, key = authority.certify("server", "IP:127.0.0.1")
    words = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with serving(f"sqlite:///{tmp_path}/l.db", *words) as server:
        assert server.url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(authority.file))
        with httpx.Client(verify=trust, timeout=PATIENCE_SECONDS) as http:
            said = {"entity": "e", "resource": "r", "consume": {"rpm": 1}}
            said["limits"] = {"rpm": {"capacity": 2, "refill_amount": 1, "refill_period": 3600}}
            answers = [
                http.post(f"{server.url}/v1/acquire", json=said, headers=server.headers) for _ in "abc"
            ]
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert http.get(f"{server.url}/readyz").status_code == 200
        with pytest.raises(httpx.TransportError, match=r"(?i)certificate"):
            httpx.get(f"{server.url}/readyz", timeout=PATIENCE_SECONDS)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/readyz", timeout=PATIENCE_SECONDS)


@asynccontextmanager
async def listening(**more: object) -> AsyncIterator[tuple[str, int]]:
    """A worker in this event loop, on a real socket."""
    bound, started = socket.create_server(("127.0.0.1", 0)), list[object]()
    server = server_of(config(**more), started.append)
    running = asyncio.create_task(server.serve([bound]))
    await wait_beside(lambda: bool(started))
    yield bound.getsockname()
    server.should_exit = True
    await running
    bound.close()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_body_that_does_not_come(is_tls: bool, tmp_path: Path) -> None:
    """The request is given up and the connection closed; others are answered meanwhile."""
    more: dict[str, object] = {"request_seconds_max": 0.5, "wait_seconds_max": 0.1}
    trust = None
    if is_tls:
        authority = Authority(tmp_path)
        more["tls_cert"], more["tls_key"] = authority.certify("server", "IP:127.0.0.1")
        trust = ssl.create_default_context(cafile=str(authority.file))
    async with listening(**more) as (host, port), asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await asyncio.open_connection(host, port, ssl=trust)
        writer.write(HEAD)
        for _ in range(10):  # a byte now and then is not enough
            writer.write(b"{")
            await asyncio.sleep(0.01)
        scheme = "https" if is_tls else "http"
        async with httpx.AsyncClient(verify=trust or False, timeout=None) as http:
            assert (await http.get(f"{scheme}://{host}:{port}/healthz")).status_code == 200
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 "), answer
        writer.close()
