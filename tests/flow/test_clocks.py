"""Clocks that are set while a process runs: how long something is remembered does not depend on them."""

import random
from contextlib import suppress

import pytest

from tests.flow.stage import RESOURCE, Client, Store
from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.records.connection import Options
from zae_limiter.world import World

HOUR_MS = 3_600_000
TTL_SECONDS = 60
OPTIONS = Options(config_cache_ttl_seconds=TTL_SECONDS)
PLENTY, FEW = Limit("rpm", 1_000, 1_000, 3_600), Limit("rpm", 5, 5, 3_600)


class Machine:
    """A machine whose clock can be set; ``advance`` lets time pass."""

    def __init__(self) -> None:
        self.ticks_ms, self.ahead_ms = 0.0, 1_700_000_000_000
        self.world = World(
            lambda: int(self.ticks_ms) + self.ahead_ms, lambda: self.ticks_ms, random.Random(1)
        )

    def advance(self, seconds: float) -> None:
        self.ticks_ms += seconds * 1000


async def admitted(client: Client, most: int) -> int:
    """How many of ``most`` acquires of one token pass."""
    count = 0
    for _ in range(most):
        with suppress(RateLimitExceeded):
            await client.take("key", {"rpm": 1})
            count += 1
    return count


@pytest.mark.parametrize("step_ms", [-HOUR_MS, -24 * HOUR_MS, HOUR_MS, 24 * HOUR_MS])
async def test_a_cut_limit_binds_after_the_ttl_whatever_the_clock_says(store: Store, step_ms: int) -> None:
    """Who remembers limits forgets them when their time is over, though the clock was set meanwhile."""
    machine = Machine()
    operator, worker = await store.client(), await store.client(OPTIONS, world=machine.world)
    await operator.repository.set_resource_defaults(RESOURCE, [PLENTY])
    assert await admitted(worker, 3) == 3
    machine.ahead_ms += step_ms
    await operator.repository.set_resource_defaults(RESOURCE, [FEW])
    machine.advance(TTL_SECONDS)
    assert await admitted(worker, 50) <= FEW.capacity
    limits, _, _ = await worker.repository.resolve_limits("key", RESOURCE)
    assert limits == [FEW]


async def test_a_clock_set_forward_forgets_nothing(store: Store) -> None:
    """What was read a moment ago is not read again because somebody corrected the machine's clock."""
    machine = Machine()
    worker = await store.client(OPTIONS, world=machine.world)
    await worker.repository.set_resource_defaults(RESOURCE, [PLENTY])
    assert await admitted(worker, 1) == 1
    machine.ahead_ms += HOUR_MS
    worker.forget()
    assert await admitted(worker, 3) == 3
    assert worker.recording.verbs["batch_get"] == 0
