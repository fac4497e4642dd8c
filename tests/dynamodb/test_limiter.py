"""The limiter on DynamoDB when the service refuses in its own words, or is gone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.dynamodb.tables import driver, make_table, opened
from tests.engines import dynamodb_local
from tests.engines.proxy import Answer, Proxy
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, Repository
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


async def left(limiter: RateLimiter) -> int:
    return (await limiter.available("key", RESOURCE, SLOW))["rpm"]


def test_a_debit_that_was_answered_by_an_inner_error_is_never_sent_again(proxy: Proxy) -> None:
    """It may have happened: who says that something went wrong inside does not say when."""

    async def run() -> None:
        async with through(proxy) as (limiter, record):
            proxy.fault("UpdateItem", Answer(500, "InternalServerError"))
            with pytest.raises(RateLimiterUnavailable) as failed:
                async with limiter.acquire("key", RESOURCE, {"rpm": 5}, SLOW):
                    pytest.fail("admitted without an answer")
            assert failed.value.ambiguous
            assert record.writes == 1
            assert await left(limiter) == 90

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
