"""From a host's name to a connection: looked up anew each time, and within the deadline."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dynamodb.peer import Peer, ask, connected, happens
from tests.dynamodb.tables import session
from tests.patience import PATIENCE_SECONDS
from tests.stores import drive
from zae_limiter.backends.dynamodb import open_transport
from zae_limiter.backends.dynamodb.boto import Access
from zae_limiter.backends.dynamodb.transport import NoReply

BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer().running() as running:
        yield running


@BOTH
def test_every_connection_looks_the_name_up_anew(
    sync: bool, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service moves; who reconnects finds it where it is now, and one dead address is no harm."""
    lookup = socket.getaddrinfo
    asked: list[str] = []
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        nobody = dead.getsockname()

    def moved(host: str, _: int, *args: Any, **options: Any) -> Any:
        asked.append(host)
        found = lookup("127.0.0.1", peer.port, *args, **options)
        return [(*found[0][:4], nobody), *found]

    monkeypatch.setattr(socket, "getaddrinfo", moved)

    async def scenario() -> None:
        access = Access("eu-west-1", "http://ddb.invalid:8000", session=session(sync), timeout_ms=20_000)
        transport = open_transport(access, sync=sync)
        for _ in range(2):
            assert await ask(transport) == {}
            peer.hang_up()
            await happens(sync, peer, lambda: not peer._open)
        assert asked == ["ddb.invalid"] * 2
        assert peer.asked[0].fields["host"] == "ddb.invalid:8000"
        await transport.close()

    drive(sync, scenario())


@BOTH
def test_failing_to_connect_uses_up_no_place(sync: bool, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one connection, the fourth attempt succeeds after three that did not."""
    lookup = socket.getaddrinfo
    failures = iter(
        [socket.gaierror("no such host"), ConnectionError("no network"), TimeoutError("no answer")]
    )

    def failing(*args: Any, **options: Any) -> Any:
        for error in failures:
            raise error
        return lookup(*args, **options)

    async def scenario() -> None:
        async with connected(sync, peer, pool=1) as transport:
            monkeypatch.setattr(socket, "getaddrinfo", failing)
            for _ in range(3):
                with pytest.raises(NoReply, match="cannot find") as raised:
                    await ask(transport)
                assert not raised.value.ambiguous
            assert await ask(transport) == {}

    drive(sync, scenario())


@BOTH
def test_a_name_that_nobody_knows_was_not_asked(sync: bool) -> None:
    """Nothing was sent, and the name is in the message."""

    async def scenario() -> None:
        transport = open_transport(
            Access("eu-west-1", "http://ddb.invalid", session=session(sync)), sync=sync
        )
        with pytest.raises(NoReply, match=r"ddb\.invalid") as raised:
            await ask(transport, 5_000)
        assert not raised.value.ambiguous
        await transport.close()

    drive(sync, scenario())


@BOTH
def test_a_slow_lookup_does_not_move_the_deadline(
    sync: bool, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking up has no timeout of its own."""
    hold = threading.Event()
    lookup = socket.getaddrinfo

    def slow(*args: Any, **options: Any) -> Any:
        hold.wait(PATIENCE_SECONDS)
        return lookup(*args, **options)

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            monkeypatch.setattr(socket, "getaddrinfo", slow)
            with pytest.raises(NoReply) as raised:
                await ask(transport, 150)
            assert not raised.value.ambiguous
            assert peer.asked == []
            hold.set()
            assert await ask(transport) == {}

    drive(sync, scenario())
