"""What a server allows, evicts and tells: users with few rights, full memory, the time, news of limits."""

import logging
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import redis_server
from tests.engines.redis_server import HOST
from tests.redis.fleet import AS_LIMITER, PASSWORD, fleet
from tests.stores import drive
from zae_limiter import Limit, RateLimiterUnavailable, RateLimitExceeded, SyncRateLimiter, ValidationError
from zae_limiter.backends import open_backend as open_by_url
from zae_limiter.backends.redis import open_backend, parse_url
from zae_limiter.backends.redis.backend import ASKED_MAX
from zae_limiter.repository_protocol import AtLeast, AtMost, Check, Key, Put, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter_aggregator.runner import aggregate

DAY_MS = 86_400_000


@pytest.mark.parametrize("may_look", [True, False])
def test_least_privilege(may_look: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A user with the rules of the page does all there is to do; without INFO it hears what was not seen."""
    with fleet() as own:
        server = own.server()
        server.let_in(without="" if may_look else "+info")
        url = f"redis://{AS_LIMITER}{HOST}:{server.port}/0"
        with caplog.at_level(logging.WARNING), SyncRateLimiter.open(url) as limiter:
            limiter.set_system_defaults([Limit("rpm", 5, 1, 10**8)])
            limiter.create_entity("parent")
            limiter.create_entity("child", parent_id="parent", cascade=True)
            for _ in range(5):
                with limiter.acquire("child", "api", {"rpm": 1}):
                    pass
            with pytest.raises(RateLimitExceeded), limiter.acquire("child", "api", {"rpm": 1}):
                pass
            assert aggregate(url, until_idle=True).records > 0
            limiter.repository.delete_entity("child")
        assert ("could not be checked" in caplog.text) == (not may_look)
        assert PASSWORD not in caplog.text
        assert [log for log in server.ask("ACL", "LOG") if b"info" not in str(log).encode()] == []
        stranger = open_backend(f"redis://limiter:wrong-word@{HOST}:{server.port}/0", sync=True)
        with pytest.raises(RateLimiterUnavailable, match="credentials") as caught:
            run_sync(stranger.setup())
        assert caught.value.misconfigured == "credentials"
        assert "wrong-word" not in str(caught.value)
        run_sync(stranger.close())
        elsewhere = open_backend(f"{url}?prefix=other", sync=True)
        with pytest.raises(RateLimiterUnavailable, match="not permitted") as caught:
            run_sync(elsewhere.setup())
        assert (caught.value.misconfigured, "limiter:" in str(caught.value)) == ("permission", False)
        run_sync(elsewhere.close())


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        (("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"), True),
        (("--maxmemory", "50mb", "--maxmemory-policy", "noeviction"), False),
        (("--maxmemory", "50mb", "--maxmemory-policy", "volatile-lru"), False),
        (("--maxmemory", "0", "--maxmemory-policy", "allkeys-lru"), False),
    ],
)
def test_a_server_that_evicts_is_told(
    options: tuple[str, ...], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Only what can drop our items: they have no expiry of their own, so volatile ones cannot."""
    with fleet() as own, caplog.at_level(logging.WARNING):
        backend = open_backend(f"redis://{HOST}:{own.server(*options).port}", sync=True)
        run_sync(backend.setup())
        run_sync(backend.close())
    assert ("set maxmemory-policy noeviction" in caplog.text) == is_told


def test_a_full_server_writes_nothing_and_says_so() -> None:
    with fleet() as own:
        server = own.server("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
        backend = open_backend(f"redis://{HOST}:{server.port}", sync=True)
        run_sync(backend.setup())
        outcomes = []
        for number in range(2_000):
            outcomes += run_sync(backend.write_each([Put(Key(f"ns/{number}", "s"), {"text": "x" * 2_000})]))
            if not outcomes[-1].applied:
                break
        failure = outcomes[-1].failure
        assert failure is not None
        assert ("out of memory" in str(failure), failure.ambiguous) == (True, False)
        found = run_sync(backend.batch_get([Key(f"ns/{n}", "s") for n in range(len(outcomes))]))
        assert [item is not None for item in found] == [o.applied for o in outcomes]
        run_sync(backend.close())


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_writes_beyond_one_request_keep_their_order(sync: bool) -> None:
    """A call with more than a request takes sends several, one after the other."""

    async def write(backend: Any) -> None:
        for number in range(5):
            key = Key(f"ns{number}/E", "#X")
            outcomes = await backend.write_each(
                [Put(key, {"n": 0}), *[Update(key, {"n": 1})] * (3 * ASKED_MAX)]
            )
            assert [o.item["n"] for o in outcomes[1:]] == list(range(1, 3 * ASKED_MAX + 1))
        await backend.close()

    backend = open_backend(
        redis_server.url(redis_server.fresh_prefix(), timeout_ms=60_000), sync=sync, world=World()
    )
    drive(sync, write(backend))


@pytest.mark.parametrize("days", [1, -1])
def test_clocks_a_day_apart_change_nothing(days: int) -> None:
    """One client's clock is a day off: both see the same bucket, to the millisecond of a round trip."""
    url = redis_server.url(redis_server.fresh_prefix(), timeout_ms=60_000)
    wrong = World(now_ms=lambda: World().now_ms() + days * DAY_MS)
    with SyncRateLimiter.open(url) as right, SyncRateLimiter.open(url, world=wrong) as other:
        right.set_system_defaults([Limit("rpm", 10, 1, 10**6)])
        for limiter in (right, other) * 5:
            with limiter.acquire("key", "api", {"rpm": 1}):
                pass
        for limiter in (right, other):
            with pytest.raises(RateLimitExceeded), limiter.acquire("key", "api", {"rpm": 1}):
                pass
            assert limiter.available("key", "api") == {"rpm": 0}


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_news_come_with_the_next_reply(sync: bool) -> None:
    """Who hears of limits that somebody changed goes by them at the next acquire."""

    async def scenario() -> None:
        url = redis_server.url(redis_server.fresh_prefix(), timeout_ms=60_000)
        ours, theirs = (open_backend(url, sync=sync) for _ in range(2))
        config, other = Key("ns/RESOURCE#api", "#CONFIG"), Key("ns/ENTITY#a", "#META")
        await ours.batch_get([config])
        heard = ours.news()
        await theirs.write_each([Put(other, {"n": 1})])
        await ours.batch_get([other])
        assert ours.news() == heard, "of what concerns one nobody is told"
        await theirs.write_each([Update(config, add={"version": 1})])
        assert ours.news() == heard
        await ours.batch_get([other])
        assert ours.news() != heard
        await ours.close()
        await theirs.close()

    drive(sync, scenario())


BAD_URLS = {
    "redis://:secret@host:99999": "is not a host, or host:port",
    "redis://me@host": "no password",
    "redis://me:secret@host/zero": "number of a database",
    "redis://me:secret@a,b": "several hosts",
    "redis://me:secret@host?pool=0": "pool",
    "redis://me:secret@host?pools=1": "unknown option pools",
    "redis://me:secret@host?pool=1&pool=2": "given twice",
    "redis://me:secret@host?prefix={x}": "prefix",
    "redis://me:secret@host#1": "%23",
    "redis://me:pa/secret@host:6379/0": "%2F",
    "redis://me:pa?secret@host:6379/0": "%3F",
    "redis://me:pa?x=secret@host:6379/0": "%3F",
    "redis://me:pa#secret@host:6379/0": "%23",
    "redis+cluster://me:pa/secret@host": "%2F",
    "redis://me:secret@host/0?password=secret": "unknown option password",
    "redis+sentinel://me:secret@host": "name the service",
    "redis+cluster://me:secret@host/1": "a cluster has not",
    "rediss://me:secret@host?tls_ca=/nowhere": "cannot use it",
}


@pytest.mark.parametrize("url", BAD_URLS)
def test_bad_urls(url: str) -> None:
    """They are told what is wrong, without the password."""
    with pytest.raises(ValidationError) as caught:
        open_by_url(url, sync=True, world=World())
    assert BAD_URLS[url] in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_is_asked_of_the_wrong_kind_of_server() -> None:
    """Told at once and with the way out, although there would be a minute to try."""
    port = redis_server.SERVER.port()
    wrong = {
        f"redis://{HOST}:{port}/9999?timeout_ms=60000": "such as /0",
        f"redis+sentinel://{HOST}:{port}/limits?timeout_ms=60000": "use redis:// for it",
        f"redis+cluster://{HOST}:{port}?timeout_ms=60000": "use redis:// for it",
    }
    for url, way_out in wrong.items():
        backend = open_backend(url, sync=True)
        with pytest.raises(RateLimiterUnavailable, match=way_out) as caught:
            run_sync(backend.setup())
        assert caught.value.misconfigured == "server"
        run_sync(backend.close())


def test_a_replica_that_is_asked_alone() -> None:
    """It can be read and not written: told so by the deadline, and nothing is in doubt."""
    with fleet() as own:
        primary = own.server()
        replica = own.server("--replicaof", f"{HOST} {primary.port}")
        backend = open_backend(f"redis://{HOST}:{replica.port}?timeout_ms=500", sync=True)
        (outcome,) = run_sync(backend.write_each([Put(Key("ns/a", "s"), {"n": 1})]))
        assert outcome.failure is not None
        assert not outcome.failure.ambiguous
        assert "replica" in str(outcome.failure)
        run_sync(backend.close())


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_both_names_open_the_same_store(scheme: str) -> None:
    prefix = redis_server.fresh_prefix()
    url = redis_server.url(prefix, timeout_ms=60_000)
    with SyncRateLimiter.open(url) as limiter:
        limiter.set_system_defaults([Limit("rpm", 5, 1, 10**8)])
    with SyncRateLimiter.open(url.replace("redis://", f"{scheme}://")) as limiter:
        with limiter.acquire("key", "api", {"rpm": 2}):
            pass
        assert limiter.available("key", "api") == {"rpm": 3}
    assert aggregate(url.replace("redis://", f"{scheme}://"), until_idle=True).records > 0


def test_urls() -> None:
    one = parse_url("valkeys://us%40er:p%3Aw@[::1]:7000/3?pool=5&wait_replicas=0&timeout_ms=50")
    assert (one.hosts, one.login[:3]) == ((("::1", 7000),), ("us@er", "p:w", 3))
    assert one.options == {"pool": 5, "wait_replicas": 0, "timeout_ms": 50, "tls": True}
    assert "p:w" not in repr(one)
    many = parse_url("redis+sentinel://a,b:1/limits/2?prefix=x")
    assert (many.way, many.service, many.login.database) == ("sentinel", "limits", 2)
    assert many.hosts == (("a", 26379), ("b", 1))
    assert parse_url("valkey+cluster://a").hosts == (("a", 6379),)


def test_a_fork_uses_connections_of_its_own() -> None:
    """Parent and child go on with the same limiter, and count what both take."""
    url = redis_server.url(redis_server.fresh_prefix(), timeout_ms=60_000)
    with SyncRateLimiter.open(url) as limiter:
        limiter.set_system_defaults([Limit("rpm", 100, 1, 10**6)])
        with limiter.acquire("key", "api", {"rpm": 1}):
            pass
        child = os.fork()
        try:
            for _ in range(20):
                with limiter.acquire("key", "api", {"rpm": 1}):
                    pass
        finally:
            if child == 0:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert limiter.available("key", "api") == {"rpm": 100 - 41}


integers = st.integers(-(10**38) + 1, 10**38 - 1) | st.sampled_from(
    [0, 1, -1, 10**15 - 1, 10**15, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 10**14, -(10**28)]
)


@settings(max_examples=50, deadline=None)
@given(pairs=st.lists(st.tuples(integers, integers), min_size=20, max_size=60))
def test_integers_are_exact_of_any_length(pairs: list[tuple[int, int]]) -> None:
    """The script adds and compares beyond what a number of its language can hold."""
    backend = open_backend(redis_server.url(redis_server.fresh_prefix(), timeout_ms=60_000), sync=True)
    keys = [Key("ns/numbers", f"{n}") for n in range(len(pairs))]
    zipped = list(zip(keys, pairs, strict=True))
    run_sync(backend.write_each([Put(key, {"n": a}) for key, (a, _) in zipped]))
    for condition, expected in ((AtLeast, [a >= b for a, b in pairs]), (AtMost, [a <= b for a, b in pairs])):
        checks = [Check(key, (condition("n", b),)) for key, (_, b) in zipped]
        assert [outcome.applied for outcome in run_sync(backend.write_each(checks))] == expected
    run_sync(backend.write_each([Update(key, add={"n": b}) for key, (_, b) in zipped]))
    assert [item and item["n"] for item in run_sync(backend.batch_get(keys))] == [a + b for a, b in pairs]
    run_sync(backend.close())
