"""A cluster whose primaries have replicas: one is killed, another takes its slots, books are compared."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from tests.engines.redis_server import HOST
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.redis.fleet import Fleet, OwnServer, fleet
from tests.redis.test_failover import CAPACITY, LIMIT, Tally, while_killed
from zae_limiter import RateLimiter, RateLimiterUnavailable, SyncRateLimiter
from zae_limiter.backends.redis.encoding import tag_of
from zae_limiter.backends.redis.servers import slot_of

ROOT = "{zae-limiter:"


@pytest.fixture
def own() -> Iterator[Fleet]:
    with fleet() as it:
        yield it


def url_of(nodes: list[OwnServer], **options: object) -> str:
    given = "&".join(f"{name}={value}" for name, value in options.items())
    return f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in nodes)}?{given}"


def pair_of(nodes: list[OwnServer], replicas: list[list[OwnServer]], namespace: str) -> tuple[int, OwnServer]:
    """Which primary has a namespace, and one of its replicas."""
    at = slot_of(tag_of(ROOT, namespace)) * len(nodes) // 16384
    assert nodes[at].ask("DBSIZE") > 0
    return at, replicas[at][0]


def test_a_primary_that_is_killed(own: Fleet) -> None:
    """Tasks take all there is meanwhile: what is admitted twice is at most what its replica had not heard.

    Only our own exceptions come, and in the end the replica serves.
    """
    nodes = own.cluster()
    replicas = own.replicas(nodes)

    async def scenario() -> None:
        tally = Tally()
        async with RateLimiter.open(url_of(nodes, timeout_ms=2000)) as limiter:
            await limiter.set_system_defaults([LIMIT])
            at, replica = pair_of(nodes, replicas, limiter.repository.namespace_id)
            at_death = await while_killed(limiter, nodes[at], tally)
            lost = limiter.refunds_lost
            assert replica.ask("ROLE")[0] == "master"
        assert tally.refused == 8
        assert tally.admitted >= CAPACITY - tally.unsure - lost
        assert tally.admitted <= CAPACITY + at_death, "nothing else can have been undone"

    asyncio.run(scenario())


def test_a_failover_undoes_what_the_replica_had_not_heard(own: Fleet) -> None:
    """The replica sleeps while some more is admitted: that much may be admitted again, nothing else."""
    nodes = own.cluster()
    replicas = own.replicas(nodes)
    with SyncRateLimiter.open(url_of(nodes, timeout_ms=2000)) as limiter:
        limiter.set_system_defaults([LIMIT])
        heard, unheard = 10, 7
        take(limiter, heard)
        at, replica = pair_of(nodes, replicas, limiter.repository.namespace_id)
        assert nodes[at].ask("WAIT", 1, PATIENCE_SECONDS * 1000) == 1
        replica.signal(signal.SIGSTOP)
        take(limiter, unheard)
        nodes[at].kill()
        replica.signal(signal.SIGCONT)
        wait_until(lambda: took_one(limiter), "nobody takes the slots over")
        left = limiter.available("key", "api")["x"]
        taken = heard + unheard + 1
        assert CAPACITY - taken <= left <= CAPACITY - taken + unheard


def test_a_failover_that_was_waited_for_loses_nothing(own: Fleet) -> None:
    """With ``wait_replicas=1`` and two replicas: exactly the capacity, less what nobody knows."""
    nodes = own.cluster()
    replicas = own.replicas(nodes, each=2)

    async def scenario() -> None:
        tally = Tally()
        async with RateLimiter.open(url_of(nodes, timeout_ms=2000, wait_replicas=1)) as limiter:
            await limiter.set_system_defaults([LIMIT])
            at, _ = pair_of(nodes, replicas, limiter.repository.namespace_id)
            await while_killed(limiter, nodes[at], tally)
            lost = limiter.refunds_lost
        assert tally.refused == 8
        assert CAPACITY - tally.unsure - lost <= tally.admitted <= CAPACITY

    asyncio.run(scenario())


def take(limiter: SyncRateLimiter, count: int) -> None:
    for _ in range(count):
        with limiter.acquire("key", "api", {"x": 1}):
            pass


def took_one(limiter: SyncRateLimiter) -> bool:
    try:
        take(limiter, 1)
    except RateLimiterUnavailable:
        return False
    return True
