"""A request that waits its turn, and a client that does not: it gives up its place in line."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette

from tests.web.calls import OK, Message, Reply, get, http_scope, limited
from tests.web.servers import PATIENCE_S, SERVERS, serving, until
from zae_limiter import Limit, RateLimiter
from zae_limiter.web.request import AHEAD_BYTES_MAX, ClientLeft, Request

ONE = Limit("rpm", 1, 1, 3_600)
RULE: dict[str, Any] = {"cost": {"rpm": 1}, "limits": [ONE], "wait": 86_400.0}
LEAVES = {"type": "http.disconnect"}


class Client:
    """Sends messages when it is told to, and keeps what it gets."""

    def __init__(self, app: Callable[..., Any], *messages: Message) -> None:
        self.coming: asyncio.Queue[Message] = asyncio.Queue()
        self.reply, self.asked = Reply(), 0
        for message in messages:
            self.say(message)
        scope = http_scope("/v1/a", headers={"x-api-key": "key-1"})
        self.request = asyncio.ensure_future(app(scope, self.receive, self.send))

    def say(self, message: Message) -> None:
        self.coming.put_nowait(message)

    async def receive(self) -> Message:
        self.asked += 1
        return await self.coming.get()

    async def send(self, message: Message) -> None:
        self.reply.messages.append(message)

    async def over(self) -> None:
        await asyncio.wait_for(self.request, PATIENCE_S)


def chunk(body: bytes = b"", more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def left(limiter: RateLimiter) -> int:
    return (await limiter.available("key-1", "api", [ONE]))["rpm"]


async def waits(limiter: RateLimiter, many: int) -> None:
    """Until so many stand in line."""
    for _ in range(PATIENCE_S * 100):
        if await left(limiter) == -many:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody stands in line")


@pytest.mark.parametrize("sent", [(), (chunk(b"x", more=True),), (chunk(b"x"),)], ids=["no", "half", "whole"])
async def test_who_leaves_gives_up_its_place(sent: tuple[Message, ...]) -> None:
    """Whatever of the body was sent: nothing is charged, and the application is not called."""

    async def never(*_: Any) -> None:
        raise AssertionError("it is called for nobody")

    async with RateLimiter.open("memory://") as limiter:
        assert (await get(limited(limiter, **RULE), "/v1/a")).status == 200
        client = Client(limited(limiter, never, **RULE), *sent)
        await waits(limiter, 1)
        client.say(LEAVES)
        await client.over()
        assert (await left(limiter), client.reply.messages) == (0, [])


async def test_what_was_sent_meanwhile_is_for_the_application() -> None:
    """The body in its order, and then that the client has left, as often as it asks."""
    soon, heard = Limit("rpm", 1, 1, 1), list[Message]()

    async def app(scope: Message, receive: Any, send: Any) -> None:
        heard.extend([await receive(), await receive()])
        client.say(LEAVES)
        heard.extend([await receive(), await receive()])
        await OK(scope, receive, send)

    async with RateLimiter.open("memory://") as limiter:
        await (await limiter.acquire("key-1", "api", {"rpm": 1}, [soon])).commit()
        rule = {**RULE, "limits": [soon]}
        client = Client(limited(limiter, app, **rule), chunk(b"1", more=True), chunk(b"2"))
        await client.over()
    assert heard == [chunk(b"1", more=True), chunk(b"2"), LEAVES, LEAVES]
    assert client.reply.status == 200


async def test_who_is_cancelled_gives_up_its_place() -> None:
    """As servers do that end; whoever listened is gone as well."""
    async with RateLimiter.open("memory://") as limiter:
        await get(limited(limiter, **RULE), "/v1/a")
        client = Client(limited(limiter, **RULE))
        await waits(limiter, 1)
        client.request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client.over()
        await waits(limiter, 0)
        assert asyncio.all_tasks() == {asyncio.current_task()}


class Body:
    """A client that sends all there is to send, and then nothing."""

    def __init__(self, *messages: Message) -> None:
        self.messages, self.asked = list(messages), 0

    async def receive(self) -> Message:
        self.asked += 1
        if self.messages:
            await asyncio.sleep(0)
            return self.messages.pop(0)
        await asyncio.Event().wait()
        raise AssertionError("nobody gives this signal")


async def nothing(_: object) -> None:
    """There is nothing to undo."""


async def test_a_large_body_is_not_taken_in_as_a_whole() -> None:
    """Beyond a bound nobody listens, and the application gets all of it in its order."""
    half = AHEAD_BYTES_MAX // 2
    parts = [bytes([number]) * half for number in range(4)]
    body = Body(*(chunk(part, more=True) for part in parts))
    request = Request(http_scope("/"), body.receive)
    gate = asyncio.Event()

    async def work() -> str:
        await gate.wait()
        return "done"

    working = asyncio.ensure_future(request.unless_left(work(), nothing))
    await until(lambda: body.asked == 2)
    for _ in range(10):
        await asyncio.sleep(0)
    assert body.asked == 2
    gate.set()
    assert await working == "done"
    assert [(await request.receive())["body"] for _ in parts] == parts
    request.close()


async def test_whoever_stops_asking_loses_nothing() -> None:
    """An application that gives up on a message, for a timeout as an example, gets it when it asks again."""
    body = Body(chunk(b"all"))
    request = Request(http_scope("/"), body.receive)

    async def work() -> str:
        await until(lambda: body.asked == 2)
        return "done"

    assert await request.unless_left(work(), nothing) == "done"
    assert (await request.receive())["body"] == b"all"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(request.receive(), 0.01)
    asking = asyncio.ensure_future(request.receive())
    await asyncio.sleep(0)
    request.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert body.asked == 2


async def test_a_client_that_has_left_is_not_waited_for_again() -> None:
    """A second wait of the same request ends at once, and what it took is given back."""
    request = Request(http_scope("/"), Body(LEAVES).receive)
    undone: list[str] = []

    async def undo(found: str) -> None:
        undone.append(found)

    for _ in range(2):
        with pytest.raises(ClientLeft):
            await request.unless_left(asyncio.sleep(PATIENCE_S, "late"), undo)
    assert (await request.receive())["type"] == (await request.receive())["type"] == "http.disconnect"
    assert undone == []


async def test_what_was_taken_for_somebody_who_is_cancelled_just_then_is_undone() -> None:
    """The work was done in the very step in which its request was cancelled."""
    request = Request(http_scope("/"), Body().receive)
    undone = asyncio.Event()

    async def work() -> str:
        working.cancel()
        return "taken"

    async def undo(found: str) -> None:
        assert found == "taken"
        undone.set()

    working = asyncio.ensure_future(request.unless_left(work(), undo))
    with pytest.raises(asyncio.CancelledError):
        await working
    await asyncio.wait_for(undone.wait(), PATIENCE_S)
    request.close()


async def test_a_client_that_cannot_be_heard_is_waited_for() -> None:
    """What goes wrong with listening is the application's to see."""

    async def receive() -> Message:
        raise OSError("broken")

    request = Request(http_scope("/"), receive)

    async def work() -> str:
        await asyncio.sleep(0.01)
        return "done"

    assert await request.unless_left(work(), nothing) == "done"
    with pytest.raises(OSError, match="broken"):
        await request.receive()


@pytest.mark.parametrize("kind", [kind for kind in SERVERS if not kind.endswith("h2")])
async def test_on_real_servers(kind: str) -> None:
    """A connection that is closed while its request waits: the place in line is given back at once."""
    served: list[str] = []

    async def served_to(scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            served.append(scope["path"])
        await Starlette()(scope, receive, send)

    async with RateLimiter.open("memory://") as limiter:
        await (await limiter.acquire("key-1", "api", {"rpm": 1}, [ONE])).commit()
        async with serving(kind, limited(limiter, served_to, **RULE)) as url:
            _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(b"GET /v1/a HTTP/1.1\r\nHost: x\r\nx-api-key: key-1\r\n\r\n")
            await writer.drain()
            await waits(limiter, 1)
            writer.close()
            await waits(limiter, 0)
    assert served == []
