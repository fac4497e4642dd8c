"""Connections of the transport without a driver: kept, shared, limited in time and number, and closed."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dynamodb.peer import CLOSE, Peer, answer, ask, connected, happens, refusal, store
from tests.patience import PATIENCE_SECONDS, growing_ms
from tests.stores import drive
from zae_limiter.backends import pool
from zae_limiter.backends.dynamodb import open_transport
from zae_limiter.backends.dynamodb.boto import Access
from zae_limiter.backends.dynamodb.transport import NoReply, Transport
from zae_limiter.repository_protocol import Key, Update
from zae_limiter.runtime.colour import run_sync

BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
A = Key("a", "s")
IMAGE = {"Attributes": {"PK": {"S": "a"}, "SK": {"S": "s"}, "n": {"N": "1"}}}


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer().running() as running:
        yield running


@BOTH
def test_a_connection_that_the_server_closed_is_not_used(sync: bool, peer: Peer) -> None:
    """It is noticed before anything is sent, so nothing is lost and nothing is sent twice."""

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            for turn in range(1, 4):
                assert await ask(transport) == {}
                assert peer.connections == turn
                peer.hang_up()
                peer.until(lambda: not peer._open)
            assert len(peer.asked) == 3

    drive(sync, scenario())


def test_a_closed_connection_is_noticed_by_a_busy_loop(peer: Peer) -> None:
    """The kernel knows of it before the event loop had a chance to look."""

    async def scenario() -> None:
        async with connected(False, peer) as transport:
            await ask(transport)
            peer.hang_up()
            # Nothing is awaited in between.
            peer.until(lambda: not peer._open)
            assert await ask(transport) == {}
            assert len(peer.asked) == peer.connections == 2

    asyncio.run(scenario())


@BOTH
def test_what_nobody_asked_for_ends_the_connection(sync: bool, peer: Peer) -> None:
    """An answer too many would be taken for that of the next request."""

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            peer.say(answer({"turn": 1}) + answer({"turn": 99}))
            peer.say(answer({"turn": 2}))
            assert [await ask(transport) for _ in range(2)] == [{"turn": 1}, {"turn": 2}]
            assert peer.connections == 2

    drive(sync, scenario())


@BOTH
def test_a_server_may_close_after_its_answer(sync: bool, peer: Peer) -> None:
    """It says so, and is believed."""

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            peer.say(answer({"turn": 1}, fields={"Connection": "close"}))
            assert await ask(transport) == {"turn": 1}
            await happens(sync, peer, lambda: peer.hung_up == 1)
            assert await ask(transport) == {}
            assert peer.connections == 2

    drive(sync, scenario())


@BOTH
def test_a_connection_that_was_idle_for_long_is_not_trusted(
    sync: bool, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something on the way may have forgotten it without a word."""

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            await ask(transport)
            await ask(transport)
            assert peer.connections == 1
            monkeypatch.setattr(pool, "IDLE_MAX_MS", -1)
            await ask(transport)
            assert peer.connections == 2

    drive(sync, scenario())


@BOTH
@pytest.mark.parametrize("said", [[], [b"HTTP/1.1 200 OK\r\nContent-"], [answer(IMAGE)[:-1]]], ids=len)
def test_the_deadline_holds_wherever_the_answer_stops(sync: bool, peer: Peer, said: list[bytes]) -> None:
    """Before it, in its head, in its body; the connection goes with it."""
    never = threading.Event()

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            await ask(transport)
            for timeout_ms in growing_ms(150):
                peer.say(*said, never)
                since, before = time.monotonic(), len(peer.asked)
                with pytest.raises(NoReply, match="in time") as raised:
                    await ask(transport, timeout_ms)
                assert time.monotonic() - since > 0.14
                if len(peer.asked) > before:
                    break
                peer.unsay()
            assert raised.value.ambiguous
            never.set()
            assert await ask(transport) == {}
            assert peer.asked[-1].connection != peer.asked[-2].connection

    drive(sync, scenario())


@BOTH
def test_a_trickle_does_not_move_the_deadline(sync: bool, peer: Peer) -> None:
    """The time is for the whole answer, not for each piece of it."""
    nap = Nap()
    pieces = int(PATIENCE_SECONDS / nap.SECONDS)

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            await ask(transport)
            parts: list[Any] = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (pieces + 1)]
            peer.say(*parts, *[nap, b" "] * pieces)
            with pytest.raises(NoReply, match="in time"):
                await ask(transport, 200)
            assert nap.taken < pieces, "it went on for as long as something came"
            nap.over.set()

    drive(sync, scenario())


class Nap(threading.Event):
    """A short wait between two pieces, until there is no more need."""

    SECONDS = 0.03

    def __init__(self) -> None:
        super().__init__()
        self.over, self.taken = threading.Event(), 0

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002
        self.taken += 1
        return self.over.wait(self.SECONDS)


@pytest.mark.parametrize("said", [[], [answer(IMAGE)[:-1]]], ids=["before", "within"])
def test_a_cancelled_call_takes_its_connection_along(peer: Peer, said: list[bytes]) -> None:
    """Its answer would otherwise be read by the next call."""
    never = threading.Event()

    async def scenario() -> None:
        async with connected(False, peer) as transport:
            await ask(transport)
            peer.say(*said, never, answer({"turn": "cancelled"}))
            peer.say(answer({"turn": "next"}))
            task = asyncio.create_task(ask(transport))
            await happens(False, peer, lambda: len(peer.asked) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            never.set()
            assert await ask(transport) == {"turn": "next"}
            assert peer.connections == 2

    asyncio.run(scenario())


@BOTH
def test_there_are_never_more_connections_than_allowed(sync: bool, peer: Peer) -> None:
    """Twenty calls at once over three connections; all are answered."""

    async def scenario() -> None:
        async with store(sync, peer, pool=3) as backend:
            peer.otherwise = [answer(IMAGE)]
            outcomes = await backend.write_each([Update(Key(f"k{n}", "s"), {"n": 1}) for n in range(20)])
            assert [outcome.applied for outcome in outcomes] == [True] * 20
            assert peer.connections == 3

    drive(sync, scenario())


@BOTH
def test_who_gets_no_connection_in_time_is_told_that_nothing_was_sent(sync: bool, peer: Peer) -> None:
    """And who waits behind gets the next one."""
    hold = threading.Event()

    async def scenario() -> None:
        async with connected(sync, peer, pool=1) as transport:
            await ask(transport)
            peer.say(hold, answer({"turn": 1}))

            async def impatient() -> str:
                with pytest.raises(NoReply, match="1 connections were busy") as raised:
                    await ask(transport, 100)
                assert not raised.value.ambiguous
                hold.set()
                return "told"

            results = await transport.fanout.together([ask(transport), impatient(), ask(transport)])
            assert results == [{"turn": 1}, "told", {}]
            assert peer.connections == 1

    drive(sync, scenario())


def test_nobody_overtakes(peer: Peer) -> None:
    """A hundred tasks over one connection are answered in the order in which they came, turn by turn."""

    async def scenario() -> None:
        async with connected(False, peer, pool=1) as transport:
            await ask(transport)
            peer.asked.clear()

            async def one(number: int) -> None:
                for _ in range(3):
                    await transport.call("UpdateItem", {"n": number}, 20_000)

            await asyncio.gather(*(one(number) for number in range(100)))
            assert [asked.body["n"] for asked in peer.asked] == [*range(100)] * 3

    asyncio.run(scenario())


def test_threads_share_the_connections(peer: Peer) -> None:
    """A hundred calls of twenty threads over two connections."""

    async def scenario() -> None:
        async with connected(True, peer, pool=2) as transport:
            answers: list[Any] = []

            def work() -> None:
                answers.extend(run_sync(ask(transport)) for _ in range(5))

            threads = [threading.Thread(target=work) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert answers == [{}] * 100
            assert peer.connections == 2

    run_sync(scenario())


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_a_cancelled_waiter_leaves_the_queue(peer: Peer, cancelled: int) -> None:
    """Whether it got a connection already or not, the others get theirs."""
    hold = threading.Event()

    async def scenario() -> None:
        async with connected(False, peer, pool=1) as transport:
            await ask(transport)
            peer.say(hold, answer())
            first = asyncio.create_task(ask(transport))
            waiting = [asyncio.create_task(ask(transport)) for _ in range(3)]
            await happens(False, peer, lambda: len(peer.asked) == 2)
            hold.set()
            await first
            waiting[cancelled].cancel()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert [result == {} for result in results] == [n != cancelled for n in range(3)]
            assert await ask(transport) == {}

    asyncio.run(scenario())


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@BOTH
def test_no_descriptor_is_left_behind(sync: bool, peer: Peer) -> None:
    """After a hundred calls, failures included, and closing, there are as many as before."""

    async def scenario() -> None:
        before = open_files()
        for _ in range(3):
            async with store(sync, peer, pool=8, timeout_ms=5_000) as backend:
                peer.otherwise = [answer(IMAGE)]
                await backend.write_each([Update(Key(f"k{n}", "s"), {"n": 1}) for n in range(20)])
                peer.say(CLOSE)
                peer.say(b"garbage\r\n\r\n")
                await backend.write_each([Update(Key(f"k{n}", "s"), {"n": 1}) for n in range(4)])
        await happens(sync, peer, lambda: not peer._open)
        assert open_files() <= before

    # The loop has descriptors of its own, so they are counted inside it.
    drive(sync, scenario())


def test_a_call_under_way_may_finish_while_the_transport_is_closed(peer: Peer) -> None:
    """Its connection is closed behind it."""
    hold = threading.Event()

    async def scenario() -> None:
        async with connected(False, peer) as transport:
            peer.say(hold, answer({"turn": "last"}))
            under_way = asyncio.create_task(ask(transport))
            await happens(False, peer, lambda: len(peer.asked) == 1)
            await transport.close()
            hold.set()
            assert await under_way == {"turn": "last"}
            await happens(False, peer, lambda: peer.hung_up == 1)

    asyncio.run(scenario())


@BOTH
def test_a_closed_transport_may_be_used_again(sync: bool, peer: Peer) -> None:
    """It just connects anew."""

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            await ask(transport)
            await transport.close()
            await happens(sync, peer, lambda: peer.hung_up == 1)
            assert await ask(transport) == {}
            assert peer.connections == 2

    drive(sync, scenario())


def test_a_transport_follows_from_loop_to_loop(peer: Peer) -> None:
    """Connections stay with their event loop; the next loop makes its own."""
    transport = open_transport(Access("eu-west-1", peer.url, timeout_ms=20_000), sync=False)

    async def scenario() -> None:
        assert await ask(transport) == {}
        await transport.close()

    asyncio.run(scenario())
    asyncio.run(scenario())
    assert peer.connections == 2


def exit_code_of_child(transport: Transport) -> int:
    """Ask once more in a forked child."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if run_sync(ask(transport)) == {} else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_forked_child_does_not_use_its_parents_connections(peer: Peer) -> None:
    """Both would read from the same stream."""

    async def scenario() -> None:
        async with connected(True, peer) as transport:
            await ask(transport)
            assert exit_code_of_child(transport) == 0
            assert await ask(transport) == {}
            assert [asked.connection for asked in peer.asked] == [1, 2, 1]

    run_sync(scenario())


def test_calls_side_by_side_pause_side_by_side(peer: Peer) -> None:
    """A throttled write waits without holding up the answers to the others."""

    async def scenario() -> None:
        async with store(True, peer) as backend:
            peer.otherwise = [answer(IMAGE)]
            await backend.write_each([Update(Key(f"k{n}", "s"), {"n": 1}) for n in range(8)])
            for _ in range(8):
                peer.say(refusal("ThrottlingException"))
            outcomes = await backend.write_each([Update(Key(f"k{n}", "s"), {"n": 1}) for n in range(8)])
            assert all(outcome.applied for outcome in outcomes)
            assert len(peer.asked) == 24

            fanout, seen = backend.calls.transport.fanout, []

            async def pause() -> None:
                seen.append("begun")
                await fanout.sleep(0.2)
                seen.append("ended")

            await fanout.together([pause() for _ in range(10)])
            assert seen == ["begun"] * 10 + ["ended"] * 10

    run_sync(scenario())


def test_an_interrupt_between_calls_closes_their_connections(peer: Peer) -> None:
    """Control-C while several requests are under way leaves no half answer in the pool."""
    hold = threading.Event()

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def scenario() -> None:
        async with connected(True, peer) as transport:
            peer.otherwise = [hold, answer({"turn": "interrupted"})]
            with pytest.raises(KeyboardInterrupt):
                await transport.fanout.together([ask(transport), ask(transport), interrupted()])
            hold.set()
            peer.otherwise = [answer({"turn": "next"})]
            assert await ask(transport) == {"turn": "next"}

    run_sync(scenario())


def test_a_mistake_in_one_call_lets_the_others_finish(peer: Peer) -> None:
    """It comes out in the end."""

    async def mistaken() -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        async with connected(True, peer) as transport:
            with pytest.raises(ZeroDivisionError):
                await transport.fanout.together([ask(transport), mistaken(), ask(transport)])
            assert len(peer.asked) == 2
            assert await ask(transport) == {}
            assert peer.connections == 2

    run_sync(scenario())


def test_groups_of_several_threads_share_a_small_pool(peer: Peer) -> None:
    """Each holds connections while it waits for more, and still none waits for ever."""

    async def scenario() -> None:
        async with store(True, peer, pool=2) as backend:
            peer.otherwise = [answer(IMAGE)]
            applied: list[bool] = []

            def work(name: int) -> None:
                for _ in range(3):
                    writes = [Update(Key(f"{name}-{n}", "s"), {"n": 1}) for n in range(7)]
                    applied.extend(outcome.applied for outcome in run_sync(backend.write_each(writes)))

            threads = [threading.Thread(target=work, args=(name,)) for name in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert applied == [True] * 105
            assert peer.connections == 2

    run_sync(scenario())
