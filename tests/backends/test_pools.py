"""``pool`` of a URL: however many ask at once, a server has no more connections from us."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from tests.engines import postgres
from tests.engines.redis_server import fresh_prefix
from tests.engines.redis_server import url as redis_url
from tests.patience import wait_until
from tests.postgres.proxy import Proxy
from tests.postgres.schemas import lent_schema, plain
from tests.redis.faulty_wire import FaultyWire
from tests.redis.fleet import fleet
from zae_limiter.backends import open_backend
from zae_limiter.repository_protocol import Backend, Key, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

K = Key("ns/BUCKET#key#api#0", "#STATE")
CALLS, POOL = 50, 3


class Counted(NamedTuple):
    """A server whose connections are counted, and that can stand still meanwhile."""

    url: str
    connections: Callable[[], int]
    stop: Callable[[], object]
    go_on: Callable[[], object]

    def opened(self, pool: int, *, sync: bool) -> Backend:
        return open_backend(f"{self.url}&pool={pool}", sync=sync, world=World())


@contextmanager
def on_redis() -> Iterator[Counted]:
    with fleet() as own:
        server = own.server()
        with FaultyWire(server.port).running() as wire:
            url = redis_url(fresh_prefix(), wire.port, timeout_ms=60_000)
            yield Counted(
                url,
                lambda: wire.connections,
                lambda: server.signal(signal.SIGSTOP),
                lambda: server.signal(signal.SIGCONT),
            )


@contextmanager
def on_postgres() -> Iterator[Counted]:
    schema, port = lent_schema(), postgres.SERVER.port()
    with Proxy(port).running() as proxy, plain(port) as other:

        def stop() -> None:
            other.autocommit = False
            other.execute(f"LOCK TABLE {schema}.items IN ACCESS EXCLUSIVE MODE")

        url = postgres.url(schema, proxy.port, timeout_ms=60_000, listen="off")
        yield Counted(url, lambda: proxy.connections, stop, other.commit)


@pytest.fixture(params=[on_redis, on_postgres], ids=["redis", "postgres"])
def counted(request: pytest.FixtureRequest) -> Iterator[Counted]:
    with request.param() as it:
        yield it


def test_threads_wait_for_a_connection(counted: Counted) -> None:
    """The server stands still until all connections are taken. All that is asked is answered, once."""
    backend = counted.opened(POOL, sync=True)
    run_sync(backend.setup())
    counted.stop()
    with ThreadPoolExecutor(CALLS) as threads:
        asked = [
            threads.submit(lambda: run_sync(backend.write_each([Update(K, add={"n": 1})])))
            for _ in range(CALLS)
        ]
        wait_until(lambda: counted.connections() >= POOL)
        counted.go_on()
        assert all(outcome.applied for one in asked for outcome in one.result())
    assert counted.connections() == POOL
    assert run_sync(backend.batch_get([K])) == [{"n": CALLS}]
    run_sync(backend.close())


def test_tasks_wait_for_a_connection(counted: Counted) -> None:
    """Reads and writes travel apart, but not at the same time if there is only one connection."""

    async def scenario() -> None:
        backend = counted.opened(1, sync=False)
        await backend.setup()
        writes = [backend.write_each([Update(K, add={"n": 1})]) for _ in range(CALLS)]
        reads = [backend.batch_get([K]) for _ in range(CALLS)]
        await asyncio.gather(*writes, *reads)
        assert await backend.batch_get([K]) == [{"n": CALLS}]
        await backend.close()

    asyncio.run(scenario())
    assert counted.connections() == 1
