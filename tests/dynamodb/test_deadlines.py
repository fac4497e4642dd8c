"""A deadline is a deadline, however an answer arrives and however slowly a request is taken.

Time is the test's own: it passes by a millisecond whenever somebody looks at it, and with it comes another
piece; or it passes with each turn of the event loop. So nothing depends on how fast the machine is.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.dynamodb.peer import Peer
from tests.dynamodb.scripted import Script
from tests.dynamodb.tables import session
from tests.flow.test_cancellation import TurnLoop
from tests.stores import drive
from zae_limiter.backends.dynamodb import open_driver
from zae_limiter.backends.dynamodb.boto import Access
from zae_limiter.backends.dynamodb.http.blocking import BlockingNetwork
from zae_limiter.backends.dynamodb.http.endpoint import Target
from zae_limiter.backends.dynamodb.http.loop import LoopNetwork
from zae_limiter.backends.dynamodb.transport import NoReply, ServiceError
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Key, Update
from zae_limiter.runtime.colour import run_sync

UNTIL_MS = 500
SLACK_MS = 30
GIVEN_UP_MS = 20_000
ENDLESS = 100_000

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
TRICKLES = {
    "head": (OK + b"X: ", b"y"),
    "body": (OK + b"Content-Length: 50000000\r\n\r\n", b"y"),
    "chunk": (CHUNKED + b"fffff0\r\n", b"y"),
    "chunks": (CHUNKED, b"1\r\ny\r\n"),
    "chunk line": (CHUNKED + b"1;", b"y"),
    "trailer": (CHUNKED + b"0\r\nx:", b"y"),
}


@contextmanager
def serving(talk: Callable[[socket.socket], None]) -> Iterator[Target]:
    """A server that talks to whoever comes first until that hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection, suppress(OSError):
                talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Target("127.0.0.1", listener.getsockname()[1], "x", "eu-west-1", "x", None, 1, False)
        thread.join()


class Permits:
    """One for each thing that the other side may do."""

    def __init__(self) -> None:
        self._given, self._all = threading.Semaphore(0), False

    def give(self) -> None:
        self._given.release()

    def give_all(self) -> None:
        self._all = True
        self.give()

    def take(self) -> bool:
        return self._all or self._given.acquire()


class Looks:
    """A clock that moves when it is looked at, and lets the other side do one thing more."""

    def __init__(self, permits: Permits) -> None:
        self.now_ms = 0.0
        self._permits = permits

    def __call__(self) -> float:
        self.now_ms += 1
        assert self.now_ms < GIVEN_UP_MS, "it never gives up"
        self._permits.give()
        return self.now_ms


def exchange_sync(target: Target, request: bytes, permits: Permits) -> float:
    """When a call was given up."""
    looks = Looks(permits)
    wire = BlockingNetwork(looks)
    connection = run_sync(wire.connect(target, 10_000, 20))
    looks.now_ms = 0
    try:
        with pytest.raises(NoReply, match="in time"):
            run_sync(connection.exchange(request, UNTIL_MS))
    finally:
        connection.close()
        permits.give_all()
        run_sync(wire.abandon(None))
    return looks.now_ms


def exchange_async(target: Target, request: bytes, permits: Permits) -> float:
    permits.give_all()

    def ticks_ms() -> float:
        return asyncio.get_running_loop().time() * 1000

    async def scenario() -> float:
        connection: Any = await LoopNetwork(ticks_ms).connect(target, 100_000, 100)
        since_ms = ticks_ms()
        try:
            with pytest.raises(NoReply, match=r"in time|is longer than|more than"):
                await connection.exchange(request, since_ms + UNTIL_MS)
            return ticks_ms() - since_ms
        finally:
            connection.close()
            await connection.closed()

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        return runner.run(scenario())


BOTH = pytest.mark.parametrize("exchange", [exchange_async, exchange_sync], ids=["async", "sync"])
Exchange = Callable[[Target, bytes, Permits], float]


@BOTH
@pytest.mark.parametrize(("begin", "drop"), TRICKLES.values(), ids=TRICKLES)
def test_an_answer_that_trickles_for_ever(exchange: Exchange, begin: bytes, drop: bytes) -> None:
    """Each piece arrives in time, but the time is for all of them."""
    permits = Permits()

    def talk(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(begin)
        while permits.take():
            connection.sendall(drop)

    with serving(talk) as target:
        assert exchange(target, b"request", permits) <= UNTIL_MS + SLACK_MS


def test_a_request_that_is_taken_in_sips() -> None:
    """The same for what is sent."""
    permits = Permits()

    def talk(connection: socket.socket) -> None:
        while permits.take() and connection.recv(65_536):
            pass

    with serving(talk) as target:
        assert exchange_sync(target, b"x" * 100_000_000, permits) <= UNTIL_MS + SLACK_MS


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_an_answer_that_trickles_into_the_driver(sync: bool) -> None:
    """It knows timeouts for pieces only, so we look after the whole."""
    over = threading.Event()

    class Drop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002
            return over.wait(0.001)

    async def scenario(peer: Peer) -> None:
        access = Access("eu-west-1", peer.url, timeout_ms=20_000, session=session(sync))
        transport = open_driver(access, sync=sync)
        await transport.call("DescribeTable", {"TableName": "table"}, 20_000)
        peer.otherwise = [OK + b"Content-Length: %d\r\n\r\n" % ENDLESS, *[Drop(), b" "] * ENDLESS]
        with pytest.raises(NoReply, match="no answer within") as raised:
            await transport.call("DescribeTable", {"TableName": "table"}, 300)
        assert raised.value.ambiguous
        over.set()
        await transport.close()

    with Peer().running() as peer:
        drive(sync, scenario(peer))


A = Key("a", "s")


def test_writes_to_one_item_share_the_deadline() -> None:
    """They are one call, and what has no time left is not sent; that is known."""
    image = {"Attributes": {"PK": {"S": "a"}, "SK": {"S": "s"}, "n": {"N": "1"}}}
    script = Script(image, call_ms=400)
    outcomes = run_sync(script.backend(1000).write_each([Update(A, {"n": 1})] * 5))
    assert [outcome.applied for outcome in outcomes] == [True, True, True, False, False]
    failure = outcomes[-1].failure
    assert failure is not None
    assert not failure.ambiguous
    assert len(script.sent) == 3


def test_looking_after_a_refusal_shares_the_deadline() -> None:
    """What DynamoDB calls invalid is judged by a read, in the time that is left for the write."""
    script = Script(ServiceError("ValidationException", "no"), call_ms=600)
    (outcome,) = run_sync(script.backend(1000).write_each([Update(A, {"n": 1})]))
    assert isinstance(outcome.failure, RateLimiterUnavailable)
    assert [timeout_ms for _, _, timeout_ms in script.sent] == [1000, 400]
