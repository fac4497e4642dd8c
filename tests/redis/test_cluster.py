"""A cluster of three nodes: namespaces are spread over them, and each is as exact as on one server."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
import redis

from tests.engines.redis_server import HOST
from tests.patience import PATIENCE_SECONDS
from tests.redis.fleet import AS_LIMITER, OwnServer, fleet, moving
from tests.stores import drive
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded, SyncRateLimiter
from zae_limiter.backends.redis import open_backend
from zae_limiter.backends.redis.encoding import tag_of
from zae_limiter.backends.redis.servers import slot_of
from zae_limiter.repository_protocol import Absent, Key, Outcome, Put, Query, Row, Update
from zae_limiter.runtime.colour import run_sync

CAPACITY = 300
LIMIT = Limit("x", CAPACITY, 1, 10**8)
ROOT = "{zae-limiter:"
NAMESPACES_MAX = 100  # none of them on one of three nodes: once in 10**17 runs


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[OwnServer]]:
    with fleet() as own:
        yield own.cluster()


def cluster_url(nodes: list[OwnServer], login: str = "", **options: object) -> str:
    given = "&".join(f"{name}={value}" for name, value in options.items())
    return f"redis+cluster://{login}{','.join(f'{HOST}:{node.port}' for node in nodes)}?{given}"


def test_slots_are_those_of_the_server(nodes: list[OwnServer]) -> None:
    """Whatever a namespace is called, all its keys are in the slot that we think."""
    for name in ("", "a", "naïve", "a{b}c", "}", "%", "x" * 300):
        tag = tag_of(ROOT, name)
        for rest in (b"", b"i3:{x}y", b"c"):
            with contextlib.closing(redis.Redis(HOST, nodes[0].port)) as client:
                assert client.cluster("KEYSLOT", tag + rest) == slot_of(tag)


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_namespaces_on_all_nodes(nodes: list[OwnServer], sync: bool) -> None:
    """Families, limits, refusals and lists in namespaces, until by chance every node has some."""
    url = cluster_url(nodes, prefix=f"all-{sync}", timeout_ms=60_000)

    def one(name: str) -> None:
        with SyncRateLimiter.open(url, namespace=name) as limiter:
            limiter.set_system_defaults([Limit("x", 5, 1, 10**8)])
            limiter.create_entity("parent")
            limiter.create_entity("child", parent_id="parent", cascade=True)
            for _ in range(5):
                with limiter.acquire("child", "api", {"x": 1}):
                    pass
            with pytest.raises(RateLimitExceeded), limiter.acquire("child", "api", {"x": 1}):
                pass
            assert limiter.available("parent", "api") == {"x": 0}
            assert [e.entity_id for e in limiter.repository.list_entities()[0]] == ["child", "parent"]

    async def one_async(name: str) -> None:
        async with RateLimiter.open(url, namespace=name) as limiter:
            await limiter.set_system_defaults([Limit("x", 5, 1, 10**8)])
            await limiter.create_entity("parent")
            await limiter.create_entity("child", parent_id="parent", cascade=True)
            for _ in range(5):
                async with limiter.acquire("child", "api", {"x": 1}):
                    pass
            with pytest.raises(RateLimitExceeded):
                async with limiter.acquire("child", "api", {"x": 1}):
                    pass
            assert await limiter.available("parent", "api") == {"x": 0}

    before = [node.ask("DBSIZE") for node in nodes]
    for number in range(NAMESPACES_MAX):
        if number >= 12 and all(node.ask("DBSIZE") > had for node, had in zip(nodes, before, strict=True)):
            return
        if sync:
            one(f"tenant-{number}")
        else:
            asyncio.run(one_async(f"tenant-{number}"))
    pytest.fail("a node has no namespace")


def test_two_namespaces_at_once_are_refused(nodes: list[OwnServer]) -> None:
    """A cluster cannot, and says so; nothing was written."""
    backend = open_backend(cluster_url(nodes, prefix="two"), sync=True)
    a, b = Key("a/ENTITY#1", "#META"), Key("b/ENTITY#1", "#META")
    with pytest.raises(RateLimiterUnavailable, match="two namespaces at once, 'b' and 'a'") as caught:
        run_sync(backend.transact_write([Put(a, {"n": 1}), Put(b, {"n": 1})]))
    assert caught.value.impossible
    (outcome,) = run_sync(backend.write_each([Put(a, {"GSI1PK": "b/PARENT#x", "GSI1SK": "y"})]))
    assert outcome.failure is not None
    assert outcome.failure.impossible
    assert run_sync(backend.batch_get([a, b])) == [None, None]
    outcomes = run_sync(backend.write_each([Put(a, {"n": 1}), Put(b, {"n": 2}), Put(a, {}, (Absent(),))]))
    assert outcomes[2] == Outcome(False, {"n": 1}, held=False)
    assert run_sync(backend.batch_get([a, b])) == [{"n": 1}, {"n": 2}]
    assert run_sync(backend.query(Query("b/ENTITY#1"))).rows == (Row(b, {"n": 2}),)
    assert run_sync(backend.namespaces()) == ["a", "b"]
    run_sync(backend.close())


@pytest.mark.parametrize("login", ["", AS_LIMITER], ids=["anybody", "least privilege"])
def test_a_slot_that_moves_while_it_is_used(nodes: list[OwnServer], login: str) -> None:
    """Its keys go from one node to another one by one: nobody hears of it, and no token is lost or minted.

    While they are there and the slot is not, a bucket that is known is served, also to a user who may do what
    the page says.
    """
    for node in nodes:
        node.let_in()
    url = cluster_url(nodes, login, timeout_ms=60_000)
    name = f"moving-{bool(login)}"

    def take_and_move() -> None:
        with SyncRateLimiter.open(url, namespace=name) as limiter:

            def take() -> None:
                with limiter.acquire("another", "api", {"x": 1}):
                    pass

            for _ in range(3):
                take()
            with moving(nodes, slot_of(tag_of(ROOT, limiter.repository.namespace_id))):
                take()
            assert limiter.available("another", "api") == {"x": CAPACITY - 4}

    async def scenario() -> None:
        async with RateLimiter.open(url, namespace=name) as limiter:
            await limiter.set_system_defaults([LIMIT])
            admitted = 0

            async def take() -> None:
                nonlocal admitted
                while True:
                    try:
                        async with limiter.acquire("key", "api", {"x": 1}):
                            admitted += 1
                    except RateLimitExceeded:
                        return
                    await asyncio.sleep(0.001)

            taking = asyncio.gather(*(take() for _ in range(4)))
            while admitted < CAPACITY // 4:  # noqa: ASYNC110 - whoever takes tells nobody
                await asyncio.sleep(0.001)
            await asyncio.to_thread(take_and_move)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await taking
            assert admitted == CAPACITY
            assert await limiter.available("key", "api") == {"x": 0}

    asyncio.run(scenario())


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_whoever_may_not_ask_while_a_slot_moves_is_told(nodes: list[OwnServer], sync: bool) -> None:
    """At once, with the way out, and although there would be a minute to be sent round and round."""
    for node in nodes:
        node.let_in(without="+asking")
    key = Key(f"untold-{sync}/ENTITY#1", "#META")

    async def scenario() -> None:
        backend = open_backend(cluster_url(nodes, AS_LIMITER, timeout_ms=60_000), sync=sync)
        (outcome,) = await backend.write_each([Put(key, {"n": 1})])
        assert outcome.applied
        with moving(nodes, slot_of(backend.tag(f"untold-{sync}"))):
            (outcome,) = await backend.write_each([Update(key, add={"n": 1})])
        assert outcome.failure is not None
        assert "this user has no permissions to run the 'asking' command" in str(outcome.failure)
        assert "docs/redis.md" in str(outcome.failure)
        assert (outcome.failure.ambiguous, outcome.failure.misconfigured) == (False, "permission")
        (outcome,) = await backend.write_each([Update(key, add={"n": 1})])
        assert outcome == Outcome(True, {"n": 2})
        await backend.close()

    drive(sync, scenario())


def test_a_node_that_is_gone_takes_only_its_namespaces_along() -> None:
    """Its own are unavailable, in our words; the others go on."""
    with fleet() as own:
        nodes = own.cluster()
        for node in nodes:
            node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
        url = cluster_url(nodes, timeout_ms=500)
        backend = open_backend(url, sync=True)
        keys = [Key(f"ns-{n}/ENTITY#1", "#META") for n in range(12)]
        registry = slot_of(tag_of(ROOT, "")) * 3 // 16384
        assert all(o.applied for o in run_sync(backend.write_each([Put(key, {"n": 1}) for key in keys])))
        dead = (registry + 1) % 3
        nodes[dead].kill()
        outcomes = run_sync(backend.write_each([Put(key, {"n": 2}) for key in keys]))
        for key, outcome in zip(keys, outcomes, strict=True):
            lives = slot_of(backend.tag(key.partition.partition("/")[0])) * 3 // 16384 != dead
            assert outcome.applied == lives
        assert {o.applied for o in outcomes} == {True, False}
        run_sync(backend.close())
