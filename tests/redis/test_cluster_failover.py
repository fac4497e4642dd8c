"""A cluster whose primaries have replicas: one is killed, another takes its slots, books are compared."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.engines.redis_server import HOST
from tests.redis.fleet import Fleet, OwnServer, fleet
from tests.redis.test_failover import LIMIT, opened, undone_by_failover, while_killed
from zae_limiter import RateLimiter
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


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_failover_undoes_what_the_replica_had_not_heard(own: Fleet, sync: bool) -> None:
    """What was admitted since the replica last heard is admitted once more, nothing else.

    Only our own exceptions come, and in the end the replica serves.
    """
    nodes = own.cluster()
    replicas = own.replicas(nodes)

    async def scenario() -> None:
        async with opened(url_of(nodes, timeout_ms=1000), sync=sync) as limiter:
            at, replica = pair_of(nodes, replicas, limiter.repository.namespace_id)
            # However long it has not heard anything.
            replica.ask("CONFIG", "SET", "cluster-replica-validity-factor", 0)

            def hold(held: bool) -> None:
                replica.ask("CONFIG", "SET", "cluster-replica-no-failover", "yes" if held else "no")

            await undone_by_failover(limiter, nodes[at], replica, hold)
            assert replica.ask("ROLE")[0] == "master"

    asyncio.run(scenario())


def test_a_failover_that_was_waited_for_loses_nothing(own: Fleet) -> None:
    """With ``wait_replicas=1`` and two replicas: exactly the capacity, less what nobody knows."""
    nodes = own.cluster()
    replicas = own.replicas(nodes, each=2)

    async def scenario() -> None:
        async with RateLimiter.open(url_of(nodes, timeout_ms=2000, wait_replicas=1)) as limiter:
            await limiter.set_system_defaults([LIMIT])
            at, _ = pair_of(nodes, replicas, limiter.repository.namespace_id)
            await while_killed(limiter, nodes[at])

    asyncio.run(scenario())
