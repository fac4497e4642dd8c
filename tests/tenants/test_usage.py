"""A tenant writes rows of any size beside one that works: the second one's usage is exact at all times."""

import random
from typing import Any

import pytest

from tests.aggregator.known_usage import usage_rows
from tests.aggregator.poison import Strict, full_of_gaps, heavy_row, many_limits, plant
from tests.odd_stores import HotMemory
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.backends.change_log import log_of
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator import AggregatorSettings
from zae_limiter_aggregator.runner import LogSource
from zae_limiter_aggregator.usage import SEEN

RESOURCE = "gpt-4"
STEPS = 150


def any_bucket(rng: random.Random) -> dict[str, Any]:
    """A bucket row as a tenant may write it: too many limits, too many bytes, versions that jump."""
    image = many_limits(rng.choice([1, 20, 32, 33, 320, 2_000]), rng.randrange(10**24), rng.randrange(1000))
    image["born"] = rng.choice([0, -1, -2, 5, 10**27])
    if rng.random() < 0.3:
        image["ballast"] = rng.choice(["x", b"x"]) * rng.randrange(300_000)
    return image


def any_row(rng: random.Random) -> dict[str, Any]:
    """A usage row as a tenant may write it."""
    return rng.choice(
        [
            {SEEN: full_of_gaps(3_950, 409_000)},
            {SEEN: rng.choice([5, b"x", "0@-2:0-99999", ""]), "_rest": {"tpm": b"x"}},
            heavy_row(rng.choice([1_000, 60_000, 409_000])),
            {f"limit-{n}": n for n in range(rng.randrange(2_000))},
        ]
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_tenant_spoils_its_own_usage_only(seed: int) -> None:
    """After every batch the books of the other one agree, and no record waits to be delivered again."""
    rng, clock = random.Random(seed), ManualClock()
    memory = HotMemory(clock.world)
    store = Strict(memory)
    source = LogSource(store, log_of(memory), clock.world, AggregatorSettings())
    limiter = SyncRateLimiter(
        SyncRepository(Repository(Connection(store, clock.world, Options()), "good", "good"))
    )
    limiter.repository.set_resource_defaults(RESOURCE, [Limit.per_minute("tpm", 1_000)])
    booked = spoiled = 0
    for _ in range(STEPS):
        clock.advance(rng.random() * 60)
        if rng.random() < 0.5:
            amount = rng.randrange(1, 200)
            try:
                with limiter.acquire("user-1", RESOURCE, {"tpm": amount}) as lease:
                    lease.adjust(tpm=rng.randrange(-amount, 100))
                booked += lease.consumed["tpm"]
            except RateLimitExceeded:
                pass
        elif rng.random() < 0.5:
            key = bucket_key("evil", "user-1", RESOURCE, rng.randrange(3))
            spoiled += run_sync(plant(store, key, any_bucket(rng)))
        else:
            known = [key for key in memory.snapshot() if key.partition == "evil/ENTITY#user-1"]
            hour = Key("evil/ENTITY#user-1", "#USAGE#gpt-4#2023-11-14")
            spoiled += run_sync(plant(store, rng.choice([*known, hour]), any_row(rng)))
        if rng.random() < 0.3:
            while (tally := run_sync(source.step())).records:
                assert tally.failed == {}
            days = [row for row in usage_rows(store, "good", ["user-1"]).values() if row["window"] == "daily"]
            assert sum(int(str(row["tpm"])) for row in days) == booked
    assert booked > 0
    assert spoiled > STEPS // 8
