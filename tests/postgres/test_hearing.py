"""Changes that somebody else made: heard at once by who listens, with the next reply by who does not."""

import subprocess
import sys

import pytest

from tests.engines import postgres
from tests.patience import wait_until
from tests.postgres.schemas import lent_schema, owner
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.backends.postgres import PostgresBackend, open_backend
from zae_limiter.repository_protocol import Key, Put
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

CHANGE = (
    "import sys; from zae_limiter import Limit, SyncRateLimiter\n"
    "with SyncRateLimiter.open(sys.argv[1]) as limiter:\n"
    "    limiter.set_resource_defaults('api', [Limit.per_day('rpm', int(sys.argv[2]))])\n"
)


def change(url: str, capacity: int) -> None:
    subprocess.run([sys.executable, "-c", CHANGE, url, str(capacity)], check=True, timeout=120)


def backend_of(limiter: SyncRateLimiter) -> PostgresBackend:
    backend = limiter.repository._async._backend
    assert isinstance(backend, PostgresBackend)
    return backend


def test_a_change_of_another_process_binds_at_the_next_acquire() -> None:
    """It is told in the transaction of the change, to whoever listens."""
    url = postgres.url(lent_schema(), timeout_ms=60_000)
    change(url, 100)
    with SyncRateLimiter.open(url) as limiter:
        with limiter.acquire("key", "api", {"rpm": 1}):
            pass
        backend = backend_of(limiter)
        wait_until(lambda: backend.listening.is_listening)
        heard = backend.calls.news
        change(url, 5)
        wait_until(lambda: backend.calls.news > heard)
        with pytest.raises(RateLimitExceeded):
            limiter.acquire("key", "api", {"rpm": 50}).open()


def test_without_listening_a_reply_tells() -> None:
    url = postgres.url(lent_schema(), timeout_ms=60_000, listen="off")
    change(url, 100)
    with SyncRateLimiter.open(url) as limiter:
        with limiter.acquire("key", "api", {"rpm": 1}):
            pass
        change(url, 5)
        with limiter.acquire("key-2", "api", {"rpm": 1}):
            pass
        with pytest.raises(RateLimitExceeded):
            limiter.acquire("key", "api", {"rpm": 50}).open()


def test_who_listens_connects_again_and_hears_what_it_missed() -> None:
    backend = open_backend(postgres.url(lent_schema(), timeout_ms=60_000), sync=True, world=World())
    run_sync(backend.setup())
    backend.news()
    wait_until(lambda: backend.listening.is_listening)
    channel = f"LISTEN {backend.address.schema}_news"
    heard = backend.calls.news
    other = open_backend(postgres.url(backend.address.schema, listen="off"), sync=True, world=World())
    owner().execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND query IN (%s, %s)",
        (channel, f"SELECT {backend.address.schema}.look()"),
    )
    (outcome,) = run_sync(other.write_each([Put(Key("ns/SYSTEM#", "#CONFIG"), {"n": 1})]))
    assert outcome.applied
    wait_until(lambda: backend.calls.news > heard)
    for one in (backend, other):
        run_sync(one.close())


def test_clocks_a_day_apart_change_nothing() -> None:
    """A bucket goes by the server's time, whatever the machines of its clients say."""
    url = postgres.url(lent_schema(), timeout_ms=60_000)
    day_ms = 86_400_000
    late, early = (World(now_ms=lambda by=by: World().now_ms() + by) for by in (-day_ms, day_ms))
    worlds = [world.for_store() for world in (late, early)]
    backends = [open_backend(url, sync=True, world=world) for world in worlds]
    for backend in backends:
        run_sync(backend.setup())
    apart = abs(worlds[0].now_ms() - worlds[1].now_ms())
    assert apart < 60_000
    for backend in backends:
        run_sync(backend.close())


def test_own_changes_are_no_news() -> None:
    """Who made a change has read nothing that it did not write."""
    url = postgres.url(lent_schema(), timeout_ms=60_000, listen="off")
    with SyncRateLimiter.open(url) as limiter:
        backend = backend_of(limiter)
        heard = backend.calls.news
        limiter.set_system_defaults([Limit.per_day("rpm", 5)])
        assert backend.calls.news == heard


def test_a_counter_that_went_back_is_news_too() -> None:
    """So it is after a failover that lost the last changes."""
    backend = open_backend(postgres.url(lent_schema()), sync=True, world=World())
    backend.calls.hear(7)
    heard = backend.calls.news
    backend.calls.hear(6)
    assert backend.calls.news > heard
    run_sync(backend.close())
