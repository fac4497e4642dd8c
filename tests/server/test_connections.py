"""HTTP over real sockets with TLS: whom it answers, and a client whose body does not come."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.engines.certificates import Authority
from tests.patience import PATIENCE_SECONDS, wait_beside
from tests.server.asking import SECRET, config
from tests.server.serving import serving
from zae_limiter import Limit
from zae_limiter.server import connections, sessions
from zae_limiter.server.config import REQUEST_SECONDS_MAX
from zae_limiter.server.run import server_of
from zae_limiter.server.sessions import BEGINNING_MAX
from zae_limiter.server.state import ServerState

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


def certified(folder: Path) -> tuple[dict[str, object], ssl.SSLContext]:
    """What a worker needs to speak TLS, and whom to trust."""
    authority = Authority(folder)
    certificate, key = authority.certify("server", "IP:127.0.0.1")
    trust = ssl.create_default_context(cafile=str(authority.file))
    return {"tls_cert": certificate, "tls_key": key}, trust


@asynccontextmanager
async def listening(
    states: list[ServerState] | None = None, **more: object
) -> AsyncIterator[tuple[str, int]]:
    """A worker in this event loop, on a real socket; what its requests use goes into a list."""
    bound, started = socket.create_server(("127.0.0.1", 0)), list[object]()
    server = server_of(config(**more), started.append)
    running = asyncio.create_task(server.serve([bound]))
    await wait_beside(lambda: bool(started))
    if states is not None:
        states.append(server.config.app.state.server)  # type: ignore[union-attr]
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
        certificate, trust = certified(tmp_path)
        more |= certificate
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


async def test_who_does_not_finish_a_handshake_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any other connection: there are so many and no more, and whoever comes then is sent away at once."""
    monkeypatch.setattr(connections, "connections_max", lambda: 3)
    certificate, _ = certified(tmp_path)
    async with listening(**certificate) as address, asyncio.timeout(30):  # by itself each has a minute
        silent = [await asyncio.open_connection(*address) for _ in range(3)]
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.read() == b""
        for one in (writer, *(one for _, one in silent)):
            one.close()


async def test_who_does_not_finish_a_handshake_has_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for the head of a request."""
    monkeypatch.setattr(connections, "HEAD_SECONDS_MAX", 0.1)
    certificate, _ = certified(tmp_path)
    async with listening(**certificate) as address, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"\x16\x03\x01")
        assert await reader.read() == b""
        writer.close()


async def test_who_asks_for_nothing_delays_no_end(tmp_path: Path) -> None:
    """Neither before TLS is agreed on nor after it, and though it never says that it has heard of the end."""
    certificate, trust = certified(tmp_path)
    async with AsyncExitStack() as running:
        address = await running.enter_async_context(
            listening(**certificate, shutdown_seconds=REQUEST_SECONDS_MAX)
        )
        silent, deaf = socket.create_connection(address), socket.create_connection(address)
        deaf = await asyncio.to_thread(trust.wrap_socket, deaf, server_hostname="127.0.0.1")
        async with asyncio.timeout(25):  # by itself TLS is waited for half a minute
            await running.aclose()
        silent.close()
        deaf.close()


async def test_who_leaves_while_it_waits_gives_up_its_turn() -> None:
    """A request over a connection that is gone takes nothing, and nobody waits behind it."""
    limits = {"rpm": {"capacity": 1, "refill_amount": 1, "refill_period": 60}}
    said = {"entity": "key-1", "resource": "r", "consume": {"rpm": 1}, "limits": limits}
    head = ACQUIRE + b"Authorization: Bearer " + SECRET.encode()
    started = list[ServerState]()
    longer = {"wait_seconds_max": 500.0, "request_seconds_max": 600.0}
    async with listening(started, **longer) as address, asyncio.timeout(PATIENCE_SECONDS):
        limiter = started[0].limiter
        await (await limiter.acquire("key-1", "r", {"rpm": 1}, [Limit.per_minute("rpm", 1)])).commit()
        body = json.dumps({**said, "wait": 500}).encode()
        _, writer = await asyncio.open_connection(*address)
        writer.write(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

        async def left() -> int:
            return (await limiter.available("key-1", "r", [Limit.per_minute("rpm", 1)]))["rpm"]

        while await left() != -1:  # noqa: ASYNC110 - its turn is booked
            await asyncio.sleep(0.01)
        writer.close()
        while await left() != 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_who_may_not_ask_keeps_nobody_from_it() -> None:
    """Anybody may send a token, but not take all the places of that, or of requests, by being slow."""
    async with (
        listening(ui=True, concurrent_max=BEGINNING_MAX + 2) as (host, port),
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        slow = [await asyncio.open_connection(host, port) for _ in range(2 * BEGINNING_MAX)]
        for _, writer in slow:
            writer.write(b"POST /ui/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n")
        done, left = await asyncio.wait(
            [asyncio.create_task(reader.readline()) for reader, _ in slow], return_when=FIRST_COMPLETED
        )
        while len(done) < BEGINNING_MAX:
            more, left = await asyncio.wait(left, return_when=FIRST_COMPLETED)
            done |= more
        assert {one.result()[:13] for one in done} <= {b"HTTP/1.1 408 ", b"HTTP/1.1 503 "}
        async with httpx.AsyncClient(timeout=None) as http:
            assert (await http.get(f"http://{host}:{port}/healthz")).status_code == 200
            begun = await http.post(f"http://{host}:{port}/ui/session", json={"token": SECRET})
            assert begun.status_code == 200
        for _, writer in slow:
            writer.close()
        await asyncio.wait(left)


async def test_a_token_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has less time than a request."""
    assert config().request_seconds_max > sessions.TOKEN_SECONDS_MAX
    monkeypatch.setattr(sessions, "TOKEN_SECONDS_MAX", 0.01)
    async with listening(ui=True) as address, asyncio.timeout(20):  # so long it would be waited for
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /ui/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        assert (await reader.readline())[:13] == b"HTTP/1.1 408 "
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"{",
        b"GET /healthz HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ],
)
async def test_what_clients_do_fills_no_log(
    sent: bytes, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever leaves in the middle of a body or sends what is no request, as often as it likes."""
    async with listening() as address, asyncio.timeout(PATIENCE_SECONDS):
        _, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        async with httpx.AsyncClient(timeout=None) as http:
            assert (await http.get(f"http://{address[0]}:{address[1]}/healthz")).status_code == 200
    assert [one for one in caplog.records if one.levelname in ("WARNING", "ERROR")] == []
    assert capfd.readouterr().err == ""


async def test_a_length_that_no_body_has_is_refused_at_once() -> None:
    """Nobody waits for a body of ten trillion gigabytes."""
    async with listening() as address, asyncio.timeout(20):  # so long it would be waited for
        reader, writer = await asyncio.open_connection(*address)
        writer.write(HEAD.replace(b": 100", b": 99999999999999999999"))
        assert (await reader.readline())[:13] == b"HTTP/1.1 413 "
        writer.close()
