"""A reply that is lost at whatever command: nothing is applied twice, and nobody hears of others' errors."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines import redis_server
from tests.redis.faulty_wire import CutReply, Delay, DropReply, DropRequest, Fault, FaultyWire, Say
from tests.stores import drive
from zae_limiter import RateLimiterUnavailable
from zae_limiter.backends.redis import RedisBackend, open_backend
from zae_limiter.repository_protocol import Backend, Delete, Key, Outcome, Put, Query, Update, Write

K, OTHER = Key("ns/ENTITY#a", "#META"), Key("ns/ENTITY#b", "#META")
WRITES: dict[str, list[Write]] = {
    "put": [Put(K, {"n": 7})],
    "update": [Update(K, add={"n": 1})],
    "delete": [Delete(K)],
    "several": [Update(K, add={"n": 1}), Update(OTHER, add={"n": 1})],
}
LOST: list[Fault] = [DropRequest(), DropReply(), CutReply(), Delay(60)]


@pytest.fixture
def wire() -> Iterator[FaultyWire]:
    with FaultyWire(redis_server.SERVER.port()).running() as it:
        yield it


def opened(wire: FaultyWire, *, sync: bool, timeout_ms: int = 5_000) -> RedisBackend:
    url = redis_server.url(redis_server.fresh_prefix(), wire.port, timeout_ms=timeout_ms)
    return open_backend(url, sync=sync)


async def warmed(backend: RedisBackend) -> None:
    await backend.setup()
    await backend.write_each([Put(K, {"n": 0}), Put(OTHER, {"n": 0})])


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("fault", LOST, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("verb", ["write_each", "transact_write"])
@pytest.mark.parametrize("kind", WRITES)
def test_a_lost_write_is_ambiguous_and_sent_once(
    wire: FaultyWire, kind: str, verb: str, fault: Fault, sync: bool
) -> None:
    """Whatever became of it, it became so once; the next call goes through."""

    async def scenario() -> None:
        backend = opened(wire, sync=sync, timeout_ms=300 if isinstance(fault, Delay) else 5_000)
        await warmed(backend)
        wire.forget()
        wire.fault("EVALSHA", fault)
        try:
            outcomes = await getattr(backend, verb)(WRITES[kind])
        except RateLimiterUnavailable as failure:
            outcomes = [Outcome(False, None, failure=failure)]
        assert all(outcome.failure is not None and outcome.failure.ambiguous for outcome in outcomes)
        assert wire.commands["EVALSHA"] == 1
        applied = not isinstance(fault, DropRequest)
        first, second = await backend.batch_get([K, OTHER])
        after = {"put": {"n": 7}, "delete": None}.get(kind, {"n": 1})
        assert first == (after if applied else {"n": 0})
        assert second == ({"n": 1} if applied and kind == "several" else {"n": 0})
        await backend.close()

    drive(sync, scenario())


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("fault", LOST[:3], ids=lambda fault: type(fault).__name__)
def test_reads_are_repeated(wire: FaultyWire, fault: Fault, sync: bool) -> None:
    async def scenario() -> None:
        backend = opened(wire, sync=sync)
        await warmed(backend)
        wire.fault("EVALSHA", fault, fault)
        assert await backend.batch_get([K]) == [{"n": 0}]
        wire.fault("EVALSHA", fault)
        assert [row.key for row in (await backend.query(Query(K.partition))).rows] == [K]
        wire.fault("SMEMBERS", fault)
        assert await backend.namespaces() == ["ns"]
        wire.fault("SRANDMEMBER", fault)
        assert await backend.namespaces(1) == ["ns"]
        wire.forget()
        wire.fault("INFO", fault)
        await backend.setup()
        assert wire.commands["INFO"] == 2
        await backend.close()

    drive(sync, scenario())


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("fault", LOST[:3], ids=lambda fault: type(fault).__name__)
def test_a_namespace_is_noted_again_before_its_first_write(
    wire: FaultyWire, fault: Fault, sync: bool
) -> None:
    """That is the same however often it is done; the write itself is sent once."""

    async def scenario() -> None:
        backend = opened(wire, sync=sync)
        await backend.setup()
        wire.forget()
        wire.fault("SADD", fault)
        (outcome,) = await backend.write_each([Update(K, add={"n": 1})])
        assert outcome == Outcome(True, {"n": 1})
        assert (wire.commands["SADD"], wire.commands["EVALSHA"]) == (2, 1)
        await backend.close()

    drive(sync, scenario())


NOT_NOW = [
    b"-LOADING Redis is loading the dataset in memory\r\n",
    b"-READONLY You can't write against a read only replica. script: 123\r\n",
    b"-NOSCRIPT No matching script. Please use EVAL.\r\n",
    b"-MASTERDOWN Link with MASTER is down\r\n",
    b"-BUSY Redis is busy running a script\r\n",
    b"-ERR Error running script (call to f_1): @user_script: 12: -READONLY You can't write\r\n",
]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("said", NOT_NOW, ids=lambda said: said.split()[0].decode())
def test_what_was_not_carried_out_is_sent_again(wire: FaultyWire, said: bytes, sync: bool) -> None:
    async def scenario() -> None:
        backend = opened(wire, sync=sync)
        await warmed(backend)
        wire.fault("EVALSHA", Say(said))
        (outcome,) = await backend.write_each([Update(K, add={"n": 1})])
        assert outcome == Outcome(True, {"n": 1})
        await backend.close()

    drive(sync, scenario())


REFUSED = [
    (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", "out of memory", ""),
    (b"-NOPERM this user has no permissions to run the 'evalsha' command\r\n", "not permitted", "permission"),
    (b"-NOAUTH Authentication required.\r\n", "credentials", "credentials"),
]


@pytest.mark.parametrize(("said", "told", "misconfigured"), REFUSED, ids=lambda said: str(said)[:12])
def test_refusals_in_our_words(wire: FaultyWire, said: bytes, told: str, misconfigured: str) -> None:
    """Nothing was written, and who waits does not wait for ever."""

    async def scenario() -> None:
        backend = opened(wire, sync=True)
        await warmed(backend)
        wire.fault("EVALSHA", Say(said))
        (outcome,) = await backend.write_each([Update(K, add={"n": 1})])
        assert outcome.failure is not None
        assert told in str(outcome.failure)
        assert (outcome.failure.ambiguous, outcome.failure.misconfigured) == (False, misconfigured)
        await backend.close()

    drive(True, scenario())


NONSENSE = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"*1\r\n:1\r\n",
    b"+OK\r\n",
    b"*-1\r\n",
    b"$3\r\nabc\r\n:1\r\n",
]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("said", NONSENSE)
def test_nonsense_is_no_answer(wire: FaultyWire, said: bytes, sync: bool) -> None:
    """A write that is answered with something else may have happened."""

    async def scenario() -> None:
        backend = opened(wire, sync=sync)
        await warmed(backend)
        wire.fault("EVALSHA", Say(said))
        (outcome,) = await backend.write_each([Update(K, add={"n": 1})])
        assert outcome.failure is not None
        assert outcome.failure.ambiguous
        assert await backend.batch_get([K]) == [{"n": 0}]
        if not said.startswith(b"*1"):  # which may be the list of what it holds, but for the numbers in it
            wire.fault("SMEMBERS", *[Say(said)] * 500)
            with pytest.raises(RateLimiterUnavailable):
                await backend.namespaces()
        await backend.close()

    drive(sync, scenario())


def test_an_instant_that_no_clock_shows_is_no_answer(wire: FaultyWire) -> None:
    """Too many digits for a number are as good as none."""

    async def scenario() -> None:
        backend = opened(wire, sync=True)
        await warmed(backend)
        said = Say(b"*4\r\n$400\r\n" + b"9" * 400 + b"\r\n$1\r\n0\r\n*0\r\n*0\r\n")
        wire.fault("EVALSHA", said)
        (outcome,) = await backend.write_each([Update(K, add={"n": 1})])
        assert outcome.failure is not None
        assert outcome.failure.ambiguous
        wire.fault("EVALSHA", *[said] * 500)
        with pytest.raises(RateLimiterUnavailable):
            await backend.batch_get([K])
        await backend.close()

    drive(True, scenario())


async def _all_at_once(backend: Backend, count: int) -> list[Any]:
    import asyncio

    calls = [backend.write_each([Update(K, add={"n": 1})]) for _ in range(count)]
    return [outcome for (outcome,) in await asyncio.gather(*calls)]


def test_all_who_travel_together_lose_together(wire: FaultyWire) -> None:
    """Fifty tasks share requests; those of the lost one are told so, and what arrived was counted once."""

    async def scenario() -> None:
        backend = opened(wire, sync=False)
        await warmed(backend)
        wire.forget()
        wire.fault("EVALSHA", DropReply())
        outcomes = await _all_at_once(backend, 50)
        lost = [o for o in outcomes if o.failure is not None]
        assert all(o.failure.ambiguous for o in lost)
        assert 0 < len(lost) <= 50
        assert await backend.batch_get([K]) == [{"n": 50}]
        assert wire.commands["EVALSHA"] < 25, "they travel together"
        await backend.close()

    drive(False, scenario())
