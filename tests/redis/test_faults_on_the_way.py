"""Replies that are lost, or are others, before a server is found, and while the slot of a namespace moves."""

import contextlib
import ssl
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.engines import redis_server
from tests.engines.certificates import Authority
from tests.engines.redis_server import HOST, fresh_prefix
from tests.patience import wait_until
from tests.redis.faulty_wire import CutReply, Delay, DropReply, DropRequest, Fault, FaultyWire, Say
from tests.redis.fleet import OwnServer, fleet, moving
from tests.redis.test_faults_around import lost_on_the_way, never_on_the_way
from tests.stores import drive
from zae_limiter.backends.redis import open_backend
from zae_limiter.backends.redis.encoding import tag_of
from zae_limiter.backends.redis.servers import slot_of
from zae_limiter.repository_protocol import Key, Outcome, Put, Update

K = Key("ns/ENTITY#a", "#META")
LOST: list[Fault] = [DropRequest(), DropReply(), CutReply(), Delay(60)]
both_colours = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


class Way(NamedTuple):
    """Where a question on the way to a server passes, and the URL of a store behind it."""

    wire: FaultyWire
    url: str


def listed(node: OwnServer) -> list[int]:
    """Where a node says that slots are."""
    return sorted(primary[1] for _, _, primary, *_ in node.ask("CLUSTER", "SLOTS"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[list[OwnServer], list[FaultyWire]]]:
    """Two nodes, each of which is known to everybody by the wire before it."""
    with fleet() as own, contextlib.ExitStack() as stack:
        nodes = own.cluster(2)
        wires = [stack.enter_context(FaultyWire(node.port).running()) for node in nodes]
        for node, wire in zip(nodes, wires, strict=True):
            node.ask("CONFIG", "SET", "cluster-announce-port", wire.port)
        ports = sorted(wire.port for wire in wires)
        for node in nodes:
            wait_until(lambda node=node: listed(node) == ports)  # type: ignore[misc]
        yield nodes, wires


@contextlib.contextmanager
def to_cluster(cluster: tuple[list[OwnServer], list[FaultyWire]]) -> Iterator[Way]:
    with FaultyWire(cluster[0][0].port).running() as wire:
        yield Way(wire, f"redis+cluster://{HOST}:{wire.port}?prefix={fresh_prefix()}")


@pytest.fixture(scope="module")
def watched() -> Iterator[tuple[OwnServer, int]]:
    """A primary, and the sentinel that knows it."""
    with fleet() as own:
        primary = own.server()
        yield primary, own.sentinels(primary, count=1, replicas=0)[0]


@contextlib.contextmanager
def to_sentinel(watched: tuple[OwnServer, int]) -> Iterator[Way]:
    with FaultyWire(watched[1]).running() as wire:
        yield Way(wire, f"redis+sentinel://{HOST}:{wire.port}/limits?prefix={fresh_prefix()}")


@contextlib.contextmanager
def over_tls(authority: Authority) -> Iterator[Way]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certify("server", f"IP:{HOST}"))
    with FaultyWire(redis_server.SERVER.port(), context).running() as wire:
        yield Way(wire, f"rediss://{HOST}:{wire.port}/0?prefix={fresh_prefix()}&tls_ca={authority.file}")


@pytest.fixture
def way(request: pytest.FixtureRequest, last: str) -> Iterator[Way]:
    if last == "CLUSTER":
        given = to_cluster(request.getfixturevalue("cluster"))
    elif last == "PING":
        given = over_tls(Authority(request.getfixturevalue("tmp_path")))
    else:
        given = to_sentinel(request.getfixturevalue("watched"))
    with given as it:
        yield it


@both_colours
@pytest.mark.parametrize("fault", LOST, ids=str)
@pytest.mark.parametrize("last", ["SENTINEL", "CLUSTER", "PING"])
def test_who_found_no_server_has_asked_for_nothing(way: Way, last: str, fault: Fault, sync: bool) -> None:
    """A lost question is asked again on another connection. If all are, nothing was sent, and it says so."""
    drive(sync, lost_on_the_way(way.wire, way.url, last, fault, sync=sync))


NONSENSE = {
    "no RESP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a number": b":1\r\n",
    "a word": b"+OK\r\n",
    "an empty list": b"*0\r\n",
    "a list of numbers": b"*2\r\n:1\r\n:2\r\n",
    "no text": b"*2\r\n$2\r\n\xff\xff\r\n$4\r\n6379\r\n",
    "no name": b"*2\r\n$5\r\na..b.\r\n$4\r\n6379\r\n",
    "no port": b"*2\r\n$9\r\n127.0.0.1\r\n$5\r\n99999\r\n",
    "a port of slots that is none": b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:99999\r\n",
    "slots that are none": b"*1\r\n*3\r\n:0\r\n:999999999999\r\n*2\r\n$9\r\n127.0.0.1\r\n:6379\r\n",
    "slots of nobody": b"*1\r\n*2\r\n:0\r\n:16383\r\n",
}


@both_colours
@pytest.mark.parametrize("said", NONSENSE)
@pytest.mark.parametrize("last", ["SENTINEL", "CLUSTER"])
def test_nonsense_names_no_server(way: Way, last: str, said: str, sync: bool) -> None:
    """Whatever is said in place of an answer, what comes out is ours."""
    drive(sync, never_on_the_way(way.wire, way.url, last, Say(NONSENSE[said]), sync=sync))


@both_colours
@pytest.mark.parametrize("said", ["no RESP", "a number", "a word", "an empty list", "a list of numbers"])
def test_who_does_not_say_its_role_is_no_primary(said: str, sync: bool) -> None:
    with FaultyWire(redis_server.SERVER.port()).running() as wire:
        named = f"*2\r\n$9\r\n{HOST}\r\n$5\r\n{wire.port:05}\r\n"
        wire.fault("SENTINEL", *[Say(named.encode())] * 500)
        url = f"redis+sentinel://{HOST}:{wire.port}/limits?prefix={fresh_prefix()}"
        drive(sync, never_on_the_way(wire, url, "ROLE", Say(NONSENSE[said]), sync=sync))
        assert wire.commands["EVALSHA"] == 0


@both_colours
@pytest.mark.parametrize("fault", [*LOST, CutReply(1)], ids=str)
def test_a_write_to_a_slot_that_moves_is_sent_once(
    cluster: tuple[list[OwnServer], list[FaultyWire]], fault: Fault, sync: bool
) -> None:
    """Its node sends it on, and what the next one answers is lost: nobody knows, and so it is told."""
    nodes, wires = cluster
    prefix = fresh_prefix()

    def url(timeout_ms: int) -> str:
        return f"redis+cluster://{HOST}:{wires[0].port}?prefix={prefix}&timeout_ms={timeout_ms}"

    async def scenario() -> None:
        patient = open_backend(url(60_000), sync=sync)
        unlucky = open_backend(url(700 if isinstance(fault, Delay) else 60_000), sync=sync)
        for backend in (patient, unlucky):
            (outcome,) = await backend.write_each([Put(K, {"n": 0})])
            assert outcome.applied
        with moving(nodes, slot_of(tag_of(f"{{{prefix}:", "ns"))) as (source, target):
            for wire in wires:
                wire.forget()
            wires[target].fault("ASKING", fault)
            (outcome,) = await unlucky.write_each([Update(K, add={"n": 1})])
            assert outcome.failure is not None
            assert outcome.failure.ambiguous
            assert wires[source].commands["EVALSHA"] == 1
            assert (wires[target].commands["ASKING"], wires[target].commands["EVALSHA"]) == (1, 1)
            assert await patient.batch_get([K]) == [{"n": int(not isinstance(fault, DropRequest))}]
            (outcome,) = await unlucky.write_each([Put(K, {"n": 5})])
            assert outcome == Outcome(True, {"n": 5})
        for backend in (patient, unlucky):
            await backend.close()

    drive(sync, scenario())
