"""Clocks that are set while a process runs, and what hosts with wrong ones left behind."""

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm
from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.records.connection import Options
from zae_limiter.repository_protocol import Outcome, Update, Write
from zae_limiter.runtime.world import AHEAD_MS_MAX, World
from zae_limiter.schema import bucket_key
from zae_limiter.testing.stores import Wrapper

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


async def plant_origin(client: Client, entity_id: str, origin_ms: int) -> None:
    """Let a bucket begin when a host with a wrong clock said."""
    key = bucket_key(client.repository.namespace_id, entity_id, RESOURCE)
    await client.repository.write_each([Update(key, set={"rf": origin_ms})])


AHEAD = [AHEAD_MS_MAX + 1, HOUR_MS, 24 * HOUR_MS]


@pytest.mark.parametrize("ahead_ms", AHEAD)
@pytest.mark.parametrize("given", [False, True], ids=["stored", "given"])
async def test_an_origin_in_the_future_is_repaired(
    store: Store, ahead_ms: int, given: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The next write lets the bucket begin now, with what it holds; from now on it fills; it is told once."""
    limits = [rpm(10)] if given else []
    operator, worker = await store.client(), await store.client()
    await operator.repository.set_resource_defaults(RESOURCE, [rpm(10)])
    await operator.take("key", {"rpm": 6}, *limits)
    await plant_origin(operator, "key", store.clock.now_ms + ahead_ms)
    for client in (worker, operator):
        await client.take("key", {"rpm": 1}, *limits)
    assert await store.left("key") == 2
    state = await store.bucket("key")
    assert state is not None
    assert state.last_refill_ms <= store.clock.now_ms
    assert await store.used("key") == 8
    told = [record.getMessage() for record in caplog.records if "wrong clock" in record.getMessage()]
    assert len(told) == 1
    assert f"{ahead_ms // 1000} s" in told[0]
    store.clock.advance(30)
    assert await store.left("key") == 7


@pytest.mark.parametrize("ahead_ms", AHEAD)
async def test_nobody_waits_for_an_origin_in_the_future(store: Store, ahead_ms: int) -> None:
    """An empty bucket refuses with the wait from now on, and at its end the request passes."""
    client = await store.client()
    await client.take("key", {"rpm": 10}, rpm(10))
    await plant_origin(client, "key", store.clock.now_ms + ahead_ms)
    asker = await store.client()
    wait_seconds = await asker.limiter.time_until_available("key", RESOURCE, {"rpm": 1}, [rpm(10)])
    assert 5.9 < wait_seconds <= 6
    for other in (client, asker):
        refusal = await other.refused("key", {"rpm": 1}, rpm(10))
        assert refusal.retry_after_seconds == wait_seconds
    store.clock.advance(wait_seconds)
    await asker.take("key", {"rpm": 1}, rpm(10))


async def test_debt_is_charged_to_a_bucket_that_begins_in_the_future(store: Store) -> None:
    """What was used is taken as ever, and that write is the repair as well."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)]) as lease:
        await plant_origin(client, "key", store.clock.now_ms + HOUR_MS)
        await client.repository.get_bucket("key", RESOURCE)
        await lease.adjust(rpm=19)
    assert await store.left("key") == -10
    store.clock.advance(60)
    assert await store.left("key") == 0


async def test_an_origin_a_little_ahead_is_left_alone(store: Store) -> None:
    """Clocks differ by a second or two; a bucket that two of them use does not begin anew all the time."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, rpm(10))
    origin_ms = store.clock.now_ms + AHEAD_MS_MAX
    await plant_origin(client, "key", origin_ms)
    await client.take("key", {"rpm": 1}, rpm(10))
    state = await store.bucket("key")
    assert state is not None
    assert state.last_refill_ms == origin_ms


async def test_a_wait_told_after_a_slow_reply_is_the_rest_of_it(store: Store) -> None:
    """Others were faster twice, and by the time that this is known there are tokens again."""
    rival = await store.client()
    await rival.repository.set_resource_defaults(RESOURCE, [rpm(10, seconds=1)])
    await rival.take("key", {"rpm": 10})

    class Overtaken(Wrapper):
        """Whatever it writes comes too late, and by the time of the reply all tokens are back."""

        swap = None

        async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
            with suppress(RateLimitExceeded):
                await rival.take("key", {"rpm": 10})
            outcomes = await super().write_each(writes)
            store.clock.advance(1)
            return outcomes

    slow = await store.client(wrap=Overtaken)
    refusal = await slow.refused("key", {"rpm": 1})
    assert 0 < refusal.retry_after_seconds <= 0.001
