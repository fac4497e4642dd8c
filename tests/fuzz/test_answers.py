"""Answers of a store that can be framed: each is fed to every operation, and each is read or is no answer.

What is no answer is ``RateLimiterUnavailable``, so that ``on_unavailable`` decides. Nothing else ever comes
out, whatever the body, the status or the fields hold.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.credentials import Credentials
from hypothesis import strategies as st

from tests.dynamodb.peer import Peer, answer, connected
from tests.dynamodb.scripted import Clock
from tests.fuzz.answers import OPERATIONS, hostile, objects, readable
from tests.fuzz.figures import cases
from tests.stores import drive
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, Repository
from zae_limiter.backends.dynamodb import DynamoDBBackend, retries
from zae_limiter.backends.dynamodb.boto import Access
from zae_limiter.backends.dynamodb.http.blocking import BlockingNetwork
from zae_limiter.backends.dynamodb.http.endpoint import Target
from zae_limiter.backends.dynamodb.http.http1 import Malformed, Response
from zae_limiter.backends.dynamodb.http.transport import HttpTransport
from zae_limiter.backends.dynamodb.retries import Calls
from zae_limiter.backends.dynamodb.transport import Dates, NoReply
from zae_limiter.exceptions import IncompatibleSchemaError, InfrastructureNotFoundError
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository_protocol import Outcome
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
ANSWERS = hostile()
GOOD = ("another type", "attribute: two kinds")
"""Odd, but there is only one way to read them."""

UNREADABLE = [
    ("UpdateItem", "body: an empty object"),
    ("UpdateItem", "body: deep"),
    ("UpdateItem", "body: a long number"),
    ("UpdateItem", "attribute: a number that is a number"),
    ("UpdateItem", "attribute: a number that is none"),
    ("UpdateItem", "attribute: a number without end"),
    ("UpdateItem", "attribute: a number too large"),
    ("UpdateItem", "attribute: a number that is text"),
    ("UpdateItem", "attribute: a map that is a list"),
    ("UpdateItem", "Attributes: no list"),
    ("UpdateItem", "image: a text"),
    ("UpdateItem", "status 307 Temporary"),
    ("UpdateItem", "status 403 Forbidden"),
    ("UpdateItem", "status 400 Bad, deep"),
    ("UpdateItem", "checksum: long"),
    ("PutItem", "body: a list"),
    ("DeleteItem", "image: a number that is a list"),
    ("BatchGetItem", "Responses: no text"),
    ("BatchGetItem", "Responses: another table"),
    ("BatchGetItem", "Responses: somebody else's"),
    ("BatchGetItem", "UnprocessedKeys: a list of numbers"),
    ("Query", "Items: no text"),
    ("Query", "Items: keys that are numbers"),
    ("Query", "LastEvaluatedKey: true"),
    ("TransactWriteItems", "reasons: empty"),
    ("TransactWriteItems", "reasons: numbers"),
    ("TransactWriteItems", "reasons: too few"),
    ("TransactWriteItems", "reasons: for nothing"),
    ("TransactWriteItems", "reasons: codes that are lists"),
    ("DescribeTable", "Table: a number"),
    ("DescribeTable", "Table: a map of maps"),
    ("DescribeTable", "Table: a table with odd indexes"),
]


class Heard(BlockingNetwork):
    """A network whose only connection, which it is itself, has read something already."""

    idle_since_ms = 0.0

    def __init__(self, said: bytes) -> None:
        super().__init__(World().ticks_ms)
        self._said = said

    async def connect(self, *_: Any) -> Any:
        return self

    async def exchange(self, *_: Any) -> Response:
        response = Response()
        try:
            whole = response.feed(self._said)
        except Malformed as error:
            raise NoReply(str(error), ambiguous=True) from error
        assert whole, "only whole answers are tried here"
        return response

    def is_quiet(self) -> bool:
        return True

    def close(self) -> None:
        pass


class Framed(HttpTransport):
    """A transport that is ready, and waits for nothing."""

    def __init__(self, said: bytes) -> None:
        super().__init__(Access(), Heard(said), lambda: self, Dates(World()))
        self.colour = self.fanout = Clock()  # type: ignore[assignment]
        self._signers.target = Target("x", 80, "x", "eu-west-1", "x", None, 1, False)
        self._signers._credentials = Credentials("key", "secret")
        self._ready = True


def fed(operation: str, said: bytes) -> list[Any]:
    """What comes of an operation that gets this for an answer: results and failures."""
    transport = Framed(said)
    world = World(ticks_ms=lambda: transport.colour.now_ms)  # type: ignore[attr-defined]
    store = DynamoDBBackend(Calls("table", transport, world, 1000))
    try:
        result = run_sync(OPERATIONS[operation](store))
    except RateLimiterUnavailable as error:
        return [error]
    except (InfrastructureNotFoundError, IncompatibleSchemaError) as error:
        # A description that can be read, of a table that will not do.
        return [error]
    outcomes = result if isinstance(result, list) else [result]
    return [getattr(outcome, "failure", None) or outcome for outcome in outcomes]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_answer_to_every_operation(operation: str) -> None:
    """It is read, or the store is unavailable; nothing that was written is sent again in doubt."""
    for name, said in ANSWERS.items():
        try:
            assert fed(operation, said)
        except Exception as error:
            error.add_note(f"the answer was {name!r}")
            raise


@pytest.mark.parametrize(("operation", "name"), UNREADABLE)
def test_what_cannot_be_read_may_have_been_applied(operation: str, name: str) -> None:
    """Nothing is made up from half an answer."""
    (first, *_) = fed(operation, ANSWERS[name])
    assert isinstance(first, RateLimiterUnavailable), first
    assert first.ambiguous == (operation not in retries.READS)


@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_read_in_one_way_is(name: str) -> None:
    """What is odd about it says nothing about what it says."""
    assert fed("UpdateItem", ANSWERS[name]) == [Outcome(True, {"n": 1})]
    assert fed("UpdateItem", answer(readable())) == [Outcome(True, {"n": 1})]


statuses = st.sampled_from(["200 OK"] * 6 + ["400 Bad Request"] * 3 + ["500 Oh", "302 Found", "404 No"])


@cases("answers of the store", 150, body=objects, status=statuses, operation=st.sampled_from([*OPERATIONS]))
def test_any_object_to_any_operation(body: Any, status: str, operation: str) -> None:
    """Anything that JSON can say."""
    assert fed(operation, answer(json.dumps(body).encode(), status))


@cases("answers of the store", 50, body=st.binary(max_size=60), operation=st.sampled_from([*OPERATIONS]))
def test_any_bytes_to_any_operation(body: bytes, operation: str) -> None:
    """And what it cannot say."""
    assert fed(operation, answer(body))


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer().running() as running:
        yield running


@BOTH
def test_every_answer_over_the_wire(sync: bool, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wires of both colours let nothing else out either, and the next call works."""
    monkeypatch.setattr(retries, "ATTEMPTS_MAX", 1)

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            store = DynamoDBBackend(Calls("table", transport, World(), 20_000))
            for name, said in ANSWERS.items():
                for operation in ("UpdateItem", "BatchGetItem"):
                    peer.otherwise = [said]
                    try:
                        await OPERATIONS[operation](store)
                    except RateLimiterUnavailable:
                        pass
                    except Exception as error:
                        error.add_note(f"the answer to {operation} was {name!r}")
                        raise
                    peer.otherwise = [answer(readable())]
                    assert await OPERATIONS["UpdateItem"](store) == [Outcome(True, {"n": 1})]

    drive(sync, scenario())


@BOTH
@pytest.mark.parametrize("name", ["body: deep", "attribute: a number without end", "Responses: a number"])
def test_who_would_rather_admit_than_wait_is_admitted(sync: bool, name: str, peer: Peer) -> None:
    """``on_unavailable`` is asked whatever is odd about the answer."""
    peer.otherwise = [ANSWERS[name]]

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            connection = Connection(
                DynamoDBBackend(Calls("table", transport, World(), 500)), World(), Options()
            )
            limiter = RateLimiter(Repository(connection, "home", "home"))
            limits = [Limit.per_minute("rpm", 10)]
            async with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits, on_unavailable="allow") as lease:
                assert lease.degraded
            with pytest.raises(RateLimiterUnavailable):
                await limiter.acquire("key", "gpt-4", {"rpm": 1}, limits).__aenter__()

    drive(sync, scenario())
