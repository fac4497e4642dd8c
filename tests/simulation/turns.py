"""Turns for one bucket's seats, judged by who had to wait: nobody is overtaken without end.

Processes take seats of one entity again and again, most of them with ``wait``, some without, some for a seat
and a rate, and others for the rate alone; some crash while they wait or work. Whoever takes a seat leaves
theirs to those who are announced and asked before. Whoever waits begins in the end; only until it is
announced may some go before it, or while it waits for the rate. Who crashed delays others for seconds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from tests.simulation.ideal import WatchedWriter
from tests.simulation.parking import Cancelled, Nap
from tests.simulation.simulation import Network, Process, Simulation
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.announced import AHEAD_MS, TICKETS_PER_MS, VALID_MS, waiters
from zae_limiter.engine.seats import places
from zae_limiter.exceptions import RateLimitExceeded
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Item, Outcome, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import number, sk_state

RESOURCE, ENTITY, NAME = "api", "key", "parallel"
HOLD_SECONDS = 8
STEPS_MAX = 20_000
TURN_MS_MAX = 5_000
"""What one after another takes at most on the way, at work and until it is noticed."""

OVERTAKEN_MAX = 6
"""How many may go before somebody who waits for a seat only: those who are faster than its announcement."""


class Turns:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        self.simulation.in_flight = 1  # nobody sleeps for longer than it says
        rng = self.simulation.rng
        self.seats, self.with_rate = rng.choice((1, 1, 2)), rng.random() < 0.4
        self.store = MemoryBackend(Process(self.simulation).world)
        self.store.capabilities = replace(self.store.capabilities, hot_partitions=rng.random() < 0.3)
        self.setup = run_sync(Repository.over(self.store, world=Process(self.simulation).world))
        limits = [Limit.concurrent(NAME, self.seats, HOLD_SECONDS), Limit("rpm", 2, 2, 1)]
        run_sync(self.setup.set_limits(ENTITY, limits, RESOURCE))
        self.waiting: dict[int, int] = {}
        """Since when somebody waits, by its number; only of processes that are there."""
        self.overtaken: dict[int, int] = {}
        self.asking: dict[Process, int] = {}
        """Who asks, or works, in a process: one at a time."""
        self.began = self.rate_only = 0
        self._number = 0
        self.doomed: list[Process] = []
        for place in range(rng.choice((2, 3, 4))):
            self._hire(crashes=place > 1 and rng.random() < 0.5)
        self.simulation.before_step = self._strike

    def _hire(self, *, crashes: bool) -> None:
        rng = self.simulation.rng
        process = Process(self.simulation)
        network = Network(process, self.store, 0.0, partial(self._see, process))
        connection = Connection(network, process.world, Options(60.0))
        connection.writer = WatchedWriter(process, network, {})
        limiter = RateLimiter(Repository(connection, self.setup.namespace_name, self.setup.namespace_id))
        if crashes:
            self.doomed.append(process)
        process.spawn(self._work(process, limiter), interruptible=True)
        if self.with_rate:
            process.spawn(self._use_the_rate(limiter, rng.choice((5, 10))), interruptible=True)

    def _strike(self) -> None:
        rng = self.simulation.rng
        if self.doomed and rng.random() < 0.005:
            process = self.doomed.pop()
            process.crash()
            self.simulation.faults["waiters crashed"] += 1

    def _see(self, process: Process, write: Write, before: Item | None, outcome: Outcome) -> None:
        """Whoever takes a seat leaves those theirs who wait for longer, and takes nobody off but itself."""
        if write.key.sort != sk_state() or not outcome.applied or before is None or outcome.item is None:
            return
        now_ms, tokens, used = self.simulation.now_ms, f"b_{NAME}_tk", f"b_{NAME}_tc"
        there, left = waiters(before, NAME, now_ms), waiters(outcome.item, NAME, now_ms)
        gone = {it.ticket for it in there} - {it.ticket for it in left}
        assert len(gone) <= 1, f"{gone} were taken off by one write"
        found, leaves = number(before, tokens), number(outcome.item, tokens)
        takes = number(outcome.item, used) > number(before, used)
        if takes:
            self._overtake(self.asking[process], outcome.item)
        if gone and takes:  # also where more has lapsed
            earlier = sum(it.seats for it in there if it.ticket < min(gone))
            assert leaves >= 1000 * earlier, f"{leaves} are left, and {earlier} wait for longer"
        elif gone:
            assert leaves == found, "somebody was taken off by who gave a seat back"
            self.simulation.faults["gave up waiting"] += 1

    async def _work(self, process: Process, limiter: RateLimiter) -> None:
        rng = self.simulation.rng
        for _ in range(rng.choice((3, 6, 9))):
            needs = {NAME: 1, "rpm": 1} if self.with_rate and rng.random() < 0.5 else {NAME: 1}
            wait = rng.choice((None, math.inf, math.inf, math.inf))
            self._number += 1
            me = self.asking[process] = self._number
            if wait is not None:
                self.waiting[me] = self.simulation.now_ms
                if "rpm" not in needs:
                    self.overtaken[me] = 0
            try:
                async with limiter.acquire(ENTITY, RESOURCE, needs, wait=wait):
                    self.began += 1
                    await Nap().wait(rng.uniform(0, 0.2))
            except RateLimitExceeded:
                self.simulation.faults["stepped back"] += 1
                assert wait is None, "whoever waits for ever was refused"
                await Nap().wait(rng.uniform(0, 0.05))
            except Cancelled:
                pass
            finally:
                self.waiting.pop(me, None)

    def _overtake(self, me: int, image: Item) -> None:
        """Whoever waits since before somebody asked who has a seat now is overtaken, if none is left for it.

        One is if more are free than those want who are announced and asked before. It may sleep meanwhile,
        and others take and give back the rest as often as they like.
        """
        now_ms = self.simulation.now_ms
        mine = self.waiting.pop(me, now_ms)
        held = sum(place.taken for place in places(image, NAME) if not place.is_over(now_ms))
        told = waiters(image, NAME, now_ms)
        for other, since_ms in self.waiting.items():
            wanted = sum(it.seats for it in told if it.ticket < since_ms * TICKETS_PER_MS)
            if since_ms < mine and other in self.overtaken and self.seats - held <= wanted:
                self.overtaken[other] += 1
                most = self.overtaken[other]
                assert most <= OVERTAKEN_MAX, f"{other} waits since {since_ms}, and {most} went before it"

    async def _use_the_rate(self, limiter: RateLimiter, times: int) -> None:
        for _ in range(times):
            async with limiter.acquire(ENTITY, RESOURCE, {"rpm": 1}, wait=math.inf):
                self.rate_only += 1

    def run(self) -> None:
        started_ms = self.simulation.now_ms
        self.simulation.run(STEPS_MAX)
        passed_ms = self.simulation.now_ms - started_ms
        crashed_ms = (HOLD_SECONDS * 1125 + VALID_MS + AHEAD_MS) * self.simulation.faults["waiters crashed"]
        assert passed_ms < TURN_MS_MAX * self._number + crashed_ms, f"{self._number} took {passed_ms} ms"
