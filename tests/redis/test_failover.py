"""A primary that is killed, with sentinels, replicas and files: what was admitted, and what is left of it."""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.engines.redis_server import HOST
from tests.patience import PATIENCE_SECONDS, wait_beside, wait_until
from tests.redis.fleet import AS_LIMITER, Fleet, OwnServer, fleet
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded, SyncRateLimiter

CAPACITY, HEARD, TASKS = 400, 10, 8
LIMIT = Limit("x", CAPACITY, 1, 10**8)
"""It never refills, so what is admitted can be counted."""


@pytest.fixture
def own() -> Iterator[Fleet]:
    with fleet() as it:
        yield it


def sentinel_url(ports: list[int], login: str = "", **options: object) -> str:
    hosts = ",".join(f"{HOST}:{port}" for port in ports)
    given = "&".join(f"{name}={value}" for name, value in options.items())
    return f"redis+sentinel://{login}{hosts}/limits?{given}"


def pair(own: Fleet, replicas: int = 1) -> tuple[OwnServer, OwnServer, list[int]]:
    """A primary, one of its replicas, and who watches them."""
    primary = own.server("--repl-diskless-sync-delay", "0")
    followers = [
        own.server("--replicaof", f"{HOST} {primary.port}", "--repl-diskless-sync-delay", "0")
        for _ in range(replicas)
    ]
    wait_until(
        lambda: primary.ask("INFO", "replication").get(f"slave{replicas - 1}", {}).get("state") == "online"
    )
    return primary, followers[0], own.sentinels(primary, replicas=replicas)


class Tally:
    """What tasks or threads were told, together; who is admitted in the midst of it does something."""

    def __init__(self, meanwhile: Callable[[], object] = bool) -> None:
        self.admitted = self.unsure = self.refused = 0
        self.failed = set[int]()
        self._meanwhile, self._lock = meanwhile, threading.Lock()

    def count(self, who: int, told: RateLimitExceeded | RateLimiterUnavailable | None) -> None:
        with self._lock:
            if told is None:
                self.admitted += 1
                if self.admitted == CAPACITY // 4:
                    self._meanwhile()
            elif isinstance(told, RateLimitExceeded):
                self.refused += 1
            else:
                self.failed.add(who)
                self.unsure += told.ambiguous


async def take_all(limiter: RateLimiter | SyncRateLimiter, tally: Tally) -> None:
    """Take until nothing is left; only our own exceptions may come."""

    async def one(who: int, limiter: RateLimiter) -> None:
        while True:
            try:
                async with limiter.acquire("key", "api", {"x": 1}):
                    tally.count(who, None)
            except RateLimitExceeded as refused:
                return tally.count(who, refused)
            except RateLimiterUnavailable as failure:
                tally.count(who, failure)
                await asyncio.sleep(0.05)

    def one_thread(who: int, limiter: SyncRateLimiter) -> None:
        while True:
            try:
                with limiter.acquire("key", "api", {"x": 1}):
                    tally.count(who, None)
            except RateLimitExceeded as refused:
                return tally.count(who, refused)
            except RateLimiterUnavailable as failure:
                tally.count(who, failure)
                time.sleep(0.05)

    async with asyncio.timeout(PATIENCE_SECONDS):
        if isinstance(limiter, SyncRateLimiter):
            run = asyncio.get_running_loop().run_in_executor
            with ThreadPoolExecutor(TASKS) as pool:
                await asyncio.gather(*(run(pool, one_thread, who, limiter) for who in range(TASKS)))
        else:
            await asyncio.gather(*(one(who, limiter) for who in range(TASKS)))


def deafen(primary: OwnServer, replica: OwnServer) -> None:
    """From now on the replica hears nothing more, for sure."""
    primary.ask("ACL", "SETUSER", "default", "-psync", "-sync", "-replconf")
    primary.ask("CLIENT", "KILL", "TYPE", "replica")
    wait_until(lambda: replica.ask("INFO", "replication")["master_link_status"] == "down")


async def undone_by_failover(
    limiter: RateLimiter | SyncRateLimiter,
    primary: OwnServer,
    replica: OwnServer,
    hold: Callable[[bool], None],
) -> None:
    """What is admitted under load, if a replica that did not hear of it takes over: that much more.

    ``hold`` says whether nobody may take over yet. It is not exactly that much where nobody knows of a write.
    """
    await take(limiter, HEARD)
    assert primary.ask("WAIT", 1, PATIENCE_SECONDS * 1000) == 1
    deafen(primary, replica)
    hold(True)
    tally = Tally(lambda: primary.signal(signal.SIGKILL))
    taking = asyncio.ensure_future(take_all(limiter, tally))
    # Who was told that nobody is there has no answer on its way any more.
    await wait_beside(lambda: len(tally.failed) == TASKS or taking.done())
    undone, unsure = tally.admitted, tally.unsure
    assert CAPACITY // 4 <= undone < CAPACITY - HEARD
    primary.kill()
    hold(False)
    await taking
    unsure = tally.unsure - unsure + limiter.refunds_lost
    assert tally.refused == TASKS
    assert CAPACITY - HEARD + undone - unsure <= tally.admitted <= CAPACITY - HEARD + undone


async def take(limiter: RateLimiter | SyncRateLimiter, count: int) -> None:
    for _ in range(count):
        if isinstance(limiter, SyncRateLimiter):
            with limiter.acquire("key", "api", {"x": 1}):
                pass
        else:
            async with limiter.acquire("key", "api", {"x": 1}):
                pass


@contextlib.asynccontextmanager
async def opened(url: str, *, sync: bool) -> AsyncIterator[RateLimiter | SyncRateLimiter]:
    """A limiter whose bucket nobody has used yet."""
    if sync:
        with SyncRateLimiter.open(url) as limiter:
            limiter.set_system_defaults([LIMIT])
            yield limiter
    else:
        async with RateLimiter.open(url) as limiter:
            await limiter.set_system_defaults([LIMIT])
            yield limiter


async def while_killed(limiter: RateLimiter, primary: OwnServer) -> None:
    """Take all of it, and kill the primary on the way, where nothing that was admitted is lost by that."""
    tally = Tally(lambda: primary.signal(signal.SIGKILL))
    await take_all(limiter, tally)
    primary.kill()
    assert tally.refused == TASKS
    assert CAPACITY - tally.unsure - limiter.refunds_lost <= tally.admitted <= CAPACITY


def test_a_failover_that_was_waited_for_loses_nothing(own: Fleet) -> None:
    """With ``wait_replicas=1`` nobody is admitted whom no replica knows: exactly the capacity.

    There are two, so that the one which becomes primary has somebody to wait for. A user who may do what the
    page says needs no more for all this.
    """
    primary, _, ports = pair(own, replicas=2)
    for server in own.servers:
        server.let_in()
    url = sentinel_url(ports, AS_LIMITER, wait_replicas=1, timeout_ms=2000)

    async def scenario() -> None:
        async with RateLimiter.open(url) as limiter:
            await limiter.set_system_defaults([LIMIT])
            await while_killed(limiter, primary)
        assert [server.ask("ACL", "LOG") for server in own.servers if server is not primary] == [[], []]

    asyncio.run(scenario())


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_failover_loses_what_the_replica_had_not_heard(own: Fleet, sync: bool) -> None:
    """Without waiting: what was admitted since the replica last heard is admitted once more, nothing else."""
    primary, replica, ports = pair(own)

    def hold(held: bool) -> None:
        for port in ports:
            with contextlib.closing(redis.Redis(HOST, port)) as sentinel:
                given = ("down-after-milliseconds", PATIENCE_SECONDS * 1000 if held else 500)
                sentinel.execute_command("SENTINEL", "SET", "limits", *given)

    async def scenario() -> None:
        async with opened(sentinel_url(ports, timeout_ms=1000), sync=sync) as limiter:
            await undone_by_failover(limiter, primary, replica, hold)

    asyncio.run(scenario())


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_server_that_was_killed_and_came_back(own: Fleet, sync: bool) -> None:
    """With its log on disk before it answers, nothing that was admitted is forgotten."""
    server = own.server("--appendonly", "yes", "--appendfsync", "always")
    url = f"redis://{HOST}:{server.port}/0?timeout_ms=1000"

    async def scenario() -> None:
        tally = Tally()
        async with RateLimiter.open(url) as limiter:
            await limiter.set_system_defaults([LIMIT])
            await restarted_while(take_all(limiter, tally), server, tally)
            lost = limiter.refunds_lost
        assert CAPACITY - tally.unsure - lost <= tally.admitted <= CAPACITY

    if not sync:
        asyncio.run(scenario())
        return
    with SyncRateLimiter.open(url) as limiter:
        limiter.set_system_defaults([LIMIT])
        for taken in range(1, 6):
            with limiter.acquire("key", "api", {"x": 1}):
                pass
            server.kill()
            with pytest.raises(RateLimiterUnavailable), limiter.acquire("key", "api", {"x": 1}):
                pass
            server.start()
            assert limiter.available("key", "api") == {"x": CAPACITY - taken}


async def restarted_while(taking: "asyncio._CoroutineLike[None]", server: OwnServer, tally: Tally) -> None:
    task = asyncio.ensure_future(taking)
    for part in (4, 2):
        while tally.admitted < CAPACITY // part and not task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    await task
