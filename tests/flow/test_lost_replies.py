"""What a limiter does when a request or its reply is lost on the wire to a server, at every kind of write."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import pytest

from tests.dynamodb.tables import lent_table, session
from tests.engines import dynamodb_local, postgres, redis_server
from tests.engines.proxy import DropReply, DropRequest, Proxy, ResetReply
from tests.postgres.proxy import Fault as PostgresFault
from tests.postgres.proxy import Proxy as PostgresProxy
from tests.postgres.schemas import lent_schema
from tests.redis import faulty_wire
from tests.stores import drive
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, Repository
from zae_limiter.backends import open_backend
from zae_limiter.repository_protocol import Backend, Put, Update
from zae_limiter.runtime.world import World
from zae_limiter.schema import bucket_key, limit_attributes, number
from zae_limiter.testing import RecordingBackend

A = TypeVar("A")
T = TypeVar("T")

RESOURCE = "gpt-4"
SLOW = [Limit.custom("rpm", 100, 1, 86_400)]

REQUEST, REPLY, HALF = "request", "reply", "half of the reply"
Lose = Callable[[type, str], None]
"""Lets the next write of a type come to nothing on the wire, in one of the three ways."""


@contextmanager
def dynamodb(transport: str) -> Iterator[tuple[str, Lose]]:
    with Proxy(dynamodb_local.endpoint()).running() as proxy:
        operations = {Put: "PutItem", Update: "UpdateItem"}
        faults = {REQUEST: DropRequest(), REPLY: DropReply(), HALF: ResetReply()}
        url = dynamodb_local.url(lent_table(), proxy.url, timeout_ms=60_000, transport=transport)
        yield url, lambda kind, what: proxy.fault(operations[kind], faults[what])


@contextmanager
def redis() -> Iterator[tuple[str, Lose]]:
    with faulty_wire.FaultyWire(redis_server.SERVER.port()).running() as wire:
        faults: dict[str, faulty_wire.Fault] = {
            REQUEST: faulty_wire.DropRequest(),
            REPLY: faulty_wire.DropReply(),
            HALF: faulty_wire.CutReply(),
        }
        url = redis_server.url(redis_server.fresh_prefix(), wire.port, timeout_ms=60_000)
        yield url, lambda _, what: wire.fault("EVALSHA", faults[what])


@contextmanager
def on_postgres() -> Iterator[tuple[str, Lose]]:
    with PostgresProxy(postgres.SERVER.port()).running() as proxy:
        faults: dict[str, PostgresFault] = {
            REQUEST: "lose request",
            REPLY: "lose reply",
            HALF: "half a reply",
        }
        # Its proxy passes nothing on to somebody who has asked for nothing.
        url = postgres.url(lent_schema(), proxy.port, timeout_ms=60_000, listen="off")
        yield url, lambda _, what: proxy.fault("write", faults[what])


WIRES = {
    "dynamodb": lambda: dynamodb("lean"),
    "dynamodb by boto": lambda: dynamodb("boto"),
    "redis": redis,
    "postgres": on_postgres,
}
pytestmark = [
    pytest.mark.parametrize("kind", WIRES),
    pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"]),
]
fates = pytest.mark.parametrize(("what", "share"), [(REPLY, 1), (HALF, 1), (REQUEST, 0)])
"""What is lost, and how often the write has happened all the same."""


class Losing(RecordingBackend):
    """The wire breaks under the write that it was told to lose, and not under a read before it."""

    def __init__(self, inner: Backend, plant: Lose) -> None:
        super().__init__(inner)
        self._plant = plant
        self._next: tuple[type, str] | None = None

    def lose(self, what: str, kind: type = Update) -> None:
        self._next = (kind, what)

    async def _ask(self, verb: str, ask: Callable[[A], Awaitable[T]], given: Any) -> T:
        planned = self._next
        if planned and "write" in verb and any(isinstance(w, planned[0]) for w in given):
            self._plant(*planned)
            self._next = None
        return await super()._ask(verb, ask, given)


@asynccontextmanager
async def through(kind: str, sync: bool) -> AsyncIterator[tuple[RateLimiter, Losing]]:
    """A warm limiter behind the proxy: 10 of 100 tokens are gone."""
    with WIRES[kind]() as (url, plant):
        more = {"session": session(sync)} if kind == "dynamodb by boto" else {}
        wire = Losing(open_backend(url, sync=sync, world=World(), **more), plant)
        limiter = RateLimiter(await Repository.over(wire))
        async with limiter:
            async with limiter.acquire("key", RESOURCE, {"rpm": 10}, SLOW):
                pass
            wire.forget()
            yield limiter, wire


async def fails(limiter: RateLimiter, before: Callable[[], None]) -> None:
    """Work that takes 5 and fails, after something else has happened."""
    async with limiter.acquire("key", RESOURCE, {"rpm": 5}, SLOW):
        before()
        raise ZeroDivisionError


async def adjusts(limiter: RateLimiter, before: Callable[[], None]) -> None:
    """Work that takes 5 and turns out to cost 12, after something else has happened."""
    async with limiter.acquire("key", RESOURCE, {"rpm": 5}, SLOW) as lease:
        await lease.adjust(rpm=7)
        before()


async def left(limiter: RateLimiter) -> int:
    return (await limiter.available("key", RESOURCE, SLOW))["rpm"]


@fates
def test_a_debit_without_a_reply_is_never_sent_again(kind: str, sync: bool, what: str, share: int) -> None:
    """The caller learns that the store did not answer; at worst its own tokens are missing."""

    async def run() -> None:
        async with through(kind, sync) as (limiter, wire):
            wire.lose(what)
            with pytest.raises(RateLimiterUnavailable) as failed:
                async with limiter.acquire("key", RESOURCE, {"rpm": 5}, SLOW):
                    pytest.fail("admitted without an answer")
            assert failed.value.ambiguous
            assert wire.writes == 1
            assert await left(limiter) == 90 - 5 * share

    drive(sync, run())


@fates
def test_a_first_acquire_without_a_reply_is_never_sent_again(
    kind: str, sync: bool, what: str, share: int
) -> None:
    """The bucket may have been made; the next acquire finds out by itself."""

    async def run() -> None:
        async with through(kind, sync) as (limiter, wire):
            wire.lose(what, Put)
            with pytest.raises(RateLimiterUnavailable) as failed:
                async with limiter.acquire("other", RESOURCE, {"rpm": 5}, SLOW):
                    pytest.fail("admitted without an answer")
            assert failed.value.ambiguous
            async with limiter.acquire("other", RESOURCE, {"rpm": 5}, SLOW):
                assert await limiter.available("other", RESOURCE, SLOW) == {"rpm": 95 - 5 * share}

    drive(sync, run())


@fates
def test_a_refund_without_a_reply_is_not_repeated(kind: str, sync: bool, what: str, share: int) -> None:
    """It is counted as lost, the original error comes out, and the balance is never too high."""

    async def run() -> None:
        async with through(kind, sync) as (limiter, wire):
            with pytest.raises(ZeroDivisionError):
                await fails(limiter, lambda: wire.lose(what))
            assert (wire.writes, limiter.refunds_lost) == (2, 1)
            assert await left(limiter) == 85 + 5 * share

    drive(sync, run())


@fates
def test_an_adjustment_without_a_reply_is_not_repeated(kind: str, sync: bool, what: str, share: int) -> None:
    """The caller is told that the settlement may be missing."""

    async def run() -> None:
        async with through(kind, sync) as (limiter, wire):
            with pytest.raises(RateLimiterUnavailable):
                await adjusts(limiter, lambda: wire.lose(what))
            assert (wire.writes, limiter.refunds_lost) == (2, 1)
            assert await left(limiter) == 85 - 7 * share

    drive(sync, run())


@fates
def test_a_family_of_which_nothing_was_heard(kind: str, sync: bool, what: str, share: int) -> None:
    """What was certainly taken is refunded, what may have been taken is not.

    DynamoDB is asked for each of the two by itself; elsewhere they are charged together or not at all.
    """

    async def run() -> None:
        async with through(kind, sync) as (limiter, wire):
            await limiter.repository.create_entity("parent")
            await limiter.repository.create_entity("child", parent_id="parent", cascade=True)
            await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
            async with limiter.acquire("child", RESOURCE, {"rpm": 1}):
                pass
            wire.lose(what)
            with pytest.raises(RateLimiterUnavailable) as failed:
                async with limiter.acquire("child", RESOURCE, {"rpm": 5}):
                    pytest.fail("admitted without an answer")
            assert failed.value.ambiguous
            images = await limiter.repository.writer.look(
                [bucket_key(limiter.repository.namespace_id, who, RESOURCE) for who in ("child", "parent")]
            )
            taken = sorted(number(image or {}, limit_attributes("rpm").tc) for image in images)
            maybe = 1_000 + 5_000 * share
            assert taken == ([1_000, maybe] if kind.startswith("dynamodb") else [maybe, maybe])

    drive(sync, run())
