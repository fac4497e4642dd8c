"""Servers that stand still for a while, as if for their disk: deadlines hold, nothing happens twice."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.engines import postgres
from tests.engines.redis_server import HOST
from tests.postgres.schemas import plain
from tests.postgres.test_crashes import Cluster, folder
from tests.redis.fleet import fleet
from tests.stores import drive
from zae_limiter.backends import open_backend
from zae_limiter.backends.postgres.layout import create_sql
from zae_limiter.repository_protocol import Backend, Key, Update
from zae_limiter.runtime.world import World

K = Key("ns/BUCKET#key#api#0", "#STATE")
SHORT_MS, LONG_MS = 300, 60_000
COLOURS = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
KINDS = pytest.mark.parametrize("slow", ["redis", "postgres"], indirect=True)


class SlowServer(NamedTuple):
    """A server that waits for its disk before it answers, and how to let it stand still and go on."""

    url: str
    signal: Callable[[int], None]

    def opened(self, timeout_ms: int, sync: bool) -> Backend:
        return open_backend(f"{self.url}&timeout_ms={timeout_ms}", sync=sync, world=World())


@contextlib.contextmanager
def slow_redis() -> Iterator[SlowServer]:
    with fleet() as own:
        server = own.server("--appendonly", "yes", "--appendfsync", "always")
        yield SlowServer(f"redis://{HOST}:{server.port}/0?prefix=slow", server.signal)


@contextlib.contextmanager
def slow_postgres() -> Iterator[SlowServer]:
    with folder() as it:
        cluster = Cluster(it)
        cluster.start(again=False)
        with plain(cluster.port) as owner:
            owner.execute(create_sql("zl"))

        def tell(number: int) -> None:
            pid = (it / "data" / "postmaster.pid").read_text().split()[0]
            words = ["pgrep", "-P", pid]
            children = subprocess.run(words, capture_output=True, text=True, check=False).stdout
            for one in (pid, *children.split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(one), number)

        yield SlowServer(postgres.url("zl", cluster.port, listen="off"), tell)
        cluster.stop()


@pytest.fixture(scope="module")
def slow(request: pytest.FixtureRequest) -> Iterator[SlowServer]:
    with slow_redis() if request.param == "redis" else slow_postgres() as it:
        yield it


@KINDS
@COLOURS
def test_whoever_waits_for_a_slow_disk_is_told_by_the_deadline(slow: SlowServer, sync: bool) -> None:
    """The server goes on only when the call has ended. What it may have done counts once."""
    name = f"late{sync}"

    async def scenario() -> None:
        backend = slow.opened(SHORT_MS, sync)
        patient = slow.opened(LONG_MS, sync)
        await patient.setup()
        # The first connection is made, and its script known, before the disk stands still.
        confirmed = unsure = 0
        while not confirmed:
            (outcome,) = await backend.write_each([Update(K, {name: 1})])
            confirmed += outcome.applied
            unsure += outcome.failure is not None and outcome.failure.ambiguous
        for _ in range(3):
            slow.signal(signal.SIGSTOP)
            try:
                (outcome,) = await backend.write_each([Update(K, {name: 1})])
            finally:
                slow.signal(signal.SIGCONT)
            assert outcome.failure is not None
            unsure += outcome.failure.ambiguous
        await backend.close()
        (outcome,) = await patient.write_each([Update(K, {name: 1})])
        assert outcome.item is not None
        assert confirmed + 1 <= int(str(outcome.item[name])) <= confirmed + 1 + unsure
        await patient.close()

    drive(sync, scenario())


@KINDS
@COLOURS
def test_a_short_stall_is_waited_for(slow: SlowServer, sync: bool) -> None:
    """A server that stands still again and again: within the deadline everything is applied, each once."""
    name, count = f"stall{sync}", 40
    over = threading.Event()

    def stutter() -> None:
        while not over.is_set():
            slow.signal(signal.SIGSTOP)
            over.wait(0.2)
            slow.signal(signal.SIGCONT)
            over.wait(0.02)

    async def scenario() -> None:
        backend = slow.opened(LONG_MS, sync)
        await backend.setup()
        thread = threading.Thread(target=stutter)
        thread.start()
        try:
            for number in range(count):
                (outcome,) = await backend.write_each([Update(K, {name: 1})])
                assert outcome.failure is None
                assert outcome.item is not None
                assert outcome.item[name] == number + 1
        finally:
            over.set()
            thread.join()
        await backend.close()

    drive(sync, scenario())
