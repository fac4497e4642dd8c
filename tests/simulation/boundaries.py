"""Waiting for a boundary that is far, judged by who is kept from what, and by when work begins.

Processes wait for a quota of one bucket. Most of them take of a rate as well, others use that rate alone and
do not wait. Some give up, and some crash. Nobody is kept from the rate for longer than a boundary is near; in
no period does more begin than its quota, and never more than the rate allows; who waits for ever is not
refused, and who wakes earlier is not left for a later period, unless a place came free after it had looked.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from typing import NamedTuple
from unittest import mock

from tests.engine.booking_worlds import Tin
from tests.simulation.ideal import WatchedWriter
from tests.simulation.parking import Cancelled, Nap
from tests.simulation.simulation import Network, Process, Simulation
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.booking import AGED_MS_MAX, NEAR_MS
from zae_limiter.engine.law import Rate, accrued
from zae_limiter.exceptions import RateLimitExceeded
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit
from zae_limiter.models.accruals import calendar, steps_of
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.runtime.colour import run_sync

RESOURCE, ENTITY, QUOTA, RATE = "api", "key", "quota", "rate"
STARTS = (datetime(2026, 3, 28, 20, tzinfo=UTC), datetime(2026, 12, 30, 21, tzinfo=UTC))
HOUR = 3_600.0
LATE_MS = 2_000
"""Longer than a step, or a reply, may be late."""

STEPS_MAX = 60_000


class Begun(NamedTuple):
    """Some work that was done."""

    at_ms: int
    since_ms: int
    needs: dict[str, int]
    waits: bool


class Boundaries:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        self.simulation.in_flight = 1  # nobody sleeps for longer than it says
        self.rng = rng = random.Random(f"boundaries {seed}")
        self.simulation.now_ms = int(rng.choice(STARTS).timestamp()) * 1000
        self.accrual = calendar(rng.choice(("hour", "hour", "day")), rng.choice(("UTC", "Europe/Berlin")))
        self.capacity, rate = rng.choice((1, 2, 5)), Limit(RATE, rng.choice((2, 10)), rng.choice((1, 10)), 60)
        self.rate = Rate.of(rate)
        self.store = MemoryBackend(Process(self.simulation).world)
        self.setup = run_sync(Repository.over(self.store, world=Process(self.simulation).world))
        quota = Limit._quota(QUOTA, self.capacity, self.capacity, self.accrual, None)
        run_sync(self.setup.set_limits(ENTITY, [quota, rate], RESOURCE))
        self.begun: list[Begun] = []
        self.gave_up_ms: list[int] = []
        self.doomed: list[Process] = []
        for place in range(rng.choice((2, 3))):
            self._hire(crashes=place > 0 and rng.random() < 0.4)
        self.simulation.before_step = self._strike

    def _hire(self, *, crashes: bool) -> None:
        process = Process(self.simulation)
        network = Network(process, self.store, 0.0, lambda *_: None)
        connection = Connection(network, process.world, Options(60.0))
        connection.writer = WatchedWriter(process, network, {})
        limiter = RateLimiter(Repository(connection, self.setup.namespace_name, self.setup.namespace_id))
        if crashes:
            self.doomed.append(process)
        for _ in range(self.rng.choice((2, 4))):
            process.spawn(self._wait(limiter), interruptible=True)
        process.spawn(self._use_the_rate(limiter))

    def _strike(self) -> None:
        if self.rng.random() < 0.002 and (victims := self.simulation.interruptible()):
            self.rng.choice(victims).to_throw = Cancelled()
        if self.doomed and self.rng.random() < 0.002:
            self.doomed.pop().crash()
            self.simulation.faults["sleepers crashed"] += 1

    async def _wait(self, limiter: RateLimiter) -> None:
        """Ask now and then for the quota, with the rate or without, and wait for it."""
        rng = self.rng
        for _ in range(rng.choice((2, 3, 4))):
            await Nap().wait(rng.uniform(0, rng.choice((0.02, 1, 6)) * HOUR))
            needs = {QUOTA: 1, RATE: rng.choice((1, 2))} if rng.random() < 0.8 else {QUOTA: 1}
            wait = rng.choice((math.inf, math.inf, 0.2 * HOUR, 3 * HOUR))
            asked_ms = self.simulation.now_ms
            try:
                async with limiter.acquire(ENTITY, RESOURCE, needs, wait=wait):
                    now_ms = self.simulation.now_ms
                    self.simulation.faults["slept until a boundary"] += (
                        now_ms - asked_ms > NEAR_MS + AGED_MS_MAX
                    )
                    begun = Begun(now_ms, asked_ms, needs, math.isinf(wait))
                self.begun.append(begun)
            except RateLimitExceeded as refusal:
                self._check_patience(refusal, asked_ms, wait)
            except Cancelled:
                self.simulation.faults["sleepers cancelled"] += 1
                self.gave_up_ms.append(self.simulation.now_ms)

    def _check_patience(self, refusal: RateLimitExceeded, asked_ms: int, wait: float) -> None:
        """Nobody is refused who would have waited; at once, unless others got the place at a boundary."""
        assert not math.isinf(wait), "whoever waits for ever was refused"
        passed_ms, told_ms = self.simulation.now_ms - asked_ms, refusal.retry_after_seconds * 1000
        assert told_ms + passed_ms + LATE_MS >= wait * 1000, f"{told_ms} ms is not more than {wait} s"
        steps = steps_of(self.accrual)
        next_ms = steps.instant(steps.count(asked_ms) + 1)
        at_once = passed_ms <= LATE_MS
        in_vain = (
            next_ms <= asked_ms + wait * 1000 and self.simulation.now_ms > next_ms - NEAR_MS - AGED_MS_MAX
        )
        assert at_once or in_vain, f"who would wait for {wait} s was refused after {passed_ms} ms"
        self.simulation.faults["slept in vain"] += not at_once

    async def _use_the_rate(self, limiter: RateLimiter) -> None:
        """Whoever does not wait finds the rate closed for a while at most, never for hours."""
        longest_ms = NEAR_MS + AGED_MS_MAX + self.rate.fill_ms + 20 * self.rate.refill_period_ms
        for _ in range(self.rng.choice((10, 20))):
            await Nap().wait(self.rng.uniform(0, HOUR))
            asked_ms = self.simulation.now_ms
            try:
                async with limiter.acquire(ENTITY, RESOURCE, {RATE: 1}):
                    begun = Begun(self.simulation.now_ms, asked_ms, {RATE: 1}, False)
                self.begun.append(begun)
            except RateLimitExceeded as refusal:
                told_ms = refusal.retry_after_seconds * 1000
                assert told_ms <= longest_ms, f"the rate is closed for {told_ms} ms"

    def run(self) -> None:
        with mock.patch("zae_limiter.engine.wait.NAP_SECONDS_MAX", HOUR):
            self.simulation.run(STEPS_MAX)
        self._check_quota()
        self._check_rate()
        self._check_order()

    def _check_quota(self) -> None:
        steps = steps_of(self.accrual)
        for period in {steps.count(it.at_ms) for it in self.begun}:
            used = sum(it.needs.get(QUOTA, 0) for it in self.begun if steps.count(it.at_ms) == period)
            assert used <= self.capacity, f"{used} of {self.capacity} began in one period"

    def _check_rate(self) -> None:
        began = sorted(self.begun)
        tin = Tin(self.rate, self.rate.capacity_milli, began[0].at_ms) if began else None
        for it in began:
            assert tin is not None
            tin.advance(it.at_ms)
            tin.level -= it.needs.get(RATE, 0) * 1000
            assert tin.level >= -accrued(self.rate, 2 * LATE_MS) - 4, f"{it} began at {tin.level}"

    def _check_order(self) -> None:
        """Who was awake well before another one, for a place that is the same, has one in no later period."""
        steps, both = steps_of(self.accrual), [it for it in self.begun if RATE in it.needs and it.waits]
        for early in both:
            for late in both:
                more = late.needs[RATE] < early.needs[RATE]
                at_ms = steps.instant(steps.count(late.at_ms))
                if (
                    early.since_ms >= late.since_ms
                    or early.at_ms <= late.at_ms
                    or more
                    or at_ms <= late.since_ms
                ):
                    continue
                wakes = [max(it.since_ms, _wakes_ms(at_ms, it.since_ms)) for it in (early, late)]
                # A place that is given up is for whoever looks next; who saw it taken sleeps for a later one.
                came_free = any(early.since_ms <= gave_up_ms <= late.at_ms for gave_up_ms in self.gave_up_ms)
                if wakes[1] - wakes[0] > LATE_MS and not came_free:
                    assert steps.count(early.at_ms) <= steps.count(late.at_ms), f"{late} was before {early}"


def _wakes_ms(boundary_ms: int, since_ms: int) -> float:
    """When somebody books for a boundary who sleeps until it is near."""
    waits_ms = boundary_ms - since_ms
    return boundary_ms - 60_000 - 60_000 * waits_ms / (waits_ms + 86_400_000)
