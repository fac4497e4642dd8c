"""Negative hits give back what was counted, to the buckets that it was counted in, and nothing beyond."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.odd_stores import HotMemory
from tests.server.envoy.calls import OK, Envoy, lasting, started, whose
from zae_limiter import RateLimiter, Repository
from zae_limiter.engine import bucket_writes, posting, split
from zae_limiter.engine.law import Rate
from zae_limiter.repository_protocol import Item
from zae_limiter.schema import limit_attributes, rate_attributes
from zae_limiter.server.envoy.refunds import credited, give_back_hits
from zae_limiter.testing import ManualClock

CAPACITY = 50


class Model:
    """What buckets hold, without refill: a hit of a child is its parent's, too."""

    def __init__(self, capacities: dict[str, int], parents: dict[str, str]) -> None:
        self.capacities, self.parents = capacities, parents
        self.left = dict(capacities)

    def charged(self, who: str) -> list[str]:
        return [who, *([self.parents[who]] if who in self.parents else [])]

    def take(self, hits: dict[str, int]) -> bool:
        need = dict.fromkeys(self.left, 0)
        for who, n in hits.items():
            for one in self.charged(who):
                need[one] += n
        if any(need[who] > self.left[who] for who in need):
            return False
        for who, n in need.items():
            self.left[who] -= n
        return True

    def give_back(self, hits: dict[str, int]) -> None:
        for who, n in hits.items():
            for one in self.charged(who):
                self.left[one] = min(self.capacities[one], self.left[one] + n)


async def family(envoy: Envoy) -> Model:
    """Two children whose hits are their parent's as well, and somebody without one."""
    await envoy.limiter.create_entity("org")
    for child in ("ann", "bob"):
        await envoy.limiter.create_entity(child, parent_id="org", cascade=True)
    await envoy.limiter.set_resource_defaults("edge", [lasting(CAPACITY)])
    await envoy.limiter.set_limits("org", [lasting(CAPACITY + 20)], "edge")
    capacities = {"ann": CAPACITY, "bob": CAPACITY, "cy": CAPACITY, "org": CAPACITY + 20}
    return Model(capacities, {"ann": "org", "bob": "org"})


@pytest.mark.parametrize("seed", range(4))
async def test_random_hits_and_refunds_leave_what_a_model_says(seed: int) -> None:
    """Whatever was taken and given back, in whatever order, every bucket has what the model has."""
    chance = random.Random(seed)
    async with started() as envoy:
        model = await family(envoy)
        for _ in range(60):
            hits = {who: chance.randint(1, 15) for who in chance.sample(["ann", "bob", "cy"], 2)}
            if chance.random() < 0.5:
                answer = await envoy.ask(*[whose(who, hits=n) for who, n in hits.items()])
                assert (answer.overall_code == OK) is model.take(hits)
            else:
                back = [whose(who, hits=n, negative=True) for who, n in hits.items()]
                answer = await envoy.ask(*back)
                assert answer.overall_code == OK
                model.give_back(hits)
            left = {who: await envoy.left(who) for who in ("cy", "org")}
            left |= {who: min(await envoy.left(who), model.capacities[who]) for who in ("ann", "bob")}
            family_of = {who: min(model.left[one] for one in model.charged(who)) for who in model.left}
            assert left == family_of


async def test_refunds_at_once_are_all_counted() -> None:
    """Many calls at once take and give back, and the sum is right."""
    async with started() as envoy:
        model = await family(envoy)
        assert (await envoy.ask(whose("ann", hits=40), whose("bob", hits=20))).overall_code == OK
        calls = [envoy.ask(whose("ann", hits=2, negative=True)) for _ in range(10)]
        calls += [envoy.ask(whose("bob", hits=1)) for _ in range(10)]
        assert {answer.overall_code for answer in await asyncio.gather(*calls)} == {OK}
        model.take({"ann": 20, "bob": 30})
        assert await envoy.left("org") == model.left["org"] == 20
        assert await envoy.left("bob") == 20


async def test_nothing_comes_back_that_was_not_counted() -> None:
    """Of nobody's bucket more is counted as given back than was taken: usage is never below nothing."""
    async with started() as envoy:
        for hits in (1, 10**9, 2**64 - 1):
            answer = await envoy.ask(whose("new", hits=hits, negative=True))
            assert answer.overall_code == OK
        assert await envoy.left("new") == 10
        await envoy.ask(whose("new"), hits=3)
        answer = await envoy.ask(whose("new", hits=100, negative=True))
        assert (answer.overall_code, answer.statuses[0].limit_remaining) == (OK, 10)
        (state,) = await envoy.limiter.repository.get_bucket("new", "edge")
        assert (state.tokens_milli, state.total_consumed_milli) == (10_000, 0)


async def test_a_soft_limit_gets_it_back_too() -> None:
    """What was counted beyond a soft limit is owed no more once it is given back."""
    async with started() as envoy:
        await envoy.limiter.set_resource_defaults("edge", [lasting(10).softly()])
        assert (await envoy.ask(whose("ann"), hits=14)).overall_code == OK
        assert await envoy.left("ann") == -4
        await envoy.ask(whose("ann", hits=6, negative=True))
        assert await envoy.left("ann") == 2


def shard(taken: int, counted: int, capacity: int = 10_000) -> Item:
    names = limit_attributes("requests")
    image = {**rate_attributes("requests", Rate(capacity, 1, 10**11)), "rf": 0}
    return {**image, names.tk: capacity - taken, names.tc: counted}


SHARDS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(-2_000, 15_000)), min_size=1, max_size=8)


@given(SHARDS, st.integers(1, 40_000))
def test_shards_share_a_refund(shards: list[tuple[int, int]], amount: int) -> None:
    """Each of them gets what it has room for before any gets more; no more in all than they counted."""
    images = [shard(*one) for one in shards]
    parts = credited("requests", amount, images, 0)
    counted = max(0, sum(counted for _, counted in shards))
    rooms = [taken for taken, _ in shards]
    assert sum(parts) == min(amount, counted)
    assert all(part >= 0 for part in parts)
    useful = sum(min(part, room) for part, room in zip(parts, rooms, strict=True))
    assert useful == min(sum(parts), sum(rooms)), "nothing flies over while there is room elsewhere"


async def test_a_bucket_in_shards_gets_all_of_it(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    """What is given back to a bucket that has spread is there again, and is counted as used no more."""
    for module in (bucket_writes, posting, split):  # hot after three writes
        monkeypatch.setattr(module, "WRITES", Rate(3_000, 3_000, 1_000))
    limiter = RateLimiter(await Repository.over(HotMemory(clock.world), world=clock.world))
    await limiter.set_resource_defaults("edge", [lasting(10_000)])
    place, taken = ("key", "edge"), 0

    async def used_by_shard() -> list[int]:
        shards = [await limiter.repository.get_bucket(*place, "requests", shard_id) for shard_id in range(32)]
        return [state.total_consumed_milli for state in shards if state is not None]

    while len(await used_by_shard()) < 8 and taken < 9_000:
        async with limiter.acquire(*place, {"requests": 7}):
            taken += 7
    assert len(await used_by_shard()) >= 8
    for hits in (1, 100, 3, taken):
        assert await give_back_hits(limiter.repository, {place: {"requests": hits}}, {place: None}) == []
        taken = max(0, taken - hits)
        assert await limiter.available(*place) == {"requests": 10_000 - taken}
        assert sum(await used_by_shard()) == taken * 1000
