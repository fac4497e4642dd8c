"""The law of the page's pictures is the limiter's: the same stories, told to both."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from zae_limiter import (
    Limit,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    SyncLease,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.law import Rate, balance
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.testing import ManualClock

TELLER = Path(__file__).with_name("law_stories.js")
STORIES = 1_000
BEGIN_MS = 1_774_735_200_000
PATIENCE_SECONDS = 40

Story = dict[str, Any]
Answers = list[dict[str, Any]]


def story_of(seed: int) -> Story:
    """Limits of any rates, and people who ask, wait, settle and fail, at any instants."""
    chance = random.Random(seed)
    # What the pictures say of waiting is about one limit and needs far below its capacity, and nothing comes
    # back meanwhile. The limiter sets aside what does, and cuts off what is full a little after the slot.
    in_line = seed % 4 == 0
    names = ("rpm", "tpm", "calls")[: chance.randint(1, 3)]
    limits = {
        name: (chance.randint(1, 60), chance.randint(1, 90), chance.choice((1, 2, 7, 60, 3_600)))
        for name in names
    }
    if in_line:
        limits = {"rpm": (60, chance.randint(1, 30), chance.choice((1, 2, 7, 60)))}
    kinds = (
        ("acquire", "book", "book", "settle")
        if in_line
        else ("acquire", "acquire", "acquire", "settle", "refund")
    )
    steps = [step_of(kinds, number, limits, chance) for number in range(24)]
    return {"begin": BEGIN_MS + chance.randrange(10**9), "limits": limits, "steps": steps}


def step_of(
    kinds: Sequence[str], number: int, limits: dict[str, Any], chance: random.Random
) -> dict[str, Any]:
    kind = chance.choice(kinds)
    step: dict[str, Any] = {"do": kind}
    if chance.random() < 0.8:
        step["pass"] = chance.choice((1, chance.randint(1, 50), chance.randint(1, 5_000), 60_000))
    if kind in ("acquire", "book"):
        asked = chance.sample(sorted(limits), chance.randint(1, len(limits)))
        most = [30 if kind == "book" else min(limits[name][0] + 1, chance.choice((3, 61))) for name in asked]
        step["amounts"] = {name: 1000 * chance.randint(1, top) for name, top in zip(asked, most, strict=True)}
    else:
        step["of"] = chance.randrange(number + 1)
    if kind == "settle":
        least = 0 if "refund" in kinds else 61
        step["amounts"] = {name: 1000 * chance.randint(least, 90) for name in limits}
    if kind == "book":
        step["patience"] = 1000 * PATIENCE_SECONDS
    return step


class Told:
    """One story, as the limiter answers it."""

    def __init__(self, story: Story) -> None:
        self.clock = ManualClock(story["begin"])
        repository = SyncRepository.over(MemoryBackend(self.clock.world), world=self.clock.world)
        self.limits = [Limit(name, *numbers) for name, numbers in story["limits"].items()]
        self.limiter = SyncRateLimiter(repository)
        self.limiter.set_resource_defaults("api", self.limits)
        with self.limiter.acquire("key", "api", {limit.name: 1 for limit in self.limits}) as lease:
            lease.settle({limit.name: 0 for limit in self.limits})  # from here on there is a bucket
        self.leases: dict[int, SyncLease] = {}

    def step(self, number: int, step: dict[str, Any]) -> dict[str, Any]:
        self.clock.advance(step.get("pass", 0) / 1000)
        answer = ""
        amounts = {name: milli // 1000 for name, milli in step.get("amounts", {}).items()}
        if step["do"] in ("acquire", "book"):
            answer = self._ask(number, step["do"], amounts)
        elif lease := self.leases.pop(step["of"], None):
            if step["do"] == "settle":
                lease.settle(amounts)
                lease.commit()
            else:
                lease.cancel()
        return {"answer": answer, "held": self.held()}

    def _ask(self, number: int, kind: str, amounts: dict[str, int]) -> str:
        try:
            if kind == "book":
                lease = self.limiter.acquire("key", "api", amounts, wait=PATIENCE_SECONDS).open()
                answer = f"waits {lease.waited_ms}"
            else:
                lease = self.limiter.acquire("key", "api", amounts).open()
                answer = "admitted"
        except RateLimitExceeded as refusal:
            seconds = refusal.retry_after_seconds
            wait = "never" if seconds == float("inf") else str(round(seconds * 1000))
            refusing = ",".join(sorted(status.limit_name for status in refusal.violations))
            return f"refused {wait}" + (f" {refusing}" if kind == "acquire" else "")
        self.leases[number] = lease
        return answer

    def held(self) -> dict[str, str]:
        """To the millitoken, at this instant."""
        now_ms = self.clock.world.now_ms()
        states = self.limiter.repository.get_buckets("key", "api")
        return {
            one.limit_name: str(balance(Rate.of(one.limit), one.tokens_milli, one.last_refill_ms, now_ms))
            for one in states
        }


def told_by_the_limiter(story: Story) -> Answers:
    told = Told(story)
    answers = [told.step(number, step) for number, step in enumerate(story["steps"])]
    for lease in told.leases.values():
        lease.commit()
    return answers


def told_by_the_page(stories: list[Story]) -> list[Answers]:
    node = shutil.which("node")
    assert node is not None, "the law of the page is checked with node; install Node.js"
    asked = [
        {
            "begin": story["begin"],
            "steps": story["steps"],
            "rates": {
                name: {"capacity": 1000 * capacity, "amount": 1000 * amount, "period": 1000 * seconds}
                for name, (capacity, amount, seconds) in story["limits"].items()
            },
        }
        for story in stories
    ]
    ran = subprocess.run(
        [node, str(TELLER)], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    answers: list[Answers] = json.loads(ran.stdout)
    return answers


@pytest.fixture(scope="module")
def both() -> list[tuple[Story, Answers, Answers]]:
    stories = [story_of(seed) for seed in range(STORIES)]
    drawn = told_by_the_page(stories)
    return [(story, told_by_the_limiter(story), theirs) for story, theirs in zip(stories, drawn, strict=True)]


def test_a_thousand_stories_end_alike(both: list[tuple[Story, Answers, Answers]]) -> None:
    """Every answer, every wait to the millisecond and every state to the thousandth of a token."""
    for story, ours, drawn in both:
        for number, (one, other) in enumerate(zip(ours, drawn, strict=True)):
            assert one == other, f"step {number} of {story}"


def test_the_stories_are_about_something(both: list[tuple[Story, Answers, Answers]]) -> None:
    """Refusals, waits, debts, what never fits and what is given back are all in them, many times."""
    steps = [step for _, ours, _ in both for step in ours]
    answers = [step["answer"] for step in steps]
    assert sum(answer == "admitted" for answer in answers) > 1_000
    assert sum(answer.startswith("refused never") for answer in answers) > 50
    assert sum(answer.startswith("refused") and "never" not in answer for answer in answers) > 1_000
    assert sum(answer.startswith("waits") and answer != "waits 0" for answer in answers) > 50
    assert sum(any(held.startswith("-") for held in step["held"].values()) for step in steps) > 1_000


def still(seconds: float) -> None:
    """Sleep without moving the clock."""
    del seconds


class Line:
    """People who wait for one bucket, under a clock that moves when it is told to."""

    def __init__(self, story: Story) -> None:
        self.clock = ManualClock(story["begin"])
        self.limits = [Limit(name, *numbers) for name, numbers in story["limits"].items()]
        backend = MemoryBackend(self.clock.world)
        backend.colour = Asyncio()  # type: ignore[misc]
        self.backend = backend
        self.world = dataclasses.replace(self.clock.world, nap=still)

    async def told(self, steps: list[dict[str, Any]], drawn: Answers) -> None:
        limiter = RateLimiter(await Repository.over(self.backend, world=self.world))
        begun: list[tuple[asyncio.Task[int | None], int]] = []
        for step, answer in zip(steps, drawn, strict=True):
            self.clock.advance(step["pass"] / 1000)
            task = asyncio.create_task(self._wait(limiter, step["amounts"]))
            await self._look()
            wait_ms = int(answer["answer"].removeprefix("waits "))
            begun.append((task, self.clock.now_ms + wait_ms))
            left = await limiter.available("key", "api", self.limits)
            assert left == {name: int(held) // 1000 for name, held in answer["held"].items()}
        for task, slot_ms in begun:
            if slot_ms > self.clock.now_ms:
                self.clock.now_ms = slot_ms - 1
                await self._look()
                assert not task.done()
                self.clock.now_ms = slot_ms
                await self._look()
            assert task.done()
            await task

    async def _wait(self, limiter: RateLimiter, amounts: dict[str, int]) -> int | None:
        asked = {name: milli // 1000 for name, milli in amounts.items()}
        async with limiter.acquire("key", "api", asked, self.limits, wait=math.inf) as lease:
            return lease.waited_ms

    async def _look(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(50))
def test_a_line_moves_as_it_is_drawn(seed: int) -> None:
    """Everybody begins at the millisecond that the picture tells, and not one before."""
    chance = random.Random(seed)
    numbers = chance.randint(1, 9), chance.randint(1, 90), chance.choice((1, 2, 7, 60))
    steps = [
        {
            "do": "book",
            "stay": True,
            "patience": 10**12,
            "pass": chance.randint(0, 2_000),
            "amounts": {"rpm": 1000 * chance.randint(1, numbers[0])},
        }
        for _ in range(8)
    ]
    story = {"begin": BEGIN_MS + chance.randrange(10**9), "limits": {"rpm": numbers}, "steps": steps}
    (drawn,) = told_by_the_page([story])
    asyncio.run(Line(story).told(steps, drawn))
