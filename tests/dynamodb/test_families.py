"""Families of four generations under load: one round trip, and the books of every generation agree."""

import asyncio
from collections import Counter
from itertools import pairwise

from tests.dynamodb.tables import make_table, open_table
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.runtime.world import World
from zae_limiter.testing import RecordingBackend

LEAVES, TASKS, ROUNDS = 100, 50, 4
NEVER = 10**7
"""A period in seconds so long that nothing refills within a test."""


def slow(capacity: int) -> Limit:
    return Limit("rpm", capacity, 1, NEVER)


def above(leaf: int) -> tuple[str, str, str, str]:
    """A key and who is above it: ten keys a user, five users a team, two teams."""
    return f"key-{leaf}", f"user-{leaf // 10}", f"team-{leaf // 50}", "org"


async def opened(table: str) -> tuple[RateLimiter, RecordingBackend]:
    recording = RecordingBackend(open_table(False, table, World()))
    return RateLimiter(await Repository.over(recording)), recording


async def families(limiter: RateLimiter, top: int) -> None:
    await limiter.set_resource_defaults("api", [slow(100_000)])
    await limiter.set_limits("org", [slow(top)], "api")
    made = set[str]()
    for leaf in range(LEAVES):
        line = above(leaf)
        for name, parent in reversed([*pairwise(line), ("org", None)]):
            if name not in made:
                await limiter.create_entity(name, parent_id=parent, cascade=parent is not None)
                made.add(name)


async def used(limiter: RateLimiter) -> Counter[str]:
    books = Counter[str]()
    for name in sorted({name for leaf in range(LEAVES) for name in above(leaf)}):
        for state in await limiter.repository.get_buckets(name, "api"):
            books[name] += state.total_consumed_milli // 1000
    return books


def test_four_generations_a_hundred_leaves_fifty_tasks() -> None:
    """Warm, an acquire is one round trip whatever else is under way; every generation has counted all of it.

    Then the top is nearly empty: whoever it refuses leaves everybody else untouched.
    """
    asyncio.run(_four_generations())


async def _four_generations() -> None:
    table = make_table()
    asked = LEAVES * (1 + ROUNDS)
    limiter, recording = await opened(table)
    await families(limiter, asked + 7)

    blamed = set[str]()

    async def take(leaf: int) -> bool:
        try:
            async with limiter.acquire(above(leaf)[0], "api", {"rpm": 1}):
                return True
        except RateLimitExceeded as refusal:
            blamed.update(status.entity_id for status in refusal.violations)
            return False

    for leaf in range(LEAVES):
        assert await take(leaf)
    recording.forget()
    await take(3)
    assert recording.calls == [("write_each", recording.calls[0][1])]
    assert len(recording.calls[0][1]) == 4
    due = [leaf for _ in range(ROUNDS) for leaf in range(LEAVES)]
    due.remove(3)  # who was warm above
    recording.forget()

    async def work() -> None:
        while due:
            assert await take(due.pop())

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(work())
    assert {verb for verb, _ in recording.calls} == {"write_each"}, "nothing is read by who is warm"
    books = await used(limiter)
    expected = Counter[str]()
    for leaf in range(LEAVES):
        for name in above(leaf):
            expected[name] += 1 + ROUNDS
    assert books == expected

    async with asyncio.TaskGroup() as group:
        last = [group.create_task(take(leaf)) for leaf in range(TASKS)]
    admitted = [leaf for leaf, task in enumerate(last) if task.result()]
    assert (len(admitted), blamed) == (7, {"org"})
    for leaf in admitted:
        for name in above(leaf):
            expected[name] += 1
    assert await used(limiter) == expected
    await limiter.repository.close()


def test_a_circle_made_by_two_at_once() -> None:
    """Of many who make two entities each other's parents at the same moment, one way round is left."""
    asyncio.run(_circles())


async def _circles() -> None:
    table = make_table()
    limiters = [(await opened(table))[0] for _ in range(2)]
    for turn in range(10):
        one, two = f"one-{turn}", f"two-{turn}"
        for name in (one, two):
            await limiters[0].create_entity(name)
        moves = (
            limiters[0].update_entity(one, parent_id=two),
            limiters[1].update_entity(two, parent_id=one),
        )
        results = await asyncio.gather(*moves, return_exceptions=True)
        assert sum(not isinstance(result, BaseException) for result in results) == 1, results
    for limiter in limiters:
        await limiter.repository.close()
