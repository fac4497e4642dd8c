"""Work that goes ahead unchecked: counted each time, and what is set up wrong is told for what it is."""

import logging
from collections.abc import Sequence

import pytest

from tests.flow.clients import RESOURCE, Store, rpm
from zae_limiter import RateLimiterUnavailable
from zae_limiter.repository_protocol import Backend, Outcome, Write
from zae_limiter.testing.stores import Wrapper


async def test_every_degraded_admission_is_counted(store: Store) -> None:
    """By the limiter, whatever was asked for in the lease; what was refused or checked is not."""
    client = await store.client()
    limiter = client.limiter
    await client.take("key", {"rpm": 1}, rpm(10))
    assert limiter.degraded == 0
    with client.down():
        for _ in range(3):
            async with limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)], "allow") as lease:
                await lease.consume(rpm=1)
        with pytest.raises(RateLimiterUnavailable):
            async with limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)], "block"):
                pass
    assert limiter.degraded == 3
    assert "degraded=3, refunds_lost=0" in repr(limiter)
    async with limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)], "allow") as lease:
        with client.down():
            await lease.consume(rpm=2)
    assert limiter.degraded == 4


class Wrong(Wrapper):
    """A store that is set up wrong, in one way or another."""

    kind = ""

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        if self.kind:
            problem = RateLimiterUnavailable(f"wrong {self.kind}; put it right", misconfigured=self.kind)
            return [Outcome(False, None, failure=problem) for _ in writes]
        return await super().write_each(writes)

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self.write_each(writes)


async def test_what_is_set_up_wrong_is_told_once_as_an_error(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """With the way out, once for each kind, and not for an outage; every admission is still counted."""
    wrong: list[Wrong] = []

    def wrapped(backend: Backend) -> Backend:
        wrong.append(Wrong(backend))
        return wrong[-1]

    client = await store.client(wrap=wrapped)
    await client.take("key", {"rpm": 1}, rpm(10))

    async def admitted() -> list[str]:
        caplog.clear()
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)], "allow") as lease:
            assert lease.degraded
        return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]

    with caplog.at_level(logging.WARNING, "zae_limiter"):
        with client.down():
            assert await admitted() == []
        for kind in ("permission", "table"):
            wrong[0].kind = kind
            (told,) = await admitted()
            assert told.startswith("nothing is limited")
            assert told.endswith(f"wrong {kind}; put it right")
            assert await admitted() == []
    assert client.limiter.degraded == 5
