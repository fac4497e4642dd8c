"""A process that is forked while another thread of it holds a lock of ours: the child does not wait for it.

Nobody will ever give that lock back to the child, as threads are not forked along.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.dynamodb.peer import Peer, answer, ask
from tests.dynamodb.tables import session
from zae_limiter.backends.dynamodb import open_driver, open_transport
from zae_limiter.backends.dynamodb.boto import Access, BotocoreTransport
from zae_limiter.backends.dynamodb.http.blocking import FanOut, Parked
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

PATIENCE_S = 20
REAL_LOCK = threading.Lock
PAUSES: list[Callable[[], None]] = []
"""Called once, by the first that comes to where it wants to be seen."""


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer().running() as running:
        yield running


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a forked child: 0 if its work was done, and a signal's if it never ended."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(PATIENCE_S)
            work()
            os._exit(0)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@contextmanager
def busy(work: Callable[[Callable[[], None]], object]) -> Iterator[None]:
    """Another thread is in the middle of something, where it calls ``pause``, while the block lasts."""
    reached, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        reached.set()
        go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=work, args=(pause,))
    thread.start()
    assert reached.wait(PATIENCE_S)
    try:
        yield
    finally:
        go_on.set()
        thread.join()


def test_while_the_driver_is_loaded(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a client takes long, and is done by one thread at a time."""
    access = Access("eu-west-1", peer.url, timeout_ms=20_000, session=session(True))
    transport = open_driver(access, sync=True)
    assert isinstance(transport, BotocoreTransport)

    def pausing(_: Access, defaults: Any) -> Any:
        if PAUSES:
            PAUSES.pop()()
        return defaults

    monkeypatch.setattr(Access, "client_config", pausing)

    def connect(pause: Callable[[], None]) -> None:
        PAUSES.append(pause)
        transport._client.get()

    with busy(connect):
        assert in_child(transport._client.get) == 0


class SlowLock:
    """A lock that is held for long, by whoever takes it first."""

    def __init__(self) -> None:
        self._lock = REAL_LOCK()

    def __enter__(self) -> None:
        self._lock.acquire()
        if PAUSES:
            PAUSES.pop()()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_while_calls_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child may run calls side by side too, and single ones never suspend in it."""
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Lock", SlowLock)
        fanout = FanOut(World().ticks_ms)

    async def one() -> int:
        await Parked(0)
        return 1

    async def other() -> int:
        if PAUSES:
            PAUSES.pop()()
        return await one()

    def together(pause: Callable[[], None]) -> None:
        PAUSES.append(pause)
        run_sync(fanout.together([other(), one()]))

    def work() -> None:
        assert run_sync(fanout.together([one(), one()])) == [1, 1]
        assert not fanout.is_busy()
        run_sync(fanout.sleep(0))

    with busy(together):
        assert in_child(work) == 0


def test_while_a_call_is_under_way(peer: Peer) -> None:
    """With one connection for all, which the other thread has."""
    access = Access("eu-west-1", peer.url, timeout_ms=20_000, pool=1, session=session(True))
    transport = open_transport(access, sync=True)
    run_sync(ask(transport))
    hold = threading.Event()
    peer.say(hold, answer())

    def call(pause: Callable[[], None]) -> None:
        threading.Thread(target=lambda: (peer.until(lambda: len(peer.asked) == 2), pause())).start()
        run_sync(ask(transport))

    with busy(call):
        assert in_child(lambda: run_sync(ask(transport))) == 0
        hold.set()
    run_sync(transport.close())
