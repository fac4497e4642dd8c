"""Families of four generations under load: one round trip, and the books of every generation agree."""

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.stores import url_of
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.backends import open_backend
from zae_limiter.runtime.world import World
from zae_limiter.testing import RecordingBackend

all_servers = pytest.mark.parametrize("kind", ["dynamodb", "redis", "postgres"])

LEAVES, TASKS, ROUNDS = 100, 50, 4
NEVER = 10**7
"""A period in seconds so long that nothing refills within a test."""


def slow(capacity: int) -> Limit:
    return Limit("rpm", capacity, 1, NEVER)


def above(leaf: int) -> tuple[str, str, str, str]:
    """A key and who is above it: ten keys a user, five users a team, two teams."""
    return f"key-{leaf}", f"user-{leaf // 10}", f"team-{leaf // 50}", "org"


async def opened(url: str) -> tuple[RateLimiter, RecordingBackend]:
    recording = RecordingBackend(open_backend(url, sync=False, world=World()))
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


class Books(NamedTuple):
    """Of every generation: what it has counted, and what it lacks of what it may have."""

    counted: Counter[str]
    lacking: Counter[str]


async def books_of(limiter: RateLimiter) -> Books:
    books = Books(Counter(), Counter())
    for name in sorted({name for leaf in range(LEAVES) for name in above(leaf)}):
        for state in await limiter.repository.get_buckets(name, "api"):
            books.counted[name] += state.total_consumed_milli // 1000
            books.lacking[name] += (state.capacity_milli - state.tokens_milli) // 1000
    return books


@all_servers
def test_four_generations_a_hundred_leaves_fifty_tasks(kind: str, tmp_path: Path) -> None:
    """Warm, an acquire is one round trip whatever else is under way; every generation has counted all of it.

    Then the top is nearly empty: whoever it refuses leaves everybody else untouched.
    """
    asyncio.run(_four_generations(url_of(kind, tmp_path)))


async def _four_generations(url: str) -> None:
    asked = LEAVES * (1 + ROUNDS)
    limiter, recording = await opened(url)
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
    ((verb, writes),) = recording.calls
    assert len(writes) == 4
    due = [leaf for _ in range(ROUNDS) for leaf in range(LEAVES)]
    due.remove(3)  # who was warm above
    recording.forget()

    async def work() -> None:
        while due:
            assert await take(due.pop())

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(work())
    assert {verb for verb, _ in recording.calls} == {verb}, "nothing is read by who is warm"
    expected = Counter[str]()
    for leaf in range(LEAVES):
        for name in above(leaf):
            expected[name] += 1 + ROUNDS
    assert await books_of(limiter) == (expected, expected)

    async with asyncio.TaskGroup() as group:
        last = [group.create_task(take(leaf)) for leaf in range(TASKS)]
    admitted = [leaf for leaf, task in enumerate(last) if task.result()]
    assert (len(admitted), blamed) == (7, {"org"})
    for leaf in admitted:
        for name in above(leaf):
            expected[name] += 1
    assert await books_of(limiter) == (expected, expected)
    await limiter.repository.close()


@all_servers
def test_a_circle_made_by_two_at_once(kind: str, tmp_path: Path) -> None:
    """Of many who make two entities each other's parents at the same moment, one way round is left."""
    asyncio.run(_circles(url_of(kind, tmp_path)))


async def _circles(url: str) -> None:
    limiters = [(await opened(url))[0] for _ in range(2)]
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
