"""Servers that die, and standbys that take over: what was confirmed is there, as far as it is promised."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.engines import postgres
from tests.engines.dynamodb_local import free_port
from tests.engines.servers import as_nobody, program
from tests.patience import wait_until
from tests.postgres.schemas import conninfo, plain
from tests.stores import drive
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded, Repository
from zae_limiter.backends.postgres import open_backend
from zae_limiter.backends.postgres.layout import create_sql
from zae_limiter.repository_protocol import Key, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.settings import Settings

SAFE = ("fsync=on", "synchronous_commit=on", "wal_level=replica", "max_wal_senders=4", "hot_standby=on")
K = Key("ns/BUCKET#key#api#0", "#STATE")
WRITES_MIN = 60
CAPACITY, TASKS = 400, 8
HEARD, UNHEARD_MIN = 10, 90
LIMIT = Limit("x", CAPACITY, 1, 10**8)
"""It never refills, so what is admitted can be counted."""


class Cluster:
    """A server of its own, which can be killed and started again."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.port, self.folder, self._settings = free_port(), folder, (*SAFE, *settings)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, again: bool = True) -> None:
        launch = postgres.relaunch if again else postgres.launch
        self.process = launch(self.port, self.folder, self._settings)
        plain(self.port).close()

    def kill(self) -> None:
        """End it as a power cut would: the server and all its processes at once."""
        pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        children = subprocess.run(
            ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False
        ).stdout
        for one in (pid, *map(int, children.split())):
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.stop()

    def stop(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None


@contextmanager
def folder() -> Iterator[Path]:
    it = Path(tempfile.mkdtemp(prefix="zae-limiter-", dir="/tmp"))  # which others may enter
    it.chmod(0o777)
    try:
        yield it
    finally:
        shutil.rmtree(it, ignore_errors=True)


@pytest.fixture
def primary() -> Iterator[Cluster]:
    with folder() as it:
        cluster = Cluster(it)
        cluster.start(again=False)
        yield cluster
        cluster.stop()


class Writer:
    """Adds one again and again, and keeps book: what was confirmed, and what nobody knows."""

    def __init__(self, url: str) -> None:
        self.backend = open_backend(url, sync=True, world=World())
        self.confirmed = self.doubtful = self.refused = 0
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            (outcome,) = run_sync(self.backend.write_each([Update(K, {"n": 1})]))
            self.confirmed += outcome.applied
            self.doubtful += outcome.failure is not None and outcome.failure.ambiguous
            self.refused += outcome.failure is not None and not outcome.failure.ambiguous

    def has_written(self, count: int) -> None:
        wait_until(lambda: self.confirmed >= count)

    def end(self) -> None:
        self._over.set()
        self.thread.join()
        run_sync(self.backend.close())


def held(port: int, schema: str) -> int:
    with psycopg.connect(conninfo(port), autocommit=True) as connection:
        row = connection.execute(f"SELECT (body -> 'n')::int FROM {schema}.items").fetchone()
    assert row is not None
    return int(row[0])


def test_a_server_that_is_killed_and_started_again_has_all_that_was_confirmed(primary: Cluster) -> None:
    """Twice, under two writers: nothing confirmed is lost, and nothing happened twice."""
    with plain(primary.port) as owner:
        owner.execute(create_sql("zl"))
    url = postgres.url("zl", primary.port, timeout_ms=2_000, listen="off")
    writers = [Writer(url), Writer(url)]
    for goal in (WRITES_MIN, 2 * WRITES_MIN):
        for writer in writers:
            writer.has_written(goal)
        primary.kill()
        primary.start()
    for writer in writers:
        writer.has_written(3 * WRITES_MIN)
        writer.end()
    confirmed, doubtful = (sum(getattr(w, name) for w in writers) for name in ("confirmed", "doubtful"))
    assert confirmed <= held(primary.port, "zl") <= confirmed + doubtful
    assert doubtful <= 2 * len(writers), "one call of each writer was under way each time"


class Tally:
    """What tasks or threads were answered."""

    def __init__(self) -> None:
        self.taken, self.unsure = list[int](), list[RateLimiterUnavailable]()

    @property
    def admitted(self) -> int:
        return sum(self.taken)


async def take_all(limiter: RateLimiter, tally: Tally, is_over: Callable[[], bool]) -> None:
    """Take until nothing is left once it is over; only our own exceptions may come."""
    while True:
        last = is_over()
        try:
            async with limiter.acquire("key", "api", {"x": 1}):
                tally.taken.append(1)
        except RateLimitExceeded:
            if last:
                return
        except RateLimiterUnavailable as failure:
            if failure.ambiguous:
                tally.unsure.append(failure)
        else:
            continue
        await limiter.repository.colour.sleep(0.02)


@contextmanager
def standby_of(primary: Cluster, *, synchronous: bool) -> Iterator[Cluster]:
    with folder() as place, plain(primary.port) as owner:
        standby = Cluster(place)
        _copy(primary, place / "data")
        standby.start()
        try:
            if synchronous:
                owner.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                owner.execute("SELECT pg_reload_conf()")
            streaming = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
            wanted = "sync" if synchronous else "async"
            wait_until(lambda: owner.execute(streaming).fetchall() == [(wanted,)])
            owner.close()
            yield standby
        finally:
            standby.stop()


def deafen(primary: Cluster, standby: Cluster) -> None:
    """Let a standby hear all that was confirmed until now, and nothing that comes."""
    with plain(primary.port) as ours, plain(standby.port) as theirs:
        (until,) = ours.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone() or ("",)
        heard = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: theirs.execute(heard, (until,)).fetchall() == [(True,)])
        theirs.execute("ALTER SYSTEM SET primary_conninfo = ''")
        theirs.execute("SELECT pg_reload_conf()")
        wait_until(lambda: not ours.execute("SELECT 1 FROM pg_stat_replication").fetchall())


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("synchronous", [True, False], ids=["all heard", "the last unheard"])
def test_a_standby_that_takes_over(primary: Cluster, synchronous: bool, sync: bool) -> None:
    """With synchronous replication exactly the capacity is admitted; without, as much more as was lost.

    Clients that name both servers find the one that can be written to.
    """
    with plain(primary.port) as owner:
        owner.execute(create_sql("zl"))
    with standby_of(primary, synchronous=synchronous) as standby:
        hosts = f"{postgres.HOST}:{primary.port},{postgres.HOST}:{standby.port}"
        url = (
            f"postgresql://{postgres.USER}@{hosts}/{postgres.DATABASE}?schema=zl&timeout_ms=3000"
            "&target_session_attrs=read-write"
        )
        tally, taken_over, at_death = Tally(), threading.Event(), list[int]()

        def fail_over() -> None:
            wait_until(lambda: tally.admitted >= HEARD + UNHEARD_MIN)
            primary.kill()
            at_death.append(tally.admitted)
            with plain(standby.port) as promoter:
                promoter.execute("SELECT pg_promote()")
            taken_over.set()

        async def opened() -> RateLimiter:
            return RateLimiter(await Repository._open(Settings(store=url), None, sync=sync))

        async def scenario() -> None:
            limiter = await opened()
            await limiter.set_system_defaults([LIMIT])
            async with limiter.acquire("key", "api", {"x": HEARD}):
                tally.taken.append(HEARD)
            if not synchronous:
                deafen(primary, standby)
            killer = threading.Thread(target=fail_over)
            killer.start()
            await all_at_once(sync, lambda: take_all(limiter, tally, taken_over.is_set))
            killer.join()
            newcomer = await opened()  # whom no image of what was lost refuses
            await take_all(newcomer, tally, lambda: True)
            (state,) = await newcomer.repository.get_buckets("key", "api")
            assert (state.tokens_milli, state.total_consumed_milli) == (0, CAPACITY * 1_000)
            for one in (limiter, newcomer):
                await one.close()

        drive(sync, scenario())
        lost = 0 if synchronous else at_death[0] - HEARD
        unanswered = 0 if synchronous else TASKS  # confirmed, and read after the primary was dead
        assert CAPACITY + lost - len(tally.unsure) <= tally.admitted <= CAPACITY + lost + unanswered


async def all_at_once(sync: bool, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if not sync:
        await asyncio.gather(*(work() for _ in range(TASKS)))
        return
    with ThreadPoolExecutor(TASKS) as threads:
        for done in [threads.submit(run_sync, work()) for _ in range(TASKS)]:
            done.result()


def _copy(primary: Cluster, data: Path) -> None:
    words = [program("pg_basebackup"), "-h", postgres.HOST, "-p", str(primary.port), "-U", postgres.USER]
    words += ["-D", str(data), "-R", "--checkpoint=fast", "--no-sync"]
    subprocess.run(words, check=True, capture_output=True, **as_nobody())  # type: ignore[call-overload]
