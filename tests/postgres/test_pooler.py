"""Through PgBouncer in transaction mode, where each statement may meet another server process."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.open_store import OpenStore
from tests.conformance.test_state_machine import StoreMachine
from tests.engines import postgres
from tests.engines.dynamodb_local import free_port, wait_for_port
from tests.engines.servers import as_nobody, launched, program
from tests.patience import wait_until
from tests.postgres.schemas import lent_schema
from zae_limiter import Limit, RateLimiter
from zae_limiter.backends.postgres import open_backend
from zae_limiter.runtime.world import World


@pytest.fixture(scope="module")
def pooler() -> Iterator[int]:
    folder = Path(tempfile.mkdtemp(prefix="zae-limiter-", dir="/tmp"))  # which others may enter
    folder.chmod(0o777)
    port = free_port()
    settings = {
        "listen_addr": postgres.HOST,
        "listen_port": port,
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": 3,
        "max_client_conn": 100,
        "unix_socket_dir": str(folder),
    }
    server = f"host={postgres.HOST} port={postgres.SERVER.port()} user={postgres.USER}"
    lines = ["[databases]", f"{postgres.DATABASE} = {server}", "[pgbouncer]"]
    (folder / "ini").write_text(
        "\n".join([*lines, *(f"{name} = {value}" for name, value in settings.items())])
    )
    process: subprocess.Popen[bytes] = launched(
        [program("pgbouncer"), str(folder / "ini")], folder, **as_nobody()
    )
    wait_for_port(port)
    yield port
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_store_behind_a_pooler_agrees_with_apply(pooler: int, sync: bool) -> None:
    """Whatever is asked, in whatever order, as on a server itself."""
    from hypothesis import HealthCheck, settings
    from hypothesis.stateful import run_state_machine_as_test

    from zae_limiter.runtime.colour import run_sync

    with asyncio.Runner() as runner:
        run = run_sync if sync else runner.run
        backend = open_backend(
            postgres.url(lent_schema(), pooler, timeout_ms=60_000), sync=sync, world=World()
        )
        run(backend.setup())
        run_state_machine_as_test(
            lambda: StoreMachine(OpenStore(backend, run)),
            settings=settings(
                max_examples=10, stateful_step_count=15, suppress_health_check=[HealthCheck.too_slow]
            ),
        )
        run(backend.close())


async def test_more_clients_than_server_processes(pooler: int) -> None:
    """Twelve limiters of one store, over three processes: all is admitted once."""
    url = postgres.url(lent_schema(), pooler, timeout_ms=60_000)
    limiters = [await RateLimiter.open(url).__aenter__() for _ in range(6)]
    await limiters[0].set_system_defaults([Limit.per_day("rpm", 100)])

    async def take(limiter: RateLimiter) -> None:
        async with limiter.acquire("key", "api", {"rpm": 1}):
            pass

    await asyncio.gather(*(take(limiters[n % 6]) for n in range(60)))
    assert await limiters[0].available("key", "api") == {"rpm": 40}
    for limiter in limiters:
        await limiter.close()


def test_nobody_listens_through_a_pooler_that_cannot(pooler: int) -> None:
    """It is recognised and left alone; another address may be given for that."""
    schema = lent_schema()
    deaf = open_backend(postgres.url(schema, pooler, timeout_ms=60_000), sync=True, world=World())
    deaf.news()
    ear = deaf.listening._ear.peek()
    assert ear is not None
    wait_until(lambda: ear.has_ended)
    assert not deaf.listening.is_listening
    direct = f"{postgres.HOST}:{postgres.SERVER.port()}"
    hearing = open_backend(
        postgres.url(schema, pooler, timeout_ms=60_000, listen=direct), sync=True, world=World()
    )
    hearing.news()
    wait_until(lambda: hearing.listening.is_listening)
    for backend in (deaf, hearing):
        from zae_limiter.runtime.colour import run_sync

        run_sync(backend.close())
