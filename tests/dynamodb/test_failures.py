"""What goes wrong on the wire, and what the caller is told: nothing is ever applied twice.

A proxy in front of the engine loses, delays and falsifies; both colours, with and without a driver, must
tell the same story.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.dynamodb.scripted import Script
from tests.dynamodb.tables import make_table, opened, session
from tests.engines import dynamodb_local
from tests.engines.proxy import (
    BROKEN,
    THROTTLE,
    Answer,
    Delay,
    DropReply,
    DropRequest,
    Fault,
    Meet,
    Proxy,
    ResetReply,
)
from tests.patience import PATIENCE_SECONDS, growing_ms
from tests.stores import drive
from zae_limiter.backends.dynamodb import open_driver, open_transport
from zae_limiter.backends.dynamodb.boto import Access
from zae_limiter.backends.dynamodb.expressions import batch_get_request
from zae_limiter.backends.dynamodb.transport import NoReply, ServiceError, TransportError
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Delete, Exists, Key, Outcome, Put, Query, Update, Write
from zae_limiter.runtime.colour import run_sync

A, B = Key("a", "s"), Key("b", "s")
BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
WAYS = pytest.mark.parametrize(
    ("sync", "transport"),
    [(False, "lean"), (True, "lean"), (False, "boto"), (True, "boto")],
    ids=["async", "sync", "async-boto", "sync-boto"],
)

WRITES: list[tuple[str, Write]] = [
    ("UpdateItem", Update(A, {"n": 1})),
    ("PutItem", Put(A, {"n": 2})),
    ("DeleteItem", Delete(A)),
]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(dynamodb_local.endpoint()).running() as running:
        yield running


@WAYS
@pytest.mark.parametrize(
    "fault", [DropRequest(), DropReply(), ResetReply(), BROKEN, Answer(503, "ServiceUnavailable")], ids=str
)
@pytest.mark.parametrize(("operation", "write"), WRITES, ids=[name for name, _ in WRITES])
def test_a_lost_write_is_sent_once(
    sync: bool, transport: str, proxy: Proxy, operation: str, write: Write, fault: Fault
) -> None:
    """Whether it was applied or not, the caller learns that it may have been, and nobody repeats it."""

    async def scenario() -> None:
        async with opened(sync, endpoint_url=proxy.url, transport=transport) as store:
            await store.write_each([Put(A, {"n": 1})])
            proxy.requests.clear()
            proxy.fault(operation, fault)
            (outcome,) = await store.write_each([write])
            assert outcome.failure is not None
            assert outcome.failure.ambiguous
            assert outcome.failure.__cause__ is not None
            assert operation in str(outcome.failure)
            assert proxy.requests == {operation: 1}
            after = {"UpdateItem": {"n": 2}, "PutItem": {"n": 2}, "DeleteItem": None}[operation]
            arrived = isinstance(fault, DropReply | ResetReply)
            assert await store.batch_get([A]) == [after if arrived else {"n": 1}]

            proxy.fault(operation, fault)
            with pytest.raises(RateLimiterUnavailable) as raised:
                await store.transact_write([write])
            assert raised.value.ambiguous

    drive(sync, scenario())


@WAYS
@pytest.mark.parametrize("fault", [DropRequest(), DropReply(), ResetReply(), BROKEN], ids=str)
def test_a_lost_transaction_is_repeated_under_its_token(
    sync: bool, transport: str, proxy: Proxy, fault: Fault
) -> None:
    """DynamoDB applies one token once, so the second arrival only asks what became of the first."""

    async def scenario() -> None:
        async with opened(sync, endpoint_url=proxy.url, transport=transport) as store:
            proxy.fault("TransactWriteItems", fault)
            outcomes = await store.transact_write([Update(A, {"n": 1}), Update(B, {"n": 1})])
            assert outcomes == [Outcome(True, None)] * 2
            assert proxy.requests == {"TransactWriteItems": 2}
            (_, first), (_, second) = proxy.payloads
            assert first == second
            assert await store.batch_get([A, B]) == [{"n": 1}] * 2

            await store.transact_write([Update(A, {"n": 1}), Update(B, {"n": 1})])
            assert proxy.payloads[-1][1]["ClientRequestToken"] != first["ClientRequestToken"]

    drive(sync, scenario())


@pytest.mark.parametrize(
    "later", [ServiceError("ThrottlingException", "slow down"), NoReply("refused", ambiguous=False)], ids=str
)
def test_a_transaction_that_stays_lost_is_ambiguous(later: TransportError) -> None:
    """That later attempts surely failed does not unsay that the first one may have been applied."""
    wire = Script(NoReply("reset", ambiguous=True), later)
    with pytest.raises(RateLimiterUnavailable) as raised:
        run_sync(wire.backend().transact_write([Update(A, {"n": 1}), Update(B, {"n": 1})]))
    assert raised.value.ambiguous
    assert len({payload["ClientRequestToken"] for _, payload, _ in wire.sent}) == 1


@BOTH
@pytest.mark.parametrize(
    "code",
    [
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TransactionConflictException",
    ],
)
def test_what_did_not_happen_is_repeated(sync: bool, proxy: Proxy, code: str) -> None:
    """Throttles and conflicts are answers that say so."""

    async def scenario() -> None:
        async with opened(sync, endpoint_url=proxy.url) as store:
            proxy.fault("UpdateItem", Answer(400, code), Answer(400, code))
            assert await store.write_each([Update(A, {"n": 1})]) == [Outcome(True, {"n": 1})]
            assert proxy.requests == {"UpdateItem": 3}

    drive(sync, scenario())


@pytest.mark.parametrize(
    "reason", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"]
)
def test_a_transaction_in_conflict_is_repeated(reason: str) -> None:
    """Also beside a refusal: of the write in conflict nothing is known yet."""
    reasons = [{"Code": "ConditionalCheckFailed"}, {"Code": reason}]
    cancelled = ServiceError("TransactionCanceledException", "no", {"CancellationReasons": reasons})
    wire = Script(cancelled, cancelled, {})
    outcomes = run_sync(wire.backend().transact_write([Update(A, {"n": 1}), Update(B, {"n": 1})]))
    assert [outcome.applied for outcome in outcomes] == [True, True]
    assert len(wire.sent) == 3


def test_repeating_ends_at_the_deadline_with_jitter() -> None:
    """Pauses grow, differ, and leave every attempt the rest of the time; the failure is unambiguous."""
    wire = Script(ServiceError("ThrottlingException", "slow down"))
    (outcome,) = run_sync(wire.backend(timeout_ms=1000).write_each([Update(A, {"n": 1})]))
    assert outcome.failure is not None
    assert not outcome.failure.ambiguous
    assert "throttled until its deadline" in str(outcome.failure)
    slept_ms = wire.clock.slept_ms
    assert 4 <= len(slept_ms) < 16
    assert len(set(slept_ms)) == len(slept_ms)
    assert slept_ms[0] <= 20 < slept_ms[-1] <= 200
    assert 600 < wire.clock.now_ms <= 900
    left_ms = [timeout_ms for _, _, timeout_ms in wire.sent]
    assert left_ms[0] == 1000
    assert left_ms == sorted(left_ms, reverse=True)
    assert left_ms[-1] >= 100


def test_repeating_ends_after_a_number_of_attempts() -> None:
    """Even if the clock stands still."""
    wire = Script(ServiceError("ThrottlingException", "slow down"), call_ms=0)
    run_sync(wire.backend(timeout_ms=60_000).write_each([Update(A, {"n": 1})]))
    assert len(wire.sent) == 16


@WAYS
@pytest.mark.parametrize("fault", [DropRequest(), DropReply(), ResetReply(), BROKEN, THROTTLE], ids=str)
def test_reads_are_repeated(sync: bool, transport: str, proxy: Proxy, fault: Fault) -> None:
    """A read changes nothing, so any loss is repeated within the deadline."""

    async def scenario() -> None:
        async with opened(sync, endpoint_url=proxy.url, transport=transport) as store:
            await store.write_each([Put(A, {"n": 1})])
            proxy.fault("BatchGetItem", fault)
            assert await store.batch_get([A]) == [{"n": 1}]
            proxy.fault("Query", fault)
            assert [row.item for row in (await store.query(Query("a"))).rows] == [{"n": 1}]
            assert proxy.requests == {"PutItem": 1, "BatchGetItem": 2, "Query": 2}

    drive(sync, scenario())


@WAYS
def test_one_of_several_writes_may_fail(sync: bool, transport: str, proxy: Proxy) -> None:
    """The others keep their outcomes."""

    async def scenario() -> None:
        async with opened(sync, endpoint_url=proxy.url, transport=transport) as store:
            proxy.fault("DeleteItem", DropRequest())
            outcomes = await store.write_each(
                [Update(A, {"n": 1}), Delete(B), Put(Key("c", "s"), {}, (Exists(),))]
            )
            assert outcomes[0] == Outcome(True, {"n": 1})
            assert outcomes[1].failure is not None
            assert outcomes[2] == Outcome(False, None, held=False)

    drive(sync, scenario())


@WAYS
def test_an_unreachable_service_is_known_not_to_have_acted(sync: bool, transport: str) -> None:
    """A refused connection is tried again until the deadline and is not ambiguous."""
    # Nothing listens on this port of the loopback interface.
    assert any(
        drive(sync, is_not_sent(sync, "http://127.0.0.1:9", timeout_ms, transport))
        for timeout_ms in growing_ms(800)
    )


async def is_not_sent(sync: bool, address: str, timeout_ms: int, transport: str) -> bool:
    """Whether a write is known not to have been sent; a driver that is still getting ready cannot know."""
    async with opened(sync, "nowhere", address, timeout_ms=timeout_ms, transport=transport) as store:
        since = time.monotonic()
        (outcome,) = await store.write_each([Update(A, {"n": 1})])
        assert time.monotonic() - since > 0.4
        assert outcome.failure is not None
        assert outcome.failure.ambiguous != ("was not sent" in str(outcome.failure))
        return not outcome.failure.ambiguous


@contextlib.contextmanager
def silent_host() -> Iterator[str]:
    """An address that never answers: once its queue is full, the kernel ignores who connects."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@WAYS
def test_a_silent_host_is_known_not_to_have_acted(sync: bool, transport: str) -> None:
    """When even connecting gets no answer nothing was sent, and the caller is told so."""
    with silent_host() as address:
        assert any(
            drive(sync, is_not_sent(sync, address, timeout_ms, transport)) for timeout_ms in growing_ms(1200)
        )


@WAYS
def test_the_deadline_holds(sync: bool, transport: str, proxy: Proxy) -> None:
    """A store that never answers has failed when the time is over, whatever was asked."""

    async def is_shown(timeout_ms: int) -> bool:
        async with opened(sync, endpoint_url=proxy.url, timeout_ms=timeout_ms, transport=transport) as store:
            # Getting ready is not what is tested, and may well take longer on a busy machine.
            with contextlib.suppress(RateLimiterUnavailable):
                await store.ping()
            proxy.fault("UpdateItem", Delay(PATIENCE_SECONDS))
            since = time.monotonic()
            (outcome,) = await store.write_each([Update(A, {"n": 1})])
            assert time.monotonic() - since >= 0.3
            assert outcome.failure is not None
            if not proxy.requests["UpdateItem"]:
                return False
            assert outcome.failure.ambiguous
            proxy.fault("BatchGetItem", *[Delay(PATIENCE_SECONDS)] * 2)
            with pytest.raises(RateLimiterUnavailable) as raised:
                await store.batch_get([A])
            assert not raised.value.ambiguous
            return True

    assert any(drive(sync, is_shown(timeout_ms)) for timeout_ms in growing_ms(300))


@WAYS
def test_each_request_has_a_timeout_of_its_own(sync: bool, transport: str, proxy: Proxy) -> None:
    """A late attempt has only the time that is left of the call, not the client's whole timeout."""

    async def scenario() -> None:
        access = Access("eu-west-1", proxy.url, timeout_ms=60_000, session=session(sync))
        wire = (open_transport if transport == "lean" else open_driver)(access, sync=sync)
        request = batch_get_request(make_table(), [A])
        await wire.call("BatchGetItem", request, 60_000)
        for timeout_ms in growing_ms(100):
            before = proxy.requests["BatchGetItem"]
            proxy.fault("BatchGetItem", Delay(PATIENCE_SECONDS))
            with pytest.raises(NoReply) as raised:
                await wire.call("BatchGetItem", request, timeout_ms)
            if proxy.requests["BatchGetItem"] > before:
                break
        assert raised.value.ambiguous
        await wire.close()

    drive(sync, scenario())


@WAYS
def test_the_store_recovers_by_itself(sync: bool, transport: str, proxy: Proxy) -> None:
    """After an outage the same backend works on."""

    async def scenario() -> None:
        async with opened(sync, endpoint_url=proxy.url, transport=transport) as store:
            proxy.fault("UpdateItem", *[DropRequest()] * 5)
            lost = [(await store.write_each([Update(A, {"n": 1})]))[0].failure for _ in range(5)]
            assert all(failure is not None for failure in lost)
            assert await store.write_each([Update(A, {"n": 1})]) == [Outcome(True, {"n": 1})]

    drive(sync, scenario())


@BOTH
@pytest.mark.parametrize(
    ("code", "wrong", "words"),
    [
        ("AccessDeniedException", "permission", ("not permitted", "dynamodb:UpdateItem")),
        ("UnrecognizedClientException", "credentials", ("credentials", "renew or correct")),
        ("ExpiredTokenException", "credentials", ("credentials", "renew or correct")),
        ("InvalidSignatureException", "credentials", ("credentials", "renew or correct")),
        ("ResourceNotFoundException", "table", ("does not exist", "zae-limiter deploy --name")),
        ("SomethingNewException", "", ("was refused", "said the proxy")),
    ],
)
def test_a_refusal_names_the_way_out(
    sync: bool, proxy: Proxy, code: str, wrong: str, words: tuple[str, ...]
) -> None:
    """Permissions, credentials and a missing table are named as such, and are not repeated."""

    async def scenario() -> None:
        async with opened(sync, endpoint_url=proxy.url) as store:
            proxy.fault("UpdateItem", Answer(400, code))
            (outcome,) = await store.write_each([Update(A, {"n": 1})])
            assert outcome.failure is not None
            assert not outcome.failure.ambiguous
            assert outcome.failure.denied == code.startswith("AccessDenied")
            assert outcome.failure.misconfigured == wrong
            assert all(word in str(outcome.failure) for word in (*words, store.table_name))
            assert proxy.requests == {"UpdateItem": 1}

    drive(sync, scenario())


@BOTH
def test_connections_are_kept(sync: bool, proxy: Proxy) -> None:
    """Calls one after another share a connection, and ten at once need no more than ten."""

    async def scenario() -> None:
        async with opened(sync, endpoint_url=proxy.url) as store:
            for _ in range(10):
                await store.write_each([Update(A, {"n": 1})])
            assert proxy.connections == 1
            for _ in range(3):
                await store.write_each([Update(Key(f"k{n}", "s"), {"n": 1}) for n in range(10)])
            assert proxy.connections <= 10

    drive(sync, scenario())


@BOTH
def test_writes_of_one_call_go_out_together(sync: bool, proxy: Proxy) -> None:
    """None of ten writes is answered before the last of them has arrived."""

    async def scenario() -> None:
        async with opened(sync, endpoint_url=proxy.url) as store:
            await store.ping()
            proxy.fault("UpdateItem", *[Meet(threading.Barrier(10))] * 10)
            outcomes = await store.write_each([Update(Key(f"k{n}", "s"), {"n": 1}) for n in range(10)])
            assert all(outcome.applied for outcome in outcomes)

    drive(sync, scenario())


@BOTH
def test_the_table_vanishes(sync: bool) -> None:
    """A table that is deleted under a running process is an outage with the command that ends it."""

    async def scenario() -> None:
        table = make_table()
        async with opened(sync, table) as store:
            await store.delete_table()
            with pytest.raises(RateLimiterUnavailable, match=f"zae-limiter deploy --name {table}"):
                await store.ping()

    drive(sync, scenario())
