"""One transport in several event loops: each has its own connections, and takes them along when it ends."""

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.dynamodb.peer import Peer
from tests.dynamodb.tables import session
from zae_limiter.backends.dynamodb import open_driver, open_transport
from zae_limiter.backends.dynamodb.boto import Access
from zae_limiter.backends.dynamodb.transport import Transport

ROUNDS = 20
OPENERS = {"lean": open_transport, "driver": open_driver}
EACH = pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
Opener = Callable[..., Transport]


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer().running() as running:
        yield running


def transport_to(peer: Peer, opener: Opener = open_transport) -> Transport:
    return opener(Access("eu-west-1", peer.url, timeout_ms=20_000, session=session(False)), sync=False)


async def look(transport: Transport) -> Any:
    return await transport.call("DescribeTable", {"TableName": "table"}, 20_000)


class Beside:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self) -> "Beside":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)


@EACH
def test_two_loops_do_not_take_each_others_connections(opener: Opener, peer: Peer) -> None:
    """However often they take turns, each has one, and closing the transport closes both."""
    transport = transport_to(peer, opener)
    with Beside() as left, Beside() as right:
        for _ in range(ROUNDS):
            left.do(look(transport))
            right.do(look(transport))
        assert peer.connections == 2
        left.do(transport.close())
        peer.until(lambda: not peer.held)


@EACH
def test_a_loop_that_ends_takes_its_connections_along(opener: Opener, peer: Peer) -> None:
    """Nobody has closed the transport, yet nothing is left open, and the next loop begins afresh."""
    transport = transport_to(peer, opener)
    for turn in range(1, 4):
        asyncio.run(look(transport))
        peer.until(lambda: not peer.held)
        assert peer.connections == turn
    gc.collect()


def test_the_connections_of_a_loop_that_was_merely_closed_are_closed_by_the_next(peer: Peer) -> None:
    """There was no chance before: the loop did not shut down."""
    transport = transport_to(peer)
    abandoned = asyncio.new_event_loop()
    abandoned.run_until_complete(look(transport))
    abandoned.close()
    assert peer.held == 1
    with warnings.catch_warnings():
        # Of the standard library, which would have closed them better.
        warnings.simplefilter("ignore", ResourceWarning)
        with asyncio.Runner() as runner:
            runner.run(look(transport))
            peer.until(lambda: peer.held == 1)
            assert peer.connections == 2
            assert len(transport._pools._made) == 1  # type: ignore[attr-defined]
        del abandoned
        gc.collect()
    peer.until(lambda: not peer.held)


def test_a_transport_that_is_thrown_away_leaves_nothing(peer: Peer) -> None:
    """It cannot say goodbye, so its loop does."""

    async def scenario() -> None:
        await look(transport_to(peer))
        gc.collect()
        await asyncio.to_thread(peer.until, lambda: not peer.held)

    asyncio.run(scenario())


def test_a_loop_in_debug_mode_may_use_a_session_of_aiobotocore(peer: Peer) -> None:
    """It looks more closely at what is done aside, and finds nothing to complain about."""
    transport = transport_to(peer)
    assert asyncio.run(look(transport), debug=True) == {}


def test_many_loops_leave_no_descriptor(peer: Peer) -> None:
    """One after another, as in a program that calls ``asyncio.run`` for each of its jobs."""
    transport = transport_to(peer)
    asyncio.run(look(transport))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(ROUNDS):
        asyncio.run(look(transport))
    peer.until(lambda: not peer.held)
    assert len(os.listdir("/proc/self/fd")) <= before
