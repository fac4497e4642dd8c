"""What each operation asks of the store: calls are latency, writes are money.

Every expected list is ``(verb, how many keys or writes)``. These numbers are promises; a change that
costs more fails here.
"""

import asyncio
from functools import partial

import pytest

from tests.flow.clients import EMBEDDED, RESOURCE, Client, Store, rpm, tpm
from tests.odd_stores import Slow
from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.records.connection import Options

WARM = [("write_each", 1)]
LIMITS = [rpm(60), tpm(1000)]


async def prepared(store: Store) -> None:
    """Limits for all, a child with a parent, and somebody alone; done by a process that then is gone."""
    admin = (await store.client()).repository
    await admin.set_resource_defaults(RESOURCE, LIMITS)
    await admin.create_entity("parent")
    await admin.create_entity("child", parent_id="parent", cascade=True)
    await admin.create_entity("alone")


async def warmed(store: Store, *, speculative_writes: bool = True) -> Client:
    """A process that has used every bucket once."""
    await prepared(store)
    client = await store.client(speculative_writes=speculative_writes)
    for entity_id in ("child", "parent", "alone"):
        await client.take(entity_id, {"rpm": 1, "tpm": 1})
    client.forget()
    return client


@pytest.mark.parametrize("limits", [[], LIMITS], ids=["stored", "explicit"])
async def test_first_acquire(store: Store, limits: list[Limit]) -> None:
    """An entity nobody has ever seen costs one read and one write."""
    await prepared(store)
    client = await store.client()
    await client.take("alone", {"rpm": 1, "tpm": 1}, *limits)
    assert [verb for verb, _ in client.calls] == ["batch_get", "write_each"]
    assert client.recording.writes == 1


async def test_second_entity_of_a_warm_process(store: Store) -> None:
    """So does the next new entity: what is known of the resource is not read again."""
    client = await warmed(store)
    await client.take("newcomer", {"rpm": 1})
    assert client.calls == [("batch_get", 4), ("write_each", 1)]


@pytest.mark.parametrize("limits", [[], LIMITS], ids=["stored", "explicit"])
async def test_warm_acquire(store: Store, limits: list[Limit]) -> None:
    """A bucket that this process has used before costs one write and nothing else."""
    client = await warmed(store)
    for _ in range(3):
        client.forget()
        await client.take("alone", {"rpm": 1, "tpm": 1}, *limits)
        assert client.calls == WARM


async def test_warm_acquire_after_a_pause(store: Store) -> None:
    """A bucket that has filled up meanwhile is clamped by the same single write."""
    client = await warmed(store)
    store.clock.advance(50)
    await client.take("alone", {"rpm": 60, "tpm": 1})
    assert client.calls == WARM
    await client.refused("alone", {"rpm": 1})


async def test_refusal(store: Store) -> None:
    """A refusal costs one write, which brings back all that an exact wait needs."""
    client = await warmed(store)
    refusal = await client.refused("alone", {"rpm": 60})
    assert refusal.retry_after_seconds == 1
    assert client.calls == WARM


async def test_repeated_refusal(store: Store) -> None:
    """For a second equal and larger demands are refused without asking again; smaller ones are asked."""
    client = await warmed(store)
    await client.refused("alone", {"rpm": 60})
    client.forget()
    for amount in (60, 61):
        refusal = await client.refused("alone", {"rpm": amount})
        assert refusal.primary_violation.available == 59
    assert client.calls == []
    await client.take("alone", {"rpm": 59})
    assert client.calls == WARM
    store.clock.advance(0.999)
    client.forget()
    await client.refused("alone", {"rpm": 1})
    store.clock.advance(0.001)
    await client.take("alone", {"rpm": 1})


async def test_refusal_of_the_impossible(store: Store) -> None:
    """So does a demand beyond the capacity, on a bucket that exists."""
    client = await warmed(store)
    refusal = await client.refused("alone", {"rpm": 61})
    assert refusal.retry_after_seconds == float("inf")
    assert client.calls == WARM


async def test_near_the_limit(store: Store) -> None:
    """A bucket that lives from its refill costs one write for each acquire, at its very edge too."""
    client = await warmed(store)
    await client.take("alone", {"rpm": 59})
    for _ in range(5):
        store.clock.advance(1)
        client.forget()
        await client.take("alone", {"rpm": 1})
        assert client.calls == WARM
        assert await store.left("alone") == 0


async def test_busy_bucket_of_two_processes(store: Store) -> None:
    """Spends commute: what others take does not make this process try twice."""
    client, other = await warmed(store), await store.client()
    await client.take("alone", {"rpm": 10})
    client.forget()
    for _ in range(5):
        await other.take("alone", {"rpm": 1})
        await client.take("alone", {"rpm": 1})
    assert client.calls == WARM * 5


async def test_cold_process_with_an_existing_bucket(store: Store) -> None:
    """A process that just started reads config, entity and bucket in one trip, then writes."""
    await warmed(store)
    cold = await store.client()
    await cold.take("alone", {"rpm": 1, "tpm": 1})
    assert cold.calls == [("batch_get", 6), ("write_each", 1)]


async def test_expired_cache(store: Store) -> None:
    """When the config cache has expired it is read anew, the bucket is not."""
    client = await warmed(store)
    store.clock.advance(61)
    await client.take("alone", {"rpm": 1})
    assert client.calls == [("batch_get", 6), ("write_each", 1)], "with who the entity is, and its namespace"


async def test_disabled_cache(store: Store) -> None:
    """A TTL of 0 pays one read for each acquire."""
    await prepared(store)
    client = await store.client(Options(config_cache_ttl_seconds=0))
    await client.take("alone", {"rpm": 1})
    client.forget()
    await client.take("alone", {"rpm": 1})
    assert [verb for verb, _ in client.calls] == ["batch_get", "write_each"]


async def test_cascade_warm(store: Store) -> None:
    """Child and parent go out together: one call, two writes."""
    client = await warmed(store)
    await client.take("child", {"rpm": 1, "tpm": 1})
    assert client.calls == [(client.together, 2)]


@pytest.mark.parametrize("existing", [False, True], ids=["first", "existing"])
async def test_cascade_cold(store: Store, existing: bool) -> None:
    """A process that has to learn of the parent first needs one read more."""
    await (warmed(store) if existing else prepared(store))
    cold = await store.client()
    await cold.take("child", {"rpm": 1})
    assert [verb for verb, _ in cold.calls] == ["batch_get", "batch_get", cold.together]
    assert cold.recording.writes == 2


async def test_cascade_refused_by_the_parent(store: Store) -> None:
    """Who is known to refuse is asked alone; where all or none costs no more, both are asked.

    Who was not asked cannot tell of another family, so its record is read unless the store tells of changes.
    """
    client = await warmed(store)
    await client.take("parent", {"rpm": 58})
    client.forget()
    await client.refused("child", {"rpm": 1})
    asked_alone = [("write_each", 1), ("batch_get", 1)]
    assert client.calls == ([("transact_write", 2)] if client.together == "transact_write" else asked_alone)


async def test_cascade_refused_by_the_parent_unexpectedly(store: Store) -> None:
    """What was taken from the child is given back, if it was taken."""
    client, other = await warmed(store), await store.client()
    await other.take("parent", {"rpm": 58})
    await client.refused("child", {"rpm": 1})
    partly = [("write_each", 2), ("write_each", 1)]
    assert client.calls == ([("transact_write", 2)] if client.together == "transact_write" else partly)
    assert await store.used("child") == 1


async def test_cascade_refused_by_both(store: Store) -> None:
    """Nothing was taken, so there is nothing to refund."""
    client = await warmed(store)
    await client.refused("child", {"rpm": 60})
    assert client.calls == [(client.together, 2)]


@pytest.mark.parametrize("change", [5, 500, -1])
async def test_acquire_and_adjust(store: Store, change: int) -> None:
    """All adjustments of a lease are one write at its end."""
    client = await warmed(store)
    async with client.limiter.acquire("alone", RESOURCE, {"tpm": 9}) as lease:
        await lease.adjust(tpm=change)
        await lease.adjust(tpm=1, rpm=1)
        assert client.calls == WARM
    assert client.calls == WARM * 2


async def test_cascade_and_adjust(store: Store) -> None:
    """Child and parent are settled together."""
    client = await warmed(store)
    async with client.limiter.acquire("child", RESOURCE, {"tpm": 9}) as lease:
        await lease.adjust(tpm=5)
    assert client.calls == [(client.together, 2), ("write_each", 2)]


@pytest.mark.parametrize("changes", [[], [0], [3, -3], [-2, 1, 1]], ids=str)
async def test_adjustment_that_comes_to_nothing(store: Store, changes: list[int]) -> None:
    """A net adjustment of 0 is not written."""
    client = await warmed(store)
    async with client.limiter.acquire("alone", RESOURCE, {"tpm": 9}) as lease:
        for change in changes:
            await lease.adjust(tpm=change)
    assert client.calls == WARM


async def test_refund(store: Store) -> None:
    """Giving back is one write, and one for each bucket of a cascade."""
    client = await warmed(store)
    for entity_id, writes in (("alone", 1), ("child", 2)):
        client.forget()
        with pytest.raises(KeyError):
            async with client.limiter.acquire(entity_id, RESOURCE, {"rpm": 1}):
                raise KeyError
        verb = client.together if writes == 2 else "write_each"
        assert client.calls == [(verb, writes), ("write_each", writes)]


async def test_questions(store: Store) -> None:
    """A question about availability is one read for a warm process, and writes nothing."""
    client = await warmed(store)
    for question in (
        client.limiter.available("alone", RESOURCE),
        client.limiter.available("child", RESOURCE),
        client.limiter.time_until_available("child", RESOURCE, {"rpm": 60}),
        client.limiter.check_availability("child", RESOURCE, {"rpm": 60}),
        client.limiter.is_available(),
    ):
        client.forget()
        await question
        assert [verb for verb, _ in client.calls] == ["batch_get"]


async def test_read_then_write(store: Store) -> None:
    """Without speculation an acquire is one read and one plain write."""
    client = await warmed(store, speculative_writes=False)
    await client.take("alone", {"rpm": 1, "tpm": 1})
    assert client.calls == [("batch_get", 1), ("write_each", 1)]


async def test_read_then_transact(store: Store) -> None:
    """Without speculation a cascade is one read and one transaction."""
    client = await warmed(store, speculative_writes=False)
    await client.take("child", {"rpm": 1, "tpm": 1})
    assert client.calls == [("batch_get", 2), ("transact_write", 2)]


async def test_refusal_without_speculation(store: Store) -> None:
    """A refusal costs no more than an admission, and a cascade has nothing to refund."""
    client = await warmed(store, speculative_writes=False)
    await client.refused("alone", {"rpm": 60})
    assert client.calls == [("batch_get", 1), ("write_each", 1)]
    await client.take("parent", {"rpm": 58})
    client.forget()
    await client.refused("child", {"rpm": 1})
    assert client.calls == [("batch_get", 2), ("transact_write", 2)]
    assert await store.used("child") == 1


async def test_new_config_costs_one_refresh(store: Store) -> None:
    """A process that meets a newer config version reads it once, tries again, and is warm from then on.

    Where the store tells that somebody changed a record it reads first and is refused later.
    """
    client, admin = await warmed(store), await store.client()
    await admin.repository.set_resource_defaults(RESOURCE, [rpm(600), tpm(1000)])
    await admin.take("alone", {"rpm": 1})
    await client.take("alone", {"rpm": 1})
    told = ["batch_get", "write_each"] if store.name in EMBEDDED else ["write_each", "batch_get"]
    assert [verb for verb, _ in client.calls] == [*told, "write_each"]
    if client.hears:  # by a reply of those, and reads once more
        await client.take("alone", {"rpm": 1})
    client.forget()
    await client.take("alone", {"rpm": 1})
    assert client.calls == WARM


async def test_concurrent_misses_share_one_fetch(store: Store) -> None:
    """Ten tasks that start cold together read each record once between them."""
    await prepared(store)
    client = await store.client()
    await asyncio.gather(*(client.take(f"new-{n}", {"rpm": 1}) for n in range(10)))
    read = [key for verb, keys in client.recording.calls if verb == "batch_get" for key in keys]
    assert len(read) == len(set(read))


async def test_demands_of_one_moment_travel_together(store: Store) -> None:
    """A hundred tasks on one bucket cost a few writes, and are admitted as if they had come one by one."""
    await prepared(store)
    client = await store.client(wrap=partial(Slow, turns=3))
    await client.take("alone", {"rpm": 1})
    client.forget()
    demands = (client.take("alone", {"rpm": 1}) for _ in range(100))
    results = await asyncio.gather(*demands, return_exceptions=True)
    assert sum(result is None for result in results) == 59
    assert sum(isinstance(result, RateLimitExceeded) for result in results) == 41
    assert client.recording.writes <= 5
    assert (await store.used("alone"), await store.left("alone")) == (60, 0)


async def test_adjustments_of_one_moment_travel_together(store: Store) -> None:
    """Leases that end together are settled together."""
    await prepared(store)
    client = await store.client(wrap=partial(Slow, turns=3))
    ending = asyncio.Barrier(50)

    async def work() -> None:
        async with client.limiter.acquire("alone", RESOURCE, {"tpm": 2}) as lease:
            await ending.wait()
            await lease.adjust(tpm=3)
            client.forget()

    await asyncio.gather(*(work() for _ in range(50)))
    assert client.recording.writes <= 4
    assert await store.used("alone", "tpm") == 250
