"""A primary that is killed, with sentinels, replicas and files: what was admitted, and what is left of it."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from tests.engines.redis_server import HOST
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.redis.fleet import AS_LIMITER, Fleet, OwnServer, fleet
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded, SyncRateLimiter

CAPACITY = 400
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
    admitted = unsure = refused = failed = 0


async def take_all(limiter: RateLimiter, tally: Tally, tasks: int = 8) -> None:
    """Take until nothing is left; only our own exceptions may come."""

    async def one() -> None:
        while True:
            try:
                async with limiter.acquire("key", "api", {"x": 1}):
                    tally.admitted += 1
            except RateLimitExceeded:
                tally.refused += 1
                return
            except RateLimiterUnavailable as failure:
                tally.failed += 1
                tally.unsure += failure.ambiguous
                await asyncio.sleep(0.05)

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(one() for _ in range(tasks)))


async def while_killed(limiter: RateLimiter, primary: OwnServer, tally: Tally) -> int:
    """Take all of it, and kill the primary on the way; how much had been admitted when it was dead."""
    taking = asyncio.ensure_future(take_all(limiter, tally))
    while tally.admitted < CAPACITY // 4:  # noqa: ASYNC110 - whoever takes tells nobody
        await asyncio.sleep(0.001)
    await asyncio.to_thread(primary.kill)
    at_death = tally.admitted
    await taking
    return at_death


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
        tally = Tally()
        async with RateLimiter.open(url) as limiter:
            await limiter.set_system_defaults([LIMIT])
            await while_killed(limiter, primary, tally)
            lost = limiter.refunds_lost
        assert tally.refused == 8
        assert CAPACITY - tally.unsure - lost <= tally.admitted <= CAPACITY
        assert [server.ask("ACL", "LOG") for server in own.servers if server is not primary] == [[], []]

    asyncio.run(scenario())


def test_a_failover_loses_what_the_replica_had_not_heard(own: Fleet) -> None:
    """Without waiting: at most what was admitted since the replica last heard, and nothing else."""
    primary, replica, ports = pair(own)
    with SyncRateLimiter.open(sentinel_url(ports, timeout_ms=2000)) as limiter:
        limiter.set_system_defaults([LIMIT])
        for _ in range(10):
            with limiter.acquire("key", "api", {"x": 1}):
                pass
        assert primary.ask("WAIT", 1, PATIENCE_SECONDS * 1000) == 1
        replica.signal(signal.SIGSTOP)
        unheard = 7
        for _ in range(unheard):
            with limiter.acquire("key", "api", {"x": 1}):
                pass
        primary.kill()
        replica.signal(signal.SIGCONT)
        failures = 0
        while True:
            try:
                with limiter.acquire("key", "api", {"x": 1}):
                    break
            except RateLimiterUnavailable:
                failures += 1
        assert failures < PATIENCE_SECONDS
        left = limiter.available("key", "api")["x"]
        taken = 10 + unheard + 1
        assert CAPACITY - taken <= left <= CAPACITY - taken + unheard


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
