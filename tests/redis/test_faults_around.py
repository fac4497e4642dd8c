"""Replies that are lost where more is said than a script: how it is sent whole, replicas, and greetings."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from tests.engines import redis_server
from tests.patience import wait_until
from tests.redis.faulty_wire import CutReply, Delay, DropReply, DropRequest, Fault, FaultyWire, Say
from tests.redis.fleet import OwnServer, fleet
from tests.stores import drive
from zae_limiter.backends.redis import RedisBackend, open_backend
from zae_limiter.repository_protocol import Key, Outcome, Put, Update

K = Key("ns/ENTITY#a", "#META")
PASSWORD = "correct-horse"
LOST: list[Fault] = [DropRequest(), DropReply(), CutReply(), CutReply(1), Delay(60)]
both_colours = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
whatever_is_lost = pytest.mark.parametrize("fault", LOST, ids=str)
UNKNOWN = Say(b"-NOSCRIPT No matching script. Please use EVAL.\r\n")


class Pair(NamedTuple):
    primary: OwnServer
    replica: OwnServer


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A primary that a user may enter, and its replica."""
    with fleet() as own:
        primary = own.server("--requirepass", PASSWORD, "--repl-diskless-sync-delay", "0")
        replica = own.server("--replicaof", f"{redis_server.HOST} {primary.port}", "--masterauth", PASSWORD)
        wait_until(lambda: replica.ask("INFO", "replication")["master_link_status"] == "up")
        yield Pair(primary, replica)


@contextmanager
def wired(port: int) -> Iterator[FaultyWire]:
    with FaultyWire(port).running() as wire:
        yield wire


class Twice:
    """One store, opened by somebody with all the time of the world and by somebody who meets a fault.

    What waits for an answer that comes too late has a short deadline.
    """

    def __init__(
        self, wire: FaultyWire, fault: Fault, *, sync: bool, login: str = "", **options: object
    ) -> None:
        prefix = redis_server.fresh_prefix()

        def opened(timeout_ms: int) -> RedisBackend:
            url = redis_server.url(prefix, wire.port, timeout_ms=timeout_ms, **options)
            return open_backend(url.replace("redis://", f"redis://{login}"), sync=sync)

        self.patient, self.unlucky = opened(60_000), opened(700 if isinstance(fault, Delay) else 60_000)

    async def begin(self) -> None:
        for backend in (self.patient, self.unlucky):
            await backend.setup()
            (outcome,) = await backend.write_each([Put(K, {"n": 0})])
            assert outcome.applied

    async def add_one(self) -> Outcome:
        (outcome,) = await self.unlucky.write_each([Update(K, add={"n": 1})])
        return outcome

    async def end(self) -> object:
        (found,) = await self.patient.batch_get([K])
        (outcome,) = await self.patient.write_each([Update(K, {"n": 1})])
        assert outcome.applied
        for backend in (self.patient, self.unlucky):
            await backend.close()
        return found


@both_colours
@whatever_is_lost
def test_a_script_that_is_sent_whole_is_sent_once(fault: Fault, sync: bool) -> None:
    """The server had yet to learn it. What became of the second sending nobody knows, and so it is told."""

    async def scenario(wire: FaultyWire) -> None:
        both = Twice(wire, fault, sync=sync)
        await both.begin()
        wire.forget()
        wire.fault("EVALSHA", UNKNOWN)
        wire.fault("EVAL", fault)
        outcome = await both.add_one()
        # Who has the whole answer has it, whatever becomes of the connection afterwards.
        if fault != CutReply(1) or not outcome.applied:
            assert outcome.failure is not None
            assert outcome.failure.ambiguous
        assert (wire.commands["EVALSHA"], wire.commands["EVAL"]) == (1, 1)
        assert await both.end() == {"n": int(not isinstance(fault, DropRequest))}

    with wired(redis_server.SERVER.port()) as wire:
        drive(sync, scenario(wire))


@both_colours
@whatever_is_lost
def test_a_write_that_replicas_should_have_is_sent_once(pair: Pair, fault: Fault, sync: bool) -> None:
    """The answer of the script may be there without that of the replicas: nobody knows whether it lasts."""

    async def scenario(wire: FaultyWire) -> None:
        both = Twice(wire, fault, sync=sync, login=f":{PASSWORD}@", wait_replicas=1)
        await both.begin()
        wire.forget()
        wire.fault("WAIT", fault)
        outcome = await both.add_one()
        assert outcome.failure is not None
        assert outcome.failure.ambiguous
        assert (wire.commands["EVALSHA"], wire.commands["WAIT"]) == (1, 1)
        assert await both.end() == {"n": int(not isinstance(fault, DropRequest))}

    with wired(pair.primary.port) as wire:
        drive(sync, scenario(wire))


async def lost_on_the_way(wire: FaultyWire, url: str, last: str, fault: Fault, *, sync: bool) -> None:
    """What is said before a write is lost twice, and then always; who waits for an answer does only that."""
    if not isinstance(fault, Delay):
        patient = open_backend(f"{url}&timeout_ms=60000", sync=sync)
        wire.fault(last, fault, fault)
        (outcome,) = await patient.write_each([Update(K, add={"n": 1})])
        assert outcome == Outcome(True, {"n": 1})
        assert wire.commands[last] == 3
        assert wire.commands["EVALSHA"] <= 1
        await patient.close()
    wire.forget()
    await never_on_the_way(wire, url, last, fault, sync=sync)


async def never_on_the_way(wire: FaultyWire, url: str, last: str, fault: Fault, *, sync: bool) -> None:
    """What is said before a write is never answered well: nothing is in doubt, and it says so."""
    wire.fault(last, *[fault] * 500)
    nobody = open_backend(f"{url}&timeout_ms=400", sync=sync)
    (outcome,) = await nobody.write_each([Update(K, add={"n": 1})])
    assert outcome.failure is not None
    assert (outcome.failure.ambiguous, outcome.failure.misconfigured) == (False, "")
    assert PASSWORD not in str(outcome.failure)
    await nobody.close()


GREETINGS = {
    "AUTH": (f":{PASSWORD}@", "0", ""),
    "SELECT": (f"default:{PASSWORD}@", "1", ""),
    "ROLE": (f":{PASSWORD}@", "limits/2", "+sentinel"),
}
"""What is said last before anything is asked, and how to have it said."""


@both_colours
@whatever_is_lost
@pytest.mark.parametrize("last", GREETINGS)
def test_who_was_not_greeted_has_asked_for_nothing(pair: Pair, last: str, fault: Fault, sync: bool) -> None:
    """A lost greeting is said again on another connection. If all are, nothing was sent, and it says so."""
    login, path, way = GREETINGS[last]

    with wired(pair.primary.port) as wire:
        # The wire is the sentinel too, which names itself.
        primary = f"*2\r\n$9\r\n{redis_server.HOST}\r\n$5\r\n{wire.port:05}\r\n"
        wire.fault("SENTINEL", *[Say(primary.encode())] * 500)
        prefix = f"prefix={redis_server.fresh_prefix()}"
        url = f"redis{way}://{login}{redis_server.HOST}:{wire.port}/{path}?{prefix}"
        drive(sync, lost_on_the_way(wire, url, last, fault, sync=sync))
        assert wire.commands["EVALSHA"] == 0
