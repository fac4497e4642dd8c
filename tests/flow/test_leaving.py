"""Leaving a lease while the store is stuck: one deadline in all, then it is told and counted.

Attempts are counted instead of seconds: each of them takes a whole deadline of its store.
"""

# Blocks that fail under a lease are what is tested here, and they hold more than one statement.
# ruff: noqa: PT012

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from tests.flow.clients import RESOURCE, rpm
from zae_limiter import RateLimiter, RateLimiterUnavailable, Repository, SyncRateLimiter, SyncRepository
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.repository_protocol import Backend, Outcome, Write
from zae_limiter.runtime.world import World
from zae_limiter.testing import RecordingBackend
from zae_limiter.testing.stores import Wrapper

LIMIT = rpm(1_000)
TIMEOUT_MS = 50


class Failed(Exception):
    """The work went wrong."""


class File:
    """A store that somebody else can lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._holder: sqlite3.Connection | None = None

    def backend(self, *, sync: bool) -> RecordingBackend:
        world = World()
        return RecordingBackend(SqliteBackend(self._path, sync=sync, timeout_ms=TIMEOUT_MS, world=world))

    def lock(self) -> None:
        self._holder = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._holder.execute("BEGIN IMMEDIATE")

    def unlock(self) -> None:
        if self._holder is not None:
            self._holder.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    it = File(tmp_path / "limits.db")
    yield it
    it.unlock()


async def opened(backend: Backend) -> RateLimiter:
    return RateLimiter(await Repository.over(backend))


def error_of(ending: str) -> type[BaseException]:
    return {"well": RateLimiterUnavailable, "badly": Failed, "by a timeout": TimeoutError}[ending]


@pytest.mark.parametrize("ending", ["well", "badly", "by a timeout"])
async def test_leaving_takes_one_deadline(file: File, ending: str) -> None:
    """However the work ended, and however impatient somebody is: one attempt, and then it is told."""
    backend = file.backend(sync=False)
    limiter = await opened(backend)

    async def leave() -> None:
        async with asyncio.timeout(None) as scope:
            async with limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
                await lease.adjust(rpm=1)
                file.lock()
                backend.forget()
                if ending == "badly":
                    raise Failed
                if ending == "by a timeout":
                    scope.reschedule(0)

    with pytest.raises(error_of(ending)):
        await leave()
    assert (backend.writes, limiter.refunds_lost) == (1, 1)
    await limiter.close()


@pytest.mark.parametrize("ending", ["well", "badly"])
def test_leaving_takes_one_deadline_in_sync_code_too(file: File, ending: str) -> None:
    backend = file.backend(sync=True)

    def leave() -> None:
        with limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
            lease.adjust(rpm=1)
            file.lock()
            backend.forget()
            if ending == "badly":
                raise Failed

    with SyncRateLimiter(SyncRepository.over(backend)) as limiter:
        with pytest.raises(error_of(ending)):
            leave()
        assert (backend.writes, limiter.refunds_lost) == (1, 1)


async def test_reader_who_leaves_a_stuck_store(file: File, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is there to be told: logged and counted, after one deadline."""
    backend = file.backend(sync=False)
    limiter = await opened(backend)

    async def stream() -> AsyncIterator[None]:
        async with limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]) as lease:
            await lease.adjust(rpm=1)
            yield

    reader = stream()
    await anext(reader)
    file.lock()
    backend.forget()
    await reader.aclose()  # type: ignore[attr-defined]
    assert (backend.writes, limiter.refunds_lost) == (1, 1)
    assert "may not have got" in caplog.text
    await limiter.close()


class Reluctant(Wrapper):
    """A store that turns the first write after a while away at once and then does not answer for long."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.script: list[str] = []
        self.gate, self.landed = asyncio.Event(), asyncio.Event()

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        step = self.script.pop(0) if self.script else ""
        if step == "away":
            failure = RateLimiterUnavailable("turned away")
            return [Outcome(False, None, failure=failure) for _ in writes]
        if step == "hang":
            await self.gate.wait()
        outcomes = await super().write_each(writes)
        if step == "hang":
            self.landed.set()
        return outcomes


async def test_second_attempt_gets_what_is_left_of_the_deadline(file: File) -> None:
    """It is not waited for any longer; it may still arrive, which is why it is not sent again."""
    reluctant = Reluctant(file.backend(sync=False))
    limiter = await opened(reluctant)
    with pytest.raises(Failed):
        async with limiter.acquire("key", RESOURCE, {"rpm": 100}, [LIMIT]):
            reluctant.script = ["away", "hang"]
            raise Failed
    assert (limiter.refunds_lost, reluctant.script) == (1, [])
    reluctant.gate.set()
    await asyncio.wait_for(reluctant.landed.wait(), 60)
    assert await limiter.available("key", RESOURCE, [LIMIT]) == {"rpm": 1_000}
    await limiter.close()
