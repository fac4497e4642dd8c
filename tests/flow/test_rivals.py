"""Processes that know nothing of each other's holds and splits: whoever fits is admitted.

``RIVAL_ROUNDS`` sets how many rounds each race has.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.flow.hot import RESOURCE, key_of
from tests.odd_stores import HotMemory
from tests.stores import url_of
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository, SyncRateLimiter
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.split import doubled, split
from zae_limiter.records.connection import Options
from zae_limiter.repository_protocol import Backend
from zae_limiter.testing import ManualClock

RIVAL = Path(__file__).with_name("rival.py")
ROUNDS = int(os.environ.get("RIVAL_ROUNDS", "40"))
NEVER = 10**7
"""A period in seconds so long that nothing refills within a test."""


class Rival:
    """Another process with a limiter of its own."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, str(RIVAL), url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.answer() == "ready"

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, order: str) -> str:
        self.tell(order)
        return self.answer()


@contextlib.contextmanager
def rivals(url: str) -> Iterator[tuple[Rival, Rival]]:
    pair = Rival(url), Rival(url)
    try:
        yield pair
    finally:
        for rival in pair:
            rival.process.kill()
            rival.process.communicate()


@pytest.fixture(params=["sqlite", "dynamodb", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with a child of 100 that cascades to a parent of 10, and a default of 1."""
    here = url_of(request.param, tmp_path)
    with SyncRateLimiter.open(here) as limiter:
        limiter.set_system_defaults([Limit("rpm", 1, 1, NEVER)])
        for parent, child in (("few", "one"), ("parent", "child")):
            limiter.create_entity(parent)
            limiter.create_entity(child, parent_id=parent, cascade=True)
        for name, above in (("top", None), ("mid", "top"), ("low", "mid")):
            limiter.create_entity(name, parent_id=above, cascade=above is not None)
        limiter.set_limits("parent", [Limit("rpm", 10, 1, NEVER)])
        limiter.set_limits("child", [Limit("rpm", 100, 1, NEVER)])
    return here


def race(pair: tuple[Rival, Rival], *orders: str) -> list[str]:
    """Both are told at the same instant."""
    for rival, order in zip(pair, orders, strict=True):
        rival.tell(order)
    return [rival.answer() for rival in pair]


@pytest.mark.parametrize("known", [True, False], ids=["warm", "first use"])
def test_of_two_who_need_the_same_two_tokens_one_gets_both(url: str, known: bool) -> None:
    """Child and parent have one token each; each process may get hold of one of them first."""
    with rivals(url) as pair:
        for turn in range(ROUNDS):
            resource = f"api-{turn}"
            if known:  # the buckets are there, and both processes have seen them
                assert pair[turn % 2].ask(f"ask one {resource} 1") == "yes"
                assert pair[turn % 2].ask("back") == "back"
            for rival in pair:
                assert rival.ask(f"look one {resource}") == "{'rpm': 1}"
            answers = race(pair, *[f"ask one {resource} 1"] * 2)
            assert sorted(answer.split()[0] for answer in answers) == ["no", "yes"], f"round {turn}"
            winner = pair[answers.index("yes")]
            assert winner.ask("back") == "back"


@pytest.mark.parametrize("known", [True, False], ids=["warm", "first use"])
def test_of_two_who_need_the_same_three_tokens_one_gets_all(url: str, known: bool) -> None:
    """A chain of three with one token each, asked from below and from the middle at the same moment."""
    with rivals(url) as pair:
        for turn in range(ROUNDS):
            resource, asked = f"deep-{turn}", [("low", "mid"), ("low", "low"), ("mid", "top")][turn % 3]
            if known:  # the buckets are there, and both processes have seen them
                assert pair[turn % 2].ask(f"ask low {resource} 1") == "yes"
                assert pair[turn % 2].ask("back") == "back"
            for rival in pair:
                assert rival.ask(f"look low {resource}") == "{'rpm': 1}"
            answers = race(pair, *[f"ask {entity_id} {resource} 1" for entity_id in asked])
            assert sorted(answer.split()[0] for answer in answers) == ["no", "yes"], f"round {turn}"
            winner = pair[answers.index("yes")]
            assert winner.ask("back") == "back"
            left = pair[turn % 2].ask(f"look low {resource}")
            assert left == "{'rpm': 1}", "nothing is left taken anywhere"


def test_what_can_never_pass_takes_nothing_from_whom_it_fits(url: str) -> None:
    """One process asks for more than the parent can ever give, the other for a little, both of one child."""
    with rivals(url) as pair:
        for turn in range(ROUNDS):
            large, small = race(pair, "ask child api 50", "ask child api 10")
            assert (large, small) == ("no inf", "yes"), f"round {turn}"
            assert pair[1].ask("back") == "back"


def test_who_asks_the_parent_itself_is_not_hindered_by_its_children(url: str) -> None:
    """A child that is refused by its own bucket holds nothing of the parent's."""
    with rivals(url) as pair:
        assert pair[0].ask("ask child api 10") == "yes"
        assert pair[0].ask("back") == "back"
        for turn in range(ROUNDS):
            refused, admitted = race(pair, "ask child api 101", "ask parent api 10")
            assert (refused, admitted) == ("no inf", "yes"), f"round {turn}"
            assert pair[1].ask("back") == "back"


# A bucket that somebody else split.


async def split_by_another(limiter: RateLimiter, backend: Backend, entity_id: str, times: int) -> None:
    """What another process does to a bucket that is written too often."""
    world = limiter.repository.writer.world
    account = Account(
        key_of(limiter, entity_id), limiter.repository.namespace_id, entity_id, RESOURCE, Terms({})
    )
    for _ in range(times):
        (first,) = await backend.batch_get([account.key])
        assert first is not None
        target = doubled(first)
        assert target is not None
        outcomes = await backend.transact_write(split(account, 0, first, target, world.now_ms()))
        assert all(outcome.applied for outcome in outcomes)


@pytest.mark.parametrize("cache_ttl_seconds", [0.0, 60.0])
@pytest.mark.parametrize("entity_id", ["parent", "child"])
@pytest.mark.parametrize("times", [1, 2])
async def test_nobody_is_refused_by_shards_that_were_not_looked_at(
    entity_id: str, times: int, cache_ttl_seconds: float
) -> None:
    """With 70 of 98 left in shards that others made, all that fits is admitted; waits are of the whole."""
    clock = ManualClock()
    backend = HotMemory(clock.world)
    backend.capabilities = replace(backend.capabilities, atomic_batches=False)
    for turn in range(8):
        first, second = [
            RateLimiter(
                await Repository.over(
                    backend, f"n-{turn}", Options(config_cache_ttl_seconds=cache_ttl_seconds), clock.world
                )
            )
            for _ in range(2)
        ]
        await first.set_resource_defaults(RESOURCE, [Limit("rpm", 98, 1, NEVER)])
        await first.create_entity("parent")
        await first.create_entity("child", parent_id="parent", cascade=True)
        for limiter in (first, second):
            async with limiter.acquire("child", RESOURCE, {"rpm": 14}):
                pass
        await split_by_another(first, backend, "parent", times)
        with pytest.raises(RateLimitExceeded) as caught:
            async with second.acquire(entity_id, RESOURCE, {"rpm": 71}):
                pass
        assert [s.available for s in caught.value.violations if s.entity_id == "parent"] == [70]
        assert caught.value.retry_after_seconds < float("inf")
        async with second.acquire(entity_id, RESOURCE, {"rpm": 70}):
            pass
        assert (await second.available("parent", RESOURCE))["rpm"] == 0
