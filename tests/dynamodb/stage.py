"""What the tests of the DynamoDB store share: tables on the engine, both colours, a scripted wire."""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import botocore.session
from aiobotocore.session import AioSession

from tests.engines import dynamodb_local
from zae_limiter.backends.dynamodb import DynamoDBBackend, open_backend
from zae_limiter.backends.dynamodb.expressions import Payload
from zae_limiter.backends.dynamodb.retries import Calls
from zae_limiter.backends.dynamodb.table import create_table_request
from zae_limiter.backends.dynamodb.transport import TransportError
from zae_limiter.runtime.colour import Blocking, run_sync
from zae_limiter.runtime.world import World

T = TypeVar("T")


def drive(sync: bool, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a scenario in one of the two colours."""
    return run_sync(coroutine) if sync else asyncio.run(coroutine)


@functools.cache
def session(sync: bool) -> Any:
    """Loading the description of the service takes longer than most tests, so it is done once."""
    return botocore.session.Session() if sync else AioSession()


@functools.cache
def driver() -> Any:
    """A plain client of the engine, to prepare and inspect tables without the code under test."""
    return session(True).create_client(
        "dynamodb", region_name="eu-west-1", endpoint_url=dynamodb_local.endpoint()
    )


def make_table(*, with_stream: bool = False, **changes: Any) -> str:
    """A fresh table, made by the engine itself from our definition or a variant of it.

    It has a stream only if that is asked for: with each write the engine looks for the first record of
    the table's stream among all older ones, and there are more of them with every test.
    """
    table = dynamodb_local.fresh_table()
    stream = {} if with_stream else {"StreamSpecification": {"StreamEnabled": False}}
    driver().create_table(**create_table_request(table) | stream | changes)
    return table


@asynccontextmanager
async def opened(
    sync: bool, table: str | None = None, endpoint_url: str | None = None, **options: Any
) -> AsyncIterator[DynamoDBBackend]:
    """A backend on a fresh table, or on the one given; closed in the end.

    Its deadline is far away unless a test is about deadlines: the machine may be busy.
    """
    options.setdefault("timeout_ms", 60_000)
    url = dynamodb_local.url(table or make_table(), endpoint_url, **options)
    backend = open_backend(url, sync=sync, world=World(), session=session(sync))
    try:
        yield backend
    finally:
        await backend.close()


def open_table(sync: bool, table: str, world: World) -> DynamoDBBackend:
    """A table under the clock of a test. Deadlines are real, and so are the dice: the engine knows the
    tokens of transactions on all its tables."""
    url = dynamodb_local.url(table, timeout_ms=60_000)
    return open_backend(url, sync=sync, world=World(world.now_ms), session=session(sync))


class Clock(Blocking):
    """A colour whose sleeps take no time but are remembered, and the clock that they move."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0.0
        self.slept_ms: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept_ms.append(seconds * 1000)
        self.now_ms += seconds * 1000

    @property
    def world(self) -> World:
        return World(ticks_ms=lambda: self.now_ms, random=random.Random(1))


class Script:
    """A transport that replays answers; the last one is repeated. Each call takes ``call_ms``."""

    def __init__(self, *answers: Payload | TransportError, call_ms: float = 1) -> None:
        self.clock = Clock()
        self.colour = self.lanes = self.clock
        self.sent: list[tuple[str, Payload, float]] = []
        self._answers = list(answers)
        self._call_ms = call_ms

    async def call(self, operation: str, payload: Payload, timeout_ms: float) -> Payload:
        self.sent.append((operation, payload, timeout_ms))
        self.clock.now_ms += self._call_ms
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, TransportError):
            raise answer
        return answer

    async def close(self) -> None:
        pass

    @property
    def operations(self) -> list[str]:
        return [operation for operation, _, _ in self.sent]

    def backend(self, timeout_ms: int = 1000) -> DynamoDBBackend:
        return DynamoDBBackend(Calls("table", self, self.clock.world, timeout_ms))
