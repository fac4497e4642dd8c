"""Who is nearest to empty: bounded looks at stores of any size."""

from tests.records.store import Store, take
from tests.records.test_capacity import second_shard
from zae_limiter import Limit, RateLimiter
from zae_limiter.records.sampling import BucketSampler, SampledResource, look_up, places_of
from zae_limiter.repository_protocol import Update
from zae_limiter.schema import bucket_key

RPM = Limit.per_minute("rpm", 100)


async def test_the_nearest_to_empty_is_first(store: Store) -> None:
    """By whichever of its limits has the least left; debt comes before nothing left, and full ones last."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_system_defaults([RPM, Limit.per_minute("tpm", 1000)])
    for entity_id, amounts in {
        "idle": {"rpm": 1},
        "busy": {"rpm": 90},
        "wordy": {"tpm": 950},
    }.items():
        await take(limiter, entity_id, "gpt-4", **amounts)
    async with limiter.acquire("owing", "gpt-4", {"tpm": 1}) as lease:
        await lease.adjust(tpm=1499)
    sample, now_ms = await BucketSampler(repository._scope).look(), store.clock.now_ms
    assert [(one.entity_id, one.worst(now_ms)) for one in sample.buckets] == [
        ("owing", "tpm"),
        ("wordy", "tpm"),
        ("busy", "rpm"),
        ("idle", "rpm"),
    ]
    assert (sample.looked_at, sample.buckets_known, sample.is_all) == (4, 4, True)
    assert sample.resources == {"gpt-4": SampledResource(4, 1, -0.5)}
    busy = sample.buckets[2].limits["rpm"]
    assert (busy.stands.balance(now_ms), busy.capacity_milli) == (10_000, 100_000)
    assert busy.consumed_milli == 90_000
    # Half a minute later it has gained by itself what the limit gives in that time.
    assert busy.stands.balance(now_ms + 30_000) == 60_000


async def test_a_soft_limit_refuses_nobody(store: Store) -> None:
    """Whoever is past a soft limit is as near as by its other limits, and counts as nobody who is refused."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_system_defaults([RPM, Limit.per_minute("trial", 2).softly()])
    await repository.set_limits("strict", [RPM, Limit.per_minute("trial", 3)], "gpt-4")
    await take(limiter, "tried", "gpt-4", rpm=50, trial=40)
    await take(limiter, "strict", "gpt-4", rpm=1, trial=3)
    sample, now_ms = await BucketSampler(repository._scope).look(), store.clock.now_ms
    assert [(one.entity_id, one.worst(now_ms), one.refuses(now_ms)) for one in sample.buckets] == [
        ("strict", "trial", True),
        ("tried", "rpm", False),
    ]
    assert sample.resources == {"gpt-4": SampledResource(2, 1, 0.0)}


async def test_a_turn_reads_a_page_whatever_there_is(store: Store) -> None:
    """Each goes on where the last one ended; who is near stays in mind; counts are of whole rounds."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_system_defaults([RPM])
    for n in range(25):
        await take(limiter, f"key-{n:02}", "gpt-4", rpm=100 if n == 3 else n + 1)
    sampler = BucketSampler(repository._scope, kept_max=2)
    told = []
    for _ in range(5):
        ended, sample = await sampler.turn(10), sampler.sample()
        assert sample.buckets[0].entity_id == "key-03"
        assert len(sample.buckets) == 2
        counted = sample.resources["gpt-4"]
        told.append((ended, sample.is_all, sample.looked_at, sample.buckets_known, counted.buckets))
        assert counted.refusing == 1
    assert told == [
        (False, False, 10, 10, 10),
        (False, False, 20, 20, 20),
        (True, True, 25, 25, 25),
        (False, True, 10, 25, 25),
        (False, True, 20, 25, 25),
    ]
    assert [one.entity_id for one in sample.buckets] == ["key-03", "key-24"]


async def test_who_is_gone_is_forgotten_where_it_was(store: Store) -> None:
    """A round later the place of a bucket that was deleted is passed, and it is not near a limit any more."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_system_defaults([RPM])
    for entity_id in ("a", "b", "c"):
        await repository.create_entity(entity_id)
        await take(limiter, entity_id, "gpt-4", rpm=50)
    sampler = BucketSampler(repository._scope)
    while not await sampler.turn(1):
        pass
    await repository.delete_entity("b")
    seen = []
    for _ in range(4):
        await sampler.turn(1)
        seen.append("".join(one.entity_id for one in sampler.sample().buckets))
    assert seen[0] == "abc"
    assert seen[-1] == "ac"


async def test_what_a_look_asks_of_the_store(store: Store) -> None:
    """One page of an index and one read of buckets, and nothing is written."""
    repository, recorded = await store.recorded()
    await repository.set_system_defaults([RPM])
    await take(RateLimiter(repository), "key-1", "gpt-4", rpm=1)
    recorded.forget()
    await BucketSampler(repository._scope).look()
    assert recorded.verbs == {"query": 1, "batch_get": 1}


async def test_buckets_of_one_resource_and_of_one_entity(store: Store) -> None:
    """Others are not even read; shards of a bucket are added up."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_system_defaults([RPM])
    for entity_id, resource in (("a", "gpt-4"), ("a", "gpt-5"), ("b", "gpt-5"), ("b", "gpt-50")):
        await take(limiter, entity_id, resource, rpm=10)
    sample = await BucketSampler(repository._scope, "gpt-5").look()
    assert [one.place for one in sample.buckets] == [("a", "gpt-5"), ("b", "gpt-5")]
    assert sample.looked_at == 2
    await second_shard(repository, "b", "gpt-5", rpm=50)
    namespace_id = repository.namespace_id
    (bucket,) = await look_up(repository._scope, await places_of(repository._scope, "b", "gpt-5"))
    assert bucket.shards == 1  # which the first one does not know of yet
    await repository.write_each([Update(bucket_key(namespace_id, "b", "gpt-5"), set={"shard_count": 2})])
    (bucket,) = await look_up(repository._scope, await places_of(repository._scope, "b", "gpt-5"))
    assert bucket.shards == 2
    assert bucket.limits["rpm"].capacity_milli == 150_000
    assert bucket.limits["rpm"].stands.balance(bucket.at_ms) == 140_000
    assert [
        one.resource for one in await look_up(repository._scope, await places_of(repository._scope, "b"))
    ] == ["gpt-5", "gpt-50"]


async def test_seats_that_lapsed_are_free(store: Store) -> None:
    """Of a limit of concurrency what is missing is held, until nobody is heard of who holds it."""
    repository = await store.repository()
    limiter = RateLimiter(repository)
    await repository.set_system_defaults([Limit.concurrent("parallel", 4, "10s")])
    async with limiter.acquire("a", "gpt-4", {"parallel": 3}):
        (bucket,) = await look_up(repository._scope, await places_of(repository._scope, "a"))
        parallel = bucket.limits["parallel"].stands
        assert [parallel.balance(bucket.at_ms + ms) for ms in (0, 9_000, 12_000)] == [1000, 1000, 1000]
    async with limiter.acquire("a", "gpt-4", {"parallel": 3}):
        store.clock.advance(12)
        (bucket,) = await look_up(repository._scope, [("a", "gpt-4")])
        assert bucket.limits["parallel"].stands.balance(bucket.at_ms) == 4000
