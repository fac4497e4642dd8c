"""The limiter of a middleware, from the start of an application to its end."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.patience import PATIENCE_SECONDS, wait_until
from tests.web.calls import OK, Message, get, http_scope, limited
from zae_limiter import RateLimiter, RateLimiterUnavailable, SyncRateLimiter, ValidationError
from zae_limiter.web.held import HeldSyncLimiter


def lifespan_of(*, complete: bool = True) -> tuple[Callable[..., Any], list[str]]:
    said: list[str] = []

    async def app(scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await OK(scope, receive, send)
            return
        if not complete:
            raise AssertionError("no lifespan here")
        for kind in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{kind}"
            said.append(kind)
            await send({"type": f"lifespan.{kind}.complete"})

    return app, said


async def life(app: Callable[..., Any], during: Callable[[], Any] | None = None) -> list[Message]:
    """Start an application, do something, and let it end."""
    coming: asyncio.Queue[Message] = asyncio.Queue()
    sent: asyncio.Queue[Message] = asyncio.Queue()
    coming.put_nowait({"type": "lifespan.startup"})
    living = asyncio.ensure_future(app({"type": "lifespan", "state": {}}, coming.get, sent.put))
    said = [await sent.get()]
    if said[0]["type"] == "lifespan.startup.complete":
        if during is not None:
            await during()
        coming.put_nowait({"type": "lifespan.shutdown"})
        await living
        said.append(await sent.get())
    else:
        with pytest.raises(Exception):  # noqa: B017 - of whatever kind
            await living
    return said


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("how", ["opening", "callable", "coroutine", "block"])
async def test_a_limiter_is_opened_and_closed(how: str, complete: bool) -> None:
    """When the application starts and ends, whether or not it wants to hear of that."""
    opened: list[RateLimiter] = []

    async def made() -> RateLimiter:
        opened.append(await RateLimiter.open("memory://"))
        return opened[-1]

    @asynccontextmanager
    async def block() -> Any:
        limiter = await made()
        yield limiter
        await limiter.close()

    app, said = lifespan_of(complete=complete)
    sources = {
        "opening": RateLimiter.open("memory://"),
        "callable": lambda: RateLimiter.open("memory://"),
        "coroutine": made,
        "block": block,
    }
    middleware = limited(sources[how], app)

    async def during() -> None:
        assert (await get(middleware, "/v1/x")).left() == 90
        limiter = middleware._held.limiter
        assert limiter is not None
        opened[:] = [limiter]

    for _ in range(2):
        assert [one["type"] for one in await life(middleware, during)] == [
            *("lifespan.startup.complete", "lifespan.shutdown.complete")
        ]
        assert not await opened[0].is_available()
        assert middleware._held.limiter is None
    assert said == ["startup", "shutdown"] * 2 * complete


async def test_a_limiter_that_was_given_open(limiter: RateLimiter) -> None:
    """The start and the end are the application's own affair, and the limiter stays open."""
    app, said = lifespan_of()
    assert len(await life(limited(limiter, app))) == 2
    assert (said, await limiter.is_available()) == (["startup", "shutdown"], True)
    with pytest.raises(AssertionError, match="no lifespan here"):
        await limited(limiter, lifespan_of(complete=False)[0])({"type": "lifespan"}, None, None)  # type: ignore[arg-type]


async def test_a_limiter_that_does_not_open() -> None:
    """The server is told, and does not start."""
    middleware = limited(lambda: 1 / 0, lifespan_of()[0])
    (said,) = await life(middleware)
    assert (said["type"], "division" in said["message"]) == ("lifespan.startup.failed", True)


async def test_the_first_request_opens_a_limiter() -> None:
    """Where no server tells of the start, and only once; who waits for a try that fails shares its error."""
    count = 0

    async def made() -> RateLimiter:
        nonlocal count
        count += 1
        await asyncio.sleep(0)
        if count == 1:
            raise ConnectionError("the first try fails")
        return await RateLimiter.open("memory://")

    middleware = limited(made)
    for kind in ("ConnectionError", "Reply"):
        found = await asyncio.gather(*(get(middleware, "/v1/x") for _ in range(5)), return_exceptions=True)
        assert [type(one).__name__ for one in found] == [kind] * 5
    assert count == 2
    await middleware._held.close()


async def test_an_opening_that_is_cancelled() -> None:
    """Whoever waits for it tries again."""
    begun = asyncio.Event()
    count = 0

    async def made() -> RateLimiter:
        nonlocal count
        count += 1
        if count == 1:
            begun.set()
            await asyncio.Event().wait()
        return await RateLimiter.open("memory://")

    middleware = limited(made)
    first, second = (asyncio.ensure_future(get(middleware, "/v1/x")) for _ in range(2))
    await begun.wait()
    first.cancel()
    assert ((await second).status, count) == (200, 2)
    await middleware._held.close()


def test_threads_share_an_opening_that_fails() -> None:
    """Those who wait for it do not try it one after the other."""
    count, waiting = 0, threading.Barrier(4)

    def made() -> SyncRateLimiter:
        nonlocal count
        count += 1
        wait_until(lambda: held._waiting == 3)
        raise ConnectionError("it fails")

    held = HeldSyncLimiter(made)
    errors: list[Exception] = []

    def ask() -> None:
        waiting.wait(PATIENCE_SECONDS)
        try:
            held.open()
        except ConnectionError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert (len(errors), count) == (4, 1)


def unavailable() -> Any:
    raise RateLimiterUnavailable("the store is down")


@pytest.mark.parametrize(("policy", "status"), [(None, 503), ("block", 503), ("allow", 200)])
async def test_a_store_that_is_down_at_the_first_request(policy: str | None, status: int) -> None:
    """The rule decides, as it does later; a connection is refused or let through as well."""
    app = limited(unavailable, on_unavailable=policy)
    assert (await get(app, "/v1/x")).status == status
    said: list[Message] = []

    async def socket(_scope: Message, _receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        said.append(message)

    await limited(unavailable, socket, on_unavailable=policy)(
        {**http_scope("/v1/x"), "type": "websocket"}, receive, send
    )
    assert [one["type"] for one in said] == ["websocket.accept" if status == 200 else "websocket.close"]


async def test_a_start_that_fails() -> None:
    """Of an application that had heard of it: that is for the server to judge, as without the middleware."""

    async def app(_scope: Message, receive: Any, _send: Any) -> None:
        await receive()
        raise RuntimeError("the database is not there")

    said: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        said.append(message)

    middleware = limited(lambda: RateLimiter.open("memory://"), app)
    with pytest.raises(RuntimeError, match="the database"):
        await middleware({"type": "lifespan"}, receive, send)
    assert (said, middleware._held.limiter) == ([], None)


async def test_wrong_limiters_are_told(sync_limiter: SyncRateLimiter) -> None:
    """One that would block the loop, and one that is none."""
    with pytest.raises(ValidationError, match="block the event loop"):
        limited(sync_limiter)
    with pytest.raises(ValidationError, match="pass a RateLimiter"):
        limited("memory://")
    with pytest.raises(ValidationError, match="pass a RateLimiter"):
        await get(limited(lambda: "memory://"), "/v1/x")
