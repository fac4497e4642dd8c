"""What holds for every request: its size, its number, its time, and where it comes from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.server.asking import SECRET, asking, config
from zae_limiter.server.guard import Guard, is_foreign
from zae_limiter.server.problems import problem
from zae_limiter.server.state import ServerState
from zae_limiter.web.request import ASGIApp, Receive, Scope, Send

HOSTS = [
    (b"127.0.0.1:8400", False),
    (b"127.0.0.1", False),
    (b"localhost:8400", False),
    (b"[::1]:8400", False),
    (b"[::1]", False),
    (b"evil.example:8400", True),
    (b"evil.example", True),
    (b"127.0.0.1.evil.example:8400", True),
    (b"10.0.0.1", True),
    (b"", True),
]


@pytest.mark.parametrize(("host", "foreign"), HOSTS)
def test_names_of_this_machine(host: bytes, foreign: bool) -> None:
    """A name that leads here is not one of ours, whatever it looks like."""
    assert is_foreign([(b"host", host)]) is foreign


async def test_pages_of_others_are_not_answered_without_tokens() -> None:
    """Where no token is needed, neither a rebound name nor a page of another site gets an answer."""
    async with asking(tokens=(), insecure_no_tokens=True) as server:
        url, said = "/v1/available", {"entity": "a", "resource": "gpt-4"}
        assert (await server.http.get(url, params=said)).status_code == 200
        for headers in (
            {"Host": "evil.example:8400"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:3000"},
        ):
            assert (await server.http.get(url, params=said, headers=headers)).status_code == 403, headers
        host = server.http.base_url.netloc.decode()
        for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": f"http://{host}"}):
            assert (await server.http.get(url, params=said, headers=headers)).status_code == 200, headers
    async with asking() as server:
        headers = {"Host": "limits.example", "Authorization": f"Bearer {SECRET}"}
        assert (await server.http.get(url, params=said, headers=headers)).status_code == 200


async def test_bodies_that_are_too_large() -> None:
    """What is announced and what comes in pieces without a length are both refused at the limit."""
    async with asking(body_bytes_max=1024) as server:
        headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json"}

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield b" " * 100

        for body in (b" " * 1025, pieces()):
            answer = await server.http.post("/v1/acquire", content=body, headers=headers)
            assert (answer.status_code, answer.json()["status"]) == (413, 413)
        assert (await server.acquire()).status_code == 200


async def test_heads_that_are_too_large() -> None:
    """A head that came at once is measured, with its path and its query."""
    async with asking(header_bytes_max=2048) as server:
        for url, headers in (("/healthz", {"X": "a" * 2048}), (f"/healthz?{'a' * 2048}", {})):
            assert (await server.http.get(url, headers=headers)).status_code == 431
        assert (await server.http.get("/healthz", headers={"X": "a" * 1024})).status_code == 200


def around(app: ASGIApp, **more: float) -> httpx.AsyncClient:
    """A client of an application behind a guard."""
    guarded = Guard(app, ServerState(config(**more)))
    return httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://127.0.0.1")


async def test_one_request_too_many() -> None:
    """It is told so at once, and the place is free again when another one is done."""
    gate, begun = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await gate.wait()
        await problem(404, "done")(scope, receive, send)

    async with around(slow, concurrent_max=1, request_seconds_max=600) as http:
        first = asyncio.create_task(http.get("/"))
        await begun.wait()
        second = await http.get("/")
        assert (second.status_code, second.headers["retry-after"]) == (503, "1")
        alive = asyncio.create_task(http.get("/healthz"))  # or whoever asks would end it for being busy
        gate.set()
        assert (await alive).status_code == 404
        assert (await first).status_code == (await http.get("/")).status_code == 404


@pytest.mark.parametrize("how", ["answered", "failed", "given up"])
async def test_an_answer_that_nobody_reads(how: str) -> None:
    """It takes no place from those who ask something, however it came about."""
    unread = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/unread" and how == "failed":
            raise RuntimeError("a mistake of ours")
        if scope["path"] == "/unread" and how == "given up":
            await asyncio.Event().wait()
        await problem(404, "done")(scope, receive, send)

    async def not_read(message: object) -> None:
        del message
        unread.set()
        await asyncio.Event().wait()

    async def nothing() -> dict[str, object]:
        return {"type": "http.request", "body": b""}

    seconds = {"request_seconds_max": 0.02, "wait_seconds_max": 0.01}
    guard = Guard(app, ServerState(config(concurrent_max=1, **seconds)))
    scope = {"type": "http", "method": "GET", "path": "/unread", "headers": []}
    held = asyncio.create_task(guard(scope, nothing, not_read))
    await unread.wait()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1") as http:
        assert (await http.get("/")).status_code == 404
    held.cancel()


async def test_a_request_that_takes_too_long() -> None:
    """It is given up, and what it was doing is cancelled; an answer that has begun is not."""
    ended = list[str]()

    async def stuck(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await asyncio.sleep(0.1)
            await send({"type": "http.response.body", "body": b"all of it"})
            return
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async with around(stuck, request_seconds_max=0.02, wait_seconds_max=0.01) as http:
        assert (await http.get("/")).status_code == 503
        assert ended == ["cancelled"]
        assert (await http.get("/stream")).text == "all of it"


async def test_what_goes_wrong_within_is_not_told() -> None:
    """A mistake of ours is 500 without a word of what it was."""

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError(f"secret {scope} {receive} {send}")

    async with around(broken) as http:
        answer = await http.get("/")
    assert answer.status_code == 500
    assert "secret" not in answer.text
