"""A follower on Redis or PostgreSQL whose replies are lost, one after the other: usage is counted once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.aggregator.test_runner import totals, use
from tests.engines import postgres, redis_server
from tests.postgres.proxy import Proxy
from tests.postgres.schemas import lent_schema
from tests.redis.faulty_wire import Delay, DropReply, FaultyWire
from zae_limiter.backends import open_backend
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter_aggregator import AggregatorSettings
from zae_limiter_aggregator.runner import source_of

FUNCTIONS = ("log_read", "read", "write", "log_trim")
COMMANDS = {"EVALSHA": 6, "SMEMBERS": 2, "SADD": 1}
"""What a follower asks of Redis until nothing is left, and how often at least: by chance it is more."""

Lose = Callable[[], None]


@contextmanager
def on_redis(command: str, passing: int) -> Iterator[tuple[str, str, Lose]]:
    prefix = redis_server.fresh_prefix()
    with FaultyWire(redis_server.SERVER.port()).running() as wire:
        urls = [redis_server.url(prefix, port, timeout_ms=60_000) for port in (None, wire.port)]
        yield urls[0], urls[1], lambda: wire.fault(command, *([Delay(0)] * passing), DropReply())
        assert not wire._faults[command], "it was never asked for"


@contextmanager
def on_postgres(function: str, _: int) -> Iterator[tuple[str, str, Lose]]:
    schema = lent_schema()
    with Proxy(postgres.SERVER.port()).running() as proxy:
        urls = [postgres.url(schema, port, timeout_ms=60_000, listen="off") for port in (None, proxy.port)]
        yield urls[0], urls[1], lambda: proxy.fault(function, "lose reply")
        assert not proxy._faults[function], "it was never called"


CASES = [
    *(
        pytest.param(on_redis, command, passing, id=f"{command}, {passing} pass")
        for command, count in COMMANDS.items()
        for passing in range(count)
    ),
    *(pytest.param(on_postgres, function, 0, id=function) for function in FUNCTIONS),
]


def followed(url: str, begin: Lose) -> int:
    """Count what there is, and tell how often the store was in the way."""
    backend = open_backend(url, sync=True, world=World())
    source = source_of(backend, url, World(), AggregatorSettings())
    begin()
    failures, records = 0, 1
    while records:
        try:
            records = run_sync(source.step()).records
        except RateLimiterUnavailable:
            failures += 1
    run_sync(source.close())
    run_sync(backend.close())
    return failures


@pytest.mark.parametrize(("server", "what", "passing"), CASES)
def test_usage_is_counted_once_whichever_reply_is_lost(server: Any, what: str, passing: int) -> None:
    """Who follows asks again, as it does after any failure, and another one goes on behind it."""
    with server(what, passing) as (url, faulty_url, lose):
        use(url, 6)
        use(url, 3, "user-2")
        assert followed(faulty_url, lose) <= 1
        assert totals(url) == {"user-1": {"rpm": 12}, "user-2": {"rpm": 6}}
        use(url, 3)
        assert followed(url, lambda: None) == 0
        assert totals(url) == {"user-1": {"rpm": 18}, "user-2": {"rpm": 6}}
