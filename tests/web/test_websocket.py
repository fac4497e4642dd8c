"""WebSockets: what a connection costs, and each message that it receives."""

import asyncio
from typing import Any

import pytest

from tests.web.calls import Message, Reply, call, http_scope
from zae_limiter import Lease, Limit, RateLimiter
from zae_limiter.testing import Fault, FaultyBackend
from zae_limiter.web import RateLimitMiddleware, Rule, api_key

RPM, SEATS = Limit.per_minute("rpm", 10), Limit.concurrent("parallel", 2)
CONNECT: Message = {"type": "websocket.connect"}
BYE: Message = {"type": "websocket.disconnect", "code": 1000}


def text(said: str) -> Message:
    return {"type": "websocket.receive", "text": said}


async def echo(_scope: Message, receive: Any, send: Any) -> None:
    """Says everything again until the peer is gone, and one word more."""
    assert (await receive()) == CONNECT
    await send({"type": "websocket.accept", "headers": [(b"x-mine", b"1")]})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})
    assert message["type"] == "websocket.disconnect"
    assert await receive() == message or message == BYE
    await send({"type": "websocket.send", "text": "bye"})


def limited(limiter: RateLimiter, app: Any = echo, **more: Any) -> RateLimitMiddleware:
    given = {"cost": {"parallel": 1}, "limits": [RPM, SEATS], "entity": api_key(), **more}
    return RateLimitMiddleware(app, limiter=limiter, rules=[Rule("/ws", "chat", **given)])


async def connect(app: Any, *coming: Message, **more: Any) -> Reply:
    scope = {**http_scope("/ws", headers={"x-api-key": "key-1"}), "type": "websocket", **more}
    return await call(app, scope, [CONNECT, *coming])


async def left(limiter: RateLimiter) -> dict[str, int]:
    return await limiter.available("key-1", "chat", [RPM, SEATS])


async def test_a_connection(limiter: RateLimiter) -> None:
    """It is told how its limits stand when it is accepted, holds its seat, and gives it back at its end."""
    seen: list[dict[str, int]] = []

    async def app(scope: Message, receive: Any, send: Any) -> None:
        assert scope["state"]["lease"] is Lease.current()
        seen.append(await left(limiter))
        await echo(scope, receive, send)

    reply = await connect(limited(limiter, app), text("a"), BYE, BYE)
    accept = dict(reply.messages[0]["headers"])
    assert accept == {
        b"x-mine": b"1",
        b"ratelimit-policy": b'"rpm";q=10;w=60, "parallel";q=2;qu="concurrent-requests"',
        b"ratelimit": b'"rpm";r=10;t=60, "parallel";r=1',
    }
    assert [one.get("text") for one in reply.messages[1:]] == ["a", "bye"]
    assert (seen, await left(limiter)) == ([{"rpm": 10, "parallel": 1}], {"rpm": 10, "parallel": 2})


@pytest.mark.parametrize("extensions", [None, {"websocket.http.response": {}}])
async def test_a_refused_connection(limiter: RateLimiter, extensions: Any) -> None:
    """The very answer of a request where the server can send one, else a code that says try again later."""
    async with limiter.acquire("key-1", "chat", {"parallel": 2}, [RPM, SEATS]):
        reply = await connect(limited(limiter), extensions=extensions)
    if extensions:
        assert [one["type"] for one in reply.messages] == [
            *("websocket.http.response.start", "websocket.http.response.body")
        ]
        assert (reply.status, reply.problem["violated-policies"]) == (429, ["parallel"])
    else:
        assert reply.messages == [{"type": "websocket.close", "code": 1013, "reason": "retry after 1 s"}]


async def test_messages_cost(limiter: RateLimiter) -> None:
    """Each is taken before the application sees it; the first that does not fit closes the connection."""
    app = limited(limiter, messages=lambda _request, data: {"rpm": len(data)})
    reply = await connect(app, text("abcd"), text(""), text("efgh"), text("ijkl"), text("mnop"))
    assert [one.get("text") for one in reply.messages[1:-1]] == ["abcd", "", "efgh"]
    assert reply.messages[-1] == {"type": "websocket.close", "code": 1013, "reason": "retry after 12 s"}
    assert await left(limiter) == {"rpm": 2, "parallel": 2}


async def test_a_message_that_never_fits(limiter: RateLimiter) -> None:
    """Trying again is pointless, and the code says so."""
    reply = await connect(limited(limiter, messages=lambda *_: {"rpm": 11}), text("a"))
    assert reply.messages[-1] == {"type": "websocket.close", "code": 1008, "reason": "refused"}


async def test_bytes_and_coroutines(limiter: RateLimiter) -> None:
    """A callable may be a coroutine, and gets what was sent, text or bytes."""

    async def cost(request: Any, data: Any) -> dict[str, int]:
        assert (request.path, data) == ("/ws", b"\x00")
        return {"rpm": 3}

    async def app(_scope: Message, receive: Any, send: Any) -> None:
        for _ in range(3):
            await receive()
        await send({"type": "websocket.close"})

    await connect(limited(limiter, app, messages=cost), {"type": "websocket.receive", "bytes": b"\x00"}, BYE)
    assert (await left(limiter))["rpm"] == 7


async def test_a_store_that_is_down(limiter: RateLimiter, faulty: FaultyBackend) -> None:
    """A message goes by the policy, like a connection."""

    async def app(_scope: Message, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await receive()
        faulty.always = Fault.UNREACHABLE
        message = await receive()
        faulty.always = None
        assert message["type"] == ("websocket.receive" if policy == "allow" else "websocket.disconnect")

    for policy in ("allow", "block"):
        reply = await connect(limited(limiter, app, messages={"rpm": 1}, on_unavailable=policy), text("a"))
        codes = [one["code"] for one in reply.messages if one["type"] == "websocket.close"]
        assert codes == ([1013] if policy == "block" else [])


ENDS = {
    "raises at once": ([], ValueError("x"), 0),
    "raises later": ([{"type": "websocket.accept"}], ValueError("x"), 3),
    "says nothing": ([], None, 0),
    "rejects": ([{"type": "websocket.close", "code": 1000}], None, 3),
    "answers 5xx": ([{"type": "websocket.http.response.start", "status": 503, "headers": []}], None, 0),
    "is cancelled": ([{"type": "websocket.accept"}], asyncio.CancelledError(), 3),
}


@pytest.mark.parametrize("how", ENDS)
async def test_how_a_connection_ends(limiter: RateLimiter, how: str) -> None:
    """What failed before it was answered is given back."""
    messages, error, cost = ENDS[how]

    async def app(_scope: Message, _receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        if error is not None:
            raise error

    given = limited(limiter, app, cost={"rpm": 3})
    if error is None:
        await connect(given)
    else:
        with pytest.raises(type(error)):
            await connect(given)
    assert (await left(limiter))["rpm"] == 10 - cost


async def test_a_body_is_no_cost_of_a_connection(limiter: RateLimiter) -> None:
    """A WebSocket has none, so a rule that reads it is a mistake."""

    async def cost(request: Any) -> dict[str, int]:
        return {"rpm": len(await request.body())}

    with pytest.raises(RuntimeError, match="has no body"):
        await connect(limited(limiter, cost=cost))


async def test_long_connections_hold_nothing_for_their_messages(limiter: RateLimiter) -> None:
    """What a message cost is settled at once, so a connection does not grow."""
    app = limited(limiter, messages={"rpm": 1}, limits=[Limit.per_minute("rpm", 1_000), SEATS])
    held: list[int] = []

    async def watch(scope: Message, receive: Any, send: Any) -> None:
        await echo(scope, receive, send)
        held.append(len(scope["state"]["lease"]._later))

    app.app = watch
    await connect(app, *[text("a")] * 50, BYE, BYE)
    assert held == [1]
