"""The limiter on DynamoDB when the wire misbehaves, the engine is gone, or fifty clients want one bucket."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.dynamodb import worker
from tests.dynamodb.tables import driver, make_table, opened
from tests.engines import dynamodb_local
from tests.engines.proxy import Answer, DropReply, DropRequest, Fault, Proxy
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, Repository
from zae_limiter.engine.law import Rate, gain
from zae_limiter.schema import bucket_key, limit_attributes, number
from zae_limiter.testing import RecordingBackend

RESOURCE = "gpt-4"
SLOW = [Limit.custom("rpm", 100, 1, 86_400)]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(dynamodb_local.endpoint()).running() as running:
        yield running


@asynccontextmanager
async def through(
    proxy: Proxy, timeout_ms: int = 10_000, table: str | None = None
) -> AsyncIterator[tuple[RateLimiter, RecordingBackend]]:
    """A warm limiter behind the proxy: 10 of 100 tokens are gone."""
    async with opened(False, table, proxy.url, timeout_ms=timeout_ms) as backend:
        record = RecordingBackend(backend)
        limiter = RateLimiter(await Repository.over(record))
        async with limiter.acquire("key", RESOURCE, {"rpm": 10}, SLOW):
            pass
        record.forget()
        yield limiter, record


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


@pytest.mark.parametrize(
    ("fault", "gone"),
    [(DropReply(), 5), (DropRequest(), 0), (Answer(500, "InternalServerError"), 0)],
    ids=str,
)
def test_a_debit_without_a_reply_is_never_sent_again(proxy: Proxy, fault: Fault, gone: int) -> None:
    """The caller learns that the store did not answer; at worst its own tokens are missing."""

    async def run() -> None:
        async with through(proxy) as (limiter, record):
            proxy.fault("UpdateItem", fault)
            with pytest.raises(RateLimiterUnavailable) as failed:
                async with limiter.acquire("key", RESOURCE, {"rpm": 5}, SLOW):
                    pytest.fail("admitted without an answer")
            assert failed.value.ambiguous
            assert record.writes == 1
            assert await left(limiter) == 90 - gone

    asyncio.run(run())


def test_a_first_acquire_without_a_reply_is_never_sent_again(proxy: Proxy) -> None:
    """The bucket may have been made; the next acquire finds out by itself."""

    async def run() -> None:
        async with through(proxy) as (limiter, _):
            proxy.fault("PutItem", DropReply())
            with pytest.raises(RateLimiterUnavailable):
                async with limiter.acquire("other", RESOURCE, {"rpm": 5}, SLOW):
                    pass
            async with limiter.acquire("other", RESOURCE, {"rpm": 5}, SLOW):
                assert await limiter.available("other", RESOURCE, SLOW) == {"rpm": 90}

    asyncio.run(run())


@pytest.mark.parametrize(("fault", "back"), [(DropReply(), 5), (DropRequest(), 0)], ids=str)
def test_a_refund_without_a_reply_is_not_repeated(proxy: Proxy, fault: Fault, back: int) -> None:
    """It is counted as lost, the original error comes out, and the balance is never too high."""

    async def run() -> None:
        async with through(proxy) as (limiter, record):
            with pytest.raises(ZeroDivisionError):
                await fails(limiter, lambda: proxy.fault("UpdateItem", fault))
            assert (record.writes, limiter.refunds_lost) == (2, 1)
            assert await left(limiter) == 85 + back

    asyncio.run(run())


@pytest.mark.parametrize(("fault", "charged"), [(DropReply(), 7), (DropRequest(), 0)], ids=str)
def test_an_adjustment_without_a_reply_is_not_repeated(proxy: Proxy, fault: Fault, charged: int) -> None:
    """The caller is told that the settlement may be missing."""

    async def run() -> None:
        async with through(proxy) as (limiter, record):
            with pytest.raises(RateLimiterUnavailable):
                await adjusts(limiter, lambda: proxy.fault("UpdateItem", fault))
            assert (record.writes, limiter.refunds_lost) == (2, 1)
            assert await left(limiter) == 85 - charged

    asyncio.run(run())


def test_a_lost_reply_of_one_of_two_gives_the_other_back(proxy: Proxy) -> None:
    """Cascade: what was certainly taken is refunded, what may have been taken is not."""

    async def run() -> None:
        async with through(proxy) as (limiter, _):
            await limiter.repository.create_entity("parent")
            await limiter.repository.create_entity("child", parent_id="parent", cascade=True)
            await limiter.repository.set_resource_defaults(RESOURCE, SLOW)
            async with limiter.acquire("child", RESOURCE, {"rpm": 1}):
                pass
            proxy.fault("UpdateItem", DropReply())
            with pytest.raises(RateLimiterUnavailable):
                async with limiter.acquire("child", RESOURCE, {"rpm": 5}):
                    pass
            images = await limiter.repository.writer.look(
                [bucket_key(limiter.repository.namespace_id, who, RESOURCE) for who in ("child", "parent")]
            )
            taken = sorted(number(image or {}, limit_attributes("rpm").tc) for image in images)
            assert taken == [1_000, 6_000]

    asyncio.run(run())


def test_a_table_out_of_reach_is_answered_by_policy_and_comes_back(proxy: Proxy) -> None:
    """Every acquire is answered while nobody listens, and works again by itself."""

    async def run() -> None:
        table = make_table()
        async with through(proxy, 2_000, table) as (limiter, _):

            async def block() -> None:
                with pytest.raises(RateLimiterUnavailable):
                    async with limiter.acquire("key", RESOURCE, {"rpm": 1}, SLOW):
                        pass

            async def allow() -> None:
                async with limiter.acquire("key", RESOURCE, {"rpm": 1}, SLOW, "allow") as lease:
                    assert lease.degraded

            with proxy.gone():
                for _ in range(3):
                    await block()
                    await allow()
                assert not await limiter.is_available(0.5)
            async with limiter.acquire("key", RESOURCE, {"rpm": 1}, SLOW) as lease:
                assert not lease.degraded
            assert await left(limiter) == 89

    asyncio.run(run())


def test_fifty_clients_admit_what_one_would_have() -> None:
    """Five processes of ten tasks, ten buckets one after another: capacity plus accrual, to the request."""
    table = make_table()
    processes: list[subprocess.Popen[str]] = []
    url = dynamodb_local.url(table, timeout_ms=60_000)
    for _ in range(5):
        command = [sys.executable, "-m", "tests.dynamodb.worker", url, "10"]
        processes.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        )
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 5  # type: ignore[union-attr]
        for run in range(10):
            asyncio.run(empty(table, f"key-{run}"))
            for process in processes:
                print(f"key-{run} 0.7", file=process.stdin)
            answers = [map(int, process.stdout.readline().split()) for process in processes]  # type: ignore[union-attr]
            admitted, asked_ms, refused_ms = zip(*answers, strict=True)
            asyncio.run(check_books(table, f"key-{run}", sum(admitted), max(asked_ms), max(refused_ms)))
    finally:
        for process in processes:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]


async def empty(table: str, key: str) -> None:
    """Make a bucket and take all it has, so that it does not overflow before the clients are at work."""
    async with opened(False, table) as backend:
        limiter = RateLimiter(await Repository.over(backend))
        async with limiter.acquire(key, RESOURCE, {"rps": worker.LIMITS[0].capacity}, worker.LIMITS):
            pass


async def check_books(table: str, key: str, admitted: int, asked_ms: int, refused_ms: int) -> None:
    """What was admitted is what the store counted, and what one bucket allows, within one request."""
    (limit,) = worker.LIMITS
    async with opened(False, table) as backend:
        repository = await Repository.over(backend)
        (image,) = await backend.batch_get([bucket_key(repository.namespace_id, key, RESOURCE)])
    assert image is not None
    admitted_milli = (admitted + limit.capacity) * 1000  # it was emptied first
    assert number(image, limit_attributes("rps").tc) == admitted_milli
    rate, origin_ms = Rate.of(limit), number(image, "rf")
    # Somebody was refused one token between these two instants, and nobody was admitted afterwards.
    assert limit.capacity_milli + gain(rate, origin_ms, asked_ms) - admitted_milli < 1000
    assert limit.capacity_milli + gain(rate, origin_ms, refused_ms) - admitted_milli >= 0


def test_what_is_not_permitted_is_no_outage(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    """Who let work go ahead unchecked is told as an error that the permission is missing, and only once."""

    async def run() -> None:
        async with through(proxy) as (limiter, _):
            for _ in range(3):
                proxy.fault("UpdateItem", Answer(400, "AccessDeniedException"))
                async with limiter.acquire("key", RESOURCE, {"rpm": 1}, SLOW, "allow") as lease:
                    assert lease.degraded
            assert limiter.degraded == 3
            (told,) = errors(caplog)
            assert "allow the caller dynamodb:UpdateItem on this table" in told
            async with limiter.acquire("key", RESOURCE, {"rpm": 1}, SLOW, "allow") as lease:
                assert not lease.degraded
            assert limiter.degraded == 3

    asyncio.run(run())


def test_a_table_that_is_gone_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """Nor is that, and the way out is in the log; who blocks gets it as an exception."""
    table = make_table()

    async def run() -> None:
        async with opened(False, table) as backend:
            limiter = RateLimiter(await Repository.over(backend))
            async with limiter.acquire("key", RESOURCE, {"rpm": 1}, SLOW):
                pass
            driver().delete_table(TableName=table)
            for number in range(1, 4):
                async with limiter.acquire("key", RESOURCE, {"rpm": 1}, SLOW, "allow") as lease:
                    assert lease.degraded
                assert limiter.degraded == number
            (told,) = errors(caplog)
            assert f"zae-limiter deploy --name {table}" in told
            with pytest.raises(RateLimiterUnavailable) as caught:
                async with limiter.acquire("key", RESOURCE, {"rpm": 1}, SLOW, "block"):
                    pass
            assert caught.value.misconfigured == "table"
            assert limiter.degraded == 3

    asyncio.run(run())


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
